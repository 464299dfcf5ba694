"""The coordinator is killed and started again on the same port and folder.

Jobs go on: no step is lost or repeated, watchers miss nothing, and what was answered stays so.
What is wrong with the folder is told.
"""

import re
import resource
import signal
import sqlite3

import pytest
from jobs_by_hand import as_json, submit
from programs import COORDINATOR, ENDLESS_JOB, SMALL_JOB, TESSERA, WORKER, await_end

LONG_JOB = {**SMALL_JOB, "name": "long", "steps": 400, "eval_every": 1000}
STEP = r"step (\d+)/"


class Restarts:
    """A coordinator that keeps its state, and can be killed."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.state = sandbox.directory / "state"
        self.program = sandbox.start(
            COORDINATOR, "--listen=127.0.0.1:0", "--drain_delay=0s", f"--state_dir={self.state}"
        )
        self.address = self.program.wait_for_line(r"listening (\S+:\d+)$").group(1)

    def end(self, number=signal.SIGKILL):
        self.program.signal(number)
        assert self.program.wait() == (0 if number == signal.SIGTERM else -number)

    def start(self, *argv):
        self.program = self.sandbox.start(
            COORDINATOR,
            f"--listen={self.address}",
            "--drain_delay=0s",
            f"--state_dir={self.state}",
            *argv,
        )
        self.program.wait_for_line(r"listening ")

    def tessera(self, *argv):
        return self.sandbox.tessera(*argv, f"--coordinator={self.address}")

    def get(self, kind, name):
        return as_json(self.tessera("get", kind, name, "--output=json"))

    def watch(self, name):
        return self.sandbox.start(TESSERA, "watch", name, f"--coordinator={self.address}")


def steps_of(program):
    return [int(match.group(1)) for line in program.out if (match := re.match(STEP, line))]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_goes_on_over_many_restarts(sandbox, number):
    restarts = Restarts(sandbox)
    submit(sandbox, restarts.address, LONG_JOB)
    agent = sandbox.start_agent(restarts.address, 2, "--job=long")
    watch = restarts.watch("long")
    pids = None
    for step in (20, 80, 140, 200):
        watch.wait_for_line(f"step {step}/")
        workers = {
            (worker["rank"], worker["pid"], worker["incarnation"])
            for worker in restarts.get("workers", "long")["workers"]
        }
        assert pids in (None, workers)
        pids = workers
        restarts.end(number)
        restarts.start()
    assert watch.wait() == 0, watch.transcript()
    assert agent.wait() == 0, agent.transcript()
    job = restarts.get("job", "long")
    assert (job["state"], job["step"], job["generation"]) == ("SUCCEEDED", "400", 1), job
    assert job.get("recoveries", 0) == 0
    # Every line once, although watchers and ranks told and were told over again.
    assert steps_of(watch) == [1, *range(20, 401, 20)] or steps_of(watch) == list(
        range(20, 401, 20)
    ), watch.transcript()


def test_the_job_computes_on_while_the_coordinator_is_away_and_ends_when_it_is_back(sandbox):
    restarts = Restarts(sandbox)
    submit(sandbox, restarts.address, {**LONG_JOB, "steps": 60})
    agent = sandbox.start_agent(restarts.address, 2, "--job=long")
    watch = restarts.watch("long")
    watch.wait_for_line("step 20/")
    restarts.end()
    agent.wait_for_line(r".*is away", lines=agent.err)
    restarts.start()
    assert watch.wait() == 0, watch.transcript()
    assert agent.wait() == 0, agent.transcript()
    assert steps_of(watch)[-1] == 60


def test_an_agent_gives_up_in_time(sandbox):
    restarts = Restarts(sandbox)
    submit(sandbox, restarts.address, ENDLESS_JOB)
    agent = sandbox.start(
        WORKER,
        f"--coordinator={restarts.address}",
        "--local_workers=2",
        "--job=endless",
        "--coordinator_timeout=1s",
    )
    watch = restarts.watch("endless")
    watch.wait_for_line("step ")
    pids = [int(worker["pid"]) for worker in restarts.get("workers", "endless")["workers"]]
    restarts.end()
    assert agent.wait() == 3, agent.transcript()
    for pid in pids:
        assert await_end(pid, 5)
    watch.signal(signal.SIGINT)


def test_what_was_answered_is_still_so(sandbox):
    restarts = Restarts(sandbox)
    submit(sandbox, restarts.address, ENDLESS_JOB)
    submit(sandbox, restarts.address, SMALL_JOB)
    assert restarts.tessera("cancel", "small").code == 0
    restarts.end()
    restarts.start()
    jobs = as_json(restarts.tessera("list", "--output=json"))["jobs"]
    assert [(job["name"], job["state"]) for job in jobs] == [
        ("small", "CANCELLED"),
        ("endless", "FORMING"),
    ]
    assert restarts.tessera("get", "plan", "endless").code == 0


def refused(sandbox, state):
    """The one line with which a coordinator refuses `state`."""
    program = sandbox.run(COORDINATOR, "--listen=127.0.0.1:0", f"--state_dir={state}")
    assert program.code == 1, program.transcript()
    assert program.out == [] and len(program.err) == 1, program.transcript()
    assert str(state) in program.err[0]
    return program.err[0]


def test_a_folder_that_another_coordinator_has(sandbox):
    restarts = Restarts(sandbox)
    assert "another coordinator has it" in refused(sandbox, restarts.state)


def test_a_damaged_file(sandbox):
    restarts = Restarts(sandbox)
    submit(sandbox, restarts.address, SMALL_JOB)
    restarts.end(signal.SIGTERM)
    file = restarts.state / "coordinator.sqlite"
    with open(file, "r+b") as damaged:
        damaged.truncate(file.stat().st_size // 2)
    assert "is damaged" in refused(sandbox, restarts.state)


def test_a_newer_schema(sandbox):
    restarts = Restarts(sandbox)
    restarts.end(signal.SIGTERM)
    with sqlite3.connect(restarts.state / "coordinator.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert "has schema 99" in refused(sandbox, restarts.state)


def test_a_full_disk_refuses_new_jobs_and_disturbs_no_other(sandbox):
    restarts = Restarts(sandbox)
    submit(sandbox, restarts.address, ENDLESS_JOB)
    sandbox.start_agent(restarts.address, 2, "--job=endless")
    watch = restarts.watch("endless")
    watch.wait_for_line("step 20/")
    # Files may not grow any more: as good as a full disk, for this process alone.
    resource.prlimit(restarts.program.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    job = sandbox.write_job(SMALL_JOB)
    program = restarts.tessera("submit", f"--job={job}")
    assert program.code == 1, program.transcript()
    assert "job small is not created" in program.err[-1] and "full" in program.err[-1]
    seen = steps_of(watch)[-1]
    watch.wait_for_line(f"step {seen + 40}/")
    assert restarts.get("job", "endless")["state"] == "RUNNING"
    resource.prlimit(
        restarts.program.pid,
        resource.RLIMIT_FSIZE,
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    )
    restarts.program.wait_for_line(r".*the state is kept again", lines=restarts.program.err)
    assert restarts.tessera("submit", f"--job={job}").code == 0
    assert restarts.tessera("cancel", "endless").code == 0


def test_without_a_folder_jobs_end_with_the_coordinator(sandbox):
    coordinator, address = sandbox.start_coordinator()
    submit(sandbox, address, ENDLESS_JOB)
    agent = sandbox.start_agent(address, 2, "--job=endless")
    watch = sandbox.start(TESSERA, "watch", "endless", f"--coordinator={address}")
    watch.wait_for_line("step ")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait() == 0
    assert watch.wait() == 1 and "CANCELLED" in watch.out[-1] + watch.err[-1]
    assert agent.wait() == 1


def test_the_answer_of_a_coordinator_that_cannot_write_at_all(sandbox):
    blocked = sandbox.directory / "file"
    blocked.write_text("", encoding="utf-8")
    line = refused(sandbox, blocked / "state")
    assert "cannot be made" in line
