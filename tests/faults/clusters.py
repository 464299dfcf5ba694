"""Clusters by hand whose processes are killed and stopped, and what is seen of it, with times.

For tests/cluster/test_faults.py and the programs beside this file.
"""

import json
import os
import pathlib
import select
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from programs import COORDINATOR, PATIENCE, TESSERA, WORKER, Program  # noqa: E402

# Steps of about 10 ms each, and a line every 20.
JOB = {
    "name": "faulty",
    "model": {"builtin": "gpt", "layers": 2, "width": 32, "heads": 2, "context": 16, "vocab": 256},
    "steps": 200,
    "global_batch": 12,
    "eval_every": 100,
    "optimizer": {"warmup_steps": 10},
    "timeouts": {"heartbeat": "0.5s", "lease": "3s", "collective": "4s", "replacement": "3s"},
    "max_recoveries": 1000,
    "checkpoint": {"export": True},
}


def job(name, workers, **more):
    merged = {**JOB, **more, "name": name}
    merged["timeouts"] = {**JOB["timeouts"], **more.get("timeouts", {})}
    merged["mesh"] = {"min_workers": workers, "max_workers": workers, **more.get("mesh", {})}
    return merged


class TimedProgram(Program):
    """Keeps for each line of stdout when it came (time.monotonic)."""

    def __init__(self, *args):
        self.times = []
        super().__init__(*args)

    def _read(self, stream, lines):
        for line in stream:
            now = time.monotonic()
            with self._changed:
                if lines is self.out:
                    self.times.append(now)
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def next_line(self, prefix, after, timeout=PATIENCE):
        """(time, line) of the first line with the prefix that came after the moment `after`."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for when, line in zip(self.times, self.out):
                    if when > after and line.startswith(prefix):
                        return when, line
                left = deadline - time.monotonic()
                assert left > 0, f"no line {prefix!r} in {timeout} s\n{self.transcript()}"
                assert any(r.is_alive() for r in self._readers), (
                    f"ended without a line {prefix!r}\n{self.transcript()}"
                )
                self._changed.wait(min(left, 0.5))


class Deaths:
    """When processes end, from the kernel."""

    def __init__(self):
        self._poll = select.epoll()
        self._pids = {}  # by descriptor
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self.at = {}  # pid -> time.monotonic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, pid):
        with self._changed:
            if pid in self._pids.values() or pid in self.at:
                return
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            self._pids[fd] = pid
            self._poll.register(fd, select.EPOLLIN)

    def _run(self):
        while not self._stopped.is_set():
            for fd, _ in self._poll.poll(0.5):
                now = time.monotonic()
                self._poll.unregister(fd)
                with self._changed:
                    self.at[self._pids.pop(fd)] = now
                    self._changed.notify_all()
                os.close(fd)

    def wait_for_another(self, known, timeout):
        """(pid, time) of a process that ended and is not in `known`, or None."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for pid, when in self.at.items():
                    if pid not in known:
                        return pid, when
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def close(self):
        self._stopped.set()
        self._thread.join()
        for fd in self._pids:
            os.close(fd)
        self._poll.close()


class Cluster:
    """A coordinator, agents and a watch of one job."""

    def __init__(self, sandbox, spec, state_dir=False, **env):
        self.sandbox, self.spec, self.name = sandbox, spec, spec["name"]
        self.state_dir = sandbox.directory / "state" if state_dir else None
        self.env = env
        self.address = "127.0.0.1:0"
        self.coordinator = None
        self.start_coordinator()
        self.agents = []
        self.watch = None

    def start_coordinator(self):
        """The first time, or again on the same port with the same state."""
        argv = [COORDINATOR, f"--listen={self.address}", "--drain_delay=0s"]
        if self.state_dir is not None:
            argv.append(f"--state_dir={self.state_dir}")
        self.coordinator = self.sandbox.start(*argv, **self.env)
        match = self.coordinator.wait_for_line(r"listening (\S+:\d+)$")
        self.address = match.group(1)

    def submit(self):
        path = self.sandbox.write_job(self.spec)
        submitted = self.sandbox.tessera(
            "submit", f"--job={path}", f"--coordinator={self.address}"
        )
        assert submitted.code == 0, submitted.transcript()
        self.watch = self.start_timed(
            TESSERA, "watch", self.name, f"--coordinator={self.address}"
        )
        return self

    def start_timed(self, *argv):
        name, value = self.sandbox._mark.split("=")  # so that it is found as the others are
        clean = {key: val for key, val in os.environ.items() if not key.startswith("TESSERA_")}
        program = TimedProgram(argv, self.sandbox.directory, {**clean, name: value})
        self.sandbox._programs.append(program)
        return program

    def start_agent(self, workers, *argv, address=None, **env):
        agent = self.sandbox.start(
            WORKER,
            f"--coordinator={address or self.address}",
            f"--local_workers={workers}",
            f"--job={self.name}",
            *argv,
            **{**self.env, **env},
        )
        self.agents.append(agent)
        return agent

    def get(self, *what):
        program = self.sandbox.tessera(
            "get", *what, self.name, f"--coordinator={self.address}", "--output=json"
        )
        assert program.code == 0, program.transcript()
        return json.loads("\n".join(program.out))

    def workers(self):
        """rank -> pid"""
        return {worker["rank"]: int(worker["pid"]) for worker in self.get("workers")["workers"]}

    def await_running(self, after=0.0, timeout=PATIENCE):
        return self.watch.next_line("state RUNNING", after, timeout)[0]

    def await_end(self, state, timeout=2 * PATIENCE):
        code = self.watch.wait(timeout)
        job_now = self.get("job")
        assert job_now["state"] == state, f"{job_now}\n{self.watch.transcript()}"
        assert code == (0 if state == "SUCCEEDED" else 1), self.watch.transcript()
        return job_now

    def losses(self):
        """Of each line "step 20/200 loss 2.471 val 2.902 tokens/s 14210": what no time changes."""
        found = {}
        for line in self.watch.out:
            words = line.split()
            if words and words[0] == "step":
                found[words[1]] = words[2 : words.index("tokens/s")]
        return found

    def export(self):
        return self.sandbox.directory / f"{self.name}.out" / "export" / "model.safetensors"


def with_files(spec, sandbox, every=0):
    """`spec` with a folder of its own for what it saves."""
    directory = str(sandbox.directory / f"{spec['name']}.out")
    return {**spec, "checkpoint": {**spec["checkpoint"], "dir": directory, "every": every}}


def stop(pid):
    os.kill(pid, signal.SIGSTOP)


def go_on(pid):
    os.kill(pid, signal.SIGCONT)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
