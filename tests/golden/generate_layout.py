"""Makes layout.jsonl: where torch's FSDP puts parameters in a flat parameter, and how it cuts it.

    python tests/golden/generate_layout.py        (README.md beside this says in which environment)

A case is one FSDP unit, constructed once as each rank of its world:

    {"kind": ..., "job": JobSpec, "model": ModelSpec, "world_size": 4,
     "theirs": {"strategy": "FULL_SHARD", "shard_count": 4,
                "offsets": [0, 24], "numel": 86 (with what is padded before sharding),
                "shard_numel": 43,
                "ranks": [[pad of this rank, [parameter, offset in shard, numel in shard,
                                              first, last (inclusive) in parameter], ...], ...]}}

or "intervals": [[first, last, [parameter, first, last], ...], ...] of the unsharded parameter.
"""

import collections
import contextlib
import random

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

import golden_file
import golden_libraries as libraries
from golden_trees import Block, Described

SOURCES = ["generate_layout.py", "golden_file.py", "golden_libraries.py", "golden_trees.py"]

STRATEGIES = {
    **libraries.STRATEGIES,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
    "hybrid_shard_zero2": ShardingStrategy._HYBRID_SHARD_ZERO2,
}


class Case:
    """One unit, laid out by FSDP as each rank in turn."""

    def __init__(self, kind, shapes, world_size, aligned, **more):
        self.kind, self.shapes, self.world_size, self.aligned = kind, shapes, world_size, aligned
        self.original = more.get("original", "fp32")
        self.param = more.get("param", "")
        self.strategy = more.get("strategy", "full_shard")
        self.replicas = more.get("replicas", 1)
        self.tie = more.get("tie")  # (index of a parameter, index of the one that it is)
        self.expect = more.get("expect", {})
        self.ranks = []

    def module(self):
        """One child for each parameter, so that ties are between modules."""
        dtype = libraries.DTYPES[self.original]
        root = Block()
        for i, shape in enumerate(self.shapes):
            child = Block()
            child.register_parameter("w", nn.Parameter(torch.zeros(shape, dtype=dtype)))
            root.add_module(str(i), child)
        if self.tie:
            tied, holder = (getattr(root, str(i)) for i in self.tie)
            tied.w = holder.w
        return root

    def unit(self, mesh, precision):
        return FSDP(
            self.module(),
            sharding_strategy=STRATEGIES[self.strategy],
            mixed_precision=libraries.mixed_precision(precision),
            use_orig_params=self.aligned,
            device_id=torch.device("cpu"),
            device_mesh=mesh,
        )

    def construct(self):
        precision = {"param_dtype": self.param} if self.param else None
        mesh = None
        if self.strategy.startswith("hybrid"):
            shape = (self.replicas, self.world_size // self.replicas)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        try:
            # An assertion prints a stack trace besides.
            with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                unit = self.unit(mesh, precision)
        except AssertionError as error:
            self.theirs = {"error": f"AssertionError: {error}"}
            return
        handle, flat = unit._handle, unit._handle.flat_param
        offsets = zip(handle._get_flat_param_offsets(), flat._is_padding_mask)
        self.theirs = {
            "strategy": unit.sharding_strategy.name.lstrip("_"),
            "shard_count": handle.world_size if handle.uses_sharded_strategy else 1,
            "offsets": [first for (first, _), padding in offsets if not padding],
            "numel": sum(flat._numels_with_padding),
            "shard_numel": flat._sharded_size.numel(),
        }
        records = [
            [i, *info[1:]] for i, info in enumerate(flat._shard_param_infos) if info.in_shard
        ]
        self.ranks.append([flat._shard_numel_padded, *records])

    def numels(self):
        """Of the parameters that hold storage."""
        tied = self.tie[0] if self.tie else None
        return [torch.Size(s).numel() for i, s in enumerate(self.shapes) if i != tied]

    def cut(self, outcome, end):
        """`outcome` with ranks and shards as for a flat parameter of `end` elements."""
        shards = outcome["shard_count"]
        chunk = -(-end // shards)
        ranks = []
        for rank in range(self.world_size):
            begin = rank % shards * chunk
            pieces = []
            for i, (offset, numel) in enumerate(zip(outcome["offsets"], self.numels())):
                first, last = max(begin, offset), min(begin + chunk, offset + numel) - 1
                if first <= last:
                    pieces.append(
                        [i, first - begin, last - first + 1, first - offset, last - offset]
                    )
            ranks.append([0 if self.aligned else self.ranks[rank][0], *pieces])
        numel = chunk * shards if self.aligned else end
        return {**outcome, "numel": numel, "shard_numel": chunk, "ranks": ranks}

    def ours(self):
        """(names of decisions, theirs changed by them)."""
        names, ours = [], {**self.theirs}
        empty = [0 in shape for shape in self.shapes]
        if any(empty):
            names.append("empty_parameter_refused")
        if all(empty):
            ours = {"strategy": "FULL_SHARD", "shard_count": self.world_size, "offsets": [0]}
            ours.update({"numel": 0, "shard_numel": 0, "ranks": [[0]] * self.world_size})
            return [*names, "empty_unit"], ours
        if self.world_size == 1 and self.strategy != "no_shard":
            names.append("world_size_1")
            ours["strategy"] = self.strategy.upper()
        if any(record[2] == 0 for rank in self.ranks for record in rank[1:]):
            names.append("empty_interval")
            ours["ranks"] = [[r[0], *(v for v in r[1:] if v[2])] for r in self.ranks]
        end = max(o + n for o, n in zip(ours["offsets"], self.numels()))
        if self.aligned and ours["shard_count"] == 1 < self.world_size and ours["numel"] > end:
            names.append("no_shard_padding")
            ours = self.cut(ours, end)
        return names, ours

    def line(self):
        job = {
            "wrap": {
                "policy": "none",
                "param_align_bytes": 16 if self.aligned else 0,
                "shard_align_bytes": 0,
            },
            "mesh": {"strategy": self.strategy},
        }
        if self.param:
            job["mixed_precision"] = {"param_dtype": self.param}
        if self.replicas > 1:
            job["mesh"]["replicas"] = self.replicas
        if self.ranks:
            self.theirs["ranks"] = self.ranks
        for key, value in self.expect.items():
            if self.theirs[key] != value:
                raise AssertionError(f"{self.kind}: {key} is {self.theirs[key]}, not {value}")
        line = {"kind": self.kind, "library": "torch", "world_size": self.world_size}
        names, ours = self.ours()
        if names:
            line.update({"decided": names, "ours": ours})
        return {**line, "model": Described(self.module()).spec, "job": job, "theirs": self.theirs}


def chunk_vectors():
    """Section 2.2 of the semantics: numel, W -> chunk, padding of each rank."""
    for numel, world_size, chunk, pads in [
        (1, 4, 1, [0, 1, 1, 1]),
        (5, 4, 2, [0, 0, 1, 2]),
        (6, 4, 2, [0, 0, 0, 2]),
        (9, 4, 3, [0, 0, 0, 3]),
        (10, 4, 3, [0, 0, 0, 2]),
        (17, 8, 3, [0, 0, 0, 0, 0, 1, 3, 3]),
        (30, 4, 8, [0, 0, 0, 2]),
        (110, 8, 14, [0] * 7 + [2]),
    ]:
        expect = {"shard_numel": chunk, "offsets": [0]}
        kind = f"chunks of {numel} over {world_size}"
        case = Case(kind, [[numel]], world_size, False, expect=expect)
        case.pads = pads
        yield case


def aligned_vectors():
    for name, numels, world_size, more, offsets, shard in [
        ("aligned fp32 21,35,25", [21, 35, 25], 2, {}, [0, 24, 60], 43),
        ("aligned fp16 10,25,15", [10, 25, 15], 2, {"param": "fp16"}, [0, 16, 48], 32),
        ("aligned fp32 25,5,25,5", [25, 5, 25, 5], 4, {}, [0, 28, 36, 64], 18),
    ]:
        expect = {"offsets": offsets, "numel": shard * world_size, "shard_numel": shard}
        yield Case(name, [[n] for n in numels], world_size, True, expect=expect, **more)


def random_cases():
    for i in range(230):
        rng = random.Random(f"layout-{i}")
        shapes = [
            [rng.choice([1, 2, 3, 5, 7, 8, 16, 21]) for _ in range(rng.randint(1, 3))]
            for _ in range(rng.randint(1, 6))
        ]
        more = {"original": rng.choice(["fp32", "fp32", "bf16", "fp16", "fp64"])}
        if rng.random() < 0.5:
            more["param"] = rng.choice(["fp32", "bf16", "fp16", "fp64"])
        kind = "random"
        if rng.random() < 0.15 and len(shapes) > 1:
            kind = "empty parameter"
            shapes[rng.randrange(len(shapes))][0] = 0
        elif rng.random() < 0.15 and len(shapes) > 1:
            kind = "tied"
            tied = rng.randrange(1, len(shapes))
            holder = rng.randrange(tied)
            shapes[tied] = shapes[holder]
            more["tie"] = (tied, holder)
        yield Case(kind, shapes, i % 16 + 1, aligned=i // 16 % 2 == 0, **more)


def strategy_cases():
    for i in range(40):
        rng = random.Random(f"strategy-{i}")
        shapes = [[rng.randint(1, 60)] for _ in range(rng.randint(1, 4))]
        strategy = rng.choice(list(STRATEGIES)[1:])
        world_size, replicas = rng.choice([2, 3, 4, 8]), 1
        if strategy.startswith("hybrid"):
            world_size, replicas = rng.choice([(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (16, 2)])
        more = {"strategy": strategy, "replicas": replicas}
        yield Case(strategy, shapes, world_size, aligned=i % 2 == 0, **more)


def empty_cases():
    for aligned in (False, True):
        yield Case("empty unit", [[0, 3]], 2, aligned)
        yield Case("empty parameter", [[5], [0, 4]], 1, aligned)
        yield Case("empty parameter", [[5], [0]], 3, aligned)
        yield Case("empty parameter", [[0], [5]], 2, aligned)
        yield Case("empty parameter", [[7], [0], [6]], 2, aligned)


def interval_case():
    """Shard metadata of three 10x10 parameters without padding."""
    vectors = [
        (0, 0, [[0, 0, 0]]),
        (0, 50, [[0, 0, 50]]),
        (0, 99, [[0, 0, 99]]),
        (50, 149, [[0, 50, 99], [1, 0, 49]]),
        (50, 199, [[0, 50, 99], [1, 0, 99]]),
        (99, 199, [[0, 99, 99], [1, 0, 99]]),
        (100, 199, [[1, 0, 99]]),
        (100, 299, [[1, 0, 99], [2, 0, 99]]),
        (100, 1000, [[1, 0, 99], [2, 0, 99]]),
        (299, 299, [[2, 99, 99]]),
    ]
    libraries.start_ranks(1)
    case = Case("shard metadata", [[10, 10]] * 3, 1, aligned=False)
    unit = FSDP(case.module(), device_id=torch.device("cpu"))
    intervals = []
    for first, last, expected in vectors:
        infos = unit._handle._get_shard_metadata(first, last)
        records = [
            [i, info.intra_param_start_idx, info.intra_param_end_idx]
            for i, info in enumerate(infos)
            if info.in_shard
        ]
        if records != expected:
            raise AssertionError(f"[{first},{last}]: {records}, not {expected}")
        intervals.append([first, last, *records])
    return {
        "kind": case.kind,
        "library": "torch",
        "offsets": [0, 100, 200],
        "numels": [100, 100, 100],
        "intervals": intervals,
    }


def main():
    cases = [
        *chunk_vectors(),
        *aligned_vectors(),
        *empty_cases(),
        *random_cases(),
        *strategy_cases(),
    ]
    by_world = collections.defaultdict(list)
    for case in cases:
        by_world[case.world_size].append(case)
    for world_size, members in sorted(by_world.items()):
        for rank in range(world_size):
            libraries.start_ranks(world_size, rank)
            for case in members:
                case.construct()
    lines = [case.line() for case in cases]
    for case in cases:
        pads = [rank[0] for rank in case.ranks]
        if pads != getattr(case, "pads", pads):
            raise AssertionError(f"{case.kind}: padding is {pads}, not {case.pads}")
    lines.append(interval_case())
    golden_file.write("layout.jsonl", SOURCES, libraries.VERSIONS, lines)
    counts = collections.Counter()
    for line in lines:
        counts.update([line["kind"], *(f"decided {d}" for d in line.get("decided", []))])
    for kind, count in sorted(counts.items()):
        print(f"  {kind}: {count}")


if __name__ == "__main__":
    main()
