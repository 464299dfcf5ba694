"""What can be seen of GPUs on a machine that has none."""

import json
import pathlib
import re
import struct

import pytest
from programs import BIN, CHAR_MODEL, ROOT, SMALL_JOB, WORKER

FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, MACHINE_CODE = 1, 2

without_driver = pytest.mark.skipif(
    pathlib.Path("/proc/driver/nvidia").exists(), reason="this machine has an NVIDIA driver"
)


def fat_binary_entries(program):
    """(kind, architecture) of everything that nvcc put into a program."""
    data = program.read_bytes()
    entries = []
    position = data.find(FATBIN_MAGIC)
    while position >= 0:
        header_bytes, bytes_ = struct.unpack_from("<HQ", data, position + 6)
        entry = position + header_bytes
        end = entry + bytes_
        while entry < end:
            kind, _, entry_header, size = struct.unpack_from("<HHIQ", data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            entries.append((kind, architecture))
            entry += entry_header + size
        position = data.find(FATBIN_MAGIC, end)
    return entries


def test_the_worker_has_machine_code_for_a100_and_h100():
    entries = fat_binary_entries(WORKER)
    if not entries:
        pytest.skip("built without CUDA")
    assert sorted(entries) == [(PTX, 90), (MACHINE_CODE, 80), (MACHINE_CODE, 90)]


@without_driver
def test_the_gpu_check_says_that_there_is_no_driver(sandbox):
    if not (BIN / "tests" / "measure" / "gpu_check").exists():
        pytest.skip("built without CUDA")
    check = sandbox.run(ROOT / "tests/measure/gpu_check.sh", "--no_build", TESSERA_BIN=str(BIN))
    assert check.code == 3, check.transcript()
    assert check.err == ["gpu_check: no NVIDIA driver: nothing was checked"]


def test_the_gpu_check_says_what_it_lacks(sandbox):
    script = ROOT / "tests/measure/gpu_check.sh"
    empty = sandbox.run(script, "--no_build", TESSERA_BIN=str(sandbox.directory))
    assert empty.code == 3
    assert empty.err[-1].endswith("nothing was checked; build where CUDA is")
    no_cuda = sandbox.run(script, CUDA_HOME=str(sandbox.directory))
    assert no_cuda.code == 3
    assert no_cuda.err == [
        f"gpu_check: no CUDA in {sandbox.directory}: nothing was checked; set CUDA_HOME"
    ]
    assert sandbox.run(script, "--fast").code == 2


@without_driver
def test_an_agent_without_a_driver_says_so(sandbox):
    if not fat_binary_entries(WORKER):
        pytest.skip("built without CUDA")
    _, address = sandbox.start_coordinator()
    agent = sandbox.start_agent(address, 1)
    agent.wait_for_line(r".*: no NVIDIA driver: computing on the CPU$", agent.err)


def test_the_builtin_gpt_refuses_a_gpu_by_name(sandbox):
    job = sandbox.write_job({**SMALL_JOB, "device": "cuda"})
    refused = sandbox.tessera("run", f"--job={job}", "--workers=2")
    assert refused.code == 2, refused.transcript()
    assert refused.err == [
        "tessera: device: is cuda, but the workload gpt computes on the CPU; give auto or cpu, or "
        "attach a program that computes on GPUs"
    ]


@without_driver
def test_a_job_for_gpus_ends_where_there_are_none(sandbox):
    program = BIN / "tests" / "measure" / "gpu_job"
    if not program.exists():
        pytest.skip("built without CUDA")
    job = ROOT / "tests" / "measure" / "gpu_job.json"
    run = sandbox.tessera("run", f"--job={job}", "--workers=1", "--", program)
    assert run.code == 1, run.transcript()
    assert any(
        re.search(
            r"FAILED: rank 0 on host \S+: the job's device is cuda: no NVIDIA driver; "
            "give the job device auto or cpu",
            line,
        )
        for line in run.err
    ), run.transcript()


def test_a_program_that_computes_on_the_cpu_gets_no_gpu(sandbox):
    job = ROOT / "tests" / "examples" / "char_model.json"
    run = sandbox.tessera(
        "run", f"--job={job}", "--workers=2", "--set", "device=cuda", "--", CHAR_MODEL
    )
    assert run.code == 1, run.transcript()
    assert any(
        "the job's device is cuda, but this program computes on the CPU" in line
        for line in run.err
    ), run.transcript()


def test_a_job_for_gpus_can_be_planned_anywhere(sandbox):
    job = sandbox.write_job(
        {
            **SMALL_JOB,
            "device": "cuda",
            "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
        }
    )
    table = sandbox.tessera("plan", f"--job={job}")
    assert "Bytes on each rank's GPU" in table.out
    planned = json.loads("\n".join(sandbox.tessera("plan", f"--job={job}", "--output=json").out))
    assert (planned["layout"]["device"], planned["layout"]["unshard_mode"]) == ("CUDA", "SLOTS")
    largest = max(int(unit["padded_numel"]) for unit in planned["layout"]["units"])
    for rank in planned["forecast"]["ranks"]:
        assert int(rank["gpu"]["staging_bytes"]) == 4 * largest
        assert int(rank["gpu"]["allocated_bytes"]) % 4096 == 0
    assert planned["forecast"]["hosts"][0]["unsharded_bytes"] == "0"
