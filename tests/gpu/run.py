#!/usr/bin/env python3
"""Runs every scenario on a host with a real NVIDIA GPU and writes what outlive and the usual tools said of it.

    tests/gpu/run.py OUTLIVE OUT

OUTLIVE is the program, OUT an empty folder. Needs root, nvcc, and python3 with PyTorch for one scenario. Writes
OUT/h200.md (readable), OUT/results.json and OUT/NAME.jsonl.zst (recordings). Exit code 0 when every scenario was
explained as expected. Never resets the GPU and never changes a setting of it.
"""
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 2048
# A CUDA start and 40 GiB of pinned memory take this long at most.
READY_S = 60

# name, command, what is done to it, expected cause, expected holders ("owner"/"other"), via
SCENARIOS = [
    ("inherited", ["fork-all"], "kill", "inherited_descriptor", {"other": "fork"}),
    ("inherited-ctl", ["fork-ctl"], "kill", "inherited_descriptor", {"other": "fork"}),
    ("inherited-uvm", ["fork-uvm"], "kill", "inherited_descriptor", {"other": "fork"}),
    ("inherited-gpu", ["fork-gpu"], "kill", "inherited_descriptor", {"other": "fork"}),
    ("forked-then-execed", ["fork-exec"], "kill", None, {}),
    ("killed", ["hold"], "kill", None, {}),
    ("zombie", ["hold"], "zombie", None, {}),
    ("alive", ["hold"], "nothing", "owner_alive", {"owner": "opened"}),
    ("leader-exited", ["leader"], "nothing", "leader_exited", {"owner": "thread"}),
    ("stopped-then-term", ["hold"], "stop", "owner_stopped", {"owner": "opened"}),
    ("term-ignored", ["term-ignored"], "term", "signal_not_fatal", {"owner": "opened"}),
    ("term-handled", ["term-handled"], "term", "signal_not_fatal", {"owner": "opened"}),
    ("term-blocked", ["term-blocked"], "term", "signal_not_fatal", {"owner": "opened"}),
    ("orphaned", ["launcher"], "kill-other", "orphaned_process", {"owner": "opened"}),
    ("passed", ["passed"], "kill", "passed_descriptor", {"other": "scm_rights"}),
    ("in-flight", ["in-flight"], "kill", "descriptor_in_flight", {"other": "in_flight"}),
    ("core-dump", ["crash"], "wait-crash", "core_dump", {"owner": "opened"}),
    ("pinned", ["pinned", "40960"], "kill-now", "teardown_running", None),
    # The importer opened everything itself, and NVML charges the memory to it from the exporter's end on.
    ("imported", ["ipc"], "kill-sibling", "owner_alive", {"owner": "opened"}),
    ("dataloader", ["PY"], "kill", "inherited_descriptor", {"other": "fork"}),
]
# Without a recording nothing tells that a signal was sent and did not kill.
COLD_CAUSE = {"term-ignored": "owner_alive", "term-handled": "owner_alive"}


def run(command, timeout=30, **more):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, errors="replace", **more)
        return done.returncode, done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, f"({error})"


