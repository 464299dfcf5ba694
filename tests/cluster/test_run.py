"""`tessera run`: what it prints and writes, and that it ends and leaves nothing, come what may."""

import hashlib
import json
import os
import re
import signal
import time

import numpy
import pytest
from programs import COORDINATOR, ENDLESS_JOB, PROMISE, SMALL_JOB, TESSERA, await_end
from safetensors import safe_open

PROGRESS = r"step (\d+)/(\d+) loss (\d+\.\d{3})( val \d+\.\d{3})? tokens/s \d+"


def progress(program):
    """(step, evaluated) of each line of progress."""
    matches = [re.match(PROGRESS, line) for line in program.out]
    return [(int(match.group(1)), match.group(4) is not None) for match in matches if match]


def losses(program):
    return [line.split(" tokens/s")[0] for line in program.out if line.startswith("step ")]


def export_of(sandbox, job=SMALL_JOB):
    return sandbox.directory / f"{job['name']}.tessera" / "export" / "model.safetensors"


def test_trains_and_prints_what_was_promised(sandbox):
    job = sandbox.write_job(SMALL_JOB)
    program = sandbox.tessera("run", f"--job={job}")
    assert program.code == 0, program.transcript()
    assert re.fullmatch(r"coordinator 127\.0\.0\.1:\d+", program.out[0])
    # Every 20 steps, at each evaluation (25) and at the last step, which is evaluated too.
    assert progress(program) == [(20, False), (25, True), (40, True)], program.transcript()
    directory = export_of(sandbox).parent.parent
    assert program.out[-2:] == [f"checkpoint {directory}/step-40", f"export {export_of(sandbox)}"]
    text = "\n".join(program.out)
    for unit in ("h.0", "(root)"):
        assert unit in text
    for operation in ("unshard", "wait", "reduce", "optimizer"):
        assert f" {operation} " in text
    assert max(map(len, program.out[1:-2])) <= 80

    header = next(index for index, line in enumerate(program.out) if line.startswith("RANK "))
    ranks = [line.replace(",", "").split() for line in program.out[header + 1 : header + 3]]
    assert [rank[0] for rank in ranks] == ["0", "1"]
    assert ranks[0][2] != ranks[1][2], "ranks are processes of their own"
    for _, _, _, forecast, measured, difference in ranks:
        assert (measured, difference) == (forecast, "0")
    sandbox.await_nothing_left()


def test_export_is_the_plan_in_safetensors(sandbox):
    job = sandbox.write_job(SMALL_JOB)
    planned = json.loads("\n".join(sandbox.tessera("plan", f"--job={job}", "--output=json").out))
    expected = {
        parameter["fqn"]: [int(extent) for extent in parameter["shape"]]
        for unit in planned["plan"]["units"]
        for parameter in unit["parameters"]
    }
    program = sandbox.tessera("run", f"--job={job}")
    assert program.code == 0, program.transcript()
    with safe_open(export_of(sandbox), framework="numpy") as exported:
        assert sorted(exported.keys()) == sorted(expected)
        for name, shape in expected.items():
            tensor = exported.get_tensor(name)
            assert (list(tensor.shape), tensor.dtype) == (shape, numpy.float32), name
            assert numpy.isfinite(tensor).all(), name
        # Trained: a norm starts as ones.
        assert not numpy.array_equal(
            exported.get_tensor("h.0.ln_1.weight"), numpy.ones(32, numpy.float32)
        )


