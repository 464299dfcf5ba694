"""`tessera list`, `watch` over a line that breaks, and `drain`, with real processes."""

import json
import re
import socket
import threading

import numpy

from programs import ENDLESS_JOB, SMALL_JOB, TESSERA
from safetensors import safe_open

# One more than fits a page.
MANY = 101


class Proxy:
    """Passes TCP connections on to `target` (HOST:PORT) and cuts them when it is told to."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        """Breaks every connection that is open; new ones are passed on."""
        with self._lock:
            for end in self._open:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._open.clear()

    def close(self):
        self._listener.close()
        self.cut()


def submit(sandbox, address, job, *more):
    program = sandbox.tessera(
        "submit", f"--job={sandbox.write_job(job)}", f"--coordinator={address}", *more
    )
    assert (program.code, program.out) == (0, [job["name"]]), program.transcript()


def get_job(sandbox, address, name):
    program = sandbox.tessera("get", "job", name, f"--coordinator={address}", "--output=json")
    assert program.code == 0, program.transcript()
    return json.loads("\n".join(program.out))


def test_list_shows_no_jobs_and_then_all(sandbox, address):
    where = f"--coordinator={address}"
    empty = sandbox.tessera("list", where)
    assert (empty.code, len(empty.out), empty.err) == (0, 1, [])
    assert json.loads("\n".join(sandbox.tessera("list", where, "--output=json").out))["jobs"] == []

    submit(sandbox, address, {**SMALL_JOB, "name": "first"})
    submit(sandbox, address, ENDLESS_JOB)
    sandbox.start_agent(address, 2, "--job=endless")
    watch = sandbox.start(TESSERA, "watch", "endless", where)
    watch.wait_for_line("step ")

    table = sandbox.tessera("list", where)
    assert table.code == 0
    rows = [line.split() for line in table.out]
    assert rows[0] == ["NAME", "STATE", "STEP", "LOSS", "AGE"]
    assert [row[:2] for row in rows[1:]] == [["endless", "RUNNING"], ["first", "FORMING"]]
    assert re.fullmatch(r"\d+/10000000", rows[1][2]) and float(rows[1][3]) > 0
    assert rows[2][2:4] == ["0/40", "-"]
    assert all(re.fullmatch(r"\d+s", row[4]) for row in rows[1:])

    jobs = json.loads("\n".join(sandbox.tessera("list", where, "--output=json").out))["jobs"]
    assert [job["name"] for job in jobs] == ["endless", "first"]
    assert jobs[0]["loss"] > 0 and "loss" not in jobs[1]
    sandbox.tessera("cancel", "endless", where)


def test_list_goes_through_all_pages(sandbox, address):
    job = sandbox.write_job(SMALL_JOB)
    names = [f"job-{number}" for number in range(MANY)]
    for name in names:
        program = sandbox.tessera(
            "submit", f"--job={job}", f"--coordinator={address}", "--set", f"name={name}"
        )
        assert program.code == 0, program.transcript()
    listed = sandbox.tessera("list", f"--coordinator={address}")
    assert [line.split()[0] for line in listed.out[1:]] == names[::-1]


def test_watch_goes_on_where_the_line_broke(sandbox, address):
    proxy = Proxy(address)
    submit(sandbox, address, ENDLESS_JOB)
    through = sandbox.start(TESSERA, "watch", "endless", f"--coordinator={proxy.address}")
    through.wait_for_line("state FORMING")
    sandbox.start_agent(address, 2, "--job=endless")
    for step in (20, 60, 100):
        through.wait_for_line(f"step {step}/")
        through.err.clear()
        proxy.cut()
        # Only then does the next cut hit the new connection.
        through.wait_for_line(r"tessera: the watch goes on after step \d+$", lines=through.err)
        assert re.match(r"tessera: the watch broke off after step \d+ \(cannot", through.err[0])
    sandbox.tessera("cancel", "endless", f"--coordinator={address}")
    assert through.wait() == 1
    proxy.close()
    # All of it, from the beginning, over one connection.
    whole = sandbox.tessera("watch", "endless", f"--coordinator={address}")
    assert whole.code == 1
    assert through.out == whole.out
    states = [line for line in whole.out if line.startswith("state ")]
    assert states == ["state FORMING", "state RUNNING", "state CANCELLED"]
    steps = [int(re.match(r"step (\d+)/", line).group(1)) for line in whole.out if "/" in line]
    assert steps == list(range(20, steps[-1] + 1, 20)) and steps[-1] >= 100


def test_watch_says_when_the_coordinator_is_not_there(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    for command in (["watch", "gpt"], ["list"], ["drain", "gpt"]):
        program = sandbox.tessera(*command, f"--coordinator={free}")
        assert (program.code, program.out) == (3, [])
        assert program.err == [
            f"tessera: cannot reach the coordinator at {free}: connection refused; is it running?"
        ]


def test_progress_says_how_long_is_left_but_on_the_last_line(sandbox):
    program = sandbox.tessera("run", f"--job={sandbox.write_job(SMALL_JOB)}")
    assert program.code == 0, program.transcript()
    lines = [line for line in program.out if line.startswith("step ")]
    assert lines
    for line in lines[:-1]:
        assert re.search(r" tokens/s \d+ left \d+[smh]\w*$", line), line
    assert re.search(r" tokens/s \d+$", lines[-1])


def test_drain_stops_a_job_where_nothing_is_lost(sandbox, address):
    where = f"--coordinator={address}"
    directory = sandbox.directory / "out"
    submit(sandbox, address, {**ENDLESS_JOB, "checkpoint": {"dir": str(directory)}})
    agent = sandbox.start_agent(address, 3, "--job=endless")
    watch = sandbox.start(TESSERA, "watch", "endless", where)
    watch.wait_for_line("step ")

    drained = sandbox.tessera("drain", "endless", where)
    assert (drained.code, drained.out) == (0, ["endless CANCELLED"]), drained.transcript()
    assert watch.wait() == 1
    assert watch.out[-1] == "state CANCELLED"
    last = re.match(r"step (\d+)/", watch.out[-2]).group(1)
    assert " left " not in watch.out[-2]
    assert watch.err[-1].endswith(f": drained after step {last} of 10000000")

    job = get_job(sandbox, address, "endless")
    assert (job["state"], job["step"], job["reason_code"]) == ("CANCELLED", last, "DRAINED")
    # Whole: every tensor of the model, trained.
    with safe_open(directory / "export" / "model.safetensors", framework="numpy") as exported:
        names = list(exported.keys())
        assert len(names) == 28
        for name in names:
            assert numpy.isfinite(exported.get_tensor(name)).all(), name
        norm = exported.get_tensor("h.0.ln_1.weight")
        assert not numpy.array_equal(norm, numpy.ones(32, numpy.float32))
    # The agent ends by itself, as after every job that did not succeed.
    assert agent.wait() == 1
    # Asked for once more, it is still so.
    again = sandbox.tessera("drain", "endless", where)
    assert (again.code, again.out) == (0, ["endless CANCELLED"])


def test_a_run_that_is_drained_ends_with_1_and_its_export(sandbox):
    run = sandbox.start(TESSERA, "run", f"--job={sandbox.write_job(ENDLESS_JOB)}")
    address = run.wait_for_line(r"coordinator (\S+)").group(1)
    run.wait_for_line("step ")
    drained = sandbox.tessera("drain", "endless", "--no_wait", f"--coordinator={address}")
    assert (drained.code, drained.out) == (0, ["endless RUNNING"])
    assert run.wait() == 1, run.transcript()
    path = sandbox.directory / "endless.tessera" / "export" / "model.safetensors"
    assert run.out[-1] == f"export {path}"
    with safe_open(path, framework="numpy") as exported:
        assert len(list(exported.keys())) == 28
    assert "CANCELLED" in run.err[-1] and "drained after step" in run.err[-1]
    sandbox.await_nothing_left()


def test_drain_of_what_does_not_run(sandbox, address):
    where = f"--coordinator={address}"
    unknown = sandbox.tessera("drain", "nothing", where)
    assert (unknown.code, len(unknown.err), unknown.out) == (4, 1, [])
    submit(sandbox, address, SMALL_JOB)
    forming = sandbox.tessera("drain", "small", where)
    assert (forming.code, forming.out) == (0, ["small CANCELLED"])
    submit(sandbox, address, SMALL_JOB)
    assert sandbox.tessera("cancel", "small", where).code == 0
    ended = sandbox.tessera("drain", "small", where)
    assert (ended.code, ended.out) == (5, [])
    assert "small is CANCELLED" in ended.err[0]
