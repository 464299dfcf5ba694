#!/usr/bin/env python3
"""Kills random ranks of running jobs, and holds the jobs against one that nothing befell.

    python tests/faults/kill_ranks.py [--kills=50] [--per_job=5] [--seed=1]

Each job has 4 workers, 200 steps and a checkpoint every 10. The moments are drawn over the phases
of a step (barrier, reduce, optimizer, checkpoint) by fault points, where a process kills itself
with SIGKILL, so that the log says where each kill hit; a rank may be killed again after it was
started again. Every job must SUCCEED, with the losses and the export, bit for bit, of the
undisturbed one.

Prints a line for each kill (job, rank, process, phase, step; seconds until the coordinator said
RECOVERING, and until it said RUNNING, when the next step begins) and at the end the medians and
maxima. Exits with 0 only if all of it held.
"""

import argparse
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from clusters import Cluster, Deaths, job, with_files  # noqa: E402
from programs import PATIENCE, Sandbox  # noqa: E402

WORKERS = 4
STEPS = 200
EVERY = 10
POINTS = {
    "barrier": ["barrier", "unshard_wait"],
    "reduce": ["gradient_acquire", "reduce_ready", "reduce", "reduce_read", "vote"],
    "optimizer": ["undo_written", "optimizer", "optimizer_done"],
    "checkpoint": ["checkpoint_write", "checkpoint_written"],
}


def spec_of(name, sandbox):
    return with_files(job(name, WORKERS, steps=STEPS), sandbox, every=EVERY)


def draw_kills(draw, count):
    """Kills of one job in the order of their steps, some steps apart. A process is killed once: a
    later kill of a rank is of the process that was started for the generation after its last death.
    """
    kills, started = [], {}  # rank -> generation of its process
    span = (STEPS - 10) // count
    for number in range(count):
        first = 5 + number * span
        steps = range(first, first + max(1, span - 10))
        phase = draw.choice(sorted(POINTS))
        saved = [step for step in steps if step % EVERY == 0]
        if phase == "checkpoint" and not saved:
            phase = "optimizer"
        rank = draw.randrange(WORKERS)
        kills.append(
            {
                "rank": rank,
                "phase": phase,
                "point": draw.choice(POINTS[phase]),
                "step": draw.choice(saved if phase == "checkpoint" else steps),
                "generation": started.get(rank, 1),
            }
        )
        started[rank] = number + 2
    return kills


def fault_of(kills):
    return ";".join(
        f"rank={k['rank']},point={k['point']},step={k['step']},"
        f"generation={k['generation']},action=kill"
        for k in kills
    )


def children(cluster):
    """The ranks' processes: those whose parent is the agent."""
    agent = cluster.agents[0].pid
    found = []
    for pid in cluster.sandbox.left():
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            continue
        if int(stat.rsplit(")", 1)[1].split()[1]) == agent:
            found.append(pid)
    return found


def follow(cluster, deaths):
    """Waits until every rank has a process, and has their ends told."""
    deadline = time.monotonic() + PATIENCE
    while True:
        alive = [pid for pid in children(cluster) if pid not in deaths.at]
        for pid in alive:
            deaths.add(pid)
        if len(alive) == WORKERS:
            return
        assert time.monotonic() < deadline, f"only {alive} of {WORKERS} ranks have processes"


def run_job(sandbox, name, kills, log):
    """Returns (cluster, measured): of each kill seconds to RECOVERING and to RUNNING."""
    cluster = Cluster(sandbox, spec_of(name, sandbox)).submit()
    cluster.start_agent(WORKERS, TESSERA_TEST_FAULT=fault_of(kills))
    deaths, known, measured = Deaths(), set(), []
    follow(cluster, deaths)
    running = cluster.await_running()
    for kill in kills:
        died = deaths.wait_for_another(known, PATIENCE)
        assert died is not None, f"no rank died for {kill}\n{cluster.watch.transcript()}"
        known.add(died[0])
        seen = cluster.watch.next_line("state RECOVERING", running)[0]
        follow(cluster, deaths)
        running = cluster.await_running(after=seen)
        detected, next_step = seen - died[1], running - died[1]
        measured.append((detected, next_step))
        log(
            f"{name}: rank {kill['rank']} (pid {died[0]}) killed at {kill['phase']}/{kill['point']}"
            f" of step {kill['step']}: RECOVERING after {detected:.3f} s, RUNNING after"
            f" {next_step:.3f} s"
        )
    deaths.close()
    return cluster, measured


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--per_job", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    draw = random.Random(flags.seed)
    print(f"seed {flags.seed}", flush=True)

    def log(line):
        print(line, flush=True)

    def box():
        return Sandbox(pathlib.Path(tempfile.mkdtemp(prefix="tessera-kills-")))

    sandbox = box()
    quiet = Cluster(sandbox, spec_of("quiet", sandbox)).submit()
    quiet.start_agent(WORKERS)
    quiet.await_end("SUCCEEDED")
    losses, export = quiet.losses(), quiet.export().read_bytes()
    sandbox.close()
    assert len(losses) == STEPS // 20, losses

    measured, by_phase, done, number = [], {}, 0, 0
    began = time.monotonic()
    while done < flags.kills:
        kills = draw_kills(draw, min(flags.per_job, flags.kills - done))
        sandbox = box()
        number += 1
        cluster, times = run_job(sandbox, f"job-{number}", kills, log)
        ended = cluster.await_end("SUCCEEDED")
        assert int(ended["recoveries"]) == len(kills), ended
        lost = re.findall(r"incident \d+ LOST: rank (\d+)", "\n".join(cluster.watch.err))
        assert lost == [str(kill["rank"]) for kill in kills], lost
        assert cluster.losses() == losses, f"{cluster.losses()}\nare not\n{losses}"
        assert cluster.export().read_bytes() == export, "the export differs"
        sandbox.close()
        measured += times
        for kill in kills:
            by_phase[kill["phase"]] = by_phase.get(kill["phase"], 0) + 1
        done += len(kills)
        log(f"job-{number}: SUCCEEDED, losses and export bit for bit the undisturbed run's")
    detected = [m[0] for m in measured]
    resumed = [m[1] for m in measured]
    print(
        f"{done} kills in {number} jobs and {time.monotonic() - began:.0f} s, by phase: "
        + ", ".join(f"{phase} {count}" for phase, count in sorted(by_phase.items()))
    )
    print(f"detection: median {statistics.median(detected):.3f} s, max {max(detected):.3f} s")
    print(f"to the next step: median {statistics.median(resumed):.3f} s, max {max(resumed):.3f} s")
    if statistics.median(resumed) >= 3 or max(detected) >= 1:
        print("too slow: the median to the next step is to be under 3 s, each detection under 1 s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
