"""Checkpoints of `tessera run`: saved, loaded elsewhere, imported, killed while they are saved."""

import json
import os
import random
import re
import signal
import threading

import numpy
import pytest
from programs import SMALL_JOB, TESSERA
from safetensors import safe_open
from safetensors.numpy import save_file

# How often a process is killed at a random moment; tests/run_deep asks for more.
KILLS = int(os.environ.get("TESSERA_TEST_KILLS", "3"))
JOB = {**SMALL_JOB, "steps": 6, "optimizer": {"warmup_steps": 10, "schedule": "constant"}}


def run(sandbox, job, *flags):
    program = sandbox.tessera("run", f"--job={sandbox.write_job(job)}", *flags)
    assert program.code == 0, program.transcript()
    return program


def hashes(sandbox, directory):
    """FQN -> its hashes, of a checkpoint or of the newest in a directory."""
    program = sandbox.tessera("checkpoint", "hash", str(directory), "--output=json")
    assert program.code == 0, program.transcript()
    found = json.loads("\n".join(program.out))
    return {
        parameter["fqn"]: (parameter["sha256"], tuple(parameter["optimizer_sha256"]))
        for parameter in found["parameters"]
    }


def test_run_saves_what_another_mesh_and_plan_resumes(sandbox):
    program = run(sandbox, JOB, "--workers=4")
    first = sandbox.directory / "small.tessera"
    export = first / "export" / "model.safetensors"
    assert program.out[-2:] == [f"checkpoint {first}/step-6", f"export {export}"]
    saved = hashes(sandbox, first)
    assert len(saved) == 28
    files = sorted(path.name for path in (first / "step-6").iterdir())
    assert files == ["index.json", *(f"shard-0000{i}-of-00004.safetensors" for i in range(1, 5))]

    # Each shard opens as a safetensors file, and together they are the export.
    index = json.loads((first / "step-6" / "index.json").read_text(encoding="utf-8"))
    assert (index["step"], index["data_position"], index["world_size"]) == ("6", "72", 4)
    parts = {}
    for name in files[1:]:
        with safe_open(first / "step-6" / name, framework="numpy") as shard:
            ranges = shard.metadata()
            for tensor in shard.keys():
                if tensor.startswith("param:"):
                    begin = int(ranges[tensor].split(":")[0])
                    parts.setdefault(tensor[6:], []).append((begin, shard.get_tensor(tensor)))
    with safe_open(export, framework="numpy") as exported:
        assert sorted(parts) == sorted(exported.keys())
        for name, cut in parts.items():
            whole = numpy.concatenate([part for _, part in sorted(cut, key=lambda pair: pair[0])])
            assert numpy.array_equal(whole, exported.get_tensor(name).ravel()), name

    other = sandbox.directory / "other"
    flags = ("--workers=3", "--set", "wrap.policy=none", "--set", f"checkpoint.dir={other}")
    run(sandbox, JOB, *flags, "--set", "checkpoint.resume=small.tessera/step-6")
    assert hashes(sandbox, other) == saved
    # And goes on from there.
    more = run(sandbox, {**JOB, "steps": 9}, *flags, "--set", "checkpoint.resume=auto")
    assert [line.split()[1] for line in more.out if line.startswith("step ")] == ["9/9"]
    assert sorted(path.name for path in other.iterdir()) == ["export", "step-6", "step-9"]


def test_the_same_world_goes_on_bit_for_bit(sandbox):
    run(sandbox, JOB)
    whole = hashes(sandbox, sandbox.directory / "small.tessera")
    flags = ("--set", "checkpoint.dir=half")
    run(sandbox, {**JOB, "steps": 3}, *flags)
    run(sandbox, JOB, *flags, "--set", "checkpoint.resume=auto")
    assert hashes(sandbox, sandbox.directory / "half") == whole


def test_what_cannot_be_resumed_or_imported_is_named(sandbox):
    run(sandbox, JOB)
    job = sandbox.write_job({**JOB, "name": "next"})
    torn = sandbox.directory / "small.tessera" / "step-6"
    shard = torn / "shard-00001-of-00002.safetensors"
    for flag, field, reason in (
        ("checkpoint.resume=nowhere", "checkpoint.resume", "nowhere"),
        ("checkpoint.import=nowhere", "checkpoint.import", "nowhere"),
        ('checkpoint.import_names=[{"from":"("}]', "checkpoint.import_names[0].from", "("),
    ):
        program = sandbox.tessera("run", f"--job={job}", "--set", flag)
        assert (program.code, len(program.err)) == (2, 1), program.transcript()
        assert field in program.err[0] and reason in program.err[0]
    wider = sandbox.tessera(
        "run",
        f"--job={job}",
        "--set",
        "model.width=64",
        "--set",
        f"checkpoint.resume={torn}",
    )
    assert wider.code == 1, wider.transcript()
    assert re.search(r"has the shape \[.*32.*\] in the checkpoint and \[.*64", wider.err[-1])
    os.truncate(shard, shard.stat().st_size - 1)
    program = sandbox.tessera("run", f"--job={job}", "--set", f"checkpoint.resume={torn}")
    assert program.code == 2 and "is no whole checkpoint" in program.err[0], program.transcript()


