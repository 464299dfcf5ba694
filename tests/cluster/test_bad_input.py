"""Bad input: exit code 2, one line on stderr that names what is wrong, and nothing left behind."""

import copy
import json

import pytest
from programs import SMALL_JOB

GOOD_MODEL = {
    "name": "m",
    "root": {
        "class_name": "M",
        "children": [
            {
                "name": "a",
                "class_name": "Linear",
                "parameters": [
                    {"name": "w", "shape": [4, 4], "dtype": "float32"},
                    {"name": "b", "shape": [4], "dtype": "float32"},
                ],
            }
        ],
    },
}


def model(**changes):
    """The good model with fields of its first parameter changed; None takes a field away."""
    changed = copy.deepcopy(GOOD_MODEL)
    parameter = changed["root"]["children"][0]["parameters"][0]
    for key, value in changes.items():
        if value is None:
            del parameter[key]
        else:
            parameter[key] = value
    return json.dumps(changed)


def module(**fields):
    changed = copy.deepcopy(GOOD_MODEL)
    changed["root"]["children"][0].update(fields)
    return json.dumps(changed)


def refused(sandbox, program, *names):
    """Exit code 2, one line that has one of `names`, no output, no process."""
    assert program.code == 2, program.transcript()
    assert len(program.err) == 1, program.transcript()
    assert program.err[0].startswith("tessera: ")
    assert any(name in program.err[0] for name in names), f"{program.err[0]!r} has none of {names}"
    assert program.out == []
    assert sandbox.left() == {}


