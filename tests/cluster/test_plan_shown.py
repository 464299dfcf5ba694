"""What `tessera plan` shows beside a plan's figures: tables that stay readable, why a module is a
unit, two plans side by side, and how long planning takes."""

import json

import pytest
from test_bad_input import refused
from test_plan import MODEL

STACK = {
    "name": "stack",
    "root": {
        "class_name": "Model",
        "children": [
            {
                "name": "layers",
                "class_name": "ModuleList",
                "children": [
                    {
                        "name": str(i),
                        "class_name": "Block",
                        "parameters": [{"name": "w", "shape": [1000], "dtype": "float32"}],
                    }
                    for i in range(1000)
                ],
            }
        ],
    },
}


@pytest.fixture
def models(sandbox):
    for name, model in (("model.json", MODEL), ("stack.json", STACK)):
        (sandbox.directory / name).write_text(json.dumps(model), encoding="utf-8")
    return sandbox


def output(sandbox, *flags):
    program = sandbox.tessera("plan", *flags)
    assert (program.code, program.err) == (0, []), program.transcript()
    return "\n".join(program.out)


BY_CLASS = ("--wrap=class", "--wrap_classes=Block")


def test_a_thousand_equal_units_are_one_row(models):
    lines = output(models, "--model=stack.json", *BY_CLASS, "--world_size=2").splitlines()
    assert any(line.startswith("layers.0-999 x1000  Block") for line in lines), lines
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80


def test_explain_says_why(models):
    flags = ("--model=model.json", "--wrap=size", "--min_params=100")
    lines = output(models, *flags, "--explain=layers.0").splitlines()
    assert lines[:3] == ["layers.0", "class  Block", "is     a unit"]
    assert any("124" in line for line in lines[3:]), lines
    assert max(map(len, lines)) <= 80
    document = json.loads(output(models, *flags, "--explain=layers", "--output=json"))
    assert (document["fqn"], document["class_name"]) == ("layers", "ModuleList")
    assert (document["is_unit"], document["unit_fqn"]) == (False, "")
    assert document["reasons"]
    # The root has no name.
    assert output(models, *flags, "--explain=").startswith("(root)\n")


@pytest.mark.parametrize(
    "flags, name",
    [
        (["--explain=nowhere"], "nowhere"),
        (["--explain=layers.0", "--output=html"], "--output"),
        (["--explain=layers.0", "--compare=a,b"], "--compare"),
    ],
)
def test_what_cannot_be_explained(models, flags, name):
    refused(models, models.tessera("plan", "--model=model.json", *flags), name)


def test_compare_shows_the_difference(models):
    lines = output(models, "--compare=model.json,stack.json", *BY_CLASS).splitlines()
    assert lines[:2] == ["A  model.json", "B  stack.json"]
    shown = {line[:20].strip(): line.split()[-3:] for line in lines[4:]}
    assert shown["units"] == ["2", "1,001", "+999"]
    assert max(map(len, lines)) <= 80
    document = json.loads(
        output(models, "--compare=model.json,stack.json", *BY_CLASS, "--output=json")
    )
    assert document["difference"]["units"] == "999"
    assert document["b"]["numel"] == "1000000"
    page = output(models, "--compare=model.json,stack.json", *BY_CLASS, "--output=html")
    assert page.startswith("<!doctype html>") and "stack.json" in page


def test_compare_takes_jobs_and_printed_plans(models):
    printed = output(models, "--model=model.json", *BY_CLASS, "--output=json", "--world_size=2")
    (models.directory / "plan.json").write_text(printed, encoding="utf-8")
    job = models.write_job(
        {
            "name": "j",
            "model": {"spec": MODEL},
            "wrap": {"policy": "class", "wrap_classes": ["Block"]},
        }
    )
    document = json.loads(output(models, f"--compare=plan.json,{job}", "--output=json"))
    assert document["a"]["plan_fingerprint"] == document["b"]["plan_fingerprint"]
    assert set(document["difference"].values()) == {"0"}


@pytest.mark.parametrize(
    "flags, name",
    [
        (["--compare=model.json"], "--compare"),
        (["--compare=model.json,stack.json,model.json"], "--compare"),
        (["--compare=model.json,missing.json"], "missing.json"),
        (["--compare=model.json,torn.json"], "torn.json"),
        (["--compare=model.json,odd.json"], "odd.json"),
        (["--compare=model.json,plan.json", "--world_size=3"], "plan.json"),
        (["--compare=model.json,stack.json", "--model=model.json"], "--compare"),
    ],
)
def test_what_cannot_be_compared(models, flags, name):
    (models.directory / "torn.json").write_text('{"plan": {', encoding="utf-8")
    odd = {"plan": {"units": [{"fqn": "a"}]}, "layout": {"units": []}}
    (models.directory / "odd.json").write_text(json.dumps(odd), encoding="utf-8")
    (models.directory / "plan.json").write_text('{"plan": {}, "layout": {}}', encoding="utf-8")
    refused(models, models.tessera("plan", *flags), name)


def test_bench_plan_times_a_model_of_its_own(sandbox):
    program = sandbox.tessera("bench", "plan", "--modules=2000", "--runs=1", "--output=json")
    assert program.code == 0, program.transcript()
    document = json.loads("\n".join(program.out))
    # A root, 199 blocks of ten modules and nine that are left; blocks and root are units.
    assert (document["modules"], document["units"]) == (2000, 200)
    assert document["plan_seconds"] > 0
    table = sandbox.tessera("bench", "plan", "--modules=2000", "--runs=1")
    assert table.out[0].startswith("2,000 modules, 200 units: planned in ")


@pytest.mark.parametrize(
    "flag", ["--modules=1", "--modules=many", "--runs=0", "--world_size=0", "--wrap=often"]
)
def test_bench_plan_refuses(sandbox, flag):
    modules = [] if "modules" in flag else ["--modules=100"]
    program = sandbox.tessera("bench", "plan", *modules, flag)
    refused(sandbox, program, flag.split("=")[0].strip("-").replace("wrap", "wrap.policy"))
