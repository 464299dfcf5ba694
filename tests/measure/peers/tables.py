"""Makes the tables of docs/measurements.md of what tests/measure/collectives found: the median over
its rounds of each median."""

import json
import pathlib
import statistics
import sys


def main():
    work, rounds = pathlib.Path(sys.argv[1]), range(1, int(sys.argv[2]) + 1)
    benches = [json.loads((work / f"bench.{r}").read_text()) for r in rounds]
    print("| operation | mode | dtype | bytes | median ms | bare loop ms | ratio (each round) |")
    print("|---|---|---|---|---|---|---|")
    own = {}
    for rows in zip(*(bench["results"] for bench in benches)):
        first = rows[0]
        seconds = statistics.median(row["median_seconds"] for row in rows)
        bare = statistics.median(row["bare_loop_median_seconds"] for row in rows)
        ratios = [row["bare_loop_ratio"] for row in rows]
        key = (first["op"], first.get("mode", ""), first.get("param_dtype", ""), int(first["bytes"]))
        own[key] = seconds
        print(f"| {key[0]} | {key[1]} | {key[2]} | {key[3] >> 20} MiB | {seconds * 1e3:.4f} | {bare * 1e3:.4f} "
              f"| {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)}) |")
    peers = {}
    for peer in ("mpi", "gloo"):
        for line in (line for r in rounds for line in (work / f"{peer}.{r}").read_text().splitlines()):
            size, reduce, gather = line.split()
            peers.setdefault((peer, int(size), "reduce"), []).append(float(reduce))
            peers.setdefault((peer, int(size), "gather"), []).append(float(gather))
    print("\n| operation | bytes | Tessera ms | Open MPI ms | gloo ms | Open MPI / Tessera | gloo / Tessera |")
    print("|---|---|---|---|---|---|---|")
    for name, part, key in (("reduce-scatter (gloo: all-reduce)", "reduce", ("reduce_scatter", "", "FLOAT32")),
                            ("all-gather (unshard, SLOTS)", "gather", ("unshard", "SLOTS", "FLOAT32"))):
        for size in sorted({size for _, size, _ in peers}):
            ours = own[(*key, size)]
            mpi, gloo = (statistics.median(peers[(peer, size, part)]) for peer in ("mpi", "gloo"))
            print(f"| {name} | {size >> 20} MiB | {ours * 1e3:.2f} | {mpi * 1e3:.2f} | {gloo * 1e3:.2f} "
                  f"| {mpi / ours:.1f} | {gloo / ours:.1f} |")
    print(f"\nInstructions: {benches[0]['instruction_set']}.")


main()
