"""Faults of processes, disks, links and clocks: the job SUCCEEDS, or fails naming who is to blame.

What a job computes does not change with what befell it: losses and export are an undisturbed run's.
"""

import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from programs import PATIENCE, PROMISE, WORKER, Sandbox

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))

from clusters import Cluster, go_on, job, kill, stop, with_files  # noqa: E402
from proxy import Proxy  # noqa: E402

WORKERS = 3
# Long enough that what a test does after the first line hits it.
STEPS = 400
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


@pytest.fixture(scope="module", name="undisturbed")
def fixture_undisturbed(tmp_path_factory):
    """(losses, bytes of the export) of a run that nothing befell."""
    sandbox = Sandbox(tmp_path_factory.mktemp("undisturbed"))
    cluster = Cluster(sandbox, spec_of("undisturbed", sandbox)).submit()
    cluster.start_agent(WORKERS)
    cluster.await_end("SUCCEEDED")
    result = cluster.losses(), cluster.export().read_bytes()
    assert len(result[0]) == STEPS // 20
    sandbox.close()
    return result


def spec_of(name, sandbox, every=0, **more):
    return with_files(job(name, WORKERS, **{"steps": STEPS, **more}), sandbox, every=every)


def start(sandbox, name="faulty", every=0, state_dir=False, agent_env=None, **more):
    """A cluster whose job has done 20 steps."""
    cluster = Cluster(sandbox, spec_of(name, sandbox, every, **more), state_dir=state_dir).submit()
    cluster.start_agent(WORKERS, **(agent_env or {}))
    cluster.watch.wait_for_line("step 20/")
    return cluster


def pass_time(seconds):
    """How long a fault lasts is time, and nothing else will do for it."""
    threading.Event().wait(seconds)


def assert_undisturbed(cluster, undisturbed, recoveries):
    ended = cluster.await_end("SUCCEEDED")
    assert int(ended.get("recoveries", 0)) == recoveries, ended
    assert cluster.losses() == undisturbed[0]
    assert cluster.export().read_bytes() == undisturbed[1]
    for agent in cluster.agents:
        if agent.running():
            assert agent.wait(2 * PROMISE) == 0, agent.transcript()


def test_a_killed_rank_is_replaced_and_the_others_keep_their_processes(sandbox, undisturbed):
    cluster = start(sandbox)
    before = cluster.workers()
    killed = time.monotonic()
    kill(before[1])
    cluster.await_running(after=killed)
    after = cluster.workers()
    assert after[1] != before[1]
    assert (after[0], after[2]) == (before[0], before[2])
    assert_undisturbed(cluster, undisturbed, recoveries=1)


def test_all_ranks_killed_at_once_are_replaced(sandbox, undisturbed):
    cluster = start(sandbox)
    killed = time.monotonic()
    for pid in cluster.workers().values():
        kill(pid)
    cluster.await_running(after=killed)
    assert_undisturbed(cluster, undisturbed, recoveries=1)


def test_a_stopped_rank_is_named_and_replaced(sandbox, undisturbed):
    cluster = start(sandbox, timeouts={"lease": "60s"})
    pid = cluster.workers()[2]
    stopped = time.monotonic()
    stop(pid)
    when, _ = cluster.watch.next_line("state RECOVERING", stopped)
    # timeouts.collective and a second.
    assert when - stopped <= 4 + 1 + PROMISE
    assert "rank 2" in cluster.get("job")["reason"]
    cluster.await_running(after=stopped)
    assert cluster.workers()[2] != pid
    assert_undisturbed(cluster, undisturbed, recoveries=1)


def test_a_short_stop_of_a_rank_is_no_fault(sandbox, undisturbed):
    cluster = start(sandbox)
    pid = cluster.workers()[2]
    stop(pid)
    pass_time(1)
    go_on(pid)
    assert_undisturbed(cluster, undisturbed, recoveries=0)


def test_a_killed_agent_without_another_host_fails_the_job_and_names_the_host(sandbox):
    cluster = start(sandbox, timeouts={"replacement": "1s"})
    host = cluster.get("workers")["workers"][0]["host_name"]
    cluster.agents[0].signal(signal.SIGKILL)
    ended = cluster.await_end("FAILED", PATIENCE)
    assert f"host {host}" in ended["reason"], ended


def test_a_killed_agent_is_replaced_by_another_host_from_the_checkpoint(sandbox, undisturbed):
    cluster = start(sandbox, every=10, timeouts={"replacement": "60s"})
    killed = time.monotonic()
    cluster.agents[0].signal(signal.SIGKILL)
    cluster.watch.next_line("state RECOVERING", killed)
    cluster.start_agent(WORKERS, "--host_name=another")
    assert_undisturbed(cluster, undisturbed, recoveries=1)


