"""Makes the tables of docs/measurements.md of what tests/measure/collectives found: the median over
its rounds of each median."""

import json
import pathlib
import statistics
import sys


PEER_ROWS = (
    ("reduce-scatter (gloo: all-reduce)", "reduce", ("reduce_scatter", "", "FLOAT32")),
    ("all-gather (unshard, SLOTS)", "gather", ("unshard", "SLOTS", "FLOAT32")),
)


def print_row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |")


def print_head(*cells):
    print_row(*cells)
    print("|---" * len(cells) + "|")


def own_table(benches):
    """Prints it and gives seconds by (op, mode, dtype, bytes)."""
    print_head("operation", "mode", "dtype", "bytes", "median ms", "bare ms", "ratio (each round)")
    own = {}
    for rows in zip(*(bench["results"] for bench in benches)):
        first = rows[0]
        names = (first["op"], first.get("mode", ""), first.get("param_dtype", ""))
        key = (*names, int(first["bytes"]))
        own[key] = statistics.median(row["median_seconds"] for row in rows)
        bare = statistics.median(row["bare_loop_median_seconds"] for row in rows)
        ratios = [row["bare_loop_ratio"] for row in rows]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        moves = names[1] != "RESIDENT"
        print_row(*names, f"{key[3] >> 20} MiB", f"{own[key] * 1e3:.4f}", f"{bare * 1e3:.4f}",
                  f"{statistics.median(ratios):.2f} ({each})" if moves else "nothing moves")
    return own


def peer_seconds(work, rounds):
    """Lists of seconds by (peer, bytes, reduce or gather)."""
    seconds = {}
    for peer in ("mpi", "gloo"):
        for number in rounds:
            for line in (work / f"{peer}.{number}").read_text().splitlines():
                size, reduce, gather = line.split()
                seconds.setdefault((peer, int(size), "reduce"), []).append(float(reduce))
                seconds.setdefault((peer, int(size), "gather"), []).append(float(gather))
    return seconds


def main():
    work, rounds = pathlib.Path(sys.argv[1]), range(1, int(sys.argv[2]) + 1)
    benches = [json.loads((work / f"bench.{number}").read_text()) for number in rounds]
    own = own_table(benches)
    peers = peer_seconds(work, rounds)
    print()
    print_head("operation", "bytes", "Tessera ms", "Open MPI ms", "gloo ms", "Open MPI / Tessera",
               "gloo / Tessera")
    for name, part, key in PEER_ROWS:
        for size in sorted({size for _, size, _ in peers}):
            ours = own[(*key, size)]
            mpi, gloo = (statistics.median(peers[(peer, size, part)]) for peer in ("mpi", "gloo"))
            print_row(name, f"{size >> 20} MiB", f"{ours * 1e3:.2f}", f"{mpi * 1e3:.2f}",
                      f"{gloo * 1e3:.2f}", f"{mpi / ours:.1f}", f"{gloo / ours:.1f}")
    print(f"\nInstructions: {benches[0]['instruction_set']}.")


main()
