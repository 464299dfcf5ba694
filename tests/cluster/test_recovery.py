"""A worker of a job that may recover is killed: the job SUCCEEDS, with an undisturbed run's bits.

Faults strike the first process of a rank alone; the one that takes over has none.
"""

import hashlib
import json
import os
import re
import signal
import statistics
import time

import pytest
from programs import CHAR_MODEL, ENDLESS_JOB, PATIENCE, ROOT, SMALL_JOB, TESSERA
from test_failures import Cluster

POINTS = [
    "unshard_wait",
    "reduce",
    "barrier",
    "vote",
    "undo_written",
    "optimizer",
    "optimizer_done",
]


def losses(program):
    """Each step's line without its throughput, once."""
    lines = [line.split(" tokens/s")[0] for line in program.out if line.startswith("step ")]
    assert len(lines) == len(set(lines)), program.transcript()
    return lines


def export_of(sandbox, job):
    path = sandbox.directory / f"{job['name']}.tessera" / "export" / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(sandbox, job, fault="", *argv):
    path = sandbox.write_job(job)
    program = sandbox.tessera(
        "run", f"--job={path}", *argv, TESSERA_TEST_FAULT=fault, timeout=2 * PATIENCE
    )
    assert program.code == 0, program.transcript()
    sandbox.await_nothing_left()
    return losses(program), export_of(sandbox, job)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By `memory.unshard`: losses and export."""
    from programs import Sandbox

    results = {}
    for unshard in ("slots", "resident"):
        sandbox = Sandbox(tmp_path_factory.mktemp(unshard))
        results[unshard] = run(sandbox, {**SMALL_JOB, "memory": {"unshard": unshard}})
        sandbox.close()
    return results


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("unshard", ["slots", "resident"])
def test_killed_at_a_point_of_a_step(sandbox, undisturbed, unshard, point):
    job = {**SMALL_JOB, "memory": {"unshard": unshard}}
    fault = f"rank={POINTS.index(point) % 2},point={point},step=7,action=kill"
    assert run(sandbox, job, fault) == undisturbed[unshard]


@pytest.mark.parametrize("point", ["export", "checkpoint_write", "checkpoint_renamed"])
def test_killed_while_saving(sandbox, undisturbed, point):
    job = {**SMALL_JOB, "memory": {"unshard": "slots"}}
    assert run(sandbox, job, f"rank=0,point={point},action=kill") == undisturbed["slots"]


def test_killed_again_while_it_recovers(sandbox, undisturbed):
    job = {**SMALL_JOB, "memory": {"unshard": "slots"}}
    path = sandbox.write_job(job)
    program = sandbox.start(
        TESSERA,
        "run",
        f"--job={path}",
        TESSERA_TEST_FAULT="rank=1,point=optimizer,step=7,action=kill",
    )
    program.wait_for_line(r".*goes on with step 8", lines=program.err)
    workers = [pid for pid, line in sandbox.left().items() if "--run_workload" in line]
    assert len(workers) == 2
    for pid in workers:  # every process that knows the job
        os.kill(pid, signal.SIGKILL)
    assert program.wait() == 0, program.transcript()
    assert losses(program) == undisturbed["slots"][0]
    assert export_of(sandbox, job) == undisturbed["slots"][1]


def test_a_program_of_ones_own_goes_on(sandbox):
    job = json.loads((ROOT / "tests/examples/char_model.json").read_text(encoding="utf-8"))
    path = sandbox.write_job({**job, "steps": 60})

    def trained(fault):
        program = sandbox.tessera(
            "run", f"--job={path}", "--", str(CHAR_MODEL), TESSERA_TEST_FAULT=fault
        )
        assert program.code == 0, program.transcript()
        return losses(program), export_of(sandbox, job)

    assert trained("rank=0,point=reduce,step=40,action=kill") == trained("")


def await_step(cluster, generation):
    """Until the job has committed a step more than it had when that generation was seen to run."""
    deadline = time.monotonic() + PATIENCE
    first = None
    while True:
        job = cluster.get("job")
        step = int(job["step"])
        if int(job["generation"]) == generation and job["state"] == "RUNNING":
            first = step if first is None else first
            if step > first:
                return
        assert time.monotonic() < deadline, job


def test_the_next_step_follows_within_three_seconds(sandbox):
    """From the kill to a step that was committed after it; the others keep their processes."""
    cluster = Cluster(sandbox, job=ENDLESS_JOB, workers=4, recoveries=10)
    cluster.watch.wait_for_line("step ")
    seconds = []
    for number in range(5):
        pids = {rank: cluster.pid_of(rank) for rank in range(4)}
        began = time.monotonic()
        os.kill(pids[number % 4], signal.SIGKILL)
        await_step(cluster, number + 2)
        seconds.append(time.monotonic() - began)
        after = {rank: cluster.pid_of(rank) for rank in range(4)}
        assert [rank for rank in range(4) if after[rank] != pids[rank]] == [number % 4]
    print("seconds from the kill to the next step:", [round(value, 2) for value in seconds])
    assert statistics.median(seconds) < 3, seconds


def test_a_job_that_is_lost_too_often_fails(sandbox):
    cluster = Cluster(sandbox, job=ENDLESS_JOB, workers=2, recoveries=1)
    cluster.watch.wait_for_line("step ")
    os.kill(cluster.pid_of(1), signal.SIGKILL)
    cluster.agent.wait_for_line(r".*goes on with step", lines=cluster.agent.err)
    os.kill(cluster.pid_of(1), signal.SIGKILL)
    job = cluster.await_failed(rank=1)
    assert int(job["recoveries"]) == 1
    assert re.search(r"rank 1 on host .* was killed by signal 9", job["reason"])
