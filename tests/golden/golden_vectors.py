"""The wrap tests of FairScale (F) and PyTorch (P) as named cases, and some models by name.

Each says beforehand which modules must be units; a library that makes others stops the generator.
"""

import torch
from fairscale.nn import FullyShardedDataParallel as FairScaleFSDP
from fairscale.nn.wrap import enable_wrap as fairscale_enable_wrap
from fairscale.nn.wrap import wrap as fairscale_wrap
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import enable_wrap as torch_enable_wrap
from torch.distributed.fsdp.wrap import wrap as torch_wrap

import golden_libraries as libraries
import golden_models as models
import golden_rules as rules
from golden_trees import Described


def case(name, library, root, wrap, units, run=None, wrapped=(), job=None):
    """`units` as FQNs in order; `wrapped`: FQNs that the policy "annotated" marks."""
    described = Described(root)
    for fqn in wrapped:
        described.modules[fqn]["wrap"] = True
    job = {"wrap": wrap, **(job or {})}
    details = "mixed_precision" in job or "mesh" in job
    if run is not None:
        theirs = run(root, described)
    elif library == "fairscale":
        wrap["root_unit"] = "by_policy"
        theirs = libraries.run_fairscale(root, described, job)
    else:
        theirs = libraries.run_torch(root, described, job, details)
    made = [unit[0] for unit in theirs["units"]] if "units" in theirs else theirs
    if units is not None and made != units:
        raise AssertionError(f"{name}: expected the units {units}, got {made}")
    return rules.decide({"kind": name, "library": library}, described, job, theirs)


def size(min_params, **more):
    return {"policy": "size", "min_params": min_params, **more}


def lin(inputs, outputs):
    return nn.Linear(inputs, outputs)


def tree_f4():
    return nn.Sequential(lin(5, 5), nn.Sequential(lin(5, 5), lin(5, 5)))


def tree_f4_446():
    return nn.Sequential(lin(5, 5), lin(5, 5), nn.Sequential(lin(5, 5), lin(5, 5)))


def tree_f8():
    return nn.Sequential(lin(10, 10), nn.MultiheadAttention(100, 1))


def tree_f9():
    return nn.Sequential(lin(10, 10), nn.ModuleList([lin(10, 10)]))


def one_unit(described, unit, compute, reduce, strategy):
    """What a wrap() that made the root alone a unit has done."""
    parameters = list(described.parameter_fqn.values())
    assert isinstance(unit, (FairScaleFSDP, TorchFSDP))
    return {
        "units": [["", parameters]],
        "dtypes": [[libraries.DTYPE_ENUM[compute], libraries.DTYPE_ENUM[reduce]]],
        "strategies": [strategy],
    }


def run_f1(root, described):
    with fairscale_enable_wrap(wrapper_cls=FairScaleFSDP, flatten_parameters=False):
        unit = fairscale_wrap(root)
    assert not unit.flatten_parameters
    return one_unit(described, unit, torch.float32, torch.float32, "FULL_SHARD")


def run_f2(root, described):
    assert fairscale_wrap(root) is root
    return {"units": [], "orphans": list(described.parameter_fqn.values())}


def run_f3(module_config):
    def run(root, described):
        settings = {"mixed_precision": True, "compute_dtype": torch.float16}
        if module_config:
            root.wrapper_config = {"compute_dtype": torch.float32, "flatten_parameters": False}
        with fairscale_enable_wrap(wrapper_cls=FairScaleFSDP, flatten_parameters=False, **settings):
            unit = fairscale_wrap(root, flatten_parameters=True, compute_dtype=torch.bfloat16)
        assert unit.flatten_parameters and not unit.fp32_reduce_scatter
        return one_unit(described, unit, unit.compute_dtype, unit.compute_dtype, "FULL_SHARD")

    return run


