#!/usr/bin/env python3
"""Kills the coordinator of a running job again and again, and starts it on the same state.

    python tests/faults/kill_coordinator.py [--kills=20] [--seed=1]

The job must SUCCEED without a recovery, with the losses and the export, bit for bit, of a run that
nothing befell: so no step was lost or repeated. Prints, for each kill, how long the coordinator was
away, and for how long the thread of rank 0 that computes stood still at most from the kill until
half a second after the coordinator was back, beyond the longest that it stood still in as much time
before the kill: a thread stands still when its processor time does not grow. Exits with 0 only if
all of it held and these pauses are less than 1 s in all.
"""

import argparse
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from clusters import Cluster, job, with_files  # noqa: E402
from programs import PATIENCE, Sandbox  # noqa: E402

WORKERS = 2
PROBED_STEPS = 300
# Of the job, for each kill.
SECONDS_EACH = 4
SETTLED = 0.5


class Pauses:
    """When a process stands still: its processor time, looked at often, does not grow."""

    def __init__(self, pid):
        self._pid = pid
        self._stopped = threading.Event()
        self.spans = []  # (begin, end)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _used(self):
        with open(f"/proc/{self._pid}/schedstat", encoding="utf-8") as file:
            return int(file.read().split()[0])

    def _run(self):
        last, since = None, time.monotonic()
        while not self._stopped.wait(0.005):
            now = time.monotonic()
            try:
                used = self._used()
            except OSError:
                return
            if used != last:
                self.spans.append((since, now))
                last, since = used, now

    def close(self):
        self._stopped.set()
        self._thread.join()

    def longest(self, begin, end):
        """Of the pauses that lie in the time from `begin` to `end`."""
        return max([b - a for a, b in self.spans if a < end and b > begin], default=0.0)


def box():
    return Sandbox(pathlib.Path(tempfile.mkdtemp(prefix="tessera-kills-")))


def spec_of(name, sandbox, steps):
    return with_files(job(name, WORKERS, steps=steps, eval_every=steps), sandbox)


def run_undisturbed(steps):
    """(seconds, losses, bytes of the export)"""
    sandbox = box()
    cluster = Cluster(sandbox, spec_of("quiet", sandbox, steps)).submit()
    cluster.start_agent(WORKERS)
    began = cluster.await_running()
    cluster.await_end("SUCCEEDED", 60 * PATIENCE)
    result = time.monotonic() - began, cluster.losses(), cluster.export().read_bytes()
    sandbox.close()
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    draw = random.Random(flags.seed)
    print(f"seed {flags.seed}", flush=True)

    # As many steps as take long enough here.
    probed = run_undisturbed(PROBED_STEPS)[0]
    steps = max(1000, int(PROBED_STEPS / probed * SECONDS_EACH * flags.kills))
    seconds, losses, export = run_undisturbed(steps)
    print(f"{steps} steps take {seconds:.1f} s undisturbed", flush=True)

    sandbox = box()
    cluster = Cluster(sandbox, spec_of("faulty", sandbox, steps), state_dir=True).submit()
    cluster.start_agent(WORKERS)
    cluster.await_running()
    pauses = Pauses(cluster.workers()[0])
    total = 0.0
    for number in range(1, flags.kills + 1):
        # The moment is random, and nothing but time will do for that.
        threading.Event().wait(1.5 + draw.uniform(0, 0.5))
        killed = time.monotonic()
        os.kill(cluster.coordinator.pid, 9)
        cluster.coordinator.wait()
        threading.Event().wait(draw.uniform(0, 0.5))
        cluster.start_coordinator()
        back = time.monotonic()
        threading.Event().wait(SETTLED)
        after = back + SETTLED
        usual = pauses.longest(killed - (after - killed), killed)
        extra = max(0.0, pauses.longest(killed, after) - usual)
        total += extra
        print(
            f"kill {number}: away for {back - killed:.3f} s, the longest pause was {extra:.3f} s"
            f" over the usual {usual:.3f} s",
            flush=True,
        )
        assert cluster.watch.running(), f"the job ended too early\n{cluster.watch.transcript()}"
    ended = cluster.await_end("SUCCEEDED", 60 * PATIENCE)
    pauses.close()
    assert int(ended.get("recoveries", 0)) == 0 and int(ended["generation"]) == 1, ended
    assert cluster.export().read_bytes() == export, "the export differs"
    seen = cluster.losses()
    assert all(losses[step] == loss for step, loss in seen.items()), "a loss differs"
    print(
        f"{flags.kills} kills: SUCCEEDED in generation 1, bit for bit; {len(seen)} of"
        f" {len(losses)} lines seen; pauses {total:.3f} s in all"
    )
    sandbox.close()
    return 0 if total < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
