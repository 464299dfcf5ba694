"""Starts Tessera's programs for a test, waits for what they print or do, and finds what they left.

Waits end with an event (a line, the end of a process) or with a deadline that is there only
against hanging.
"""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import threading
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where the built programs are; TESSERA_BIN is for builds with another --symlink_prefix.
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "bazel-bin"))
TESSERA = BIN / "client" / "tessera"
COORDINATOR = BIN / "coordinator" / "tessera-coordinator"
WORKER = BIN / "worker" / "tessera-worker"
CHAR_MODEL = BIN / "tests" / "examples" / "char_model"
BUILT_MODEL = BIN / "tests" / "wrap" / "built_model"

# Far more than anything takes on a busy machine.
PATIENCE = 60
# What the programs promise for ends and failures.
PROMISE = 5

SMALL_JOB = {
    "name": "small",
    "model": {"builtin": "gpt", "layers": 2, "width": 32, "heads": 2, "context": 16, "vocab": 256},
    "steps": 40,
    "global_batch": 12,
    "eval_every": 25,
    "optimizer": {"warmup_steps": 10},
}
# Runs until somebody ends it.
ENDLESS_JOB = {**SMALL_JOB, "name": "endless", "steps": 10_000_000, "eval_every": 1_000_000}


class Program:
    """A process whose lines of stdout and stderr are kept."""

    def __init__(self, argv, cwd, env):
        self.argv = [str(part) for part in argv]
        self._process = subprocess.Popen(
            self.argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.pid = self._process.pid
        self.out, self.err = [], []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self._process.stdout, self.out),
                (self._process.stderr, self.err),
            )
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_line(self, pattern, lines=None, timeout=PATIENCE):
        """The match of the first line (of stdout, or `lines`) that begins with `pattern`."""
        lines = self.out if lines is None else lines
        deadline = time.monotonic() + timeout
        seen = 0
        with self._changed:
            while True:
                for line in lines[seen:]:
                    match = re.match(pattern, line)
                    if match:
                        return match
                seen = len(lines)
                left = deadline - time.monotonic()
                ended = not any(reader.is_alive() for reader in self._readers)
                if left <= 0 or (ended and seen == len(lines)):
                    why = "ended" if ended else f"said nothing of it in {timeout} s"
                    raise AssertionError(
                        f"{self} {why}; waited for {pattern!r}\n{self.transcript()}"
                    )
                self._changed.wait(min(left, 1))

    def wait(self, timeout=PATIENCE):
        """The exit code, negative for a signal. All output has been read."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self} is still running after {timeout} s\n{self.transcript()}"
            ) from None
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def running(self):
        return self._process.poll() is None

    def signal(self, number):
        self._process.send_signal(number)

    def transcript(self):
        return "\n".join(["-- stdout", *self.out[-40:], "-- stderr", *self.err[-40:]])

    def __str__(self):
        return f"{pathlib.Path(self.argv[0]).name} (pid {self.pid})"


class Sandbox:
    """A directory and the processes that a test starts in it.

    Every process, and what it starts, carries a mark in its environment by which it is found again.
    """

    def __init__(self, directory):
        self.directory = directory
        self._mark = f"TESSERA_TEST_MARK={uuid.uuid4()}"
        self._programs = []
        self._shm = shm_files()

    def start(self, *argv, cwd=None, **env):
        name, value = self._mark.split("=")
        clean = {key: val for key, val in os.environ.items() if not key.startswith("TESSERA_")}
        program = Program(argv, cwd or self.directory, {**clean, **env, name: value})
        self._programs.append(program)
        return program

    def run(self, *argv, timeout=PATIENCE, **kwargs):
        """Runs to the end; returns the program with its `code`."""
        program = self.start(*argv, **kwargs)
        program.code = program.wait(timeout)
        return program

    def tessera(self, *argv, **kwargs):
        return self.run(TESSERA, *argv, **kwargs)

    def write_job(self, job, name=None):
        path = self.directory / f"{name or job['name']}.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        return path

    def start_coordinator(self, *flags, drain_delay="0s", **env):
        """(program, HOST:PORT)"""
        program = self.start(
            COORDINATOR, "--listen=127.0.0.1:0", f"--drain_delay={drain_delay}", *flags, **env
        )
        return program, program.wait_for_line(r"listening (\S+:\d+)$").group(1)

    def start_agent(self, address, workers, *argv, **env):
        return self.start(
            WORKER, f"--coordinator={address}", f"--local_workers={workers}", *argv, **env
        )

    def left(self):
        """pid -> command line of every process of this sandbox that is alive."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    )
            except OSError:
                pass  # it ended meanwhile
        return found

    def await_nothing_left(self, timeout=PROMISE):
        deadline = time.monotonic() + timeout
        while True:
            left = self.left()
            if not left:
                return
            assert time.monotonic() < deadline, f"still alive after {timeout} s: {left}"
            await_end(next(iter(left)), deadline - time.monotonic())

    def close(self):
        """Ends what the test left running, then sees to it that nothing stays."""
        for program in reversed(self._programs):
            if program.running():
                program.signal(signal.SIGCONT)
                program.signal(signal.SIGTERM)
        for program in self._programs:
            try:
                program.wait(2 * PROMISE)
            except AssertionError:
                program.signal(signal.SIGKILL)
                program.wait()
                raise
        try:
            self.await_nothing_left(2 * PROMISE)
        finally:
            for pid in self.left():
                os.kill(pid, signal.SIGKILL)
        assert shm_files() == self._shm, "/dev/shm is not as before"


def shm_files():
    return sorted(path.name for path in pathlib.Path("/dev/shm").iterdir())


def await_end(pid, timeout):
    """Waits until a process, which need not be a child, has ended. Returns whether it has."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], max(timeout, 0))[0])
    finally:
        os.close(fd)
