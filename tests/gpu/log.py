#!/usr/bin/env python3
"""Records every ioctl that CUDA makes in a few situations, on a host with a real NVIDIA GPU: fixtures for the decoder.

    tests/gpu/log.py OUT

Needs root, nvcc and cc. Writes OUT/SITUATION.ROLE.log.gz, one for each process (ROLE: owner, other, server, or its PID), in
the format that ioctl-log.c describes, and OUT/log.json with what each process was.
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time

from host import HERE, READY_S, SCENARIO_SOURCES, Mps, build, kill, kill_group, line, run

MIB = "512"
# name, part of `scenarios`
SITUATIONS = [
    ("hold", "hold"),
    ("vmm", "mem-imported"),
    ("ipc", "ipc"),
    ("async-trim", "async-trim"),
    ("managed", "managed"),
    ("mps", "hold"),
]


def build_library(work):
    library = os.path.join(work, "ioctl-log.so")
    code, text = run(["cc", "-shared", "-fPIC", "-O1", "-o", library, os.path.join(HERE, "ioctl-log.c"), "-ldl"], 60)
    if code != 0:
        sys.exit(f"cc cannot build ioctl-log.c:\n{text}")
    return library


def situation(program, library, folder, name, part):
    """Runs one, whose logs go into `folder`; returns who was who."""
    logged = {"LD_PRELOAD": library, "IOCTL_LOG": os.path.join(folder, "log")}
    mps = Mps(folder, logged) if name == "mps" else None
    process = None
    try:
        env = {**(mps.env if mps else os.environ), **logged}
        process = subprocess.Popen([program, part, MIB], stdout=subprocess.PIPE, text=True, start_new_session=True, env=env)
        pids = json.loads(line(process.stdout, READY_S) or "{}")
        if "owner" not in pids:
            raise RuntimeError(f"{name}: {pids or 'not ready'}")
        if mps:
            pids["server"] = mps.server()
        kill(pids["owner"])  # the others may have something to do then
        time.sleep(1)
        if pids["other"]:
            kill(pids["other"])
    finally:
        if process is not None:
            kill_group(process)
        if mps:
            mps.stop()
    return pids


def keep(folder, out, name, pids):
    """Compresses the logs into `out`; returns the names of the files."""
    roles, files = {str(pids[role]): role for role in ("owner", "other", "server") if pids.get(role)}, []
    for entry in sorted(os.listdir(folder)):
        if not entry.startswith("log."):
            continue
        pid = entry.split(".")[1]
        file = f"{name}.{roles.get(pid, pid)}.log.gz"
        with open(os.path.join(folder, entry), "rb") as f, open(os.path.join(out, file), "wb") as raw:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                packed.write(f.read())
        files.append(file)
    return files


def main():
    out = os.path.abspath(sys.argv[1])
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="outlive-log-") as work:
        return record(out, work)


def record(out, work):
    program, library = os.path.join(work, "scenarios"), build_library(work)
    build(program, SCENARIO_SOURCES)
    about = {"gpu": run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])[1].strip(), "mib": int(MIB)}
    good = True
    for name, part in SITUATIONS:
        began = time.monotonic()
        try:
            folder = os.path.join(work, name)
            os.mkdir(folder)
            pids = situation(program, library, folder, name, part)
            about[name] = {"part": part, "pids": pids, "files": keep(folder, out, name, pids)}
        except Exception as error:  # One situation must not cost the others.
            about[name], good = {"part": part, "error": repr(error)}, False
        print(f"{name}: {time.monotonic() - began:.1f} s, {about[name].get('files') or about[name].get('error')}", flush=True)
    with open(os.path.join(out, "log.json"), "w") as f:
        json.dump(about, f, indent=1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
