"""`tessera plan`: each flag reaches the plan, and what is wrong with one is said in a line."""

import copy
import json

import pytest
from test_bad_input import refused
from test_plan import MODEL


def json_of(sandbox, *flags, model=None):
    """Plan, layout and forecast of the example, at two ranks unless the flags say otherwise."""
    (sandbox.directory / "model.json").write_text(json.dumps(model or MODEL), encoding="utf-8")
    if not any(flag.startswith("--world_size") for flag in flags):
        flags += ("--world_size=2",)
    program = sandbox.tessera("plan", "--model=model.json", "--output=json", *flags)
    assert (program.code, program.err) == (0, []), program.transcript()
    return json.loads("\n".join(program.out))


def units(document):
    return [unit["fqn"] for unit in document["plan"]["units"]]


def block(document):
    return next(unit for unit in document["plan"]["units"] if unit["fqn"] == "layers.0")


BY_CLASS = ("--wrap=class", "--wrap_classes=Block")
BY_SIZE = ("--wrap=size", "--min_params=100")
IN_BF16 = (*BY_CLASS, "--param_dtype=bf16")


def buffered_model():
    model = copy.deepcopy(MODEL)
    layer = model["root"]["children"][0]["children"][0]
    layer["buffers"] = [{"name": "mean", "shape": [4], "dtype": "float32"}]
    return model


# The one block of the example has 124 elements; the root none of its own.
EFFECTS = {
    "wrap and wrap_classes": (BY_CLASS, units, ["layers.0", ""]),
    "wrap always": (["--wrap=always"], units, ["layers.0", "layers", ""]),
    "wrap none": (["--wrap=none"], units, [""]),
    "min_params reached": (["--wrap=size", "--min_params=124"], units, ["layers.0", ""]),
    "min_params missed": (["--wrap=size", "--min_params=125"], units, [""]),
    "size by default": ([], units, [""]),
    # Instead of the default, so that the ModuleList around the block may be one.
    "exclude_classes": ([*BY_SIZE, "--exclude_classes=Block"], units, ["layers", ""]),
    "exclude nothing": ([*BY_SIZE, "--exclude_classes="], units, ["layers.0", ""]),
    "force_leaf_classes": ([*BY_SIZE, "--force_leaf_classes=ModuleList"], units, [""]),
    "root_unit": ([*BY_SIZE, "--root_unit=by_policy"], units, ["layers.0"]),
    "ignore": (
        [*BY_CLASS, "--ignore=layers.0.b"],
        lambda d: (d["plan"]["ignored"], block(d)["numel"]),
        (["layers.0.b"], "100"),
    ),
    "param_dtype": (IN_BF16, lambda d: block(d)["param_dtype"], "BFLOAT16"),
    "reduce_dtype": (
        [*IN_BF16, "--reduce_dtype=fp32"],
        lambda d: block(d)["reduce_dtype"],
        "FLOAT32",
    ),
    "gradients in the model's dtype": (IN_BF16, lambda d: block(d)["gradient_dtype"], "FLOAT32"),
    "keep_grads_in_reduce_dtype": (
        [*IN_BF16, "--keep_grads_in_reduce_dtype"],
        lambda d: block(d)["gradient_dtype"],
        "BFLOAT16",
    ),
    "keep_low_precision_grads": (
        [*IN_BF16, "--keep_low_precision_grads=true"],
        lambda d: block(d)["gradient_dtype"],
        "BFLOAT16",
    ),
    "unsynced_grad_dtype": (
        [*IN_BF16, "--reduce_dtype=fp32", "--unsynced_grad_dtype=reduce"],
        lambda d: block(d)["unsynced_gradient_dtype"],
        "FLOAT32",
    ),
    "strategy": (
        [*BY_CLASS, "--strategy=no_shard"],
        lambda d: (d["layout"]["sharding_strategy"], d["layout"]["shard_count"]),
        ("NO_SHARD", 1),
    ),
    "replicas": (
        [*BY_CLASS, "--strategy=hybrid_shard", "--replicas=2", "--world_size=4"],
        lambda d: (d["layout"]["shard_count"], d["layout"]["replica_count"]),
        (2, 2),
    ),
    "local_world_size": (
        [*BY_CLASS, "--local_world_size=2", "--world_size=8"],
        lambda d: [host["host"] for host in d["forecast"]["hosts"]],
        [0, 1, 2, 3],
    ),
    "reshard_group": (
        [*BY_CLASS, "--reshard_group=2", "--unshard=slots", "--world_size=4"],
        lambda d: d["layout"]["reshard_group"],
        2,
    ),
    "unshard": (
        [*BY_CLASS, "--unshard=slots"],
        lambda d: d["layout"]["unshard_mode"],
        "SLOTS",
    ),
    "prefetch": (
        [*BY_CLASS, "--unshard=slots", "--prefetch=0"],
        lambda d: d["layout"]["prefetch"],
        0,
    ),
    "optimizer": (
        [*BY_CLASS, "--optimizer=sgd"],
        lambda d: d["forecast"]["ranks"][0]["optimizer_bytes"],
        "0",
    ),
    "device_memory that is enough": (
        [*BY_CLASS, "--device_memory=80GiB"],
        lambda d: d["forecast"]["fits"],
        True,
    ),
    "device_memory that is not": (
        [*BY_CLASS, "--device_memory=1KiB"],
        lambda d: d["forecast"]["fits"],
        False,
    ),
}


