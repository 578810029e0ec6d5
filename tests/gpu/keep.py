#!/usr/bin/env python3
"""Keeps a run of run.py in the repository: recordings and truth as fixtures, and docs/h200.md.

    tests/gpu/keep.py OUT [COST]

OUT is the folder that run.py wrote, COST that of cost.py. The truth is what the scenario did (PIDs that its programs printed, and the expected
cause of the table in run.py), not what outlive said. A scenario that was skipped or failed, and one of which
no certain answer is expected, leaves no fixture.
"""
import json
import os
import re
import shutil
import sys

from run import SCENARIOS, Answer, books_table, table

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHOWN = [
    "dataloader", "inherited", "inherited-uvm", "exported", "in-flight", "imported", "leader-exited", "passed", "stopped-then-term", "orphaned",
]
TIMELINES = ["killed", "core-dump", "pinned"]


def truth(section, answers):
    """Of several answers, the first."""
    pids = section["pids"]
    at = {"at": section["json"]["offline"]["taken_at"]}
    if not answers:
        return {**at, "cause": None, "owner": pids["owner"], "holders": {}}
    cause, owner, holders = answers[0]
    expected = None if holders is None else {str(pids[who]): via for who, via in holders.items()}
    if pids.get("all") and expected:
        expected = {str(pid): "fork" for pid in pids["all"]}
    return {**at, "cause": cause, "owner": pids[owner], "holders": expected, "mib": pids.get("mib")}


def block(text):
    return f"```\n{text.rstrip()}\n```\n"


def document(sections, cost):
    by_name = {s["name"]: s for s in sections if "rows" in s}
    text = [
        "# What outlive said on a real H200, beside the usual tools\n",
        "One NVIDIA H200 (143,771 MiB), driver 580.159.04 with the open kernel module, Linux 6.18, no persistence daemon. Written by "
        "`tests/gpu/run.py` and `tests/gpu/keep.py`; the recordings are in `tests/fixtures/h200`. Each scenario was looked at cold (nothing "
        "running before), warm (with the history of a recording), and offline (from the recording, at that moment); *right* means cause, "
        "owner, and exactly the right holders with how each came to hold. `outlive record`, which keeps NVML open, shows among the "
        "processes that have GPU files.\n",
        table(sections)[0],
        "Without a recording, bytes are NVML's figure for the owner where NVML names it. NVML names nobody for `inherited-uvm` and "
        "`in-flight`: there the figure is what remains of the GPU's used memory.\n",
        "## Books against NVML\n",
        "With a recording, `outlive` adds up what the driver was asked to allocate and to free. Where NVML names the owner too, the two "
        "figures stand beside each other here.\n",
        books_table(sections)[0],
    ]
    if cost:
        text.append("## What recording costs GPU programs\n\nWritten by `tests/gpu/cost.py`.\n")
        with open(os.path.join(cost, "cost.md")) as f:
            text.append(f.read())
    for name in SHOWN:
        if name not in by_name:
            continue
        s = by_name[name]
        text.append(f"## {name}\n\nOwner: PID {s['pids']['owner']}.\n\nThe usual tools:\n\n" + block(s["others"]))
        text.append("`outlive explain`, nothing running before:\n\n" + block(s["cold_text"]))
        text.append("`outlive explain --trace`:\n\n" + block(s["offline_text"]))
    text.append("## Exit timelines\n")
    for name in TIMELINES:
        if name in by_name:
            text.append(f"`outlive timeline` of {name}:\n\n" + block(by_name[name]["timeline"]))
    with open(os.path.join(ROOT, "docs", "h200.md"), "w") as f:
        f.write("\n".join(text))


def main():
    out = sys.argv[1]
    with open(os.path.join(out, "results.json")) as f:
        sections = json.load(f)
    place = os.path.join(ROOT, "tests", "fixtures", "h200")
    os.makedirs(place, exist_ok=True)
    expected = {s.name: s.warm for s in SCENARIOS}
    # run.py judges MPS leniently; what this driver does is known by now: the client's memory goes with it, the server stays.
    expected["mps-client"] = [Answer("mps_server", "server", {"server": "opened"})]
    truths = {}
    for section in sections:
        name = section["name"]
        if "rows" not in section or expected[name] is None:
            continue
        shutil.copy(os.path.join(out, f"{name}.jsonl.zst"), place)
        truths[name] = truth(section, expected[name])
        if name == "mps-client":
            # What NVML charges to the server.
            server = re.search(rf"^{section['pids']['server']}, (\d+) MiB", section["nvml_after"], re.MULTILINE)
            truths[name]["mib"] = int(server.group(1))
    with open(os.path.join(place, "truth.json"), "w") as f:
        json.dump(truths, f, indent=1)
        f.write("\n")
    document(sections, sys.argv[2] if len(sys.argv) > 2 else None)


if __name__ == "__main__":
    main()
