"""A rank that is stopped, or that holds another plan, is named: who, where, and since when."""

import json
import os
import re
import signal
import time

import pytest
from programs import ENDLESS_JOB, PATIENCE, PROMISE, SMALL_JOB, await_end
from test_failures import Cluster

COLLECTIVE = 3
# The others' deadline comes first.
LONG_LEASE = {
    **ENDLESS_JOB,
    "timeouts": {"heartbeat": "0.2s", "lease": "60s", "collective": f"{COLLECTIVE}s"},
}
# The end of the lease comes first.
SHORT_LEASE = {**LONG_LEASE, "timeouts": {"heartbeat": "0.2s", "lease": "2s", "collective": "60s"}}

UNIT = r"(h\.[01]|\(root\))"
PLACE = rf"(unshard|reduce|reduce wait) of unit {UNIT}|the commit vote of step \d+"


def incidents_of(cluster):
    return cluster.get("incidents")["incidents"]


@pytest.mark.parametrize("job", [LONG_LEASE, SHORT_LEASE], ids=["deadline", "lease"])
def test_stopped_rank_is_named_with_unit_and_operation(sandbox, job):
    cluster = Cluster(sandbox, job=job)
    cluster.watch.wait_for_line("step 20/")
    positioned_workers(cluster)
    victim = cluster.pid_of(1)
    began = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    assert cluster.watch.wait() == 1, cluster.watch.transcript()
    took = time.monotonic() - began
    assert took < COLLECTIVE + 1, took
    ended = cluster.await_failed(rank=1)
    # Where the others wait, and what it does instead.
    waited = re.search(
        rf"ranks 0, 2 have waited (\d+\.\d)s in ({PLACE}) \(operation \d+\)", ended["reason"]
    )
    assert waited, ended["reason"]
    assert re.search(
        r"; rank 1 (computes|waits|works|saves).* for \d+\.\ds, operation \d+, not heard of for",
        ended["reason"],
    ), ended["reason"]
    (incident,) = incidents_of(cluster)
    assert incident["kind"] == "STUCK"
    assert incident["number"] == "1"
    assert incident["ranks"] == [1]
    assert incident["message"] == ended["reason"]
    assert incident["outcome"].startswith("the job FAILED after")
    assert len(incident["positions"]) == 3
    if "of unit" in waited.group(2):
        assert incident["operation"] in ("UNSHARD", "REDUCE", "REDUCE_WAIT")
        assert re.fullmatch(UNIT, incident["unit"])
    # Watchers have seen it as it happened.
    notes = [line for line in cluster.watch.err if "incident 1 STUCK" in line]
    assert len(notes) == 2, cluster.watch.transcript()


def test_stopped_in_a_reduction(sandbox):
    """Stopped inside an operation that it has issued: the others wait in the same."""
    fault = "rank=1,point=reduce_ready,step=25,action=stop"
    cluster = Cluster(sandbox, job=LONG_LEASE, fault=fault)
    cluster.watch.wait_for_line("step 20/")
    assert cluster.watch.wait() == 1, cluster.watch.transcript()
    ended = cluster.await_failed(rank=1)
    # Shared memory knows what the stopped rank has issued last, to the operation.
    assert re.search(
        rf"waited 3s for reduce of unit {UNIT}; missing: rank 1; the last operation of rank 1 is "
        rf"\d+, reduce of unit {UNIT}; this one is \d+",
        ended["reason"],
    ), ended["reason"]
    (incident,) = incidents_of(cluster)
    assert incident["operation"] == "REDUCE"
    assert re.fullmatch(UNIT, incident["unit"])


def test_job_goes_on_without_the_stopped_process(sandbox):
    cluster = Cluster(sandbox, job=LONG_LEASE, recoveries=3)
    cluster.watch.wait_for_line("step 20/")
    victim = cluster.pid_of(1)
    os.kill(victim, signal.SIGSTOP)
    cluster.watch.wait_for_line(
        r".*incident 1 STUCK: generation 2 began after \d+\.\ds", lines=cluster.watch.err
    )
    assert await_end(victim, PROMISE), "the stopped process is still there"
    (incident,) = incidents_of(cluster)
    assert incident["ranks"] == [1]
    waited = rf"ranks 0, 2 have waited \d+\.\ds in ({PLACE})"
    assert re.search(waited, incident["message"]), incident
    job = cluster.get("job")
    assert job["state"] == "RUNNING" and job["generation"] == 2 and job["recoveries"] == 1


def positioned_workers(cluster):
    """Once all of them have said where they are."""
    deadline = time.monotonic() + PATIENCE
    workers = []
    while not workers or not all("step" in worker.get("position", "") for worker in workers):
        assert time.monotonic() < deadline, workers
        workers = [w for w in cluster.get("workers")["workers"] if w["state"] == "READY"]
    return workers


def test_positions_are_shown(sandbox):
    cluster = Cluster(sandbox, job=LONG_LEASE)
    cluster.watch.wait_for_line("step 20/")
    for worker in positioned_workers(cluster):
        assert re.search(r"in step \d+ for \d+\.\ds", worker["position"]), worker
    shown = sandbox.tessera("get", "workers", "endless", f"--coordinator={cluster.address}")
    assert any(line.startswith("rank 2 ") for line in shown.out), shown.transcript()
    assert incidents_of_none(sandbox, cluster) == ["no incidents"]


def incidents_of_none(sandbox, cluster):
    shown = sandbox.tessera("get", "incidents", "endless", f"--coordinator={cluster.address}")
    assert shown.code == 0, shown.transcript()
    return shown.out


def test_ranks_with_different_plans_are_refused(sandbox):
    cluster = Cluster(sandbox, job=SMALL_JOB, fault="rank=1,point=plan,action=spoil")
    cluster.watch.wait_for_line("state RUNNING")
    began = time.monotonic()
    assert cluster.watch.wait() == 1, cluster.watch.transcript()
    took = time.monotonic() - began
    assert took < 1, took
    ended = cluster.get("job")
    assert ended["state"] == "FAILED"
    assert ended["failed_rank"] == 1
    assert (
        'ranks disagree on the plan, in unit h.0: ranks 0, 2 have "reduce_dtype float32", rank 1 '
        'has "reduce_dtype float64"' in ended["reason"]
    ), ended["reason"]
    assert int(ended["step"]) == 0
    (incident,) = incidents_of(cluster)
    assert incident["kind"] == "DISAGREEMENT"


def test_no_incidents_of_no_job(sandbox, address):
    shown = sandbox.tessera("get", "incidents", "none", f"--coordinator={address}")
    assert shown.code == 4, shown.transcript()


def test_incidents_as_text(sandbox):
    cluster = Cluster(sandbox, job=ENDLESS_JOB)
    cluster.watch.wait_for_line("step 20/")
    positioned_workers(cluster)
    os.kill(cluster.pid_of(2), signal.SIGKILL)
    cluster.await_failed(2)
    shown = sandbox.tessera("get", "incidents", "endless", f"--coordinator={cluster.address}")
    assert shown.code == 0, shown.transcript()
    head = r"1 LOST at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, generation 1, step \d+"
    assert re.match(head, shown.out[0])
    assert "rank 2" in shown.out[1] and "SIGKILL" in shown.out[1]
    assert "; as last heard it " in shown.out[1], shown.transcript()
    assert json.dumps(incidents_of(cluster))
