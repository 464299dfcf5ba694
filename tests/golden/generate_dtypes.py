"""Makes dtypes.jsonl: in which dtypes a live FSDP unit computes, reduces and keeps gradients.

    python tests/golden/generate_dtypes.py        (README.md beside this says in which environment)

Kinds: "table" (one forward and backward of a Linear, every combination), "changed" (the model's
dtype changes between construction and first use), "buffers", "inputs", "divide" (a sum by ranks).
"""

import collections
import itertools

import torch
from fairscale.nn import FullyShardedDataParallel as FairScaleFSDP
from torch import nn
from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import golden_file
import golden_libraries as libraries
from golden_libraries import DTYPE_ENUM, DTYPES
from golden_trees import Described

SOURCES = ["generate_dtypes.py", "golden_file.py", "golden_libraries.py", "golden_trees.py"]

STRATEGIES = {
    **libraries.STRATEGIES,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
    "hybrid_shard_zero2": ShardingStrategy._HYBRID_SHARD_ZERO2,
}

# Section 3.2 of the semantics: original, param, reduce | compute, reduce used, low-precision shard,
# gradient, gradient with keep (sharded), gradient with keep (NO_SHARD), gradient in no_sync.
TABLE = """
fp32 -    -    | fp32 fp32 no  fp32 fp32 fp32 fp32
fp32 fp32 -    | fp32 fp32 no  fp32 fp32 fp32 fp32
fp32 bf16 -    | bf16 bf16 yes fp32 bf16 bf16 bf16
fp32 fp16 -    | fp16 fp16 yes fp32 fp16 fp16 fp16
fp32 bf16 fp32 | bf16 fp32 yes fp32 bf16 fp32 bf16
fp32 bf16 fp16 | bf16 fp16 yes fp32 bf16 fp16 bf16
fp32 -    bf16 | fp32 bf16 no  fp32 fp32 bf16 fp32
fp32 fp32 bf16 | fp32 bf16 no  fp32 fp32 bf16 fp32
bf16 -    -    | bf16 bf16 no  bf16 bf16 bf16 bf16
bf16 bf16 fp32 | bf16 fp32 no  bf16 bf16 fp32 bf16
bf16 -    fp32 | bf16 fp32 no  bf16 bf16 fp32 bf16
bf16 fp32 -    | fp32 fp32 yes bf16 fp32 fp32 fp32
bf16 fp32 bf16 | fp32 bf16 yes bf16 fp32 bf16 fp32
"""


def table():
    rows = {}
    for line in TABLE.strip().splitlines():
        key, values = (part.split() for part in line.split("|"))
        rows[tuple("" if part == "-" else part for part in key)] = values
    return rows


def name(dtype):
    return DTYPE_ENUM[dtype]


def unit(module, strategy="full_shard", precision=None, **more):
    mesh = None
    if strategy.startswith("hybrid"):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return FSDP(
        module,
        sharding_strategy=STRATEGIES[strategy],
        mixed_precision=precision,
        device_id=torch.device("cpu"),
        device_mesh=mesh,
        **more,
    )


def step(fsdp, original, synchronize=True):
    inputs = torch.ones(2, 3, dtype=DTYPES[original])
    if synchronize:
        fsdp(inputs).sum().backward()
    else:
        with fsdp.no_sync():
            fsdp(inputs).sum().backward()
    return fsdp._handle.flat_param


def precision_of(param, reduce, keep=False):
    return MixedPrecision(
        param_dtype=DTYPES[param], reduce_dtype=DTYPES[reduce], keep_low_precision_grads=keep
    )


def mixed(param, reduce, keep=False):
    """MixedPrecisionSpec in JSON."""
    spec = {"param_dtype": param, "reduce_dtype": reduce}
    spec = {key: value for key, value in spec.items() if value}
    if keep:
        spec["keep_grads_in_reduce_dtype"] = True
    return spec


def linear(original):
    return nn.Linear(3, 5, dtype=DTYPES[original])


def line(kind, model, job, theirs, decided=None, ours=None):
    made = {"kind": kind, "library": "torch"}
    if decided:
        made.update({"decided": [decided], "ours": ours})
    return {**made, "model": Described(model).spec, "job": job, "theirs": theirs}


