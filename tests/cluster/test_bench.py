"""`tessera bench`: that it prints what it says it does, and refuses what it cannot measure. The
figures themselves are for tests/measure."""

import json

KEYS = {
    "op",
    "world_size",
    "bytes",
    "runs",
    "median_seconds",
    "p99_seconds",
    "bare_loop_median_seconds",
    "bare_loop_ratio",
}


def bench(sandbox, *flags):
    program = sandbox.tessera("bench", "collective", "--runs=3", "--sizes=1MiB,192KiB", *flags)
    assert program.code == 0, program.transcript()
    return "\n".join(program.out)


def test_json_has_every_operation_at_every_size(sandbox):
    document = json.loads(bench(sandbox, "--world_size=3", "--output=json"))
    assert document["instruction_set"] in ("baseline", "avx2", "avx512")
    seen = set()
    for result in document["results"]:
        assert KEYS <= result.keys(), result
        assert result["world_size"] == 3 and result["runs"] == 3
        ratio = result["median_seconds"] / result["bare_loop_median_seconds"]
        assert abs(result["bare_loop_ratio"] - ratio) <= 1e-9 * ratio
        if result["op"] == "barrier":
            assert 0 <= result["waiting_core_fraction"] <= 1
        else:
            # 1 MiB is 1,048,576 bytes: 1,366 times 768, three ranks' least shards, with a rest.
            assert result["bytes"] in ("1049088", "196608")
            assert result["original_dtype"] == "FLOAT32"
            assert {"memcpy_median_seconds", "algbw_gbps"} <= result.keys()
        seen.add((result["op"], result.get("mode"), result.get("param_dtype"), result["bytes"]))
    for size in ("1049088", "196608"):
        for dtype in ("FLOAT32", "BFLOAT16"):
            assert ("unshard", "SLOTS", dtype, size) in seen
            assert ("unshard", "RESIDENT", dtype, size) in seen
            assert ("reduce_scatter", None, dtype, size) in seen
            assert ("all_reduce", None, dtype, size) in seen
        assert ("optimizer", None, "BFLOAT16", size) in seen


def test_table_fits_a_terminal(sandbox):
    lines = bench(sandbox).splitlines()
    assert lines[0].split()[:3] == ["OPERATION", "MODE", "DTYPE"]
    assert any(line.startswith("reduce_scatter") and "192 KiB" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_what_cannot_be_measured_is_refused(sandbox):
    for flag, named in [
        ("--world_size=0", "--world_size"),
        ("--world_size=65", "--world_size"),
        ("--sizes=16mib", "16mib"),
        ("--sizes=", "--sizes"),
        ("--sizes=0", "--sizes"),
        ("--runs=0", "--runs"),
    ]:
        program = sandbox.tessera("bench", "collective", flag)
        assert program.code == 2, program.transcript()
        assert len(program.err) == 1 and named in program.err[0], program.transcript()
        assert program.out == []
    assert sandbox.tessera("bench").code == 2


def test_control_forms_a_job_of_simulated_workers(sandbox):
    # More streams on a connection than servers often allow.
    program = sandbox.tessera(
        "bench",
        "control",
        "--workers=300",
        "--connections=2",
        "--seconds=1",
        "--plan_calls=5",
        "--output=json",
    )
    assert program.code == 0, program.transcript()
    document = json.loads("\n".join(program.out))
    assert (document["workers"], document["connections"]) == (300, 2)
    # Llama-3.1-405B: 126 layers and the root. 300 workers are 6 on each of 50 hosts.
    assert (document["units"], document["hosts"]) == (127, 50)
    assert isinstance(document["coordinator_peak_rss_bytes"], str)
    assert int(document["coordinator_peak_rss_bytes"]) > 1 << 20
    for key in (
        "form_seconds",
        "coordinator_cpu_seconds",
        "steady_core_fraction",
        "get_plan_p99_seconds",
        "heartbeats_per_second",
        "reports_per_second",
    ):
        assert document[key] > 0, document
    sandbox.await_nothing_left()


def test_control_compares_several_numbers_of_workers(sandbox):
    flags = ("--workers=8,16", "--connections=3", "--seconds=1", "--plan_calls=1")
    table = sandbox.tessera("bench", "control", *flags)
    assert table.code == 0, table.transcript()
    rows = [line.split() for line in table.out if line.strip()]
    assert rows[0][:2] == ["WORKERS", "CONN"]
    assert [row[:2] for row in rows[1:3]] == [["8", "3"], ["16", "3"]]
    assert rows[2][3].startswith("x"), "the growth against the row before"
    assert max(map(len, table.out)) <= 80
    both = sandbox.tessera("bench", "control", *flags, "--output=json")
    assert both.code == 0, both.transcript()
    results = json.loads("\n".join(both.out))["results"]
    assert [result["workers"] for result in results] == [8, 16]


def test_control_refuses_what_it_cannot_measure(sandbox):
    for flag, named in [
        ("--workers=0", "--workers"),
        ("--workers=100000", "--workers"),
        ("--workers=many", "--workers"),
        ("--connections=0", "--connections"),
        ("--connections=100000", "--connections"),
        ("--seconds=0", "--seconds"),
        ("--plan_calls=0", "--plan_calls"),
    ]:
        program = sandbox.tessera("bench", "control", flag)
        assert program.code == 2, program.transcript()
        assert len(program.err) == 1 and named in program.err[0], program.transcript()
        assert program.out == []
