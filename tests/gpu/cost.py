#!/usr/bin/env python3
"""What `outlive record` costs the programs that use a GPU, on a host with a real NVIDIA GPU.

    tests/gpu/cost.py OUTLIVE OUT

Needs root and nvcc; takes less than 100 seconds. Measures each part of cost.cu without a recorder and with one, again and
again in turns, so that a slow change of the host touches both. A ratio is always of two neighbours. Another program keeps a
context the whole time: otherwise the recorder, which keeps NVML open, would spare the others the start of the GPU. Writes
OUT/cost.json and OUT/cost.md.
"""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from host import READY_S, build, kill_group, line, run, start_recorder

SECONDS = 0.5
PAIRS, FEWEST_PAIRS = 9, 7
# No further pair once so much time has passed, if there are enough.
ENOUGH_S = 70
# part of cost.cu, what it is, unit, how often a turn runs it (the turn counts with the median)
PARTS = [
    ("malloc64", "cudaMalloc and cudaFree of 64 MiB", "pairs a second", 1),
    ("malloc1", "cudaMalloc and cudaFree of 1 MiB, a part of a block that stays", "pairs a second", 1),
    ("launch", "empty kernels", "launches a second", 1),
    ("context", "CUDA start, context, and its end in a new process", "seconds", 3),
]


def measure(program, part, times):
    values = []
    for _ in range(times):
        code, text = run([program, part, str(SECONDS)])
        if code != 0:
            raise RuntimeError(f"cost {part}: {text}")
        values.append(float(text.split()[0]))
    return statistics.median(values)


def turn(program):
    return {part: measure(program, part, times) for part, _, _, times in PARTS}


def recorded_turn(program, outlive, work):
    """A turn beside a recorder, and what the recorder said when it ended."""
    trace = os.path.join(work, "cost.jsonl.zst")
    recorder = start_recorder(outlive, trace)
    try:
        time.sleep(0.3)
        values = turn(program)
    finally:
        recorder.send_signal(signal.SIGINT)
        said = recorder.communicate(timeout=20)[1]
        if os.path.exists(trace):
            os.unlink(trace)
    return values, said.strip()


def summary(pairs):
    """Medians of each side, and median and spread of the pairs' ratios, for each part."""
    parts = {}
    for part, what, unit, _ in PARTS:
        without, beside = [a[part] for a, _ in pairs], [b[part] for _, b in pairs]
        ratios = [b / a for a, b in zip(without, beside)]
        parts[part] = {
            "what": what,
            "unit": unit,
            "without": without,
            "with": beside,
            "median_without": statistics.median(without),
            "median_with": statistics.median(beside),
            "ratio": statistics.median(ratios),
            "spread": [min(ratios), max(ratios)],
        }
    return parts


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(out, gpu, pairs, said):
    parts = summary(pairs)
    lines = [
        f"{gpu}. {len(pairs)} pairs of turns, without and with `outlive record`, in alternation; ratio: median of the pairs' ratios.",
        "",
        "| what | unit | without | with | with / without | lowest and highest ratio of a pair |",
        "|---|---|---|---|---|---|",
    ]
    for p in parts.values():
        low, high = p["spread"]
        lines.append(
            f"| {p['what']} | {p['unit']} | {number(p['median_without'])} | {number(p['median_with'])} | {p['ratio']:.3f} | {low:.3f} to {high:.3f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    with open(os.path.join(out, "cost.md"), "w") as f:
        f.write(text)
    with open(os.path.join(out, "cost.json"), "w") as f:
        json.dump({"gpu": gpu, "pairs": len(pairs), "parts": parts, "recorder_said": said}, f, indent=1)


def main():
    began = time.monotonic()
    outlive, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.makedirs(out, exist_ok=True)
    work = tempfile.mkdtemp(prefix="outlive-cost-")
    program = os.path.join(work, "cost")
    build(program, ["cost.cu"])
    gpu = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])[1].strip().replace(", ", ", driver ")
    idle = subprocess.Popen([program, "idle"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    pairs, said = [], []
    try:
        if not line(idle.stdout, READY_S):
            sys.exit("no context")
        measure(program, "launch", 1)  # the kernel is compiled once for this GPU
        while len(pairs) < PAIRS and (len(pairs) < FEWEST_PAIRS or time.monotonic() - began < ENOUGH_S):
            without = turn(program)
            beside, end = recorded_turn(program, outlive, work)
            pairs.append((without, beside))
            said.append(end)
    finally:
        kill_group(idle)
        shutil.rmtree(work)
    write(out, gpu, pairs, said)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