def table_case(original, param, reduce, keep, strategy):
    precision = precision_of(param, reduce, keep)
    flat = step(fsdp := unit(linear(original), strategy, precision), original)
    handle = fsdp._handle
    theirs = {
        "compute": name(handle._fwd_bwd_param_dtype),
        "reduce": name(handle._reduce_dtype),
        "low_precision_shard": hasattr(flat, "_mp_shard"),
        "gradient": name(flat.grad.dtype),
    }
    flat = step(unit(linear(original), strategy, precision), original, synchronize=False)
    theirs["unsynced_gradient"] = name(flat.grad.dtype)
    decided, ours = None, {**theirs, "gradient": theirs["reduce"]}
    if keep and theirs != ours:
        decided = "keep_is_reduce_dtype"
    job = {
        "wrap": {"policy": "none"},
        "mixed_precision": mixed(param, reduce, keep),
        "mesh": {"strategy": strategy},
    }
    if strategy.startswith("hybrid"):
        job["mesh"]["replicas"] = 2
    return line("table", linear(original), job, theirs, decided, ours)


def check_row(made, row, keep, strategy):
    expected = [name(DTYPES[row[0]]), name(DTYPES[row[1]]), row[2] == "yes"]
    kept = row[5] if strategy == "no_shard" else row[4]
    expected += [name(DTYPES[kept if keep else row[3]]), name(DTYPES[row[6]])]
    if list(made["theirs"].values()) != expected:
        raise AssertionError(f"{made}: expected {expected}")


def table_cases():
    rows = table()
    seen = set()
    kinds = ["fp32", "bf16", "fp16", "fp64"]
    for original, param, reduce in itertools.product(kinds, ["", *kinds], ["", *kinds]):
        row = rows.get((original, param, reduce))
        strategies = list(STRATEGIES) if row else ["full_shard", "no_shard"]
        for strategy, keep in itertools.product(strategies, [False, True]):
            made = table_case(original, param, reduce, keep, strategy)
            if row:
                seen.add((original, param, reduce))
                check_row(made, row, keep, strategy)
                made["kind"] = "table 3.2"
            yield made
    assert seen == set(rows)


def changed_cases():
    """pytorch #91192: what is not stated follows the model."""
    news, params, reduces = ["bf16", "fp16"], ["", "fp64"], ["", "fp64", "fp32"]
    for new, param, reduce in itertools.product(news, params, reduces):
        fsdp = unit(linear("fp32"), precision=precision_of(param, reduce))
        fsdp.to(DTYPES[new])
        # bf16 inputs for the root are cast to param_dtype where there is one.
        step(fsdp, new)
        handle = fsdp._handle
        theirs = {
            "original": name(handle._orig_param_dtype),
            "compute": name(handle._fwd_bwd_param_dtype),
            "reduce": name(handle._reduce_dtype),
        }
        expected = [new, param or new, reduce or param or new]
        assert list(theirs.values()) == [name(DTYPES[dtype]) for dtype in expected]
        job = {"wrap": {"policy": "none"}, "mixed_precision": mixed(param, reduce)}
        made = line("changed", linear("fp32"), job, theirs)
        yield {**made, "new_dtype": new}


