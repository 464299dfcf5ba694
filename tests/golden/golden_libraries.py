"""Runs the real torch and fairscale and says which units they made.

Each function returns what the library did, in the golden files' form:

    {"units": [[FQN, [FQN of each parameter]], ...],    in the order of their construction
     "ties": {FQN: [other FQNs within the unit]},       absent if empty
     "orphans": [FQN, ...],                             absent if empty
     "dtypes": [[compute, reduce], ...], "strategies": [...]}   where asked for

or {"error": "ValueError: ..."}. Every process group is torch's fake one: no other rank is there.
"""

import functools
import warnings

import fairscale
import torch
import torch.distributed as dist
from fairscale.nn import FullyShardedDataParallel as FairScaleFSDP
from fairscale.nn.wrap import auto_wrap, config_auto_wrap_policy, enable_wrap
from fairscale.nn.wrap import default_auto_wrap_policy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import wrap as torch_wrap
from torch.testing._internal.distributed.fake_pg import FakeStore

from golden_trees import CLASSES

VERSIONS = {"torch": torch.__version__, "fairscale": fairscale.__version__}

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "": None,
}
DTYPE_ENUM = {
    torch.float64: "FLOAT64",
    torch.float32: "FLOAT32",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
}
STRATEGIES = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "no_shard": ShardingStrategy.NO_SHARD,
}

warnings.simplefilter("ignore")


