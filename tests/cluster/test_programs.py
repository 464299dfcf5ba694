"""How the programs end."""

import signal
import subprocess

import pytest

from programs import COORDINATOR, TESSERA


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_coordinator_ends_in_order(sandbox, number):
    coordinator, _ = sandbox.start_coordinator()
    coordinator.signal(number)
    assert coordinator.wait() == 0, coordinator.transcript()


def test_a_port_that_is_taken_is_a_precondition(sandbox):
    _, address = sandbox.start_coordinator()
    second = sandbox.run(COORDINATOR, f"--listen={address}")
    assert second.code == 5, second.transcript()
    assert address in second.err[-1]


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