@pytest.mark.parametrize("case", EFFECTS)
def test_flag_reaches_the_plan(sandbox, case):
    flags, look, expected = EFFECTS[case]
    assert look(json_of(sandbox, *flags)) == expected


def test_buffer_dtype(sandbox):
    document = json_of(sandbox, *BY_CLASS, "--buffer_dtype=bf16", model=buffered_model())
    assert [
        (buffer["fqn"], buffer["original_dtype"], buffer["buffer_dtype"])
        for buffer in block(document)["buffers"]
    ] == [("layers.0.mean", "FLOAT32", "BFLOAT16")]


def test_ties_are_lifted_or_refused(sandbox):
    model = copy.deepcopy(MODEL)
    again = copy.deepcopy(model["root"]["children"][0]["children"][0])
    again["name"] = "1"
    again["parameters"][0]["tied_to"] = "layers.0.w"
    model["root"]["children"][0]["children"].append(again)
    document = json_of(sandbox, *BY_CLASS, model=model)
    assert [p["fqn"] for p in document["plan"]["units"][-1]["parameters"]] == ["layers.0.w"]
    program = sandbox.tessera("plan", "--model=model.json", *BY_CLASS, "--ties=reject")
    refused(sandbox, program, "layers.0.w")
    assert "layers.1.w" in program.err[0]


def test_mixed_dtypes_are_refused_or_split(sandbox):
    model = copy.deepcopy(MODEL)
    model["root"]["children"][0]["children"][0]["parameters"][1]["dtype"] = "bfloat16"
    (sandbox.directory / "model.json").write_text(json.dumps(model), encoding="utf-8")
    refused(sandbox, sandbox.tessera("plan", "--model=model.json", *BY_CLASS), "layers.0.b")
    document = json_of(sandbox, *BY_CLASS, "--mixed_dtypes=split", model=model)
    dtypes = [unit["original_dtype"] for unit in document["plan"]["units"] if unit["parameters"]]
    assert sorted(dtypes) == ["BFLOAT16", "FLOAT32"]


def test_activations_of_a_batch(sandbox):
    job = sandbox.write_job(
        {"name": "gpt", "model": {"builtin": "gpt"}, "workload": "attached", "global_batch": 8}
    )
    found = []
    for flags in (["--batch=1"], ["--batch=2"], ["--batch=2", "--sequence=32"]):
        program = sandbox.tessera("plan", f"--job={job}", "--output=json", *flags)
        assert program.code == 0, program.transcript()
        forecast = json.loads("\n".join(program.out))["forecast"]
        assert forecast["activation_certainty"] in ("EXACT", "ESTIMATED")
        found.append(int(forecast["activation_bytes"]))
    # Twice the sequences, and then half the tokens of each.
    assert found[0] < found[1] and found[2] < found[1]
    program = sandbox.tessera(
        "plan", f"--job={job}", "--output=json", "--batch=2", "--recompute=unit"
    )
    assert int(json.loads("\n".join(program.out))["forecast"]["activation_bytes"]) < found[1]


REFUSED = {
    "--wrap=often": "wrap.policy",
    "--min_params=many": "wrap.min_params",
    "--min_params=-1": "wrap.min_params",
    "--ignore=nothing.here": "nothing.here",
    "--root_unit=never": "wrap.root_unit",
    "--ties=cut": "wrap.ties",
    "--mixed_dtypes=mix": "wrap.mixed_dtypes",
    "--strategy=half_shard": "mesh.strategy",
    "--replicas=0": "mesh.replicas",
    "--local_world_size=-1": "mesh.local_world_size",
    "--reshard_group=3": "mesh.reshard_group",
    "--buffer_dtype=float31": "mixed_precision.buffer_dtype",
    "--keep_grads_in_reduce_dtype=perhaps": "--keep_grads_in_reduce_dtype",
    "--unsynced_grad_dtype=both": "mixed_precision.unsynced_grad_dtype",
    "--loss_scale=large": "mixed_precision.loss_scale",
    "--divide_factor=-1": "mixed_precision.divide_factor",
    "--unshard=always": "memory.unshard",
    "--prefetch=-1": "memory.prefetch",
    "--device_memory=plenty": "memory.device_memory",
    "--optimizer=lion": "optimizer.name",
    "--batch=-1": "activations.batch",
    "--sequence=-1": "activations.sequence",
    "--recompute=all": "activations.recompute",
}


@pytest.mark.parametrize("flag", REFUSED)
def test_what_is_wrong_with_a_flag_is_said(sandbox, flag):
    (sandbox.directory / "model.json").write_text(json.dumps(MODEL), encoding="utf-8")
    flags = BY_CLASS if not flag.startswith("--wrap") else ()
    program = sandbox.tessera("plan", "--model=model.json", "--world_size=4", *flags, flag)
    refused(sandbox, program, REFUSED[flag])


def test_a_flag_without_a_value_takes_no_other(sandbox):
    program = sandbox.tessera("plan", "--model=", "--wrap=none")
    refused(sandbox, program, "--model")
