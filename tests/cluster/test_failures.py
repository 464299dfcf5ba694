"""A process of a job that may not recover is killed or stopped, in every phase of a step.

The job FAILS within 5 seconds and names the rank or host, and every other process ends by itself.
"""

import json
import os
import signal
import time

import pytest
from programs import ENDLESS_JOB, PROMISE, SMALL_JOB, TESSERA, await_end


class Cluster:
    """A coordinator and an agent by hand, with a job that a watch follows."""

    def __init__(self, sandbox, job=ENDLESS_JOB, workers=3, fault="", recoveries=0):
        self.sandbox, self.name = sandbox, job["name"]
        self.coordinator, self.address = sandbox.start_coordinator()
        submitted = sandbox.tessera(
            "submit",
            f"--job={sandbox.write_job(job)}",
            f"--coordinator={self.address}",
            "--set",
            f"mesh.min_workers={workers}",
            "--set",
            f"max_recoveries={recoveries}",
        )
        assert submitted.code == 0, submitted.transcript()
        self.agent = sandbox.start_agent(
            self.address, workers, f"--job={self.name}", TESSERA_TEST_FAULT=fault
        )
        self.watch = sandbox.start(TESSERA, "watch", self.name, f"--coordinator={self.address}")

    def get(self, *what):
        program = self.sandbox.tessera(
            "get", *what, self.name, f"--coordinator={self.address}", "--output=json"
        )
        assert program.code == 0, program.transcript()
        return json.loads("\n".join(program.out))

    def pid_of(self, rank):
        return next(
            int(worker["pid"])
            for worker in self.get("workers")["workers"]
            if worker["rank"] == rank and int(worker["pid"]) != self.agent.pid
        )

    def await_failed(self, rank=None):
        """The job has FAILED, and says of whom; everything but the coordinator ends by itself."""
        assert self.watch.wait(PROMISE) == 1, self.watch.transcript()
        job = self.get("job")
        assert job["state"] == "FAILED"
        if rank is not None:
            assert job["failed_rank"] == rank
            assert f"rank {rank}" in job["reason"]
        self.agent.wait(2 * PROMISE)
        for pid in self.sandbox.left():
            assert pid == self.coordinator.pid or await_end(pid, PROMISE)
        return job


@pytest.mark.parametrize("rank", [0, 2])
def test_killed_worker(sandbox, rank):
    cluster = Cluster(sandbox)
    cluster.watch.wait_for_line("step ")
    os.kill(cluster.pid_of(rank), signal.SIGKILL)
    cluster.await_failed(rank)


@pytest.mark.parametrize("point", ["barrier", "reduce", "optimizer"])
def test_killed_in_a_phase_of_a_step(sandbox, point):
    cluster = Cluster(sandbox, fault=f"rank=1,point={point},step=7,action=kill")
    cluster.watch.wait_for_line("state RUNNING")
    assert cluster.watch.wait() == 1
    job = cluster.await_failed(rank=1)
    # Nothing of step 7 counts before its commit; the optimizer comes after it.
    assert int(job["step"]) <= 7


def test_killed_while_exporting(sandbox):
    directory = sandbox.directory / "out"
    job = {**SMALL_JOB, "steps": 5, "checkpoint": {"dir": str(directory)}}
    cluster = Cluster(sandbox, job=job, fault="rank=0,point=export,action=kill")
    assert cluster.watch.wait() == 1
    cluster.await_failed(rank=0)
    # No export that looks whole.
    assert not (directory / "export" / "model.safetensors").exists()


def test_killed_agent(sandbox):
    cluster = Cluster(sandbox)
    cluster.watch.wait_for_line("step ")
    cluster.agent.signal(signal.SIGKILL)
    job = cluster.await_failed()
    host = cluster.get("workers")["workers"]
    assert "host" in job["reason"] or any(worker["host_name"] in job["reason"] for worker in host)


def test_killed_worker_under_run(sandbox):
    job = sandbox.write_job({**ENDLESS_JOB, "max_recoveries": 0})
    program = sandbox.start(
        TESSERA, "run", f"--job={job}", TESSERA_TEST_FAULT="rank=1,point=reduce,step=30,action=kill"
    )
    program.wait_for_line("step 20/")
    assert program.wait() == 1
    assert "FAILED" in program.err[-1] and "rank 1" in program.err[-1]
    sandbox.await_nothing_left()


def test_survivors_end_while_the_coordinator_stands_still(sandbox):
    cluster = Cluster(sandbox)
    cluster.watch.wait_for_line("step ")
    victim = cluster.pid_of(1)
    survivors = [cluster.pid_of(0), cluster.pid_of(2)]
    cluster.coordinator.signal(signal.SIGSTOP)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    for pid in survivors:
        assert await_end(pid, PROMISE - (time.monotonic() - began)), f"{pid} still runs"
    cluster.agent.wait_for_line(r".*rank 1\b", lines=cluster.agent.err)
    cluster.coordinator.signal(signal.SIGCONT)
    cluster.await_failed(rank=1)
