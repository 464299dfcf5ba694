"""Whatever is sent to it, the coordinator stays up, stays small and answers with a status."""

import os
import pathlib
import random
import re

import grpc
from grpc_fuzz import Fuzzer
from jobs_by_hand import submit
from programs import SMALL_JOB
from raw_calls import call

# tests/run_deep gives more.
SECONDS = float(os.environ.get("TESSERA_TEST_FUZZ_SECONDS", "5"))
MOST_MORE = 256 << 20


def _resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE).group(1)) * 1024


def test_the_coordinator_stays_up_and_small(sandbox):
    seed = int(os.environ.get("TESSERA_TEST_FUZZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    coordinator, address = sandbox.start_coordinator("--max_jobs=20")
    submit(sandbox, address, SMALL_JOB)
    fuzzer = Fuzzer(address, seed)
    fuzzer.run(1)  # what is made once
    before = _resident_bytes(coordinator.pid)
    fuzzer.run(SECONDS)
    after = _resident_bytes(coordinator.pid)
    fuzzer.close()
    print(f"{dict(fuzzer.seen)}, resident {before >> 20} to {after >> 20} MiB")

    assert fuzzer.wrong == [], f"seed {seed}: {fuzzer.wrong[:3]}"
    assert coordinator.running(), coordinator.transcript()
    assert after < before + MOST_MORE, f"seed {seed}"
    assert fuzzer.seen["bytes"] > 0 and fuzzer.seen["INVALID_ARGUMENT"] > 0
    with grpc.insecure_channel(address) as channel:
        assert call(channel, "/grpc.health.v1.Health/Check").code == grpc.StatusCode.OK
    assert sandbox.tessera("get", "job", "small", f"--coordinator={address}").code == 0