def test_a_model_with_other_names_is_imported_and_exported(sandbox):
    run(sandbox, JOB)
    source = sandbox.directory / "small.tessera" / "export" / "model.safetensors"
    with safe_open(source, framework="numpy") as exported:
        tensors = {name: exported.get_tensor(name) for name in exported.keys()}
    # As Hugging Face's GPT-2 saves it: a prefix, and the attention masks.
    theirs = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    theirs["transformer.h.0.attn.bias"] = numpy.ones((1, 1, 16, 16), numpy.uint8)
    save_file(theirs, sandbox.directory / "theirs.safetensors")
    checkpoint = {
        "import": "theirs.safetensors",
        "import_names": [
            {"from": r".*\.attn\.bias", "to": ""},
            {"from": r"transformer\.(.*)", "to": r"\1"},
        ],
        "export_names": [{"from": "(.*)", "to": r"transformer.\1"}],
    }
    # A step of which nothing is left: what is exported is what was imported.
    still = {"name": "sgd", "lr": 0, "weight_decay": 0}
    job = {**JOB, "name": "next", "steps": 1, "optimizer": still, "checkpoint": checkpoint}
    run(sandbox, job)
    target = sandbox.directory / "next.tessera" / "export" / "model.safetensors"
    with safe_open(target, framework="numpy") as exported:
        assert sorted(exported.keys()) == sorted(f"transformer.{name}" for name in tensors)
        for name, tensor in tensors.items():
            assert numpy.array_equal(exported.get_tensor(f"transformer.{name}"), tensor), name


@pytest.mark.parametrize("point", ["write", "written", "index", "rename", "renamed", "remove"])
def test_killed_at_a_point_of_saving(sandbox, point):
    job = {**JOB, "steps": 1000, "checkpoint": {"every": 1}, "max_recoveries": 0}
    path = sandbox.write_job(job)
    fault = f"rank=0,point=checkpoint_{point},step=3,action=kill"
    program = sandbox.tessera("run", f"--job={path}", TESSERA_TEST_FAULT=fault)
    assert program.code == 1, program.transcript()
    assert "rank 0" in program.err[-1]
    directory = sandbox.directory / "small.tessera"
    steps = sorted(path.name for path in directory.glob("step-*") if "." not in path.name)
    # From the renaming on the third is there.
    assert steps[-1] == ("step-3" if point in ("renamed", "remove") else "step-2")
    assert len(hashes(sandbox, directory)) == 28
    # It goes on from there, and what the kill left is gone.
    rest = run(sandbox, {**job, "steps": 5}, "--set", "checkpoint.resume=auto")
    assert any("goes on from" in line and steps[-1] in line for line in rest.err)
    left = sorted(path.name for path in directory.iterdir())
    assert left == ["export", "step-4", "step-5"]


def test_killed_at_random_moments_of_saving(sandbox):
    """There is always a whole checkpoint to load, and the step it has never goes back."""
    draw = random.Random(20)
    job = {**JOB, "steps": 10_000_000, "eval_every": 1_000_000, "checkpoint": {"every": 1}}
    job["max_recoveries"] = 0
    path = sandbox.write_job(job)
    directory = sandbox.directory / "small.tessera"
    step = 0
    for _ in range(KILLS):
        program = sandbox.start(TESSERA, "run", f"--job={path}", "--set", "checkpoint.resume=auto")
        program.wait_for_line(r".*saved .*/step-\d+", lines=program.err)
        # The moment is random, and nothing but time will do for that.
        threading.Event().wait(draw.uniform(0, 0.2))
        workers = [
            pid for pid, line in sandbox.left().items() if "tessera-worker" in line.split()[0]
        ]
        for pid in draw.sample(workers, draw.randint(1, len(workers))):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        assert program.wait() in (1, 3), program.transcript()
        sandbox.await_nothing_left()
        found = sandbox.tessera("checkpoint", "hash", str(directory), "--output=json")
        assert found.code == 0, found.transcript()
        assert not any("skipped" in line for line in found.err), found.transcript()
        newest = json.loads("\n".join(found.out))
        assert int(newest["step"]) > step
        assert len(newest["parameters"]) == 28
        step = int(newest["step"])
