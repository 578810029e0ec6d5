#!/usr/bin/env python3
"""Runs every scenario on a host with a real NVIDIA GPU and writes what outlive and the usual tools said of it.

    tests/gpu/run.py OUTLIVE OUT [NAME...]

OUTLIVE is the program, OUT an empty folder, NAME a scenario (without names: all). Needs root, nvcc, and python3 with PyTorch
for two scenarios. Writes OUT/h200.md (readable), OUT/results.json and OUT/NAME.jsonl.zst (recordings). Exit code 0 when every
scenario was explained as expected and the books agree with NVML. Never resets the GPU and never changes a setting of it.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple, Optional

from host import HERE, READY_S, SCENARIO_SOURCES, Mps, build, kill, kill_group, line, run, start_recorder

MIB = 2048
# Books and NVML, or bytes and what a scenario knows, agree when they differ by no more than this.
NEAR = 2 << 20


class Answer(NamedTuple):
    """What must be said of one piece of memory. Names of processes are those of the line that a scenario prints."""

    cause: str
    owner: str
    # Who holds it, and how it came to hold; None: not judged.
    holders: Optional[dict]


class Scenario(NamedTuple):
    name: str
    # A part of `scenarios` and MiB (MIB when left out), or a Python program of this folder.
    command: list
    # What is done to it: see act().
    act: str
    # What must be said with a recording; nothing: that nothing is held; None: judged by a function of its own.
    warm: Optional[list]
    # What must be said without; None: not judged.
    cold: Optional[list]
    # Why the books may differ from NVML's figure.
    exception: str = ""
    # The recording begins when the programs already run.
    late: bool = False


def says(cause, holders, owner="owner"):
    return [Answer(cause, owner, holders)]


def same(name, command, act, answers, exception=""):
    """A scenario of which the same is said with and without a recording."""
    return Scenario(name, command, act, answers, answers, exception)


ME = {"owner": "opened"}
FORK = {"other": "fork"}
ALIVE = says("owner_alive", ME)
# A cold look cannot know what was imported: NVML charges it to the importer, which opened everything itself.
IMPORTER = says("owner_alive", {"other": "opened"}, owner="other")
IMPORTED = says("imported_memory", {"other": "import"})
MPS = "the client of an MPS server: what NVML charges to whom is in its section"

SCENARIOS = [
    same("inherited", ["fork-all"], "kill", says("inherited_descriptor", FORK)),
    same("inherited-ctl", ["fork-ctl"], "kill", says("inherited_descriptor", FORK)),
    # The UVM file keeps clients of the kernel alive, not those of the owner.
    same("inherited-uvm", ["fork-uvm"], "kill", says("kernel_client", FORK)),
    same("inherited-gpu", ["fork-gpu"], "kill", says("inherited_descriptor", FORK)),
    same("forked-then-execed", ["fork-exec"], "kill", []),
    same("killed", ["hold"], "kill", []),
    same("zombie", ["hold"], "zombie", []),
    same("alive", ["hold"], "nothing", ALIVE),
    same("leader-exited", ["leader"], "nothing", says("leader_exited", {"owner": "thread"})),
    same("stopped-then-term", ["hold"], "stop", says("owner_stopped", ME)),
    # Without a recording nothing tells that a signal was sent and did not kill.
    Scenario("term-ignored", ["term-ignored"], "term", says("signal_not_fatal", ME), ALIVE),
    Scenario("term-handled", ["term-handled"], "term", says("signal_not_fatal", ME), ALIVE),
    same("term-blocked", ["term-blocked"], "term", says("signal_not_fatal", ME)),
    same("orphaned", ["launcher"], "kill-other", says("orphaned_process", ME)),
    same("passed", ["passed"], "kill", says("passed_descriptor", {"other": "scm_rights"})),
    same("exported", ["exported"], "kill", says("exported_handle", {"other": "export_fd"})),
    same("in-flight", ["in-flight"], "kill", says("exported_handle", {"other": "in_flight"})),
    same("dma-buf", ["dma-buf"], "kill", says("exported_handle", {"other": "export_fd"})),
    Scenario("imported", ["ipc"], "kill-child", IMPORTED, IMPORTER),
    # Its exporter was its parent.
    Scenario("mem-imported", ["mem-imported"], "kill", IMPORTED, says("orphaned_process", {"other": "opened"}, owner="other")),
    same("core-dump", ["crash"], "wait-crash", says("core_dump", ME)),
    same("pinned", ["pinned", "40960"], "kill-now", says("teardown_running", None)),
    same("dataloader", ["dataloader.py"], "kill", says("inherited_descriptor", FORK)),
    same("two", ["two"], "nothing", ALIVE + IMPORTER),
    same("vmm", ["vmm"], "nothing", ALIVE),
    same("async-pool", ["async-pool"], "nothing", ALIVE),
    same("managed", ["managed"], "nothing", ALIVE, "managed memory is not in NVML's figure for a process"),
    same("torch", ["train.py"], "nothing", ALIVE),
    Scenario("late", ["churn"], "nothing", ALIVE, ALIVE, "the recording began after the program", True),
    Scenario("mps-alive", ["hold"], "mps", None, None, MPS),
    Scenario("mps-client", ["hold"], "mps-kill", None, None, MPS),
]


class Host:
    def __init__(self, outlive, out):
        self.outlive, self.out, self.work = outlive, out, tempfile.mkdtemp(prefix="outlive-gpu-")
        self.program = os.path.join(self.work, "scenarios")
        build(self.program, SCENARIO_SOURCES)
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
            return code, {"holdings": [], "gpus": [], "broken": text}, took

    def wait_for_base(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.used() <= self.base + 8:
                return True
            time.sleep(0.2)
        return False

    def nvml(self):
        """Used memory and whom NVML charges, as text."""
        _, processes = run(["nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv"])
        _, table = run(["nvidia-smi"])
        return f"memory used: {self.used()} MiB\n{processes.strip()}\n{table[table.find('| Processes'):].strip()}"


def others():
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
    """Does it, and waits until what follows from it has settled."""
    owner = pids["owner"]
    if what in ("kill", "mps-kill"):
        os.kill(owner, signal.SIGKILL)
        process.wait()
    elif what in ("kill-now", "kill-child", "zombie"):
        os.kill(owner, signal.SIGKILL)
    elif what == "kill-other":
        os.kill(pids["other"], signal.SIGKILL)
        process.wait()
    elif what == "stop":
        os.kill(owner, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(owner, signal.SIGTERM)
    elif what == "term":
        os.kill(owner, signal.SIGTERM)
    time.sleep({"wait-crash": 1.5, "kill-now": 0.3, "mps-kill": 3}.get(what, 1.2))


def row(code, cause, owner, holders, size, got, note=""):
    """What was right in one look, and the bytes that it said."""
    right = cause and owner and holders and not note
    return {"exit": code, "right": right, "cause": cause, "owner": owner, "holders": holders, "bytes": size, "got": got, "note": note}


def held(answer, ours):
    """Holdings apart from the driver's reserve and what our own recorder has."""
    found = [h for h in answer["holdings"] if h["cause"] != "driver_reserve"]
    return [h for h in found if not (h["owner"] and h["owner"]["pid"] == ours and h["cause"] == "owner_alive")]


