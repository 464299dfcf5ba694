#!/usr/bin/env python3
"""Trains models of 100 to 800 million parameters for a few steps on this machine and prints what
they took: the peak of all workers' memory together (proportional set size, so that what they share
counts once), and the time of a step.

    tests/measure/models.py [NAME ...]        after `bazel build //...`; without a name all of them

Needs up to 20 GiB of free memory (the largest model) and about ten minutes.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 1 << 30
STEPS = 3

# One block of width w has 12 w^2 + 13 w parameters.
MODELS = {
    "100M-unit float32": dict(layers=1, width=2896, heads=16, context=256, batch=8),
    "100M-unit bfloat16": dict(layers=1, width=2896, heads=16, context=256, batch=8, bf16=True),
    "210M float32": dict(layers=12, width=1208, heads=8, context=128, batch=4),
    "210M bfloat16": dict(layers=12, width=1208, heads=8, context=128, batch=4, bf16=True),
    "805M bfloat16": dict(layers=4, width=4096, heads=32, context=64, batch=2, bf16=True),
}


def job_of(name, shape):
    dtypes = {"param_dtype": "bfloat16", "reduce_dtype": "float32"} if shape.get("bf16") else {}
    return {
        "name": re.sub(r"\W+", "-", name.lower()),
        "model": {"builtin": "gpt", "layers": shape["layers"], "width": shape["width"],
                  "heads": shape["heads"], "context": shape["context"], "vocab": 256},
        # Short, so that the evaluation at the end takes no longer than the steps.
        "data": "/usr/share/common-licenses/GPL-2",
        "steps": STEPS, "global_batch": shape["batch"], "eval_every": 0,
        "optimizer": {"lr": 1e-4, "warmup_steps": 1},
        "mixed_precision": dtypes,
        "checkpoint": {"export": False, "save": False},
        # The first touch of many GiB and a step of many seconds, on a machine that is shared.
        "timeouts": {"form": "600s", "collective": "600s", "lease": "60s"},
    }


def workers_of(pid):
    """Processes below `pid` that run a rank."""
    children = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            todo.append(child)
            try:
                command = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--run_workload" in command:
                found.append(child)
    return found


def pss_bytes(pid):
    try:
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.M).group(1)) * 1024


class Peak(threading.Thread):
    """The greatest sum of the workers' memory, looked at every second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.bytes, self.done = pid, 0, threading.Event()

    def run(self):
        while not self.done.wait(1):
            self.bytes = max(self.bytes, sum(map(pss_bytes, workers_of(self.pid))))


def measure(name, shape):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "job.json")
        path.write_text(json.dumps(job_of(name, shape)))
        plan = json.loads(subprocess.run(
            [ROOT / "bazel-bin/client/tessera", "plan", f"--job={path}", "--world_size=2",
             "--output=json"], check=True, capture_output=True).stdout)
        parameters = sum(int(unit["numel"]) for unit in plan["plan"]["units"])
        forecast = sum(int(part["mapped_bytes"]) for part in
                       plan["forecast"]["ranks"] + plan["forecast"]["hosts"])
        start = time.monotonic()
        run = subprocess.Popen([ROOT / "bazel-bin/client/tessera", "run", f"--job={path}",
                                "--workers=2"], cwd=folder, stdout=subprocess.PIPE, text=True)
        peak = Peak(run.pid)
        peak.start()
        output, _ = run.communicate()
        seconds = time.monotonic() - start
        peak.done.set()
        peak.join()
    progress = re.findall(r"^step .*$", output, re.M) or ["no progress"]
    outcome = "ok" if run.returncode == 0 else f"FAILED ({run.returncode})"
    print(
        f"{name}: {parameters:,} parameters in {len(plan['plan']['units'])} units, "
        f"{plan['layout']['unshard_mode']}: {outcome} in {seconds:.0f} s, peak of both workers "
        f"{peak.bytes / GIB:.2f} GiB, of which planned {forecast / GIB:.2f} GiB; {progress[-1]}",
        flush=True,
    )
    return run.returncode == 0


def main():
    names = sys.argv[1:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are: {', '.join(MODELS)}")
    sys.exit(0 if all([measure(name, MODELS[name]) for name in names]) else 1)


main()
