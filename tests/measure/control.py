#!/usr/bin/env python3
"""How a coordinator bears 100 to 10,000 workers of one job with the plan of Llama-3.1-405B.

    bazel build //client:tessera //coordinator:tessera-coordinator
    tests/measure/control.py [--quick]

Runs `tessera bench control` for each row and prints a table in Markdown, with what each figure is
meant to be on 2 quiet cores, and the machine's load before each row: on a machine that others use
the wall's figures are theirs as well. Exits with 0 when all rows could be measured, whatever they
say.
"""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "bazel-bin"))

# workers, connections, seconds to form on 2 quiet cores (None: no target)
ROWS = [
    (100, 100, None),
    (300, 100, None),
    (1000, 100, 1),
    (3000, 100, None),
    (10000, 100, 8),
    (10000, 1000, 12),
]
QUICK = [(100, 100, None), (1000, 100, 1)]
TARGETS = "steady under 0.5 of a core and 1 GiB at 10,000; GetPlan p99 under 50 ms"


def measure(workers, connections):
    argv = [
        BIN / "client" / "tessera",
        "bench",
        "control",
        f"--workers={workers}",
        f"--connections={connections}",
        "--output=json",
    ]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main():
    rows = QUICK if "--quick" in sys.argv[1:] else ROWS
    print(f"On 2 quiet cores: {TARGETS}.\n")
    print(
        "| workers | connections | form s (target) | of 100 workers' | coordinator CPU s | peak MiB"
        " | steady core | heartbeats/s | reports/s | GetPlan p99 ms | load before |"
    )
    print("|---|" + "---|" * 10)
    first = None
    for workers, connections, target in rows:
        load = os.getloadavg()[0]
        seen = measure(workers, connections)
        assert (seen["workers"], seen["units"]) == (workers, 127), seen
        first = first or seen["form_seconds"]
        print(
            f"| {workers:,} | {connections:,} | {seen['form_seconds']:.2f}"
            f" ({target if target else '-'}) | x{seen['form_seconds'] / first:.1f}"
            f" | {seen['coordinator_cpu_seconds']:.2f}"
            f" | {int(seen['coordinator_peak_rss_bytes']) >> 20}"
            f" | {seen['steady_core_fraction']:.3f} | {seen['heartbeats_per_second']:.0f}"
            f" | {seen['reports_per_second']:.0f} | {1e3 * seen['get_plan_p99_seconds']:.1f}"
            f" | {load:.1f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