def owner_of(holding):
    return holding["owner"]["pid"] if holding["owner"] else None


def judge_one(code, found, wanted, pids, exact):
    """One piece of memory; `exact`: the scenario knows how many bytes it is."""
    owner = pids[wanted.owner]
    by_cause = [h for h in found if h["cause"] == wanted.cause]
    best = [h for h in by_cause if owner_of(h) == owner] or by_cause or [h for h in found if owner_of(h) == owner] or found
    if not best:
        return row(code, False, False, False, None, "-")
    h = best[0]
    seen = {x["pid"]: x["via"] for x in h["holders"]}
    expected = {pids[who]: via for who, via in (wanted.holders or {}).items()}
    if pids.get("all") and "other" in (wanted.holders or {}):
        expected = {pid: wanted.holders["other"] for pid in pids["all"]}
    note = ""
    if exact and pids.get("mib") and h["bytes"] is not None and abs(h["bytes"] - (pids["mib"] << 20)) > NEAR:
        note = f"{pids['mib']} MiB are held"
    holders_right = wanted.holders is None or seen == expected
    return row(code, h["cause"] == wanted.cause, owner_of(h) == owner, holders_right, h["bytes"], h["cause"], note)


def judge(code, answer, wanted, pids, ours, exact):
    """Which of cause, owner, holders are right, and the bytes: of everything that is wanted."""
    found = held(answer, ours)
    causes = ", ".join(h["cause"] for h in found) or "-"
    if wanted is None:
        return row(code, True, True, True, None, causes)
    if not wanted:
        return row(code, not found, True, True, None, causes)
    rows = [judge_one(code, found, one, pids, exact) for one in wanted]
    return next((r for r in rows if not r["right"]), rows[0])


def judge_mps(code, answer, what, pids, ours, freed):
    """Leniently: the client's memory is either gone, or laid at the server's door."""
    found = held(answer, ours)
    causes = ", ".join(f"{h['cause']} of {owner_of(h)}" for h in found) or "-"
    if what == "mps":
        mine = [h for h in found if owner_of(h) in (pids["owner"], pids["server"]) and h["cause"] in ("owner_alive", "mps_server")]
        return row(code, bool(mine), bool(mine), True, mine[0]["bytes"] if mine else None, causes)
    server = [h for h in found if h["cause"] == "mps_server"]
    if not freed:
        return row(code, bool(server), bool(server), True, server[0]["bytes"] if server else None, causes)
    of_client = [h for h in found if owner_of(h) == pids["owner"] and h["cause"] != "mps_server"]
    return row(code, not of_client, not of_client, True, None, causes)


