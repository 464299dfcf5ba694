"""What a coordinator takes of its callers, and where the files of jobs may be."""

import threading

import grpc
import pytest
from jobs_by_hand import submit
from programs import SMALL_JOB, WORKER
from raw_calls import call, text, until
from reflection import Reflection

CODES = grpc.StatusCode
LIST = "/tessera.v1.JobService/ListJobs"
WATCH = "/tessera.v1.JobService/WatchJob"
GET = "/tessera.v1.JobService/GetJob"
ATTEND = "/tessera.v1.MembershipService/Attend"
STREAM, BOTH = (False, True), (True, True)


def _long(number, length):
    """A string field of up to 2 MiB."""
    varint = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
    return bytes([number << 3 | 2]) + varint + b"x" * length


def _exceeded(answer, limit, value):
    assert answer.code == CODES.RESOURCE_EXHAUSTED, answer
    assert (answer.reason, answer.metadata) == (
        "LIMIT_EXCEEDED",
        {"limit": limit, "value": str(value)},
    )
    assert f"{limit} is {value}" in answer.message


def test_long_messages_and_long_strings(sandbox):
    _, address = sandbox.start_coordinator(
        "--max_message_bytes=100000", "--max_string_bytes=20000"
    )
    with grpc.insecure_channel(address) as channel:
        _exceeded(call(channel, GET, _long(1, 100_000)), "max_message_bytes", 100_000)
        # So long that it is not even received.
        assert call(channel, GET, _long(1, 300_000)).code == CODES.RESOURCE_EXHAUSTED
        got = call(channel, GET, _long(1, 20_001))
        _exceeded(got, "max_string_bytes", 20_000)
        assert got.message.startswith("name has 20001 bytes")
        assert call(channel, GET, _long(1, 20_000)).code == CODES.NOT_FOUND
        # In a stream, where the guard sees no message.
        join = b"\x0a" + bytes([0xA5, 0x9C, 0x01]) + _long(1, 20_001)
        _exceeded(call(channel, ATTEND, join, BOTH), "max_string_bytes", 20_000)


def test_jobs(sandbox):
    _, address = sandbox.start_coordinator("--max_jobs=1")
    submit(sandbox, address, SMALL_JOB)
    where = f"--coordinator={address}"
    second = sandbox.write_job({**SMALL_JOB, "name": "second"})
    refused = sandbox.tessera("submit", f"--job={second}", where)
    assert refused.code == 1 and "max_jobs is 1" in refused.err[0], refused.transcript()
    assert sandbox.tessera("cancel", "small", where).code == 0
    assert sandbox.tessera("submit", f"--job={second}", where).code == 0


def test_members(sandbox):
    _, address = sandbox.start_coordinator("--max_members=1")
    # A host of one worker, for whatever job.
    join = text(1, text(1, "node") + b"\x10\x01" + text(4, "i"))
    with grpc.insecure_channel(address) as channel:
        first = channel.stream_stream(ATTEND)(iter([join]), timeout=60)
        next(first)
        _exceeded(call(channel, ATTEND, join, BOTH), "max_members", 1)
        first.cancel()
        until(CODES.OK, lambda: call(channel, ATTEND, join, BOTH))


def test_streams(sandbox):
    _, address = sandbox.start_coordinator("--max_streams=2")
    submit(sandbox, address, SMALL_JOB)
    request = text(1, "small")
    with grpc.insecure_channel(address) as channel:
        watches = [channel.unary_stream(WATCH)(request, timeout=60) for _ in range(2)]
        for watch in watches:
            next(watch)
        _exceeded(call(channel, WATCH, request, STREAM), "max_streams", 2)
        assert call(channel, LIST).code == CODES.OK
        watches[0].cancel()
        until(CODES.OK, lambda: call(channel, WATCH, request, STREAM))
        watches[1].cancel()


def test_calls_in_a_second(sandbox):
    _, address = sandbox.start_coordinator("--max_requests_per_second=5")
    with grpc.insecure_channel(address) as channel:
        assert call(channel, LIST).code == CODES.OK
        refused = until(CODES.RESOURCE_EXHAUSTED, lambda: call(channel, LIST))
        _exceeded(refused, "max_requests_per_second", 5)
        # Who calls again later is let in again.
        until(CODES.OK, lambda: call(channel, LIST))


