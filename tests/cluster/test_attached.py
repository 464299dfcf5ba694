"""Programs of somebody's own as the ranks of a job (workload "attached").

The trainer is tests/examples/char_model, which is also what the README shows.
"""

import collections
import json
import math
import os
import pathlib
import re
import signal

import numpy
import pytest
from programs import CHAR_MODEL, PROMISE, ROOT, SMALL_JOB, TESSERA
from safetensors import safe_open

JOB = json.loads((ROOT / "tests" / "examples" / "char_model.json").read_text(encoding="utf-8"))
# Runs until somebody ends it.
ENDLESS = {**JOB, "steps": 10_000_000}


def unigram_entropy():
    """Nats a byte, for a model that knows how often each byte comes and nothing else."""
    text = pathlib.Path(JOB["data"]).read_bytes()
    counts = collections.Counter(text).values()
    return -sum(count / len(text) * math.log(count / len(text)) for count in counts)


def losses(lines):
    """step -> loss"""
    matches = [re.match(r"step (\d+)/\d+ loss (\d+\.\d{3})\b", line) for line in lines]
    return {int(match.group(1)): float(match.group(2)) for match in matches if match}


def expect_trained(lines, export):
    seen = losses(lines)
    assert list(seen) == list(range(20, 301, 20))
    assert seen[20] > 2.7 and unigram_entropy() > 3.1
    # Better than any model of pairs of bytes (2.42).
    assert seen[300] < 0.75 * unigram_entropy()
    with safe_open(export, framework="numpy") as exported:
        names = ["bias", *(f"back.{back}.weight" for back in range(1, 7))]
        assert sorted(exported.keys()) == sorted(names)
        assert exported.get_tensor("back.1.weight").shape == (256, 256)
        bias = exported.get_tensor("bias")
        assert bias.dtype == numpy.float32 and bias[ord("e")] > bias[ord("Z")]


class Cluster:
    """A coordinator with a job that was submitted, and a watch of it."""

    def __init__(self, sandbox, job, **settings):
        self.sandbox, self.name = sandbox, job["name"]
        _, self.address = sandbox.start_coordinator()
        self.where = f"--coordinator={self.address}"
        submitted = sandbox.tessera(
            "submit",
            f"--job={sandbox.write_job(job)}",
            self.where,
            *(part for path, value in settings.items() for part in ("--set", f"{path}={value}")),
        )
        assert submitted.code == 0, submitted.transcript()
        self.watch = sandbox.start(TESSERA, "watch", self.name, self.where)

    def start_agent(self, *program, workers=2):
        return self.sandbox.start_agent(
            self.address, workers, f"--job={self.name}", *(("--", *program) if program else ())
        )

    def get(self, what):
        program = self.sandbox.tessera("get", what, self.name, self.where, "--output=json")
        assert program.code == 0, program.transcript()
        return json.loads("\n".join(program.out))

    def expect_failed(self, agent, rank, reason):
        """The job has FAILED because of `rank`, and the agent has ended too."""
        assert self.watch.wait(PROMISE) == 1, self.watch.transcript()
        job = self.get("job")
        assert (job["state"], job["failed_rank"]) == ("FAILED", rank)
        assert re.search(reason, job["reason"]), job["reason"]
        assert agent.wait(PROMISE) == 1
        assert any(job["reason"] in line for line in agent.err)


def test_a_program_by_hand_trains_and_exports(sandbox):
    directory = sandbox.directory / "out"
    cluster = Cluster(sandbox, JOB, **{"checkpoint.dir": directory})
    agent = cluster.start_agent(CHAR_MODEL)
    assert cluster.watch.wait() == 0, cluster.watch.transcript() + agent.transcript()
    assert agent.wait(PROMISE) == 0, agent.transcript()
    expect_trained(cluster.watch.out, directory / "export" / "model.safetensors")
    assert cluster.watch.out[-1] == "state SUCCEEDED"
    assert sandbox.tessera("get", "job", "char-model", cluster.where).code == 0