def test_a_stopped_agent_is_lost_after_its_lease(sandbox):
    cluster = start(sandbox, steps=1_000_000, timeouts={"replacement": "1s"})
    stopped = time.monotonic()
    cluster.agents[0].signal(signal.SIGSTOP)
    when, _ = cluster.watch.next_line("state RECOVERING", stopped)
    assert when - stopped >= 3 - 0.5
    ended = cluster.await_end("FAILED", PATIENCE)
    assert "its agent" in ended["reason"], ended
    cluster.agents[0].signal(signal.SIGCONT)


def test_a_stopped_coordinator_stops_nobody(sandbox, undisturbed):
    cluster = start(sandbox)
    cluster.coordinator.signal(signal.SIGSTOP)
    pass_time(4)  # more than a lease
    cluster.coordinator.signal(signal.SIGCONT)
    assert_undisturbed(cluster, undisturbed, recoveries=0)


def test_a_killed_coordinator_comes_back_and_the_job_has_run_on(sandbox, undisturbed):
    cluster = start(sandbox, state_dir=True)
    workers = cluster.workers()
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    cluster.start_coordinator()
    assert_undisturbed(cluster, undisturbed, recoveries=0)
    assert all(pid > 0 for pid in workers.values())


def test_a_slow_disk_is_waited_for(sandbox, undisturbed):
    slow = ";".join(
        f"rank={rank},point=checkpoint_{point},action=slow"
        for rank in range(WORKERS)
        for point in ("write", "written", "index", "rename")
    )
    # All points of a save take longer together than a collective may.
    cluster = start(
        sandbox,
        every=100,
        agent_env={"TESSERA_TEST_FAULT": slow},
        timeouts={"collective": "0.8s"},
    )
    assert_undisturbed(cluster, undisturbed, recoveries=0)


def test_a_slow_way_to_the_coordinator_is_no_fault(sandbox, undisturbed):
    cluster = Cluster(sandbox, spec_of("faulty", sandbox)).submit()
    with Proxy(cluster.address, delay=0.3) as proxy:
        cluster.start_agent(WORKERS, address=proxy.address)
        assert_undisturbed(cluster, undisturbed, recoveries=0)
        assert proxy.connections >= WORKERS + 1


def test_a_way_to_the_coordinator_that_breaks_is_taken_again(sandbox, undisturbed):
    cluster = Cluster(sandbox, spec_of("faulty", sandbox)).submit()
    with Proxy(cluster.address) as proxy:
        agent = cluster.start_agent(WORKERS, address=proxy.address)
        cluster.watch.wait_for_line("step 20/")
        proxy.cut()
        proxy.mend()
        cluster.await_end("SUCCEEDED")
        # Lines that a rank could not tell before it was started again are lost with it.
        losses = cluster.losses()
        assert losses.items() <= undisturbed[0].items(), (losses, undisturbed[0])
        assert "400/400" in losses
        assert cluster.export().read_bytes() == undisturbed[1]
        assert agent.wait(2 * PROMISE) == 0, agent.transcript()


@pytest.mark.parametrize("jump", ["+3600", "-3600"])
def test_a_wall_clock_that_jumps_changes_nothing(sandbox, undisturbed, jump):
    if not pathlib.Path(FAKETIME).exists():
        pytest.skip(f"SKIPPED: {FAKETIME} is not there: deploy/install_packages")
    clock = sandbox.directory / "clock"
    clock.write_text("+0\n", encoding="utf-8")
    env = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    cluster = Cluster(sandbox, spec_of("faulty", sandbox), **env).submit()
    cluster.start_agent(WORKERS)
    cluster.watch.wait_for_line("step 20/")
    clock.write_text(f"{jump}\n", encoding="utf-8")
    assert_undisturbed(cluster, undisturbed, recoveries=0)


def test_a_clock_of_its_own_is_no_fault_of_the_coordinator(sandbox):
    """Times are never compared between processes: one's steady clock may be days from another's."""
    unshare = ["unshare", "--time", "--fork", "--monotonic", "864000", "--boottime", "864000"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("SKIPPED: this machine makes no time namespaces")
    cluster = Cluster(sandbox, spec_of("faulty", sandbox)).submit()
    agent = sandbox.start(
        *unshare,
        WORKER,
        f"--coordinator={cluster.address}",
        f"--local_workers={WORKERS}",
        "--job=faulty",
    )
    ended = cluster.await_end("SUCCEEDED")
    assert int(ended.get("recoveries", 0)) == 0
    assert agent.wait(2 * PROMISE) == 0, agent.transcript()