def start_ranks(world_size, rank=0):
    """This process becomes one of `world_size` ranks of which the others are pretended."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


_made = []


def _record_construction(cls):
    construct = cls.__init__

    @functools.wraps(construct)
    def constructed(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        _made.append(self)

    cls.__init__ = constructed


_record_construction(TorchFSDP)
_record_construction(FairScaleFSDP)


def mixed_precision(spec):
    """MixedPrecision for a MixedPrecisionSpec in JSON; None where nothing is said."""
    if not spec:
        return None
    kwargs = {}
    if "ignored_classes" in spec:
        names = [name for name in spec["ignored_classes"] if name]
        kwargs["_module_classes_to_ignore"] = tuple(CLASSES[name] for name in names)
    return MixedPrecision(
        param_dtype=DTYPES[spec.get("param_dtype", "")],
        reduce_dtype=DTYPES[spec.get("reduce_dtype", "")],
        keep_low_precision_grads=spec.get("keep_low_precision_grads", False),
        **kwargs,
    )


def _class_set(names):
    """As FSDP takes it: None for the default."""
    if names is None:
        return None
    return {CLASSES[name] for name in names if name}


def _size_arguments(wrap):
    arguments = {
        "exclude_wrap_modules": _class_set(wrap.get("exclude_classes")),
        "force_leaf_modules": _class_set(wrap.get("force_leaf_classes")),
    }
    if "min_params" in wrap:
        arguments["min_num_params"] = wrap["min_params"]
    return arguments


def torch_policy(wrap, described, by_function=False):
    """The policy that a WrapSpec in JSON stands for. by_function: not as a policy object."""
    if "any_of" in wrap:
        policies = [torch_policy(w, described, by_function=True) for w in wrap["any_of"]]
        return functools.partial(torch_wrap._or_policy, policies=policies)
    name = wrap["policy"]
    if name == "size":
        return functools.partial(torch_wrap.size_based_auto_wrap_policy, **_size_arguments(wrap))
    if name == "always":
        return torch_wrap.always_wrap_policy
    if name == "class":
        classes = _class_set(wrap["wrap_classes"])
        if by_function:
            return functools.partial(
                torch_wrap.transformer_auto_wrap_policy, transformer_layer_cls=classes
            )
        return torch_wrap.ModuleWrapPolicy(classes)
    if name == "annotated":
        return torch_wrap.CustomPolicy(functools.partial(_annotation, described))
    return _never if by_function else None


def _never(**_):
    return False


def _annotation(described, module):
    fqn = described.module_fqn.get(id(module))
    if fqn is None:
        return False
    node = described.modules[fqn]
    if not node.get("wrap", False):
        return False
    config = node.get("wrap_config", {})
    overrides = {}
    if "param_dtype" in config or "reduce_dtype" in config:
        overrides["mixed_precision"] = mixed_precision(config)
    if "strategy" in config:
        overrides["sharding_strategy"] = STRATEGIES[config["strategy"]]
    return overrides or True


def _ignored(root, described, fqns):
    """ignored_states for FQNs, all of modules or all of parameters."""
    by_fqn = {described.module_fqn[id(module)]: module for module in root.modules()}
    if all(fqn in by_fqn for fqn in fqns):
        return [by_fqn[fqn] for fqn in fqns]
    wanted = set(fqns)
    return [p for p in root.parameters() if described.parameter_fqn[id(p)] in wanted]


def _error(error):
    text = " ".join(str(error).split())
    return {"error": f"{type(error).__name__}: {text[:120]}"}


def _relative(described, module, name):
    fqn = described.module_fqn[id(module)]
    return f"{fqn}.{name}" if fqn else name


def _orphans(root, described, held):
    """Parameters of the wrapped tree that no unit holds."""
    orphans = []
    for module in root.modules():
        for name, value in module._parameters.items():
            if value is None or id(module) not in described.module_fqn:
                continue
            fqn = _relative(described, module, name)
            if fqn not in held and described.parameter_fqn.get(id(value)) == fqn:
                orphans.append(fqn)
    return orphans


def _finish(units, ties, orphans):
    result = {"units": units}
    if ties:
        result["ties"] = ties
    if orphans:
        result["orphans"] = orphans
    return result


def run_torch(root, described, job, details=False):
    """Constructs FSDP around `root` as the JobSpec in JSON `job` says."""
    wrap = job["wrap"]
    _made.clear()
    kwargs = {}
    if "ignore" in wrap:
        kwargs["ignored_states"] = _ignored(root, described, wrap["ignore"])
    try:
        wrapped = TorchFSDP(
            root,
            auto_wrap_policy=torch_policy(wrap, described),
            mixed_precision=mixed_precision(job.get("mixed_precision")),
            sharding_strategy=STRATEGIES[job.get("mesh", {}).get("strategy", "full_shard")],
            # With True, which frozen parameters beside others need, a tied parameter counts as its
            # shard once a unit has it, so that later decisions depend on the rank.
            use_orig_params=not all(p.requires_grad for p in root.parameters()),
            device_id=torch.device("cpu"),
            **kwargs,
        )
    except (AssertionError, RuntimeError, ValueError) as error:
        return _error(error)
    units, ties = [], {}
    dtypes, strategies = [], []
    for unit in _made:
        parameters = []
        fqn = described.module_fqn[id(unit._fsdp_wrapped_module)]
        if unit._handle is not None:
            flat = unit._handle.flat_param
            for name, module, _ in flat._param_infos:
                parameters.append(_relative(described, module, name))
            for info in flat._shared_param_infos:
                # By the path, since a shared module has several.
                path = [fqn, info.module_name.replace("_fsdp_wrapped_module.", ""), info.param_name]
                primary = _relative(described, info.prim_module, info.prim_param_name)
                ties.setdefault(primary, []).append(".".join(part for part in path if part))
            both = (unit._handle._fwd_bwd_param_dtype, unit._handle._reduce_dtype)
            dtypes.append([DTYPE_ENUM[dtype] for dtype in both])
        else:
            dtypes.append(None)
        strategies.append(unit.sharding_strategy.name)
        units.append([fqn, parameters])
    assert wrapped is _made[-1]
    ignored = {id(p) for p in wrapped._ignored_params}
    left = {
        described.parameter_fqn[id(value)]
        for module in wrapped.modules()
        for value in module._parameters.values()
        if value is not None and id(module) in described.module_fqn and id(value) in ignored
    }
    result = _finish(units, ties, [])
    if left:
        result["ignored"] = sorted(left)
    if details:
        result["dtypes"] = dtypes
        result["strategies"] = strategies
    return result


def run_fairscale(root, described, job):
    """auto_wrap of `root` with FairScale's FSDP, as the JobSpec in JSON `job` says."""
    wrap = job["wrap"]
    _made.clear()
    if wrap["policy"] == "annotated":
        policy = config_auto_wrap_policy
        for module in root.modules():
            if described.modules[described.module_fqn[id(module)]].get("wrap", False):
                module.wrapper_config = {}
    else:
        policy = functools.partial(
            default_auto_wrap_policy,
            skip_params_check_for_root=wrap.get("skip_root_check", False),
            **_size_arguments(wrap),
        )
    try:
        with enable_wrap(wrapper_cls=FairScaleFSDP, auto_wrap_policy=policy):
            wrapped = auto_wrap(root)
    except (AssertionError, RuntimeError, ValueError) as error:
        return _error(error)
    units, ties, held = [], {}, set()
    for unit in _made:
        parameters = []
        for flat in unit._fsdp_wrapped_module.flat_params:
            for _, module, name in flat._param_infos:
                parameters.append(_relative(described, module, name))
            for _, _, module, name, primary_module, primary in flat._shared_param_infos:
                tied = _relative(described, module, name)
                held.add(tied)
                ties.setdefault(_relative(described, primary_module, primary), []).append(tied)
        held.update(parameters)
        units.append([described.module_fqn[id(unit._fsdp_wrapped_module._fpw_module)], parameters])
    return _finish(units, ties, _orphans(wrapped, described, held))


class Recorder(nn.Module):
    """A wrapper that shards nothing: for trees on the meta device."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        _made.append(self)


def run_recorded(root, described, wrap):
    """torch's own recursion around `root`, with units that only say which module they are."""
    _made.clear()
    torch_wrap._recursive_wrap(
        root,
        torch_policy(wrap, described, by_function=True),
        Recorder,
        set(),
        set(),
        only_wrap_children=True,
    )
    Recorder(root)
    units, ties, taken = [], {}, set()
    for unit in _made:
        first = {}  # id of a parameter -> the name under which this unit holds it
        for module in unit.module.modules():
            for name, value in module._parameters.items():
                if value is None or (id(module), name) in taken:
                    continue
                taken.add((id(module), name))
                fqn = _relative(described, module, name)
                if id(value) in first:
                    ties.setdefault(first[id(value)], []).append(fqn)
                else:
                    first[id(value)] = fqn
        units.append([described.module_fqn[id(unit.module)], list(first.values())])
    return _finish(units, ties, [])
