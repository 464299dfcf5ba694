"""Module trees of torch, and the ModelSpec (docs: proto/tessera/v1/model.proto) of one."""

import torch
from torch import nn

_DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "int64",
    torch.bool: "bool",
}


# Classes of a model's own, with subclasses of torch's and of each other.


class Block(nn.Module):
    pass


class FancyBlock(Block):
    pass


class Encoder(nn.Module):
    pass


class Decoder(Encoder):
    pass


class BlockList(nn.ModuleList):
    pass


class TiltedAttention(nn.MultiheadAttention):
    pass


class FancyLinear(nn.Linear):
    pass


CLASSES = {
    cls.__name__: cls
    for cls in [
        *(Block, FancyBlock, Encoder, Decoder, BlockList, TiltedAttention, FancyLinear),
        *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.PReLU, nn.ReLU, nn.Sequential),
        *(nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.MultiheadAttention),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        nn.modules.batchnorm._BatchNorm,
    ]
}


def _base_classes(module):
    return [
        cls.__name__
        for cls in type(module).__mro__[1:]
        if issubclass(cls, nn.Module) and cls is not nn.Module
    ]


def _join(parent, name):
    return f"{parent}.{name}" if parent else name


class Described:
    """The ModelSpec of a module, and names for what is in it, as they are before it is wrapped.

    spec              ModelSpec as cli.md has it, without what is a default
    module_fqn        id of a module -> its first FQN
    parameter_fqn     id of a parameter -> its first FQN
    modules           FQN -> node of spec, aliases left out
    """

    def __init__(self, root, name="m"):
        self.module_fqn = {}
        self.parameter_fqn = {}
        self.modules = {}
        self._keep = root  # ids are of living objects
        self.spec = {"name": name, "root": self._describe(root, "", "")}

    def _describe(self, module, name, fqn):
        if id(module) in self.module_fqn:
            return {"name": name, "same_as": self.module_fqn[id(module)]}
        self.module_fqn[id(module)] = fqn
        node = {"name": name, "class_name": type(module).__name__}
        self.modules[fqn] = node
        if bases := _base_classes(module):
            node["base_classes"] = bases
        if parameters := [
            self._parameter(key, value, _join(fqn, key))
            for key, value in module._parameters.items()
            if value is not None
        ]:
            node["parameters"] = parameters
        if buffers := [
            {"name": key, "shape": list(value.shape), "dtype": _DTYPES[value.dtype]}
            for key, value in module._buffers.items()
            if value is not None
        ]:
            node["buffers"] = buffers
        if children := [
            self._describe(child, key, _join(fqn, key))
            for key, child in module._modules.items()
            if child is not None
        ]:
            node["children"] = children
        return node

    def _parameter(self, name, parameter, fqn):
        node = {"name": name, "shape": list(parameter.shape), "dtype": _DTYPES[parameter.dtype]}
        if not parameter.requires_grad:
            node["requires_grad"] = False
        if id(parameter) in self.parameter_fqn:
            node["tied_to"] = self.parameter_fqn[id(parameter)]
        else:
            self.parameter_fqn[id(parameter)] = fqn
        return node


class TreeMaker:
    """Random trees; the same ones for the same seed."""

    def __init__(self, rng):
        self._rng = rng

    def make(self, max_modules):
        self._left = max_modules
        root = self._container(0)
        while not any(True for _ in root.parameters()):
            root.add_module("last", nn.Linear(3, 4))
        return root

    def freeze(self, root):
        for parameter in root.parameters():
            parameter.requires_grad_(self._rng.random() < 0.5)

    def _leaf(self):
        rng = self._rng
        extent = rng.choice([1, 2, 3, 5, 8, 13])
        makers = [
            lambda: nn.Linear(extent, rng.randint(1, 12), bias=rng.random() < 0.6),
            lambda: nn.Linear(extent, rng.randint(1, 12), bias=False),
            lambda: FancyLinear(rng.randint(1, 6), extent),
            lambda: nn.Embedding(rng.randint(1, 20), extent),
            lambda: nn.LayerNorm(extent),
            nn.PReLU,
            nn.ReLU,
            lambda: nn.MultiheadAttention(extent, 1, bias=rng.random() < 0.5),
            lambda: TiltedAttention(extent, 1, bias=False),
            lambda: nn.ParameterList(
                nn.Parameter(torch.empty(rng.randint(1, 9))) for _ in range(rng.randint(0, 3))
            ),
            lambda: nn.BatchNorm1d(extent, track_running_stats=rng.random() < 0.2),
            lambda: nn.BatchNorm2d(extent, track_running_stats=False),
            lambda: nn.BatchNorm3d(extent, affine=False, track_running_stats=False),
            lambda: nn.SyncBatchNorm(extent, track_running_stats=False),
        ]
        return rng.choice(makers)()

    def _container(self, depth):
        rng = self._rng
        self._left -= 1
        children = []
        for _ in range(rng.randint(1, 4)):
            if self._left <= 0:
                break
            if depth < 4 and rng.random() < 0.45:
                children.append(self._container(depth + 1))
            else:
                self._left -= 1
                children.append(self._leaf())
        kind = rng.choice(
            [nn.Sequential, nn.ModuleList, nn.ModuleDict, BlockList]
            + 2 * [Block, FancyBlock, Encoder, Decoder]
        )
        if kind is nn.Sequential:
            return nn.Sequential(*children)
        if kind in (nn.ModuleList, BlockList):
            return kind(children)
        if kind is nn.ModuleDict:
            return nn.ModuleDict({"abcd"[i]: child for i, child in enumerate(children)})
        made = kind()
        for i in range(rng.choice([0, 0, 1, 1, 2])):
            shape = [rng.randint(1, 9) for _ in range(rng.randint(1, 2))]
            made.register_parameter("wbs"[i], nn.Parameter(torch.empty(shape)))
        for i, child in enumerate(children):
            made.add_module("xyzu"[i], child)
        return made

    def mix_dtypes(self, root):
        for module in root.modules():
            if self._rng.random() < 0.2:
                for name, value in module._parameters.items():
                    if value is not None:
                        module._parameters[name] = nn.Parameter(value.detach().bfloat16())

    def tie(self, root):
        """Makes one parameter of the tree another one, if there are two."""
        slots = [
            (module, name)
            for module in root.modules()
            for name, value in module._parameters.items()
            if value is not None
        ]
        if len(slots) < 2:
            return
        (one, one_name), (other, other_name) = self._rng.sample(slots, 2)
        other._parameters[other_name] = one._parameters[one_name]

    def share(self, root, same_parent):
        """Puts a module of the tree into a second place, if there is one that makes no cycle."""
        places = [m for m in root.modules() if type(m) in (Block, FancyBlock, Encoder, Decoder)]
        pairs = [
            (child, place)
            for place in places
            for parent in root.modules()
            for child in parent.children()
            if place not in set(child.modules()) and (parent is place) == same_parent
        ]
        if pairs:
            child, place = self._rng.choice(pairs)
            place.add_module("again", child)