def test_calls_in_flight(sandbox):
    _, address = sandbox.start_coordinator("--max_requests_in_flight=1")
    codes = set()

    def work(channel):
        codes.update(call(channel, LIST).code for _ in range(300))

    with grpc.insecure_channel(address) as channel:
        threads = [threading.Thread(target=work, args=(channel,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes <= {CODES.OK, CODES.RESOURCE_EXHAUSTED} and CODES.OK in codes
        assert call(channel, LIST).code == CODES.OK


@pytest.fixture
def folders(sandbox):
    """Roots with a link out of them, and what lies outside."""
    for name in ("data", "checkpoints", "outside"):
        (sandbox.directory / name).mkdir()
    words = "the quick brown fox jumps over the lazy dog " * 500
    for folder in ("data", "outside"):
        (sandbox.directory / folder / "text").write_text(words, encoding="utf-8")
    for root in ("data", "checkpoints"):
        (sandbox.directory / root / "link").symlink_to(sandbox.directory / "outside")
    return sandbox.directory


def _roots(folders):
    return [f"--data_root={folders / 'data'}", f"--checkpoint_root={folders / 'checkpoints'}"]


# Field, and a path of it below the folders that is refused; its twin.
PATHS = [
    ("data", "outside/text", "data/text"),
    ("data", "data/link/text", "data/text"),
    ("data", "data/../outside/text", "data/../data/text"),
    ("checkpoint.dir", "outside", "checkpoints/new"),
    ("checkpoint.dir", "checkpoints/link/new", "checkpoints/new/deeper"),
    ("checkpoint.dir", "data", "checkpoints"),
    ("checkpoint.resume", "checkpoints/link/step-1", "checkpoints/step-1"),
    ("checkpoint.import", "outside/model.safetensors", "data/model.safetensors"),
    ("checkpoint.import", "data/link/model.safetensors", "checkpoints/model.safetensors"),
]


@pytest.mark.parametrize(("field", "refused", "accepted"), PATHS)
def test_files_of_a_job_are_in_their_roots(sandbox, folders, field, refused, accepted):
    _, address = sandbox.start_coordinator(*_roots(folders))
    remote = Reflection(address)

    def create(path):
        spec = {**SMALL_JOB}
        *sections, name = field.split(".")
        target = spec
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = str(folders / path)
        return remote.call("JobService", "CreateJob", spec=spec, validate_only=True)

    with pytest.raises(grpc.RpcError) as error:
        create(refused)
    assert error.value.code() == CODES.INVALID_ARGUMENT
    assert error.value.details().startswith(f"{field}: ")
    assert create(accepted)["job"]["name"] == "small"
    remote.close()


def test_a_relative_path_is_in_no_root(sandbox, folders):
    _, address = sandbox.start_coordinator(*_roots(folders))
    remote = Reflection(address)
    with pytest.raises(grpc.RpcError) as error:
        remote.call("JobService", "CreateJob", spec={**SMALL_JOB, "data": "data/text"})
    assert error.value.details().startswith("data: ")
    remote.close()


@pytest.mark.parametrize(
    ("field", "refused", "accepted"), [PATHS[1], PATHS[4], PATHS[6], PATHS[8]]
)
def test_workers_look_again_when_they_open(sandbox, folders, address, field, refused, accepted):
    """The coordinator knows no roots; the agent's ranks do."""
    job = {**SMALL_JOB, "steps": 2, "max_recoveries": 0}
    *sections, name = field.split(".")
    target = job
    for section in sections:
        target[section] = {}
        target = target[section]
    target[name] = str(folders / refused)
    where = f"--coordinator={address}"
    submit(sandbox, address, job)
    agent = sandbox.start(WORKER, where, "--local_workers=2", *_roots(folders))
    watch = sandbox.tessera("watch", "small", where)
    agent.wait()
    assert watch.code == 1, watch.transcript()
    assert field in watch.err[-1] and "root says it has to be" in watch.err[-1], watch.err
    assert sorted(path.name for path in (folders / "outside").iterdir()) == ["text"]
    if field not in ("data", "checkpoint.dir"):
        return  # there is nothing to resume or to import
    target[name] = str(folders / accepted)
    submit(sandbox, address, job)
    agent = sandbox.start(WORKER, where, "--local_workers=2", *_roots(folders))
    assert sandbox.tessera("watch", "small", where).code == 0
    assert agent.wait() == 0, agent.transcript()


def test_a_root_that_is_no_folder_is_refused(sandbox, folders):
    ended = sandbox.run(WORKER, "--coordinator=127.0.0.1:1", f"--data_root={folders / 'none'}")
    assert ended.code == 2 and "--data_root" in ended.err[0], ended.transcript()
