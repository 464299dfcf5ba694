"""Models that are built by the ranks of their job (worker/wrap.h), with every process a real one.

The program is tests/wrap/built_model: it checks every value of the model itself, before and after
its steps. TESSERA_TEST_BUILD_BYTES: how large a model the memory test builds.
"""

import json
import os
import pathlib
import re
import signal

import pytest
from programs import BUILT_MODEL, CHAR_MODEL, PROMISE, TESSERA

MIB = 1 << 20
JOB = {
    "name": "built",
    "workload": "attached",
    "model": {"built": True},
    "steps": 2,
    "global_batch": 2,
    "optimizer": {"name": "sgd", "lr": 0.5, "weight_decay": 0},
    "checkpoint": {"export": False, "save": False},
}


class Cluster:
    """A coordinator with the job, a watch of it, and an agent whose ranks run built_model."""

    def __init__(self, sandbox, job, *arguments, program=BUILT_MODEL):
        self.sandbox = sandbox
        self.coordinator, address = sandbox.start_coordinator()
        self.where = f"--coordinator={address}"
        submitted = sandbox.tessera("submit", f"--job={sandbox.write_job(job)}", self.where)
        assert submitted.code == 0, submitted.transcript()
        self.watch = sandbox.start(TESSERA, "watch", "built", self.where)
        self.agent = sandbox.start_agent(
            address, 2, "--job=built", "--", program, *map(str, arguments)
        )

    def get(self, what):
        program = self.sandbox.tessera("get", what, "built", self.where, "--output=json")
        assert program.code == 0, program.transcript()
        return json.loads("\n".join(program.out))

    def expect_failed(self, rank, reason, timeout=PROMISE):
        assert self.watch.wait(timeout) == 1, self.watch.transcript()
        job = self.get("job")
        assert job["state"] == "FAILED"
        assert rank is None or job["failed_rank"] == rank, job
        assert re.search(reason, job["reason"]), job["reason"]
        assert self.agent.wait(PROMISE) == 1, self.agent.transcript()


def peak_bytes(pid):
    """Most that a process has held in memory so far, shared memory that it touched included."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def test_the_ranks_build_the_model_and_train_it(sandbox):
    cluster = Cluster(sandbox, JOB, 5, 1001)
    assert cluster.watch.wait() == 0, cluster.watch.transcript() + cluster.agent.transcript()
    assert cluster.agent.wait(PROMISE) == 0, cluster.agent.transcript()
    states = [line for line in cluster.watch.out if line.startswith("state ")]
    assert states[-4:] == ["state SEALED", "state FORMING", "state RUNNING", "state SUCCEEDED"]
    plan = cluster.get("plan")
    assert [unit["fqn"] for unit in plan["plan"]["units"]] == [f"h.{i}" for i in range(5)] + [""]


def test_run_builds_too(sandbox):
    job = sandbox.write_job(JOB)
    program = sandbox.tessera("run", f"--job={job}", "--", BUILT_MODEL, "3", "100")
    assert program.code == 0, program.transcript()


def test_no_process_holds_more_than_its_shards_and_a_unit(sandbox):
    model = int(os.environ.get("TESSERA_TEST_BUILD_BYTES", 256 * MIB))
    units = 16 if model < 1024 * MIB else 32  # of 128 MiB at 4 GiB
    numel = model // 4 // units
    job = {**JOB, "steps": 1, "timeouts": {"form": "300s", "collective": "120s"}}
    cluster = Cluster(sandbox, job, units, numel)
    for rank in (0, 1):
        cluster.agent.wait_for_line(f"rank {rank} kept ", cluster.agent.err, timeout=600)
    others = {"agent": cluster.agent.pid, "coordinator": cluster.coordinator.pid}
    others = {name: peak_bytes(pid) for name, pid in others.items()}
    assert cluster.watch.wait(900) == 0, cluster.watch.transcript() + cluster.agent.transcript()
    figures = {}
    for line in cluster.agent.err:
        match = re.match(r"rank (\d) kept (\d+) peak (\d+)", line)
        if match:
            figures[int(match.group(1))] = (int(match.group(2)), int(match.group(3)))
    assert sorted(figures) == [0, 1]
    unit = 4 * numel
    for rank, (kept, peak) in sorted(figures.items()):
        print(f"rank {rank}: shards {kept}, largest unit {unit}, peak {peak}")
        assert kept == pytest.approx(model / 2, abs=units * 1024)
        assert peak <= kept + unit + 200 * MIB
        # And it did hold its shards: the figure means something.
        assert peak >= kept
    for name, peak in others.items():
        print(f"{name}: peak {peak}")
        assert peak <= 200 * MIB
    assert cluster.agent.wait(PROMISE) == 0


def test_ranks_that_disagree_are_named_with_the_fqn(sandbox):
    cluster = Cluster(sandbox, JOB, 3, 1000, "shape")
    cluster.expect_failed(
        None, r'rank [01] announces "h\.1" otherwise than rank [01]: parameter "h\.1\.weight" is'
    )


def test_a_tie_to_a_sealed_unit_names_both(sandbox):
    cluster = Cluster(sandbox, JOB, 2, 100, "tie")
    cluster.expect_failed(None, r'head: is tied to "h\.0\.weight" of unit "h\.0", which is sealed')


def test_a_rank_that_ends_while_it_builds_is_named(sandbox):
    cluster = Cluster(sandbox, JOB, 3, 100, "exit")
    cluster.expect_failed(1, "rank 1 on host .* exited with code 9")


def test_a_rank_that_is_killed_while_it_builds_is_named(sandbox):
    cluster = Cluster(sandbox, JOB, 3, 100, "hang")
    cluster.watch.wait_for_line("state DRAFT")
    workers = []
    while len(workers) < 2:
        workers = cluster.get("workers").get("workers", [])
    os.kill(int(workers[1]["pid"]), signal.SIGKILL)
    cluster.expect_failed(1, "rank 1 on host .* was killed by signal 9")


def test_a_rank_that_stops_building_is_named(sandbox):
    cluster = Cluster(sandbox, {**JOB, "timeouts": {"form": "2s"}}, 3, 100, "hang")
    cluster.expect_failed(1, "rank 1 on host .* has announced no module for 2s", 3 * PROMISE)


def test_a_program_that_does_not_build_is_told(sandbox):
    cluster = Cluster(sandbox, JOB, program=CHAR_MODEL)
    cluster.agent.wait_for_line(
        "char_model: the job's model is built by its ranks", cluster.agent.err
    )
    cluster.expect_failed(None, "exited with code 1 before it joined the job")


def test_a_program_that_builds_needs_a_job_that_says_so(sandbox):
    model = {"spec": {"root": {"parameters": [{"name": "w", "shape": [8], "dtype": "float32"}]}}}
    job = {**JOB, "model": model, "wrap": {"policy": "none"}}
    cluster = Cluster(sandbox, job, 2, 100)
    cluster.expect_failed(None, "this program builds its model, and the job gives one")


def test_a_plan_of_what_is_not_built_is_refused(sandbox):
    program = sandbox.tessera("plan", f"--job={sandbox.write_job(JOB)}")
    assert program.code == 2 and len(program.err) == 1
    assert "model.built" in program.err[0]
