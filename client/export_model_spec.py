#!/usr/bin/env python3
"""Writes the ModelSpec (JSON) of any torch module, for `tessera plan --model=FILE`.

    python3 client/export_model_spec.py torch.nn:Transformer d_model=512 nhead=8 > model.json

The first argument is MODULE:CALLABLE, importable from the working directory; what it is called
with are the JSON values (or bare strings) of NAME=VALUE. What it returns has to be a
torch.nn.Module. It is built on the meta device, so that no memory is taken for values; a module
that is at hand already is written by `model_spec(module)`.

Written are names, classes and base classes (the method resolution order up to Module), parameters
and buffers with shape and dtype, what needs no gradient, parameters that share storage (tied_to)
and modules that are there twice (same_as). A buffer of a dtype that a ModelSpec cannot hold
(complex64, say) is left out and named on stderr.

Checked with Python 3.11, torch 2.5.1 and transformers 4.57.3.
"""

import argparse
import importlib
import json
import os
import sys

DTYPES = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int8", "uint8", "int32", "int64", "bool",
}  # fmt: skip


class NotASpec(Exception):
    """A module that a ModelSpec cannot describe; the message names the FQN and says what to do."""


def base_classes(module):
    """Names of the classes after the module's own, up to and with torch.nn.Module."""
    names = []
    for base in type(module).__mro__[1:]:
        names.append(base.__name__)
        if base.__module__ == "torch.nn.modules.module" and base.__name__ == "Module":
            break
    return names


def dtype_name(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def storage_key(tensor):
    """What two tensors of one storage and place have in common, also where there is no memory."""
    return (tensor.untyped_storage()._cdata, tensor.storage_offset())


def is_lazy(tensor):
    return type(tensor).__name__ in ("UninitializedParameter", "UninitializedBuffer")


class Writer:
    """One walk over a module, in registration order."""

    def __init__(self):
        self.left_out = []  # FQN and dtype of each buffer that is not in the spec
        self._modules = {}  # id -> FQN
        self._enclosing = set()  # ids of the modules that the walk is in
        self._holders = {}  # storage -> FQN, shape and stride of the parameter that was met first

    def module(self, module, name, fqn):
        if id(module) in self._enclosing:
            raise NotASpec(f"{fqn}: is a module that it is itself below; break the cycle")
        if id(module) in self._modules:
            return {"name": name, "same_as": self._modules[id(module)]}
        self._modules[id(module)] = fqn
        self._enclosing.add(id(module))
        spec = {"name": name, "class_name": type(module).__name__}
        spec["base_classes"] = base_classes(module)
        parameters = [
            self.parameter(key, value, join(fqn, key))
            for key, value in module._parameters.items()
            if value is not None
        ]
        buffers = [
            self.buffer(key, value, join(fqn, key))
            for key, value in module._buffers.items()
            if value is not None
        ]
        children = [
            self.module(child, key, join(fqn, key))
            for key, child in module._modules.items()
            if child is not None
        ]
        for key, values in (("parameters", parameters), ("buffers", buffers)):
            if any(values):
                spec[key] = [value for value in values if value]
        if children:
            spec["children"] = children
        self._enclosing.discard(id(module))
        return spec

    def parameter(self, name, parameter, fqn):
        if is_lazy(parameter):
            raise NotASpec(f"{fqn}: has no shape yet; run a lazy module once before it is written")
        spec = {"name": name, "shape": list(parameter.shape), "dtype": dtype_name(parameter)}
        if spec["dtype"] not in DTYPES:
            raise NotASpec(f"{fqn}: has the dtype {spec['dtype']}, which a ModelSpec cannot hold")
        if not parameter.requires_grad:
            spec["requires_grad"] = False
        layout = (list(parameter.shape), parameter.stride(), parameter.dtype)
        holder, held = self._holders.setdefault(storage_key(parameter), (fqn, layout))
        if holder != fqn:
            if held != layout:
                raise NotASpec(
                    f"{fqn}: shares the storage of {holder} under another shape, stride or dtype; "
                    "make one of them a computed view"
                )
            spec["tied_to"] = holder
        return spec

    def buffer(self, name, buffer, fqn):
        if is_lazy(buffer):
            raise NotASpec(f"{fqn}: has no shape yet; run a lazy module once before it is written")
        if dtype_name(buffer) not in DTYPES:
            self.left_out.append(f"{fqn} ({dtype_name(buffer)})")
            return None
        return {"name": name, "shape": list(buffer.shape), "dtype": dtype_name(buffer)}


def join(fqn, name):
    return f"{fqn}.{name}" if fqn else name


def model_spec(module, name=None, writer=None):
    """The module as a dict in ModelSpec's JSON form. NotASpec: it cannot be described."""
    root = (writer or Writer()).module(module, "", "")
    return {"name": name or type(module).__name__, "root": root}


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def build(target, settings):
    """Calls MODULE:CALLABLE on the meta device."""
    import torch  # here, so that --help needs none

    module_name, _, path = target.partition(":")
    if not path:
        raise SystemExit(f"{target}: is not MODULE:CALLABLE, e.g. torch.nn:Transformer")
    sys.path.insert(0, os.getcwd())
    try:
        made = importlib.import_module(module_name)
        for attribute in path.split("."):
            made = getattr(made, attribute)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"{target}: cannot be imported: {error}") from error
    with torch.device("meta"):
        module = made(**settings)
    if not isinstance(module, torch.nn.Module):
        raise SystemExit(f"{target}: returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("target", help="MODULE:CALLABLE that makes the module")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="what it is called with")
    parser.add_argument("--name", help="of the model [the class of the module]")
    arguments = parser.parse_intermixed_args()
    settings = {}
    for setting in arguments.settings:
        key, equals, text = setting.partition("=")
        if not equals:
            parser.error(f"{setting}: is not NAME=VALUE")
        settings[key] = value_of(text)
    writer = Writer()
    try:
        spec = model_spec(build(arguments.target, settings), arguments.name, writer)
    except NotASpec as error:
        raise SystemExit(str(error)) from error
    for left_out in writer.left_out:
        print(f"left out the buffer {left_out}", file=sys.stderr)
    json.dump(spec, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
