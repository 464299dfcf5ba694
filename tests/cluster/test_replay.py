"""The workload replay as processes: reduced gradients that are exact, and memory as forecast.

The matrix of strategies, dtypes and modes is tests/session/replay_test.cc; here are a few of it
with everything around them: agent, coordinator, memory files.
"""

import json
import pathlib
import re

import pytest
from programs import SMALL_JOB, TESSERA

# Beyond what is forecast: the program itself, its libraries, threads and connections.
PROGRAM_BYTES = 96 << 20


def parameter(name, *shape, **more):
    return {"name": name, "shape": shape, "dtype": "float32", **more}


# A unit below another, frozen parameters, a tied one, and one with fewer elements than ranks.
MODEL = {
    "name": "mixed",
    "root": {
        "class_name": "Model",
        "children": [
            {
                "name": "emb",
                "class_name": "Embedding",
                "parameters": [parameter("weight", 101, 16)],
            },
            {
                "name": "0",
                "class_name": "Block",
                "parameters": [
                    parameter("w", 33, 17),
                    parameter("b", 3),
                    parameter("fixed", 5, requires_grad=False),
                ],
                "children": [
                    {
                        "name": "inner",
                        "class_name": "Block",
                        "parameters": [parameter("w", 40, 9)],
                    }
                ],
            },
            {
                "name": "head",
                "class_name": "Linear",
                "parameters": [parameter("weight", 101, 16, tied_to="emb.weight")],
            },
        ],
    },
}
JOB = {
    "name": "replayed",
    "workload": "replay",
    "model": {"spec": MODEL},
    "wrap": {"policy": "class", "wrap_classes": ["Block"]},
    "steps": 30,
    "global_batch": 24,
    "eval_every": 10,
}

# Fields of mesh, and numbers of workers.
STRATEGIES = [
    ({"strategy": "full_shard"}, [1, 3, 4]),
    ({"strategy": "shard_grad_op"}, [2]),
    ({"strategy": "no_shard"}, [3]),
    ({"strategy": "hybrid_shard", "replicas": 2}, [4]),
    ({"strategy": "hybrid_shard_zero2", "replicas": 4}, [4]),
    ({"strategy": "full_shard", "reshard_group": 2}, [4]),
]
CASES = [
    pytest.param(mesh, workers, id=f"{mesh['strategy']}-{workers}")
    for mesh, sizes in STRATEGIES
    for workers in sizes
]


def run(sandbox, job, workers, **env):
    mesh = {**job.get("mesh", {}), "min_workers": workers, "max_workers": workers}
    path = sandbox.write_job({**job, "mesh": mesh})
    return sandbox.tessera("run", f"--job={path}", **env)


@pytest.mark.parametrize("mesh, workers", CASES)
def test_every_strategy_is_exact(sandbox, mesh, workers):
    memory = {"unshard": "slots" if workers % 2 else "resident", "accumulate_unsynchronized": True}
    program = run(sandbox, {**JOB, "mesh": mesh, "memory": memory, "micro_batches": 2}, workers)
    assert program.code == 0, program.transcript()
    assert any(line.startswith("step 30/30") for line in program.out), program.transcript()


@pytest.mark.parametrize("unshard", ["slots", "resident"])
@pytest.mark.parametrize(
    "precision",
    [
        {"param_dtype": "bfloat16"},
        {"param_dtype": "float16"},
        {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
        {"param_dtype": "float32", "reduce_dtype": "float16"},
    ],
    ids=lambda precision: "-".join(precision.values()),
)
def test_every_dtype_is_exact(sandbox, precision, unshard):
    job = {**JOB, "mixed_precision": precision, "memory": {"unshard": unshard}}
    program = run(sandbox, {**job, "replay": {"uses": 2, "compute_us": 100}}, 3)
    assert program.code == 0, program.transcript()


def test_the_builtin_model_and_any_other_plan(sandbox):
    gpt = {**SMALL_JOB, "workload": "replay", "steps": 10}
    for wrap in ({"policy": "class", "wrap_classes": ["Block"]}, {"policy": "always"}):
        program = run(sandbox, {**gpt, "wrap": wrap}, 2)
        assert program.code == 0, program.transcript()


def test_one_wrong_bit_of_one_element_ends_the_job_naming_it(sandbox):
    fault = "rank=1,point=reduced,step=7,action=spoil"
    program = run(sandbox, JOB, 2, TESSERA_TEST_FAULT=fault)
    assert program.code == 1, program.transcript()
    said = "\n".join(program.err)
    assert re.search(
        r'rank 1: gradient of "0\.inner\.w" in unit 0\.inner, element \d+, step 7: '
        r"expected -?\d+, got -?\d+",
        said,
    ), program.transcript()


def test_fields_of_replay_are_refused_by_name(sandbox):
    for job, field in (
        ({**JOB, "replay": {"uses": 0}}, "replay.uses"),
        ({**JOB, "device": "cuda"}, "device"),
        ({**SMALL_JOB, "replay": {"uses": 2}}, "replay"),
    ):
        program = run(sandbox, job, 2)
        assert program.code == 2, program.transcript()
        assert program.err[-1].startswith(f"tessera: {field}: "), program.transcript()


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) << 10


def ranks_of(sandbox, address):
    program = sandbox.tessera("stats", "replayed", f"--coordinator={address}", "--output=json")
    assert program.code == 0, program.transcript()
    return json.loads("\n".join(program.out))["ranks"]


def test_a_worker_stays_within_its_forecast_and_does_not_grow(sandbox):
    _, address = sandbox.start_coordinator()
    path = sandbox.write_job({**JOB, "steps": 10_000_000, "eval_every": 100})
    submitted = sandbox.tessera("submit", f"--job={path}", f"--coordinator={address}")
    assert submitted.code == 0, submitted.transcript()
    sandbox.start_agent(address, 2)
    watch = sandbox.start(TESSERA, "watch", "replayed", f"--coordinator={address}")
    watch.wait_for_line(r"step 200/")
    before = {rank["pid"]: resident_bytes(rank["pid"]) for rank in ranks_of(sandbox, address)}
    watch.wait_for_line(r"step 2200/", timeout=240)
    ranks = ranks_of(sandbox, address)
    assert len(ranks) == 2
    for rank in ranks:
        now = resident_bytes(rank["pid"])
        assert now <= int(rank["forecast_bytes"]) + PROGRAM_BYTES
        # Pages of the library and of the heap that had not been needed yet; a leak of 128 bytes a
        # step would be as much.
        assert now - before[rank["pid"]] <= 256 << 10
    assert sandbox.tessera("cancel", "replayed", f"--coordinator={address}").code == 0
