"""A coordinator and an agent started by hand run what `tessera submit` sends, in plain view."""

import re

import pytest
from jobs_by_hand import as_json, mapped_bytes, submit
from programs import ENDLESS_JOB, SMALL_JOB, TESSERA
from reflection import Reflection


def test_a_submitted_job_runs_and_can_be_read_by_reflection(sandbox, address):
    submit(sandbox, address, ENDLESS_JOB)
    agent = sandbox.start_agent(address, 2, "--job=endless")
    watch = sandbox.start(TESSERA, "watch", "endless", f"--coordinator={address}")
    watch.wait_for_line("step ")

    remote = Reflection(address)
    assert {
        "tessera.v1.JobService",
        "tessera.v1.MembershipService",
        "tessera.v1.PlanService",
        "tessera.v1.StatsService",
        "grpc.health.v1.Health",
    } <= set(remote.services())
    job = remote.call("JobService", "GetJob", name="endless")["job"]
    assert (job["state"], job["world_size"]) == ("RUNNING", 2)

    plan = remote.call("PlanService", "GetPlan", job="endless")
    assert plan["unit_count"] == 3
    units, token = [], ""
    while True:
        page = remote.call(
            "PlanService", "ListPlanUnits", job="endless", page_size=2, page_token=token
        )
        assert len(page["units"]) == len(page["layouts"]) <= 2
        units += page["units"]
        token = page.get("next_page_token", "")
        if not token:
            break
    assert [unit.get("fqn", "") for unit in units] == ["h.0", "h.1", ""]
    assert all(unit["param_dtype"] == unit["reduce_dtype"] == "FLOAT32" for unit in units)

    stats = remote.call("StatsService", "GetStats", job="endless")["stats"]
    assert len({rank["pid"] for rank in stats["ranks"]}) == 2
    for rank, forecast in zip(stats["ranks"], plan["forecast"]["ranks"]):
        mapped = int(forecast["mapped_bytes"]) + int(plan["forecast"]["hosts"][0]["mapped_bytes"])
        assert int(rank["forecast_bytes"]) == int(rank["measured_bytes"]) == mapped
        assert mapped_bytes(rank["pid"]) == mapped
    remote.close()

    cancelled = sandbox.tessera("cancel", "endless", f"--coordinator={address}")
    assert (cancelled.code, cancelled.out) == (0, ["endless CANCELLED"])
    assert watch.wait() == 1
    assert "CANCELLED" in watch.err[-1]
    agent.wait()


def test_a_page_that_no_forecast_knows_is_seen(sandbox, address):
    submit(sandbox, address, ENDLESS_JOB)
    sandbox.start_agent(
        address, 2, "--job=endless", TESSERA_TEST_FAULT="rank=1,point=barrier,step=1,action=leak"
    )
    watch = sandbox.start(TESSERA, "watch", "endless", f"--coordinator={address}")
    watch.wait_for_line("step ")
    stats = as_json(
        sandbox.tessera("stats", "endless", f"--coordinator={address}", "--output=json")
    )
    for rank in stats["ranks"]:
        leaked = mapped_bytes(rank["pid"]) - int(rank["forecast_bytes"])
        assert leaked == (4096 if rank["rank"] == 1 else 0)
    sandbox.tessera("cancel", "endless", f"--coordinator={address}")


def test_the_commands_show_a_job(sandbox, address):
    where = f"--coordinator={address}"
    submit(sandbox, address, SMALL_JOB)
    before = as_json(sandbox.tessera("get", "job", "small", where, "--output=json"))
    assert (before["name"], before["state"], before["step"], before["steps"]) == (
        "small",
        "FORMING",
        "0",
        "40",
    )
    assert "failed_rank" not in before

    taken = sandbox.tessera("submit", f"--job={sandbox.directory / 'small.json'}", where)
    assert (taken.code, len(taken.err), taken.out) == (5, 1, [])

    # Without --job: from the pool.
    agent = sandbox.start_agent(address, 2)
    watch = sandbox.run(TESSERA, "watch", "small", where)
    assert watch.code == 0, watch.transcript()
    states = [line.split()[1] for line in watch.out if line.startswith("state ")]
    assert states[-1] == "SUCCEEDED" and "RUNNING" in states
    steps = [line.split()[1] for line in watch.out if line.startswith("step ")]
    assert steps == ["20/40", "25/40", "40/40"]

    after = as_json(sandbox.tessera("get", "job", "small", where, "--output=json"))
    assert (after["state"], after["step"], after["generation"]) == ("SUCCEEDED", "40", 1)
    stats = as_json(sandbox.tessera("stats", "small", where, "--output=json"))
    assert (stats["job"], stats["state"], stats["step"]) == ("small", "SUCCEEDED", "40")
    assert [unit["fqn"] for unit in stats["units"]] == ["h.0", "h.1", ""]
    for unit in stats["units"]:
        operations = {entry["operation"]: entry for entry in unit["operations"]}
        assert {"UNSHARD", "REDUCE", "OPTIMIZER"} <= set(operations)
        for entry in operations.values():
            assert 0 <= entry["min_us"] <= entry["median_us"] <= entry["max_us"]
            assert entry["slowest_rank"] in (0, 1)
        assert int(unit["unsharded_bytes"]) == 2 * int(unit["sharded_bytes"]) > 0

    local = as_json(
        sandbox.tessera("plan", f"--job={sandbox.directory / 'small.json'}", "--output=json")
    )
    remote = as_json(sandbox.tessera("get", "plan", "small", where, "--output=json"))
    assert local == remote
    assert sandbox.tessera("get", "workers", "small", where).code == 0
    # For submit an empty checkpoint.dir means that nothing is written.
    assert [entry.name for entry in sandbox.directory.iterdir()] == ["small.json"]
    agent.wait()


def test_validate_only_creates_nothing(sandbox, address):
    job = sandbox.write_job(SMALL_JOB)
    program = sandbox.tessera(
        "submit", f"--job={job}", "--validate_only", f"--coordinator={address}"
    )
    assert (program.code, program.out, program.err) == (0, [], [])
    assert sandbox.tessera("get", "job", "small", f"--coordinator={address}").code == 4


def test_the_coordinator_may_come_from_the_environment(sandbox, address):
    program = sandbox.run(TESSERA, "get", "job", "nothing", TESSERA_COORDINATOR=address)
    assert (program.code, len(program.err)) == (4, 1)
    assert "nothing" in program.err[0]


def test_a_job_over_two_hosts_is_refused_by_name(sandbox, address):
    submit(sandbox, address, {**ENDLESS_JOB, "mesh": {"min_workers": 2, "max_workers": 2}})
    sandbox.start_agent(address, 1, "--job=endless")
    second = sandbox.start_agent(address, 1, "--job=endless")
    assert second.wait() != 0
    assert re.search("host", "\n".join(second.err))
    sandbox.tessera("cancel", "endless", f"--coordinator={address}")