@pytest.mark.parametrize("unshard", ["slots", "resident"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_maps_what_was_forecast_in_every_mode(sandbox, unshard, dtype):
    job = sandbox.write_job(
        {
            **SMALL_JOB,
            "steps": 3,
            "memory": {"unshard": unshard},
            "mixed_precision": {"param_dtype": dtype, "reduce_dtype": "float32"},
        }
    )
    program = sandbox.tessera("run", f"--job={job}")
    assert program.code == 0, program.transcript()
    units = next(line for line in program.out if line.startswith("h.0"))
    assert f" {dtype}" in units and " float32" in units
    header = next(index for index, line in enumerate(program.out) if line.startswith("RANK "))
    for line in program.out[header + 1 : header + 3]:
        _, _, _, forecast, measured, difference = line.replace(",", "").split()
        assert (measured, difference) == (forecast, "0")
    # The export holds the masters.
    with safe_open(export_of(sandbox), framework="numpy") as exported:
        assert exported.get_tensor("wte.weight").dtype == numpy.float32


@pytest.mark.parametrize("unshard", ["slots", "resident"])
def test_accumulates_in_buffers_that_were_forecast(sandbox, unshard):
    seen = []
    for accumulate in (False, True):
        memory = {"unshard": unshard, "accumulate_unsynchronized": accumulate}
        job = sandbox.write_job(
            {
                **SMALL_JOB,
                "model": {**SMALL_JOB["model"], "layers": 4},
                "steps": 20,
                "micro_batches": 2,
                "memory": memory,
            }
        )
        program = sandbox.tessera("run", f"--job={job}")
        assert program.code == 0, program.transcript()
        header = next(index for index, line in enumerate(program.out) if line.startswith("RANK "))
        ranks = [line.replace(",", "").split() for line in program.out[header + 1 : header + 3]]
        for _, _, _, forecast, measured, difference in ranks:
            assert (measured, difference) == (forecast, "0")
        final = float(re.search(r"loss (\S+)", losses(program)[-1]).group(1))
        seen.append((final, int(ranks[0][3])))
    # The same training but for rounding, and buffers for four blocks instead of two.
    assert seen[1][0] == pytest.approx(seen[0][0], abs=0.002)
    assert seen[1][1] > seen[0][1]


def test_modes_give_the_same_bits(sandbox):
    seen = set()
    for unshard in ("slots", "resident"):
        job = sandbox.write_job({**SMALL_JOB, "memory": {"unshard": unshard}})
        program = sandbox.tessera("run", f"--job={job}")
        assert program.code == 0, program.transcript()
        seen.add(hashlib.sha256(export_of(sandbox).read_bytes()).hexdigest())
    assert len(seen) == 1


def test_two_runs_agree_bit_for_bit(sandbox):
    job = sandbox.write_job(SMALL_JOB)
    seen = []
    for _ in range(2):
        program = sandbox.tessera("run", f"--job={job}", "--workers=3")
        assert program.code == 0, program.transcript()
        seen.append((losses(program), hashlib.sha256(export_of(sandbox).read_bytes()).hexdigest()))
    assert seen[0] == seen[1]


def test_one_worker_is_enough(sandbox):
    job = sandbox.write_job(SMALL_JOB)
    program = sandbox.tessera("run", f"--job={job}", "--workers=1", "--set", "steps=3")
    assert program.code == 0, program.transcript()
    assert progress(program) == [(3, True)]


def test_export_can_be_left_out(sandbox):
    checkpoint = {"export": False, "save": False}
    job = sandbox.write_job({**SMALL_JOB, "steps": 3, "checkpoint": checkpoint})
    program = sandbox.tessera("run", f"--job={job}")
    assert program.code == 0, program.transcript()
    assert not any(line.startswith(("export ", "checkpoint ")) for line in program.out)
    assert [entry.name for entry in sandbox.directory.iterdir()] == ["small.json"]


def test_two_runs_do_not_share_an_export(sandbox):
    first = start_endless(sandbox)
    job = sandbox.write_job(SMALL_JOB)
    directory = sandbox.directory / "endless.tessera"
    second = sandbox.tessera("run", f"--job={job}", "--set", f"checkpoint.dir={directory}")
    assert second.code == 1, second.transcript()
    assert "another job that runs is to write into" in second.transcript()
    assert first.running()
    first.signal(signal.SIGINT)
    assert first.wait() == 130
    # Free again once it has ended.
    third = sandbox.tessera("run", f"--job={job}", "--set", f"checkpoint.dir={directory}")
    assert third.code == 0, third.transcript()


def start_endless(sandbox):
    """A run that has begun to train."""
    job = sandbox.write_job(ENDLESS_JOB)
    program = sandbox.start(TESSERA, "run", f"--job={job}")
    program.wait_for_line(PROGRESS)
    return program


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels_and_stops_everything(sandbox, number, code):
    program = start_endless(sandbox)
    began = time.monotonic()
    program.signal(number)
    assert program.wait() == code
    sandbox.await_nothing_left()
    assert time.monotonic() - began < PROMISE
    assert not any(line.startswith("export ") for line in program.out)


def test_a_second_interrupt_kills(sandbox):
    program = start_endless(sandbox)
    # The first interrupt cannot succeed while the coordinator stands still.
    coordinator = next(
        pid for pid, line in sandbox.left().items() if line.startswith(str(COORDINATOR.resolve()))
    )
    os.kill(coordinator, signal.SIGSTOP)
    program.signal(signal.SIGINT)
    program.wait_for_line("tessera: cancelling job endless", lines=program.err)
    program.signal(signal.SIGINT)
    began = time.monotonic()
    assert program.wait(PROMISE) == 130
    # Without the second one it would wait for the coordinator's answer.
    assert time.monotonic() - began < 1
    sandbox.await_nothing_left()


def test_an_interrupt_while_starting(sandbox):
    job = sandbox.write_job(ENDLESS_JOB)
    program = sandbox.start(TESSERA, "run", f"--job={job}")
    program.wait_for_line("coordinator ")
    program.signal(signal.SIGINT)
    assert program.wait(PROMISE) == 130
    sandbox.await_nothing_left()


def test_killing_it_leaves_nothing(sandbox):
    program = start_endless(sandbox)
    program.signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    sandbox.await_nothing_left()


def test_a_killed_coordinator_ends_the_run(sandbox):
    program = start_endless(sandbox)
    coordinator = next(
        pid for pid, line in sandbox.left().items() if line.startswith(str(COORDINATOR.resolve()))
    )
    os.kill(coordinator, signal.SIGKILL)
    assert await_end(coordinator, PROMISE)
    assert program.wait(2 * PROMISE) == 3
    # Its agent and ranks may have a last word.
    assert "tessera: the coordinator was killed by signal 9 (Killed) during the job" in program.err
    sandbox.await_nothing_left()