def fairscale_cases():
    by_policy = {"root_unit": "by_policy"}
    annotated = {"policy": "annotated", **by_policy}
    yield case("F1", "fairscale", lin(5, 5), dict(annotated), [""], run_f1, wrapped=[""])
    yield case("F2", "fairscale", lin(5, 5), {"policy": "none", **by_policy}, [], run_f2)
    override = {"overrides": [{"fqn": "", "config": {"param_dtype": "bf16"}}]}
    half = {"mixed_precision": {"param_dtype": "fp16"}}
    wrap = {**annotated, **override}
    yield case("F3", "fairscale", lin(5, 5), wrap, [""], run_f3(False), wrapped=[""], job=half)
    f3 = case("F3", "fairscale", lin(5, 5), wrap, [""], run_f3(True), wrapped=[""], job=half)
    f3["model"]["root"]["wrap_config"] = {"param_dtype": "fp32"}
    yield f3
    yield case("F4", "fairscale", tree_f4(), size(60), ["1"])
    yield case("F4'", "fairscale", tree_f4_446(), size(40), ["2", ""])
    yield case("F5", "fairscale", tree_f4(), size(60, skip_root_check=True), ["1", ""])
    yield case("F6", "fairscale", nn.ModuleList([lin(5, 5), lin(5, 5)]), size(40), [])
    yield case("F7", "fairscale", nn.ModuleList([lin(10, 10)]), size(40), ["0"])
    yield case("F8", "fairscale", tree_f8(), size(40), ["0", ""])
    leaves = {"force_leaf_classes": ["MultiheadAttention", "Linear"]}
    yield case("F9", "fairscale", tree_f9(), size(40, **leaves), [""])
    # What a forward and backward do with the units is for the tests of training.
    yield case("F10", "fairscale", tree_f4_446(), size(40), ["2", ""])
    yield case("F11", "fairscale", tree_f8(), size(40), ["0", ""])
    yield case("F11", "fairscale", tree_f9(), size(40, **leaves), [""])


def run_p10(child):
    def run(root, described):
        parent = root.get_submodule(child.rpartition(".")[0])
        name = child.rpartition(".")[2]
        parent._modules[name] = TorchFSDP(parent._modules[name], device_id=torch.device("cpu"))
        theirs = libraries.run_torch(root, described, {"wrap": size(0)})
        assert theirs["error"].startswith("ValueError") and f"found {child} in" in theirs["error"]
        return theirs

    return run


def run_p14(root, described):
    assert torch_wrap(root.inner) is root.inner
    with torch_enable_wrap(wrapper_cls=TorchFSDP, device_id=torch.device("cpu")):
        unit = torch_wrap(root)
    assert not isinstance(root.inner, TorchFSDP)
    return one_unit(described, unit, torch.float32, torch.float32, "FULL_SHARD")