def books(answer):
    """What the recorded allocations add up to, beside NVML's figure, for each owner of whom something was recorded."""
    found = []
    for h in answer["holdings"]:
        b = h.get("books")
        if b is None:
            continue
        nvml = b.get("nvml_bytes")
        found.append({
            "pid": owner_of(h),
            "comm": h["owner"]["comm"] if h["owner"] else None,
            "cause": h["cause"],
            "bytes": b["bytes"],
            "nvml_bytes": nvml,
            "difference": None if nvml is None else b["bytes"] - nvml,
            "complete": b["complete"],
            "objects": b.get("objects"),
        })
    return found


def books_differ(scenario, entry):
    return entry["complete"] and entry["difference"] is not None and abs(entry["difference"]) > NEAR and not scenario.exception


def scenario(host, s):
    """Runs one and returns its section of the results."""
    section, pids, mps, trace = {"name": s.name}, {}, None, os.path.join(host.out, f"{s.name}.jsonl.zst")
    folder = tempfile.mkdtemp(dir=host.work)
    if s.act.startswith("mps"):
        try:
            mps = Mps(folder)
        except FileNotFoundError as error:
            return {"name": s.name, "skip": str(error)}
    argv = [host.program, *s.command]
    if s.command[0].endswith(".py"):
        argv = [sys.executable, os.path.join(HERE, s.command[0])]
    elif len(argv) == 2:
        argv.append(str(MIB))
    recorder = process = None
    try:
        recorder = None if s.late else start_recorder(host.outlive, trace)
        env = mps.env if mps else None
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=host.work, start_new_session=True, env=env)
        said = json.loads(line(process.stdout, READY_S) or "{}")
        if "skip" in said:
            section["skip"] = said["skip"]
            return section
        if "owner" not in said:
            raise RuntimeError(f"{s.name} did not get ready")
        pids = said
        recorder = recorder or start_recorder(host.outlive, trace)
        if mps:
            pids["server"] = mps.server()
            section["nvml_before"], used = host.nvml(), host.used()
        act(s.act, process, pids)
        acted = time.monotonic()
        if "all" in pids:
            # A worker that was not in its storage when its parent ended may have noticed, and ended too.
            pids["all"] = [pid for pid in pids["all"] if os.path.exists(f"/proc/{pid}/fd/0")]
        cold_code, cold, took = host.explain()
        warm_code, warm, _ = host.explain("--history", trace)
        # The recorder flushes every second; some incidents last only a few.
        time.sleep(max(0, acted + 1.3 - time.monotonic()))
        moment = os.path.join(host.work, "moment.jsonl.zst")
        shutil.copy(trace, moment)
        section["cold_text"] = run([host.outlive, "explain"])[1]
        section["others"] = others()
        offline_code, offline, _ = host.explain("--trace", moment)
        section["offline_text"] = run([host.outlive, "explain", "--trace", moment])[1]
        looks = {"cold": (cold_code, cold, s.cold), "warm": (warm_code, warm, s.warm), "offline": (offline_code, offline, s.warm)}
        if mps:
            section["nvml_after"] = host.nvml()
            freed = host.used() <= used - MIB + 64
            section["rows"] = {k: judge_mps(code, a, s.act, pids, recorder.pid, freed) for k, (code, a, _) in looks.items()}
        else:
            section["rows"] = {k: judge(code, a, wanted, pids, recorder.pid, k != "cold") for k, (code, a, wanted) in looks.items()}
        section["pids"] = pids
        section["took_ms"] = round(took * 1000)
        section["books"] = {"warm": books(warm), "offline": books(offline)}
        section["accounts"] = {k: [g.get("account") for g in looks[k][1].get("gpus", [])] for k in ("warm", "offline")}
        section["json"] = {k: looks[k][1] for k in looks}
    finally:
        if process is not None:
            if s.act in ("wait-crash", "kill-now") and pids:
                try:
                    process.wait(60)  # its own end is what the timeline is about
                except subprocess.TimeoutExpired:
                    pass
            for pid in [pids.get("owner"), pids.get("other"), *pids.get("all", [])]:
                if pid:
                    kill(pid)
            kill_group(process)
        if mps:
            mps.stop()
        section["memory_back"] = host.wait_for_base()
        if recorder is not None:
            time.sleep(1.0)
            recorder.send_signal(signal.SIGINT)
            recorder.wait(20)
            section["timeline"] = run([host.outlive, "timeline", trace, "--pid", str(pids.get("owner", 0))])[1]
        for leftover in os.listdir(host.work):
            if leftover.startswith("core"):
                os.unlink(os.path.join(host.work, leftover))
    return section