class Host:
    def __init__(self, outlive, out):
        self.outlive, self.out, self.work = outlive, out, tempfile.mkdtemp(prefix="outlive-gpu-")
        self.program = os.path.join(self.work, "scenarios")
        code, text = run(["nvcc", "-O1", "-o", self.program, os.path.join(HERE, "scenarios.cu"), "-lcuda", "-lpthread"], 120)
        if code != 0:
            sys.exit(f"nvcc cannot build scenarios.cu:\n{text}")
        self.base = self.used()

    def used(self):
        _, text = run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
        return int(text.split()[0])

    def explain(self, *more):
        began = time.monotonic()
        code, text = run([self.outlive, "explain", "--json", *more])
        took = time.monotonic() - began
        try:
            return code, json.loads(text), took
        except ValueError:
            return code, {"holdings": [], "broken": text}, took

    def wait_for_base(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.used() <= self.base + 8:
                return True
            time.sleep(0.2)
        return False


def line(stream, seconds):
    """One line, or nothing when it does not come in time."""
    return stream.readline() if select.select([stream], [], [], seconds)[0] else ""


def others(host):
    """What the usual tools print."""
    texts = []
    for title, command in [
        ("nvidia-smi", ["nvidia-smi"]),
        ("nvidia-smi --query-compute-apps", ["nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv"]),
        ("fuser -v", ["sh", "-c", "fuser -v /dev/nvidia* 2>&1"]),
        ("lsof", ["sh", "-c", "lsof /dev/nvidia* 2>&1 | head -20"]),
    ]:
        if title != "nvidia-smi" and shutil.which(command[0] if command[0] != "sh" else title.split()[0]) is None:
            texts.append(f"{title}: not installed here")
            continue
        _, text = run(command)
        if title == "nvidia-smi":
            text = text[text.find("| Processes"):]
        texts.append(f"$ {title}\n{text.strip()}")
    return "\n".join(texts)


def act(what, process, pids):
    owner = pids["owner"]
    if what == "kill":
        os.kill(owner, signal.SIGKILL)
        process.wait()
    elif what == "kill-now":
        os.kill(owner, signal.SIGKILL)
    elif what == "zombie":
        os.kill(owner, signal.SIGKILL)
    elif what == "kill-other":
        os.kill(pids["other"], signal.SIGKILL)
        process.wait()
    elif what == "kill-sibling":
        os.kill(pids["other"], signal.SIGKILL)
    elif what == "stop":
        os.kill(owner, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(owner, signal.SIGTERM)
    elif what == "term":
        os.kill(owner, signal.SIGTERM)
    if what == "wait-crash":
        time.sleep(1.5)
    elif what == "kill-now":
        time.sleep(0.3)
    else:
        time.sleep(1.2)


def judge(answer, cause, holders, pids, ours):
    """Which of cause, owner, holders are right; and the bytes."""
    found = [h for h in answer["holdings"] if h["cause"] not in ("driver_reserve",)]
    found = [h for h in found if not (h["owner"] and h["owner"]["pid"] == ours and h["cause"] == "owner_alive")]
    if cause is None:
        return not found, True, True, None, found[0]["cause"] if found else "-"
    mine = [h for h in found if h["cause"] == cause] or found
    if not mine:
        return False, False, False, None, "-"
    h = mine[0]
    owner_right = h["owner"] is not None and h["owner"]["pid"] == pids["owner"]
    seen = {x["pid"]: x["via"] for x in h["holders"]}
    expected = {pids[k]: via for k, via in (holders or {}).items()}
    if pids.get("all") and "other" in (holders or {}):
        expected = {pid: "fork" for pid in pids["all"]}
    holders_right = holders is None or seen == expected
    return h["cause"] == cause, owner_right, holders_right, h["bytes"], h["cause"]


def scenario(host, name, command, what, cause, holders):
    trace = os.path.join(host.out, f"{name}.jsonl.zst")
    recorder = subprocess.Popen([host.outlive, "record", "-o", trace], stderr=subprocess.PIPE, text=True)
    if "recording" not in line(recorder.stderr, READY_S):
        recorder.kill()
        raise RuntimeError("outlive record did not start")
    argv = [sys.executable, os.path.join(HERE, "dataloader.py")] if command == ["PY"] else [host.program, *command]
    if len(argv) == 2 and command != ["PY"]:
        argv.append(str(MIB))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=host.work, start_new_session=True)
    section = {"name": name}
    try:
        pids = json.loads(line(process.stdout, READY_S) or "{}")
        if "owner" not in pids:
            raise RuntimeError(f"{name} did not get ready")
        act(what, process, pids)
        acted = time.monotonic()
        cold_code, cold, took = host.explain()
        warm_code, warm, _ = host.explain("--history", trace)
        # The recorder flushes every second; some incidents last only a few.
        time.sleep(max(0, acted + 1.3 - time.monotonic()))
        moment = os.path.join(host.work, "moment.jsonl.zst")
        shutil.copy(trace, moment)
        section["cold_text"] = run([host.outlive, "explain"])[1]
        section["others"] = others(host)
        offline_code, offline, _ = host.explain("--trace", moment)
        section["offline_text"] = run([host.outlive, "explain", "--trace", moment])[1]
        section["pids"] = pids
        section["expected"] = cause
        section["rows"] = {
            "cold": (cold_code, *judge(cold, COLD_CAUSE.get(name, cause), holders, pids, recorder.pid)),
            "warm": (warm_code, *judge(warm, cause, holders, pids, recorder.pid)),
            "offline": (offline_code, *judge(offline, cause, holders, pids, recorder.pid)),
        }
        section["took_ms"] = round(took * 1000)
        section["json"] = {"cold": cold, "offline": offline}
    finally:
        if what in ("wait-crash", "kill-now"):
            process.wait(60)  # its own end is what the timeline is about
        for pid in [p for k, v in locals().get("pids", {}).items() for p in (v if isinstance(v, list) else [v])]:
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        section["memory_back"] = host.wait_for_base()
        time.sleep(1.0)
        recorder.send_signal(signal.SIGINT)
        recorder.wait(20)
        section["timeline"] = run([host.outlive, "timeline", trace, "--pid", str(locals().get("pids", {}).get("owner", 0))])[1]
        for leftover in os.listdir(host.work):
            if leftover.startswith("core"):
                os.unlink(os.path.join(host.work, leftover))
    return section


def write(host, sections):
    lines = ["| scenario | cause expected | cold | warm | offline | bytes (cold, warm, offline) | explain, ms |", "|---|---|---|---|---|---|---|"]
    good = True
    for s in sections:
        if "rows" not in s:
            lines.append(f"| {s['name']} | failed: {s.get('error')} | | | | | |")
            good = False
            continue
        cells = []
        for kind, (code, c, o, h, _, got) in s["rows"].items():
            right = c and o and h
            good &= right
            cells.append("right" if right else f"**{got}** cause {c} owner {o} holders {h} (exit {code})")
        size = ", ".join("-" if r[4] is None else f"{r[4] / 2**20:.0f} MiB" for r in s["rows"].values())
        lines.append(f"| {s['name']} | {s['expected'] or 'nothing held'} | {' | '.join(cells)} | {size} | {s['took_ms']} |")
    text = "\n".join(lines) + "\n"
    print(text)
    with open(os.path.join(host.out, "h200.md"), "w") as f:
        f.write(text)
        for s in sections:
            if "rows" not in s:
                continue
            f.write(f"\n## {s['name']}\n\nPIDs: {s['pids']}. Memory back after all were killed: {s['memory_back']}.\n\n")
            for title, key in [("The usual tools", "others"), ("`outlive explain`, nothing running before", "cold_text"), ("`outlive explain --trace`", "offline_text"), ("`outlive timeline`", "timeline")]:
                f.write(f"{title}:\n\n```\n{s[key].rstrip()}\n```\n\n")
    with open(os.path.join(host.out, "results.json"), "w") as f:
        json.dump(sections, f, indent=1)
    return good


def main():
    outlive, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    only = sys.argv[3:]
    os.makedirs(out, exist_ok=True)
    host, sections = Host(outlive, out), []
    for entry in SCENARIOS:
        if only and entry[0] not in only:
            continue
        began = time.monotonic()
        try:
            sections.append(scenario(host, *entry))
        except Exception as error:  # One scenario must not cost the others.
            sections.append({"name": entry[0], "error": repr(error)})
        print(f"{entry[0]}: {time.monotonic() - began:.1f} s", flush=True)
    return 0 if write(host, sections) else 1


if __name__ == "__main__":
    sys.exit(main())
