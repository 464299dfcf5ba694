"""Strategies as processes of one host: the losses of full_shard, in the bytes that were planned."""

import pytest
from jobs_by_hand import as_json, mapped_bytes, submit
from programs import ENDLESS_JOB, TESSERA

# strategy, mesh settings
MESHES = {
    "full_shard": {},
    "shard_grad_op": {},
    "no_shard": {},
    "hybrid_shard": {"replicas": 2},
    "hybrid_shard_zero2": {"replicas": 2},
    "full_shard of 4 replicas": {"replicas": 4},
    "full_shard resharded": {"reshard_group": 2},
}


def loss_of(sandbox, address, name, unshard):
    """Of step 20, once the measured bytes have been held against the planned ones."""
    mesh = {**ENDLESS_JOB.get("mesh", {}), "strategy": name.split()[0], **MESHES[name]}
    mesh.update(min_workers=4, max_workers=4)
    job = {**ENDLESS_JOB, "mesh": mesh, "memory": {"unshard": unshard}}
    submit(sandbox, address, job)
    agent = sandbox.start_agent(address, 4, f"--job={job['name']}")
    watch = sandbox.start(TESSERA, "watch", job["name"], f"--coordinator={address}")
    loss = float(watch.wait_for_line(r"step 20/\d+ loss ([0-9.]+)").group(1))
    where = f"--coordinator={address}"
    stats = as_json(sandbox.tessera("stats", job["name"], where, "--output=json"))
    for rank in stats["ranks"]:
        measured = int(rank["measured_bytes"])
        assert int(rank["forecast_bytes"]) == measured == mapped_bytes(rank["pid"])
    sandbox.tessera("cancel", job["name"], where)
    watch.wait()
    agent.wait()
    return loss


@pytest.mark.parametrize("unshard", ["slots", "resident"])
def test_every_strategy_trains_alike_in_the_planned_bytes(sandbox, address, unshard):
    found = {name: loss_of(sandbox, address, name, unshard) for name in MESHES}
    assert found == pytest.approx(dict.fromkeys(MESHES, found["full_shard"]), rel=1e-5), found
