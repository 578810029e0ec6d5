#!/usr/bin/env python3
"""Keeps a run of run.py in the repository: recordings and truth as fixtures, and docs/h200.md.

    tests/gpu/keep.py OUT

OUT is the folder that run.py wrote. The truth is what the scenario did (PIDs that its programs printed, and the expected
cause of the table in run.py), not what outlive said.
"""
import json
import os
import shutil
import sys

from run import SCENARIOS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHOWN = ["dataloader", "inherited", "inherited-uvm", "in-flight", "leader-exited", "passed", "stopped-then-term", "orphaned"]
TIMELINES = ["killed", "core-dump", "pinned"]


def truth(section, cause, holders):
    pids = section["pids"]
    expected = None if holders is None else {str(pids[who]): via for who, via in holders.items()}
    if pids.get("all") and expected:
        expected = {str(pid): "fork" for pid in pids["all"]}
    return {"at": section["json"]["offline"]["taken_at"], "cause": cause, "owner": pids["owner"], "holders": expected}


def block(text):
    return f"```\n{text.rstrip()}\n```\n"


def table(out):
    with open(os.path.join(out, "h200.md")) as f:
        return f.read().split("\n\n")[0].split("\n## ")[0].strip()


def document(out, sections):
    by_name = {s["name"]: s for s in sections}
    text = [
        "# What outlive said on a real H200, beside the usual tools\n",
        "One NVIDIA H200 (143,771 MiB), driver 580.159.04 with the open kernel module, Linux 6.18, no persistence daemon. Written by "
        "`tests/gpu/run.py` and `tests/gpu/keep.py`; the recordings are in `tests/fixtures/h200`. Each scenario was looked at cold (nothing "
        "running before), warm (with the history of a recording), and offline (from the recording, at that moment); *right* means cause, "
        "owner, and exactly the right holders with how each came to hold. `outlive record`, which keeps NVML open, shows among the "
        "processes that have GPU files.\n",
        table(out) + "\n",
        "Bytes agree with NVML's figure for the owner where NVML names it. NVML names nobody for `inherited-uvm` and `in-flight`: there the "
        "figure is what remains of the GPU's used memory.\n",
    ]
    for name in SHOWN:
        s = by_name[name]
        text.append(f"## {name}\n\nOwner: PID {s['pids']['owner']}.\n\nThe usual tools:\n\n" + block(s["others"]))
        text.append("`outlive explain`, nothing running before:\n\n" + block(s["cold_text"]))
        text.append("`outlive explain --trace`:\n\n" + block(s["offline_text"]))
    text.append("## Exit timelines\n")
    for name in TIMELINES:
        text.append(f"`outlive timeline` of {name}:\n\n" + block(by_name[name]["timeline"]))
    with open(os.path.join(ROOT, "docs", "h200.md"), "w") as f:
        f.write("\n".join(text))


def main():
    out = sys.argv[1]
    with open(os.path.join(out, "results.json")) as f:
        sections = json.load(f)
    place = os.path.join(ROOT, "tests", "fixtures", "h200")
    os.makedirs(place, exist_ok=True)
    expected = {name: (cause, holders) for name, _, _, cause, holders in SCENARIOS}
    truths = {}
    for section in sections:
        name = section["name"]
        shutil.copy(os.path.join(out, f"{name}.jsonl.zst"), place)
        truths[name] = truth(section, *expected[name])
    with open(os.path.join(place, "truth.json"), "w") as f:
        json.dump(truths, f, indent=1)
        f.write("\n")
    document(out, sections)


if __name__ == "__main__":
    main()
