"""How the programs end."""

import signal
import subprocess

import grpc
import pytest
from programs import COORDINATOR, PATIENCE, PROMISE, SMALL_JOB, TESSERA, WORKER

# HealthCheckResponse{status = 1}.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_coordinator_ends_in_order(sandbox, number):
    coordinator, _ = sandbox.start_coordinator()
    coordinator.signal(number)
    assert coordinator.wait() == 0, coordinator.transcript()


def test_a_port_that_is_taken_is_a_precondition(sandbox):
    _, address = sandbox.start_coordinator()
    second = sandbox.run(COORDINATOR, f"--listen={address}")
    assert second.code == 5, second.transcript()
    # One line, and none of gRPC's.
    assert len(second.err) == 1 and address in second.err[0]


def test_a_stopping_coordinator_says_so_before_it_cancels(sandbox):
    coordinator, address = sandbox.start_coordinator(drain_delay="1h")
    where = f"--coordinator={address}"
    assert sandbox.tessera("submit", f"--job={sandbox.write_job(SMALL_JOB)}", where).code == 0
    with grpc.insecure_channel(address) as channel:
        health = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=PATIENCE)
        assert next(health) == SERVING
        coordinator.signal(signal.SIGTERM)
        assert next(health) == NOT_SERVING
        job = sandbox.tessera("get", "job", "small", where)
        assert job.code == 0 and "state       FORMING" in job.out
    # A second signal does not wait.
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait(PROMISE) == -signal.SIGTERM


def test_jobs_are_cancelled_after_the_delay(sandbox):
    coordinator, address = sandbox.start_coordinator(drain_delay="10ms")
    where = f"--coordinator={address}"
    assert sandbox.tessera("submit", f"--job={sandbox.write_job(SMALL_JOB)}", where).code == 0
    watch = sandbox.start(TESSERA, "watch", "small", where)
    watch.wait_for_line("state FORMING")
    coordinator.signal(signal.SIGTERM)
    assert watch.wait() == 1
    assert watch.out[-1] == "state CANCELLED"
    assert watch.err[-1].endswith(": the coordinator is shutting down")
    assert coordinator.wait() == 0, coordinator.transcript()


@pytest.mark.parametrize("delay", ["soon", "-1s", "2h", ""])
def test_a_delay_that_is_none_is_refused(sandbox, delay):
    program = sandbox.run(COORDINATOR, f"--drain_delay={delay}")
    assert (program.code, program.out, len(program.err)) == (2, [], 1), program.transcript()
    assert "--drain_delay" in program.err[0]


@pytest.mark.parametrize("address", ["http://127.0.0.1:4020", "127.0.0.1", "localhost:http"])
def test_an_address_that_is_none_is_refused(sandbox, address):
    for argv in ([TESSERA, "list"], [WORKER]):
        program = sandbox.run(*argv, f"--coordinator={address}")
        assert (program.code, program.out, len(program.err)) == (2, [], 1), program.transcript()
        assert "--coordinator" in program.err[0]


@pytest.mark.parametrize("argv", [["plan"], ["version"]])
def test_output_that_cannot_be_written_is_no_success(sandbox, argv):
    job = sandbox.write_job({"name": "full"})
    if argv == ["plan"]:
        argv = ["plan", f"--job={job}", "--output=json"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run(
            [TESSERA, *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "tessera: the output could not be written; is the disk full?\n"