def test_a_program_can_be_drained(sandbox):
    directory = sandbox.directory / "out"
    cluster = Cluster(sandbox, ENDLESS, **{"checkpoint.dir": directory})
    agent = cluster.start_agent(CHAR_MODEL)
    cluster.watch.wait_for_line("step ")
    drained = sandbox.tessera("drain", "char-model", cluster.where)
    assert (drained.code, drained.out) == (0, ["char-model CANCELLED"]), drained.transcript()
    assert cluster.watch.wait(PROMISE) == 1
    job = cluster.get("job")
    assert job["reason_code"] == "DRAINED"
    assert cluster.watch.out[-2].startswith(f"step {job['step']}/")
    with safe_open(directory / "export" / "model.safetensors", framework="numpy") as exported:
        assert numpy.any(exported.get_tensor("bias"))
    assert agent.wait(PROMISE) == 1


def test_run_takes_a_program_too(sandbox):
    job = sandbox.write_job(JOB)
    program = sandbox.tessera(
        "run", f"--job={job}", "--workers=3", "--set", "global_batch=255", "--", CHAR_MODEL
    )
    assert program.code == 0, program.transcript()
    export = sandbox.directory / "char-model.tessera" / "export" / "model.safetensors"
    expect_trained(program.out, export)
    assert program.out[-1] == f"export {export}"
    header = next(index for index, line in enumerate(program.out) if line.startswith("RANK "))
    for line in program.out[header + 1 : header + 4]:
        _, _, _, forecast, measured, difference = line.replace(",", "").split()
        assert (measured, difference) == (forecast, "0")


def test_arguments_reach_the_program(sandbox):
    cluster = Cluster(sandbox, JOB)
    agent = cluster.start_agent("sh", "-c", 'echo "$0 got $*" >&2; exit 7', "me", "--flag", "a b")
    agent.wait_for_line("me got --flag a b", lines=agent.err)
    # Both end in the same way, and either may be seen to do so first.
    assert cluster.watch.wait(PROMISE) == 1
    rank = cluster.get("job")["failed_rank"]
    reason = f"rank {rank} on host .* exited with code 7 before it joined"
    cluster.expect_failed(agent, rank, reason)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named(sandbox, rank):
    cluster = Cluster(sandbox, {**ENDLESS, "max_recoveries": 0})
    agent = cluster.start_agent(CHAR_MODEL)
    cluster.watch.wait_for_line("step ")
    pid = next(
        int(worker["pid"])
        for worker in cluster.get("workers")["workers"]
        if worker["rank"] == rank and int(worker["pid"]) != agent.pid
    )
    os.kill(pid, signal.SIGKILL)
    cluster.expect_failed(agent, rank, f"rank {rank} on host .* was killed by signal 9")


def test_a_program_that_fails_says_why_itself(sandbox):
    cluster = Cluster(sandbox, JOB, data=sandbox.directory / "missing.txt")
    agent = cluster.start_agent(CHAR_MODEL)
    assert cluster.watch.wait() == 1
    job = cluster.get("job")
    assert (job["state"], job["reason_code"]) == ("FAILED", "INVALID_ARGUMENT")
    assert re.search(r"rank [01] on host .*: data: no text in .*missing\.txt", job["reason"])
    assert agent.wait(PROMISE) == 1


@pytest.mark.parametrize("program, code", [("true", 0), ("false", 1)])
def test_a_program_that_never_joins_is_named_by_rank(sandbox, program, code):
    cluster = Cluster(sandbox, JOB)
    agent = cluster.start_agent(program)
    agent.wait_for_line(rf".*starting 2 workers for job char-model: /\S*/{program}$", agent.err)
    assert cluster.watch.wait(PROMISE) == 1
    rank = cluster.get("job")["failed_rank"]
    cluster.expect_failed(
        agent, rank, f"rank {rank} on host .* exited with code {code} before it joined the job"
    )


