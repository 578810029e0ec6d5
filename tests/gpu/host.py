"""What the scripts for a host with a real NVIDIA GPU share."""
import os
import select
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCENARIO_SOURCES = ["scenarios.cu", "sharing.cu", "kinds.cu"]
# A CUDA start and 40 GiB of pinned memory take this long at most.
READY_S = 60


def run(command, timeout=30, **more):
    """Exit code and whatever it printed; -1 and the reason when it could not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, errors="replace", **more)
        return done.returncode, done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, f"({error})"


def line(stream, seconds):
    """One line, or nothing when it does not come in time."""
    return stream.readline() if select.select([stream], [], [], seconds)[0] else ""


def build(program, sources):
    """Builds a program of this folder's CUDA sources, or ends."""
    code, text = run(["nvcc", "-O1", "-o", program, *(os.path.join(HERE, s) for s in sources), "-lcuda", "-lpthread"], 120)
    if code != 0:
        sys.exit(f"nvcc cannot build {' '.join(sources)}:\n{text}")


def start_recorder(outlive, trace):
    """`outlive record` that has begun to record."""
    recorder = subprocess.Popen([outlive, "record", "-o", trace], stderr=subprocess.PIPE, text=True)
    if "recording" not in line(recorder.stderr, READY_S):
        recorder.kill()
        recorder.wait()
        raise RuntimeError("outlive record did not start")
    return recorder


def kill(pid):
    """Ends one process, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def kill_group(process):
    """Ends a program that was started in a session of its own, and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Mps:
    """NVIDIA's MPS control daemon, with folders of its own; it starts a server for its first client."""

    def __init__(self, folder, extra=None):
        if shutil.which("nvidia-cuda-mps-control") is None:
            raise FileNotFoundError("nvidia-cuda-mps-control is not installed")
        self.pipe, log = os.path.join(folder, "mps"), os.path.join(folder, "mps-log")
        os.makedirs(self.pipe, exist_ok=True)
        os.makedirs(log, exist_ok=True)
        self.env = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=self.pipe, CUDA_MPS_LOG_DIRECTORY=log)
        # Not captured: the daemon would keep the pipe open.
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        code = subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**self.env, **(extra or {})}, timeout=20, **quiet).returncode
        if code != 0:
            raise RuntimeError(f"nvidia-cuda-mps-control -d ended with {code}")

    def ask(self, words):
        return run(["nvidia-cuda-mps-control"], 20, input=words + "\n", env=self.env)[1]

    def server(self):
        """PID of the server, or 0."""
        pids = [int(word) for word in self.ask("get_server_list").split() if word.isdigit()]
        return pids[0] if pids else 0

    def daemon(self):
        """PID of the control daemon, or 0."""
        try:
            with open(os.path.join(self.pipe, "nvidia-cuda-mps-control.pid")) as f:
                return int(f.read().split()[0])
        except (OSError, ValueError, IndexError):
            return 0

    def stop(self):
        """Asks the daemon to quit; what is left after some seconds is ended."""
        left = [pid for pid in (self.server(), self.daemon()) if pid]
        self.ask("quit")
        end = time.monotonic() + 6
        while time.monotonic() < end and any(os.path.exists(f"/proc/{pid}") for pid in left):
            time.sleep(0.1)
        for pid in left:
            kill(pid)