def run_p15(root, described):
    settings = {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    settings["mixed_precision"] = MixedPrecision(param_dtype=torch.float16)
    with torch_enable_wrap(wrapper_cls=TorchFSDP, device_id=torch.device("cpu"), **settings):
        unit = torch_wrap(root, sharding_strategy=ShardingStrategy.FULL_SHARD)
    handle = unit._handle
    dtypes = (handle._fwd_bwd_param_dtype, handle._reduce_dtype)
    return one_unit(described, unit, *dtypes, unit.sharding_strategy.name)


def torch_wrap_cases():
    f4 = tree_f4_446
    yield case("P1", "torch", f4(), size(40), ["2", ""])
    every = ["0", "1", "2.0", "2.1", "2", ""]
    yield case("P2", "torch", f4(), {"policy": "always"}, every)
    yield case("P3", "torch", nn.ModuleList([lin(5, 5), lin(5, 5)]), size(40), [""])
    yield case("P4", "torch", nn.ModuleList([lin(10, 10)]), size(40), ["0", ""])
    yield case("P5", "torch", tree_f8(), size(40), ["0", ""])
    leaves = {"force_leaf_classes": ["MultiheadAttention", "Linear"]}
    yield case("P6", "torch", tree_f9(), size(40, **leaves), [""])
    ignore = {"ignore": ["1", "2.0"]}
    yield case("P7", "torch", f4(), {"policy": "always", **ignore}, ["0", "2.1", "2", ""])
    yield case("P8", "torch", f4(), size(40, **ignore), [""])
    six = ["lin1", "lin2", "lin3", "lin4.nested_lin", "lin4", ""]
    yield case("P9", "torch", models.nested_wrap(), size(0), six)
    for child, root in [("lin1", models.nested_wrap()), ("lin1.1", models.nested_pair())]:
        yield case("P10", "torch", root, size(0), None, run_p10(child))
    norms = ["bn1", "bn2", "bn3", "sync_bn"]
    by_class = {"policy": "class", "wrap_classes": ["_BatchNorm"]}
    never = {"any_of": [{"policy": "none"}, by_class]}
    yield case("P11", "torch", models.norm_net(), never, [*norms, ""])
    half = {"mixed_precision": {"param_dtype": "bf16"}}
    nothing = {"policy": "class", "wrap_classes": ["NormNet"]}
    yield case("P11", "torch", models.norm_net(), nothing, [*norms, ""], job=half)
    both = {"any_of": [{"policy": "class", "wrap_classes": ["NormNet"]}, by_class]}
    inside = [f"net.{norm}" for norm in norms]
    yield case("P12", "torch", models.norm_container(), both, [*inside, "net", ""])
    only = {"policy": "class", "wrap_classes": ["NormNet"]}
    yield case("P12", "torch", models.norm_container(), only, ["net", ""])
    layers = {"wrap_classes": ["TransformerEncoderLayer", "TransformerDecoderLayer"]}
    units = [f"transformer.{side}.layers.{i}" for side in ("encoder", "decoder") for i in (0, 1)]
    wrap = {"policy": "class", **layers}
    yield case("P13", "torch", models.shared_transformer(), wrap, [*units, ""])
    yield case("P14", "torch", models.Outer(), {"policy": "none"}, [""], run_p14)
    zero2 = {"mesh": {"strategy": "shard_grad_op"}, "mixed_precision": {"param_dtype": "fp16"}}
    override = {"overrides": [{"fqn": "", "config": {"strategy": "full_shard"}}]}
    wrap = {"policy": "none", **override}
    yield case("P15", "torch", lin(4, 4), wrap, [""], run_p15, job=zero2)


def frozen_cases():
    """P16: which of the units are noted for holding frozen beside trainable parameters."""
    ignored = [f"layers.{i}.attn.lora_A.weight" for i in range(4)]
    for with_a, ignore in [(True, None), (False, None), (False, ignored)]:
        root = models.lora_model()
        wrapped = models.lora_units(root, with_a)
        wrap = {"policy": "annotated", **({"ignore": ignore} if ignore else {})}
        made = case("P16", "torch", root, wrap, [*wrapped, ""], wrapped=wrapped)
        mixed = [] if with_a or ignore else [f"layers.{i}.attn" for i in range(4)]
        # use_orig_params=False is the strict mode: the first offender is the error.
        strict = models.strict_frozen_error(with_a, ignore)
        assert ("layers.0.attn has both" in strict) == bool(mixed), strict
        assert strict.count("lora_A.weight") == len(mixed) // 4
        assert sum(f"{n}_proj.weight" in strict for n in "qkvo") == len(mixed)
        made["mixed_frozen"] = mixed
        yield made


def large_cases():
    """On the meta device, with the default threshold of 100,000,000."""
    for name, root, units in [
        ("attention_is_all_you_need", models.vaswani_big(), ["encoder", "decoder", ""]),
        ("attention_is_all_you_need_untied", models.vaswani_big(tied=False), None),
        ("gpt_1.6b", models.gpt_large(), None),
    ]:

        def run(root, described):
            return libraries.run_recorded(root, described, {"policy": "size"})

        yield case(name, "torch", root, {"policy": "size"}, units, run)


def refused_case(name, parameter, theirs, ours):
    """A Linear with one more parameter that FSDP, too, refuses."""
    root = lin(3, 4)
    root.register_parameter("odd", nn.Parameter(parameter, requires_grad=False))
    described = Described(root)
    job = {"wrap": {"policy": "none"}}
    outcome = libraries.run_torch(root, described, job)
    if theirs not in outcome.get("error", ""):
        raise AssertionError(f"{name}: {outcome}")
    case = {"kind": name, "library": "torch", "ours": {"refused": ours}}
    return {**case, "model": described.spec, "job": job, "theirs": outcome}


def refused_cases():
    integers = torch.zeros(3, dtype=torch.int64)
    yield refused_case("scalar", torch.tensor(1.0), "scalar parameters", "odd: is a scalar")
    yield refused_case("integers", integers, "uniform dtype", "odd: has the dtype int64")


def cases():
    yield from refused_cases()
    yield from fairscale_cases()
    yield from torch_wrap_cases()
    yield from frozen_cases()
    yield from large_cases()