def test_one_rank_that_never_joins_ends_the_others(sandbox):
    cluster = Cluster(sandbox, JOB)
    # The first to come makes the directory and trains; the other goes.
    script = f'mkdir "{sandbox.directory}/first" 2>/dev/null && exec "{CHAR_MODEL}"; exit 0'
    agent = cluster.start_agent("sh", "-c", script)
    assert cluster.watch.wait(PROMISE) == 1
    rank = cluster.get("job")["failed_rank"]
    cluster.expect_failed(agent, rank, "exited with code 0 before it joined the job")


@pytest.mark.parametrize("program", ["./missing", "missing-trainer", "/"])
def test_a_program_that_does_not_exist_is_refused(sandbox, program):
    cluster = Cluster(sandbox, JOB)
    agent = cluster.start_agent(program)
    assert agent.wait(PROMISE) == 2
    assert len(agent.err) == 1 and "PROGRAM" in agent.err[0] and program in agent.err[0]
    assert cluster.get("job")["state"] == "FORMING"
    run = sandbox.tessera("run", "--job=char-model.json", "--", program)
    assert (run.code, run.out, len(run.err)) == (2, [], 1)
    assert "PROGRAM" in run.err[0] and program in run.err[0]


def test_the_agent_of_the_wrong_kind_is_refused(sandbox):
    cluster = Cluster(sandbox, JOB)
    agent = cluster.start_agent()
    assert agent.wait(PROMISE) == 5
    assert any("workload attached" in line and "-- PROGRAM" in line for line in agent.err)
    # The job waits on, for one with a program.
    assert cluster.get("job")["state"] == "FORMING"
    agent = cluster.start_agent(CHAR_MODEL)
    assert cluster.watch.wait() == 0
    assert agent.wait(PROMISE) == 0

    submitted = sandbox.tessera("submit", f"--job={sandbox.write_job(SMALL_JOB)}", cluster.where)
    assert submitted.code == 0
    wrong = sandbox.start_agent(cluster.address, 2, "--job=small", "--", CHAR_MODEL)
    assert wrong.wait(PROMISE) == 5
    assert any("built-in workload gpt" in line and "char_model" in line for line in wrong.err)


def test_run_wants_a_program_exactly_where_there_is_a_use_for_it(sandbox):
    job, small = sandbox.write_job(JOB), sandbox.write_job(SMALL_JOB)
    for arguments in ([f"--job={job}"], [f"--job={small}", "--", CHAR_MODEL]):
        program = sandbox.tessera("run", *arguments)
        assert (program.code, program.out, len(program.err)) == (2, [], 1)
        assert "PROGRAM" in program.err[0]


def test_a_program_without_an_agent_says_what_to_do(sandbox):
    program = sandbox.run(CHAR_MODEL)
    assert program.code == 1
    assert "no agent started this process" in program.err[0] and "tessera-worker" in program.err[0]


def test_a_program_that_neither_joins_nor_ends_is_ended(sandbox):
    cluster = Cluster(sandbox, JOB, **{"timeouts.form": "1s"})
    agent = cluster.start_agent("sleep", "600")
    assert cluster.watch.wait(2 * PROMISE) == 1
    job = cluster.get("job")
    assert job["state"] == "FAILED"
    assert "0 of 2 workers joined; ranks 0-1 are missing after 1s" in job["reason"]
    assert agent.wait(2 * PROMISE) == 1
    assert not [line for line in sandbox.left().values() if line.startswith("sleep")]


def test_a_file_that_is_no_program_fails_the_job_by_name(sandbox):
    garbage = sandbox.directory / "garbage"
    garbage.write_bytes(b"\x00\x01\x02")
    garbage.chmod(0o755)
    cluster = Cluster(sandbox, JOB)
    agent = cluster.start_agent(garbage)
    assert agent.wait(PROMISE) == 1
    assert cluster.watch.wait(PROMISE) == 1
    assert f"cannot start {garbage}: Exec format error" in cluster.get("job")["reason"]