MODELS = {
    "empty file": ("", "model.json"),
    "not json": ("{", "model.json"),
    "json but no object": ("[1]", "model.json"),
    "not a modelspec": ('{"layers": 4}', "layers"),
    "unknown key": (module(colour="red"), "colour"),
    "unknown key of a parameter": (model(size=4), "size"),
    "unknown dtype": (model(dtype="float31"), "float31"),
    "missing dtype": (model(dtype=None), "a.w"),
    "integer parameter": (model(dtype="int32"), "a.w"),
    "scalar": (model(shape=[]), "a.w"),
    "negative shape": (model(shape=[4, -4]), "a.w"),
    "zero shape": (model(shape=[0, 4]), "a.w"),
    "overflowing shape": (model(shape=[2**40, 2**40]), "a.w"),
    "shape beyond int64": (model(shape=[2**70]), "shape"),
    "fraction in a shape": (model(shape=[1.5]), "shape"),
    "two parameters of one name": (model(name="b"), "a.b"),
    "name with a dot": (model(name="w.x"), "w.x"),
    "tie to nothing": (model(tied_to="a.nothing"), "a.nothing"),
    "tie to another shape": (model(tied_to="a.b"), "a.w"),
    "unknown init": (model(init={"kind": "magic"}), "magic"),
    "empty model": ('{"name": "m", "root": {"class_name": "M"}}', "param"),
    "no root": ('{"name": "m"}', "root"),
    "same_as nothing": (
        json.dumps(
            {
                **GOOD_MODEL,
                "root": {
                    **GOOD_MODEL["root"],
                    "children": [*GOOD_MODEL["root"]["children"], {"name": "c", "same_as": "zz"}],
                },
            }
        ),
        "zz",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_model(sandbox, case):
    text, name = MODELS[case]
    (sandbox.directory / "model.json").write_text(text, encoding="utf-8")
    refused(sandbox, sandbox.tessera("plan", "--model=model.json", "--wrap=none"), name)
    assert [entry.name for entry in sandbox.directory.iterdir()] == ["model.json"]


FLAGS = {
    "no flag": ([], "--model"),
    "unknown flag": (["--model=good.json", "--colour=red"], "--colour"),
    "missing file": (["--model=missing.json"], "missing.json"),
    "directory": (["--model=."], "."),
    "both sources": (["--model=good.json", "--job=good.json"], "--job"),
    "unknown policy": (["--model=good.json", "--wrap=often"], "often"),
    "classes for another policy": (
        ["--model=good.json", "--wrap=size", "--wrap_classes=Linear"],
        "wrap.wrap_classes",
    ),
    "unknown class": (["--model=good.json", "--wrap=class", "--wrap_classes=Nothing"], "Nothing"),
    "no class": (["--model=good.json", "--wrap=class"], "wrap_classes"),
    "unknown dtype": (["--model=good.json", "--wrap=none", "--param_dtype=float31"], "float31"),
    "unknown strategy": (
        ["--model=good.json", "--wrap=none", "--strategy=half_shard"],
        "half_shard",
    ),
    "unknown output": (["--model=good.json", "--wrap=none", "--output=xml"], "xml"),
    "world size zero": (["--model=good.json", "--wrap=none", "--world_size=0"], "--world_size"),
    "world size negative": (
        ["--model=good.json", "--wrap=none", "--world_size=-1"],
        "--world_size",
    ),
    "world size beyond int": (
        ["--model=good.json", "--wrap=none", "--world_size=99999999999"],
        "world_size",
    ),
    "world size no number": (
        ["--model=good.json", "--wrap=none", "--world_size=two"],
        "world_size",
    ),
    "alignment no number": (
        ["--model=good.json", "--wrap=none", "--param_align_bytes=wide"],
        "param_align_bytes",
    ),
    "alignment negative": (
        ["--model=good.json", "--wrap=none", "--shard_align_bytes=-1"],
        "shard_align_bytes",
    ),
}


@pytest.mark.parametrize("case", FLAGS)
def test_plan_flags(sandbox, case):
    flags, name = FLAGS[case]
    (sandbox.directory / "good.json").write_text(json.dumps(GOOD_MODEL), encoding="utf-8")
    refused(sandbox, sandbox.tessera("plan", *flags), name)


def test_the_good_model_is_good(sandbox):
    (sandbox.directory / "good.json").write_text(json.dumps(GOOD_MODEL), encoding="utf-8")
    assert sandbox.tessera("plan", "--model=good.json", "--wrap=none").code == 0


RUNS = {
    "unknown key": (["--set", "colour=red"], "colour"),
    "set without value": (["--set", "steps"], "--set"),
    "set of the wrong type": (["--set", "steps=many"], "steps"),
    "too many threads": (["--set", "threads_per_worker=1024"], "threads_per_worker"),
    "no workers": (["--workers=0"], "mesh.min_workers"),
    "workers no number": (["--workers=two"], "--workers"),
    "batch does not divide": (["--workers=5"], "global_batch"),
    "micro-batches do not divide": (["--set", "micro_batches=5"], "global_batch"),
    "steps zero": (["--set", "steps=0"], "steps"),
    "unknown workload": (["--set", "workload=dreams"], "workload"),
    "unknown builtin": (["--set", "model.builtin=gpt9"], "model.builtin"),
    "width not divided by heads": (["--set", "model.heads=3"], "model.heads"),
    "unknown optimizer": (["--set", "optimizer.name=lion"], "optimizer.name"),
    "negative clipping": (["--set", "optimizer.clip_norm=-1"], "optimizer.clip_norm"),
    "momentum without sgd": (["--set", "optimizer.momentum=0.9"], "optimizer.momentum"),
    "float64 comes later": (
        ["--set", "mixed_precision.param_dtype=float64"],
        "mixed_precision.param_dtype",
    ),
    "unknown schedule": (["--set", "optimizer.schedule=zigzag"], "optimizer.schedule"),
    "bad duration": (["--set", "timeouts.lease=soon"], "timeouts.lease"),
    "missing text": (["--set", "data=missing.txt"], "missing.txt"),
    "empty text": (["--set", "data=empty.txt"], "empty.txt"),
    "text is a directory": (["--set", "data=."], "data"),
    "short text": (["--set", "data=short.txt"], "short.txt"),
    "bad name": (["--set", "name=no/slashes"], "name"),
    "export where nothing can be": (["--set", "checkpoint.dir=empty.txt/below"], "checkpoint.dir"),
    "resume from nowhere": (["--set", "checkpoint.resume=nowhere"], "checkpoint.resume"),
    "import of nothing": (["--set", "checkpoint.import=nowhere"], "checkpoint.import"),
}


@pytest.mark.parametrize("case", RUNS)
def test_run_starts_nothing(sandbox, case):
    flags, name = RUNS[case]
    (sandbox.directory / "empty.txt").write_text("", encoding="utf-8")
    (sandbox.directory / "short.txt").write_text("too short\n", encoding="utf-8")
    job = sandbox.write_job(SMALL_JOB)
    before = sorted(sandbox.directory.iterdir())
    refused(sandbox, sandbox.tessera("run", f"--job={job.name}", *flags), name)
    assert sorted(sandbox.directory.iterdir()) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": "many"}', '{"nme": "x"}', "{}"])
def test_job_file(sandbox, text):
    (sandbox.directory / "job.json").write_text(text, encoding="utf-8")
    refused(sandbox, sandbox.tessera("run", "--job=job.json"), "job.json", "name")


COMMANDS = {
    "no command": ([], "command"),
    "unknown command": (["fly"], "fly"),
    "no coordinator": (["get", "job", "x"], "--coordinator"),
    "coordinator without port": (["get", "job", "x", "--coordinator=localhost"], "--coordinator"),
    "unknown kind": (["get", "weather", "x", "--coordinator=127.0.0.1:1"], "weather"),
    "no name": (["watch", "--coordinator=127.0.0.1:1"], "job"),
    "no job file": (["submit", "--coordinator=127.0.0.1:1"], "--job"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_commands(sandbox, case):
    argv, name = COMMANDS[case]
    refused(sandbox, sandbox.tessera(*argv), name)


def test_submit_names_the_field_and_creates_nothing(sandbox):
    _, address = sandbox.start_coordinator()
    job = sandbox.write_job({**SMALL_JOB, "global_batch": 7})
    program = sandbox.tessera("submit", f"--job={job}", f"--coordinator={address}")
    assert (program.code, len(program.err), program.out) == (2, 1, []), program.transcript()
    assert "global_batch" in program.err[0]
    assert sandbox.tessera("get", "job", "small", f"--coordinator={address}").code == 4


@pytest.mark.parametrize(
    "field", ["data", "checkpoint.dir", "checkpoint.resume", "checkpoint.import"]
)
def test_submit_wants_paths_that_the_workers_see(sandbox, field):
    _, address = sandbox.start_coordinator()
    where = f"--coordinator={address}"
    job = sandbox.write_job(SMALL_JOB)
    relative = sandbox.tessera("submit", f"--job={job}", where, "--set", f"{field}=here")
    assert (relative.code, len(relative.err), relative.out) == (2, 1, []), relative.transcript()
    assert field in relative.err[0]
    # What is missing here may be there.
    missing = sandbox.tessera("submit", f"--job={job}", where, "--set", f"{field}=/no/such/path")
    assert (missing.code, missing.out) == (0, ["small"]), missing.transcript()
    assert len(missing.err) == (1 if field == "data" else 0)
    assert all("/no/such/path" in line for line in missing.err)


def test_nobody_listens(sandbox):
    program = sandbox.tessera("get", "job", "x", "--coordinator=127.0.0.1:1")
    assert (program.code, len(program.err), program.out) == (3, 1, []), program.transcript()
    assert "127.0.0.1:1" in program.err[0]


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["version"]])
def test_help_and_version_are_no_errors(sandbox, argv):
    program = sandbox.tessera(*argv)
    assert (program.code, program.err) == (0, [])
    assert program.out