def expectation(s):
    if s.warm is None:
        return "gone, or mps_server" if s.act == "mps-kill" else "owner_alive of client or server"
    return ", ".join(dict.fromkeys(a.cause for a in s.warm)) or "nothing held"


def table(sections):
    """What was right, scenario by scenario; and whether everything was."""
    by_name, good = {s.name: s for s in SCENARIOS}, True
    lines = ["| scenario | cause expected | cold | warm | offline | bytes (cold, warm, offline) | explain, ms |", "|---|---|---|---|---|---|---|"]
    for section in sections:
        s = by_name[section["name"]]
        if "skip" in section:
            lines.append(f"| {s.name} | skipped: {section['skip']} | | | | | |")
            continue
        if "rows" not in section:
            lines.append(f"| {s.name} | failed: {section.get('error')} | | | | | |")
            good = False
            continue
        cells = []
        for look, r in section["rows"].items():
            good &= r["right"]
            wrong = f"**{r['got']}** cause {r['cause']} owner {r['owner']} holders {r['holders']} {r['note']} (exit {r['exit']})"
            unjudged = look == "cold" and s.cold is None and s.warm is not None
            cells.append(f"not judged: {r['got']}" if unjudged else "right" if r["right"] else wrong)
        size = ", ".join("-" if r["bytes"] is None else f"{r['bytes'] / 2**20:.0f} MiB" for r in section["rows"].values())
        lines.append(f"| {s.name} | {expectation(s)} | {' | '.join(cells)} | {size} | {section['took_ms']} |")
    return "\n".join(lines) + "\n", good


def books_table(sections):
    """Books against NVML, one line an owner and look; and whether they agree. Looks that say the same share a line."""
    by_name, good = {s.name: s for s in SCENARIOS}, True
    lines = ["| scenario | look | owner | cause | objects | books | NVML | difference | |", "|---|---|---|---|---|---|---|---|---|"]
    for section in sections:
        s, looks = by_name[section["name"]], {}
        for look, entries in section.get("books", {}).items():
            for entry in entries:
                looks.setdefault(json.dumps(entry), []).append(look)
        for text, seen in looks.items():
            e = json.loads(text)
            differ = books_differ(s, e)
            good &= not differ
            notes = ["**differs**"] if differ else [s.exception] if s.exception and e["difference"] else []
            if not e["complete"]:
                notes.append("not complete")
            sizes = ["-" if n is None else f"{n / 2**20:.1f} MiB" for n in (e["bytes"], e["nvml_bytes"], e["difference"])]
            who = f"{e['comm'] or '?'} ({e['pid']})"
            lines.append(f"| {s.name} | {', '.join(seen)} | {who} | {e['cause']} | {e['objects']} | {' | '.join(sizes)} | {'; '.join(notes)} |")
    return "\n".join(lines) + "\n", good


def write(host, sections):
    (text, good), (agreement, agree) = table(sections), books_table(sections)
    print(f"{text}\n{agreement}")
    with open(os.path.join(host.out, "h200.md"), "w") as f:
        f.write(f"{text}\n## Books against NVML\n\n{agreement}")
        for s in sections:
            if "rows" not in s:
                continue
            f.write(f"\n## {s['name']}\n\nPIDs: {s['pids']}. Memory back after all were killed: {s['memory_back']}.\n\n")
            f.write(f"Account of each GPU: {json.dumps(s['accounts'])}\n\n")
            for title, key in [
                ("NVML before", "nvml_before"),
                ("NVML after", "nvml_after"),
                ("The usual tools", "others"),
                ("`outlive explain`, nothing running before", "cold_text"),
                ("`outlive explain --trace`", "offline_text"),
                ("`outlive timeline`", "timeline"),
            ]:
                if key in s:
                    f.write(f"{title}:\n\n```\n{s[key].rstrip()}\n```\n\n")
    with open(os.path.join(host.out, "results.json"), "w") as f:
        json.dump(sections, f, indent=1)
    return good and agree


def main():
    outlive, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    only = sys.argv[3:]
    unknown = set(only) - {s.name for s in SCENARIOS}
    if unknown:
        sys.exit(f"no such scenario: {', '.join(sorted(unknown))}")
    os.makedirs(out, exist_ok=True)
    host, sections = Host(outlive, out), []
    for s in SCENARIOS:
        if only and s.name not in only:
            continue
        began = time.monotonic()
        try:
            sections.append(scenario(host, s))
        except Exception as error:  # One scenario must not cost the others.
            sections.append({"name": s.name, "error": repr(error)})
        print(f"{s.name}: {time.monotonic() - began:.1f} s", flush=True)
    return 0 if write(host, sections) else 1


if __name__ == "__main__":
    sys.exit(main())
