"""One job on two hosts, which are network namespaces: shared memory within them, gloo between.

The coordinator has a namespace of its own. Each host has a link to it, and one to the other host
for the data alone:

    10.91.0.1 coordinator -- 10.91.0.2 a, 10.91.0.3 b        10.92.0.2 a -- b 10.92.0.3
"""

import json
import os
import signal
import subprocess
import uuid

import pytest
from programs import COORDINATOR, ENDLESS_JOB, PATIENCE, PROMISE, SMALL_JOB, TESSERA, WORKER
from programs import await_end

# One copy of the model on each host.
HYBRID = {
    "strategy": "hybrid_shard",
    "replicas": 2,
    "min_workers": 4,
    "max_workers": 4,
    "local_world_size": 2,
}
HOSTS = {"a": 2, "b": 3}  # the last part of their addresses


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """The namespaces of one test, and the processes in them."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.name = f"tessera-{uuid.uuid4().hex[:6]}"
        self.made = []

    def make(self):
        for part in ("c", *HOSTS):
            ip("netns", "add", self.of(part))
            self.made.append(part)
            self.inside(part, "link", "set", "lo", "up")
        self.inside("c", "link", "add", "hosts", "type", "bridge")
        self.inside("c", "addr", "add", "10.91.0.1/24", "dev", "hosts")
        self.inside("c", "link", "set", "hosts", "up")
        for host, number in HOSTS.items():
            to_host = ("type", "veth", "peer", "name", "control", "netns", self.of(host))
            self.inside("c", "link", "add", f"to-{host}", *to_host)
            self.inside("c", "link", "set", f"to-{host}", "master", "hosts", "up")
            self.bring_up(host, "control", f"10.91.0.{number}/24")
        to_b = ("type", "veth", "peer", "name", "data", "netns", self.of("b"))
        self.inside("a", "link", "add", "data", *to_b)
        for host, number in HOSTS.items():
            self.bring_up(host, "data", f"10.92.0.{number}/24")

    def bring_up(self, host, link, address):
        self.inside(host, "addr", "add", address, "dev", link)
        self.inside(host, "link", "set", link, "up")

    def remove(self):
        for part in self.made:
            ip("netns", "del", self.of(part))

    def of(self, part):
        return f"{self.name}-{part}"

    def inside(self, part, *words):
        ip("-n", self.of(part), *words)

    def start(self, part, *argv, **env):
        return self.sandbox.start("ip", "netns", "exec", self.of(part), *argv, **env)

    def start_coordinator(self):
        program = self.start("c", COORDINATOR, "--listen=10.91.0.1:0", "--insecure")
        port = program.wait_for_line(r"listening \S+:(\d+)$").group(1)
        return program, f"10.91.0.1:{port}"

    def tessera(self, *argv):
        program = self.start("c", TESSERA, *argv)
        program.code = program.wait()
        return program

    def start_agent(self, host, address, job, *argv, **env):
        return self.start(
            host,
            WORKER,
            f"--coordinator={address}",
            "--local_workers=2",
            f"--host_name={host}",
            f"--job={job}",
            *argv,
            **env,
        )


@pytest.fixture(name="network")
def fixture_network(sandbox):
    network = Network(sandbox)
    try:
        network.make()
    except (OSError, subprocess.CalledProcessError) as refused:
        network.remove()
        why = getattr(refused, "stderr", "") or str(refused)
        if "not permitted" in why or isinstance(refused, OSError):
            pytest.skip(f"SKIPPED: this machine makes no network namespaces: {why.strip()}")
        raise
    yield network
    sandbox.close()
    network.remove()


class Job:
    """A job on hosts a and b, with a watch."""

    def __init__(self, network, spec, data_link=False, **env):
        self.network, self.name = network, spec["name"]
        self.coordinator, self.address = network.start_coordinator()
        submitted = network.tessera(
            "submit",
            f"--job={network.sandbox.write_job(spec)}",
            f"--coordinator={self.address}",
        )
        assert submitted.code == 0, submitted.transcript()
        self.agents = {
            host: network.start_agent(
                host,
                self.address,
                self.name,
                *([f"--host_address=10.92.0.{number}"] if data_link else []),
                **env,
            )
            for host, number in HOSTS.items()
        }
        self.watch = network.start(
            "c", TESSERA, "watch", self.name, f"--coordinator={self.address}"
        )

    def get(self, *what):
        program = self.network.tessera(
            *what, self.name, f"--coordinator={self.address}", "--output=json"
        )
        assert program.code == 0, program.transcript()
        return json.loads("\n".join(program.out))

    def await_failed(self, timeout):
        assert self.watch.wait(timeout) == 1, self.watch.transcript()
        job = self.get("get", "job")
        assert job["state"] == "FAILED"
        return job

    def await_hosts(self, *hosts):
        for host in hosts:
            self.agents[host].wait(2 * PROMISE)
        for pid in self.network.sandbox.left():
            assert pid == self.coordinator.pid or await_end(pid, PROMISE)


def losses(lines):
    return [line.split()[1:] for line in lines if line.startswith("step ")]


def without_speed(entries):
    """Of "STEP/STEPS loss X ...": what training, and not time, decides."""
    return [
        [entry[0], *(entry[i + 1] for i in range(len(entry) - 1) if entry[i].startswith("loss"))]
        for entry in entries
    ]


def test_two_hosts_train_bit_for_bit_as_one_does(sandbox, network):
    spec = {**SMALL_JOB, "steps": 40}
    exports = {}
    seen = {}
    one = {**spec, "name": "one", "mesh": {**HYBRID, "local_world_size": 0}}
    one["checkpoint"] = {"dir": str(sandbox.directory / "one")}
    _, address = sandbox.start_coordinator()
    sandbox.start_agent(address, 4, "--job=one")
    submitted = sandbox.tessera(
        "submit", f"--job={sandbox.write_job(one)}", f"--coordinator={address}"
    )
    assert submitted.code == 0, submitted.transcript()
    watch = sandbox.run(TESSERA, "watch", "one", f"--coordinator={address}")
    assert watch.code == 0, watch.transcript()
    seen["one"] = watch.out

    two = {**spec, "name": "two", "mesh": HYBRID}
    two["checkpoint"] = {"dir": str(sandbox.directory / "two")}
    job = Job(network, two)
    assert job.watch.wait(2 * PATIENCE) == 0, job.watch.transcript()
    seen["two"] = job.watch.out
    for agent in job.agents.values():
        assert agent.wait() == 0, agent.transcript()
    for name in seen:
        exports[name] = (sandbox.directory / name / "export" / "model.safetensors").read_bytes()
    assert len(losses(seen["one"])) >= 3
    assert without_speed(losses(seen["two"])) == without_speed(losses(seen["one"]))
    assert exports["two"] == exports["one"]


def test_each_host_maps_what_was_forecast(network):
    job = Job(network, {**ENDLESS_JOB, "mesh": HYBRID})
    job.watch.wait_for_line("step ", timeout=2 * PATIENCE)
    workers = job.get("get", "workers")["workers"]
    # Ranks go to hosts in the order in which these came.
    assert "".join(worker["host_name"] for worker in workers) in ("aabb", "bbaa")
    plan = job.get("get", "plan")
    assert [int(host["ranks"]) for host in plan["forecast"]["hosts"]] == [2, 2]
    for rank in job.get("stats")["ranks"]:
        assert int(rank["measured_bytes"]) == int(rank["forecast_bytes"]) > 0
    network.tessera("cancel", job.name, f"--coordinator={job.address}")
    job.await_hosts("a", "b")


def test_a_link_that_goes_down_ends_the_step_and_names_the_host(network):
    deadline = 4
    spec = {**ENDLESS_JOB, "mesh": HYBRID, "timeouts": {"collective": f"{deadline}s"}}
    job = Job(network, {**spec, "max_recoveries": 0}, data_link=True)
    job.watch.wait_for_line("step ", timeout=2 * PATIENCE)
    network.inside("a", "link", "set", "data", "down")
    failed = job.await_failed(deadline + PROMISE)
    # Either end of the link misses the other.
    assert "waited 4s for" in failed["reason"], failed["reason"]
    assert any(f"missing: host {host} " in failed["reason"] for host in HOSTS), failed["reason"]
    job.await_hosts("a", "b")


def test_a_host_that_is_killed_is_named(network):
    job = Job(network, {**ENDLESS_JOB, "mesh": HYBRID, "max_recoveries": 0})
    job.watch.wait_for_line("step ", timeout=2 * PATIENCE)
    workers = job.get("get", "workers")["workers"]
    job.agents["b"].signal(signal.SIGKILL)
    for worker in workers:
        if worker["host_name"] == "b":
            os.kill(int(worker["pid"]), signal.SIGKILL)
    failed = job.await_failed(PROMISE)
    assert failed["reason"].startswith("host b is lost"), failed["reason"]
    job.await_hosts("a")


def test_a_host_that_is_cut_off_is_named(network):
    spec = {**ENDLESS_JOB, "mesh": HYBRID, "timeouts": {"lease": "3s", "heartbeat": "0.5s"}}
    job = Job(network, {**spec, "max_recoveries": 0})
    job.watch.wait_for_line("step ", timeout=2 * PATIENCE)
    network.inside("b", "link", "set", "control", "down")
    failed = job.await_failed(3 + PROMISE)
    assert failed["reason"].startswith("host b is lost"), failed["reason"]
    job.agents["a"].wait(2 * PROMISE)


def test_a_host_that_does_not_come_is_missed(network):
    _, address = network.start_coordinator()
    spec = {**SMALL_JOB, "mesh": HYBRID, "timeouts": {"form": "2s"}}
    path = network.sandbox.write_job(spec)
    assert network.tessera("submit", f"--job={path}", f"--coordinator={address}").code == 0
    agent = network.start_agent("a", address, "small")
    watch = network.tessera("watch", "small", f"--coordinator={address}")
    assert watch.code == 1
    assert "1 of 2 hosts with 2 workers joined after 2s" in watch.err[-1], watch.transcript()
    assert agent.wait() == 1


def test_a_rank_that_is_killed_is_named_on_both_hosts(network):
    job = Job(network, {**ENDLESS_JOB, "mesh": HYBRID, "max_recoveries": 0})
    job.watch.wait_for_line("step ", timeout=2 * PATIENCE)
    victim = job.get("get", "workers")["workers"][3]
    assert victim["rank"] == 3
    host = victim["host_name"]
    os.kill(int(victim["pid"]), signal.SIGKILL)
    failed = job.await_failed(PROMISE)
    assert failed["failed_rank"] == 3
    said = f"rank 3 on host {host} was killed by signal 9"
    assert failed["reason"].startswith(said), failed["reason"]
    job.await_hosts("a", "b")