class Buffered(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.register_buffer("full", torch.zeros(3))
        self.register_buffer("low", torch.zeros(2, dtype=torch.bfloat16))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.inner = inner

    def forward(self, inputs):
        if self.inner is not None:
            inputs = self.inner(inputs)
        return inputs * self.w.sum()


class Inner(Buffered):
    pass


def buffer_cases():
    for buffer, param in itertools.product(["", "fp32", "fp16", "bf16", "fp64"], ["", "bf16"]):
        model = Buffered(Inner())
        described = Described(model)
        precision = MixedPrecision(param_dtype=DTYPES[param], buffer_dtype=DTYPES[buffer])
        fsdp = unit(model, precision=precision, auto_wrap_policy=ModuleWrapPolicy([Inner]))
        fsdp(torch.ones(2))
        theirs = {
            "buffers": {
                key.replace("_fsdp_wrapped_module.", ""): str(value.dtype).removeprefix("torch.")
                for key, value in fsdp.named_buffers()
            }
        }
        spec = mixed(param, "")
        if buffer:
            spec["buffer_dtype"] = buffer
        job = {
            "wrap": {"policy": "class", "wrap_classes": ["Inner"]},
            "mixed_precision": spec,
        }
        yield {
            "kind": "buffers",
            "library": "torch",
            "model": described.spec,
            "job": job,
            "theirs": theirs,
        }


class Seeing(nn.Module):
    """Notes in which dtypes its inputs come."""

    def __init__(self, inner=None):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.inner = inner

    def forward(self, inputs, integers, feed=None):
        self.seen = [str(t.dtype).removeprefix("torch.") for t in (inputs, integers)]
        if self.inner is not None:
            self.inner(torch.ones(2, dtype=feed), integers)
        return inputs * self.w.sum()


class SeeingInner(Seeing):
    pass


def input_cases():
    params, flag, feeds = ["", "bf16", "fp16", "fp32"], [False, True], ["fp32", "bf16"]
    for param, every, root, fed in itertools.product(params, flag, flag, feeds):
        model = Seeing(SeeingInner())
        inner = model.inner
        described = Described(model)
        precision = MixedPrecision(
            param_dtype=DTYPES[param], cast_forward_inputs=every, cast_root_forward_inputs=root
        )
        policy = ModuleWrapPolicy([SeeingInner])
        fsdp = unit(model, precision=precision, auto_wrap_policy=policy)
        integers = torch.zeros(2, dtype=torch.int64)
        fsdp(torch.ones(2, dtype=DTYPES[fed]), integers, feed=DTYPES[fed])
        theirs = {"": model.seen, "inner": inner.seen}
        spec = mixed(param, "")
        spec["cast_forward_inputs"], spec["cast_root_forward_inputs"] = every, root
        job = {
            "wrap": {"policy": "class", "wrap_classes": ["SeeingInner"]},
            "mixed_precision": spec,
        }
        fed = str(DTYPES[fed]).removeprefix("torch.")
        made = {"kind": "inputs", "library": "torch", "fed": fed}
        ours = {**theirs, "": [fed, "int64"]}
        if every and not root and theirs != ours:
            made.update({"decided": ["root_inputs_as_documented"], "ours": ours})
        yield {**made, "model": described.spec, "job": job, "theirs": theirs}


class SeeingNorm(nn.BatchNorm1d):
    """A batch norm, which mixed precision leaves alone by default."""

    def forward(self, inputs):
        self.seen = [str(inputs.dtype).removeprefix("torch."), "int64"]
        return super().forward(inputs)


class NormNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.inner = SeeingNorm(3, track_running_stats=False)

    def forward(self, inputs):
        self.seen = [str(inputs.dtype).removeprefix("torch."), "int64"]
        out = self.inner(inputs * self.w)
        assert out.dtype == inputs.dtype
        return out


def norm_input_cases():
    """A module out of mixed precision meets inputs that are in it."""
    for param in ["bf16", "fp16"]:
        model = NormNet()
        inner = model.inner
        described = Described(model)
        policy = ModuleWrapPolicy([nn.Linear])
        fsdp = unit(model, precision=precision_of(param, ""), auto_wrap_policy=policy)
        fsdp(torch.ones(4, 3))
        yield {
            "kind": "norm inputs",
            "library": "torch",
            "fed": "float32",
            "model": described.spec,
            "job": {
                "wrap": {"policy": "annotated"},
                "mixed_precision": mixed(param, ""),
            },
            "theirs": {"": model.seen, "inner": inner.seen},
        }


# Section 3.5: ranks, division before and after the sum.
FACTORS = """
1 1 1,2 2 1,3 2 1.5,4 2 2,5 2 2.5,6 4 1.5,7 2 3.5,8 4 2,9 2 4.5,10 4 2.5,12 4 3,15 2 7.5,16 4 4,
24 8 3,32 8 4,48 8 6,64 8 8,96 16 6,100 8 12.5,128 16 8,256 16 16,512 32 16,1024 32 32
"""


def factor_cases():
    """Torch divides in two steps whatever the dtype."""
    factors = []
    for ranks in range(1, 1025):
        before = int(DefaultState._get_gradient_predivide_factor(ranks))
        assert before == FairScaleFSDP._get_gradient_predivide_factor(None, ranks)
        factors.append([ranks, before, ranks / before])
    for row in FACTORS.replace("\n", "").split(","):
        assert [float(number) for number in row.split()] in factors
    once = {"factors": [[ranks, 1, ranks] for ranks, _, _ in factors]}
    for reduce in ["fp16", "fp32", "bf16"]:
        made = {"kind": "divide", "library": "torch", "reduce": reduce}
        if reduce != "fp16":
            made.update({"decided": ["one_division"], "ours": once})
        yield {**made, "theirs": {"factors": factors}}


def main():
    libraries.start_ranks(world_size=4)
    cases = [*table_cases(), *changed_cases(), *buffer_cases(), *input_cases(), *norm_input_cases()]
    cases += factor_cases()
    golden_file.write("dtypes.jsonl", SOURCES, libraries.VERSIONS, cases)
    counts = collections.Counter()
    for made in cases:
        counts.update([made["kind"], *(f"decided {d}" for d in made.get("decided", []))])
    for kind, count in sorted(counts.items()):
        print(f"  {kind}: {count}")


if __name__ == "__main__":
    main()
