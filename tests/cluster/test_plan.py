"""`tessera plan`: the figures of the documented example, and that both forms of output hold."""

import json

# One block of a [10, 10] and a [24] parameter: 124 elements; in bf16 the second parameter starts at
# a multiple of 8 elements (104), and two shards of 64 elements are 128 bytes each.
MODEL = {
    "name": "example",
    "root": {
        "name": "",
        "class_name": "Model",
        "children": [
            {
                "name": "layers",
                "class_name": "ModuleList",
                "children": [
                    {
                        "name": "0",
                        "class_name": "Block",
                        "parameters": [
                            {"name": "w", "shape": [10, 10], "dtype": "float32"},
                            {"name": "b", "shape": [24], "dtype": "float32"},
                        ],
                    }
                ],
            }
        ],
    },
}


def plan(sandbox, *flags, model=None):
    path = sandbox.directory / "model.json"
    path.write_text(json.dumps(model or MODEL), encoding="utf-8")
    program = sandbox.tessera(
        "plan", f"--model={path}", "--wrap=class", "--wrap_classes=Block", *flags
    )
    assert program.code == 0, program.transcript()
    assert program.err == []
    return "\n".join(program.out)


def test_json_has_the_documented_figures(sandbox):
    document = json.loads(
        plan(
            sandbox,
            "--world_size=2",
            "--param_dtype=bf16",
            "--reduce_dtype=float32",
            "--output=json",
        )
    )
    unit = document["plan"]["units"][0]
    assert (unit["fqn"], unit["class_name"], unit["numel"]) == ("layers.0", "Block", "124")
    assert (unit["original_dtype"], unit["param_dtype"], unit["reduce_dtype"]) == (
        "FLOAT32",
        "BFLOAT16",
        "FLOAT32",
    )
    assert [
        (p["fqn"], p["shape"], p["numel"], p["requires_grad"], p["tied_fqns"])
        for p in unit["parameters"]
    ] == [("layers.0.w", ["10", "10"], "100", True, []), ("layers.0.b", ["24"], "24", True, [])]
    assert [document["plan"][key] for key in ("orphans", "ignored")] == [[], []]

    layout = document["layout"]
    assert (layout["world_size"], layout["sharding_strategy"]) == (2, "FULL_SHARD")
    assert (layout["shard_count"], layout["replica_count"]) == (2, 1)
    placed = layout["units"][0]
    assert (placed["fqn"], placed["padded_numel"], placed["shard_numel"]) == (
        "layers.0",
        "128",
        "64",
    )
    assert [(p["fqn"], p["offset"]) for p in placed["parameters"]] == [
        ("layers.0.w", "0"),
        ("layers.0.b", "104"),
    ]

    # The root has no parameters of its own and is listed all the same, last.
    assert (document["plan"]["units"][-1]["fqn"], document["plan"]["units"][-1]["numel"]) == (
        "",
        "0",
    )
    for rank, forecast in enumerate(document["forecast"]["ranks"]):
        assert forecast["rank"] == rank
        assert forecast["parameter_bytes"] == str(64 * 4)
        assert forecast["optimizer_bytes"] == str(2 * 64 * 4)
        assert int(forecast["mapped_bytes"]) % 4096 == 0
    host = document["forecast"]["hosts"][0]
    assert (host["host"], int(host["mapped_bytes"]) % 4096) == (0, 0)


def test_alignment_can_be_switched_off_as_in_fsdp(sandbox):
    document = json.loads(
        plan(
            sandbox,
            "--world_size=3",
            "--param_align_bytes=0",
            "--shard_align_bytes=0",
            "--output=json",
        )
    )
    placed = document["layout"]["units"][0]
    # 124 elements over 3 ranks: 42 each, 2 of them padding.
    assert (placed["padded_numel"], placed["shard_numel"]) == ("126", "42")
    assert [p["offset"] for p in placed["parameters"]] == ["0", "100"]


def test_fingerprint_of_the_plan_knows_no_world_size(sandbox):
    documents = [
        json.loads(plan(sandbox, f"--world_size={size}", "--output=json")) for size in (1, 4)
    ]
    assert documents[0]["plan"]["plan_fingerprint"] == documents[1]["plan"]["plan_fingerprint"]
    assert (
        documents[0]["layout"]["layout_fingerprint"] != documents[1]["layout"]["layout_fingerprint"]
    )


def test_wrap_none_leaves_one_unit(sandbox):
    path = sandbox.directory / "model.json"
    path.write_text(json.dumps(MODEL), encoding="utf-8")
    program = sandbox.tessera("plan", f"--model={path}", "--wrap=none", "--output=json")
    assert program.code == 0, program.transcript()
    units = json.loads("\n".join(program.out))["plan"]["units"]
    assert [(unit["fqn"], unit["numel"]) for unit in units] == [("", "124")]


def test_table_fits_eighty_columns(sandbox):
    text = plan(sandbox, "--world_size=2")
    assert "layers.0" in text
    assert max(map(len, text.splitlines())) <= 80


def test_plans_a_job_file(sandbox):
    job = sandbox.write_job({"name": "gpt", "model": {"builtin": "gpt", "layers": 3}})
    program = sandbox.tessera("plan", f"--job={job}", "--output=json")
    assert program.code == 0, program.transcript()
    units = json.loads("\n".join(program.out))["plan"]["units"]
    assert [unit["fqn"] for unit in units] == ["h.0", "h.1", "h.2", ""]
