"""What tests do with jobs that they submit and watch themselves."""

import json
import re


def as_json(program):
    assert program.code == 0, program.transcript()
    return json.loads("\n".join(program.out))


def submit(sandbox, address, job):
    program = sandbox.tessera(
        "submit", f"--job={sandbox.write_job(job)}", f"--coordinator={address}"
    )
    assert (program.code, program.out) == (0, [job["name"]]), program.transcript()


def mapped_bytes(pid):
    """Lengths of Tessera's memory files that a process has mapped, by name, from the kernel."""
    total = 0
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as smaps:
        ours = False
        for line in smaps:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                ours = "/memfd:tessera" in line
            elif ours and line.startswith("Size:"):
                total += int(line.split()[1]) * 1024
    return total
