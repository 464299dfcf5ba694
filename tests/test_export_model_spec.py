"""client/export_model_spec.py: its rules, with stand-ins for torch's classes, and where torch is
installed what it writes against what is kept in git."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE.parent / "client" / "export_model_spec.py"
sys.path[:0] = [str(SCRIPT.parent), str(HERE / "golden")]

import export_goldens  # noqa: E402
import export_model_spec  # noqa: E402


class Storage:
    def __init__(self):
        self._cdata = id(self)


class Tensor:
    """What the exporter looks at of a torch.Tensor."""

    def __init__(self, *shape, dtype="float32", requires_grad=True, storage=None):
        self.shape, self.dtype, self.requires_grad = shape, f"torch.{dtype}", requires_grad
        self._storage = storage or Storage()

    def untyped_storage(self):
        return self._storage

    def storage_offset(self):
        return 0

    def stride(self):
        return (1,) * len(self.shape)


class UninitializedParameter(Tensor):
    pass


class Module:
    """What the exporter looks at of a torch.nn.Module."""

    def __init__(self, parameters=None, buffers=None, children=None):
        self._parameters = parameters or {}
        self._buffers = buffers or {}
        self._modules = children or {}


Module.__module__ = "torch.nn.modules.module"


class Linear(Module):
    pass


class Special(Linear):
    pass


def root_of(module):
    return export_model_spec.model_spec(module, "m")["root"]


def test_classes_end_with_module():
    root = root_of(Special({"w": Tensor(2, 3)}))
    assert (root["class_name"], root["base_classes"]) == ("Special", ["Linear", "Module"])
    assert root["parameters"] == [{"name": "w", "shape": [2, 3], "dtype": "float32"}]


def test_frozen_and_absent_parameters():
    root = root_of(Linear({"w": Tensor(2, requires_grad=False), "bias": None}))
    assert root["parameters"] == [
        {"name": "w", "shape": [2], "dtype": "float32", "requires_grad": False}
    ]


def test_shared_storage_is_a_tie():
    weight = Tensor(2, 3)
    again = Tensor(2, 3, storage=weight.untyped_storage())
    below = Linear({"x": weight, "y": again, "z": Tensor(2, 3)})
    root = root_of(Module({"w": weight}, children={"a": below}))
    ties = {entry["name"]: entry.get("tied_to") for entry in root["children"][0]["parameters"]}
    assert ties == {"x": "w", "y": "w", "z": None}


def test_storage_under_another_shape_is_refused():
    weight = Tensor(6)
    view = Tensor(2, 3, storage=weight.untyped_storage())
    with pytest.raises(export_model_spec.NotASpec, match="a.v: shares the storage of w"):
        root_of(Module({"w": weight}, children={"a": Linear({"v": view})}))


def test_module_that_is_there_twice():
    norm = Linear({"w": Tensor(2)})
    root = root_of(Module(children={"a": Module(children={"norm": norm}), "b": norm, "c": None}))
    assert root["children"][1:] == [{"name": "b", "same_as": "a.norm"}]


def test_cycle_is_refused():
    module = Module()
    module._modules["a"] = Module(children={"back": module})
    with pytest.raises(export_model_spec.NotASpec, match="a.back: .* break the cycle"):
        root_of(module)


def test_buffers_of_other_dtypes_are_left_out_and_named():
    writer = export_model_spec.Writer()
    buffers = {"r": Tensor(2, dtype="complex64"), "i": Tensor(dtype="int64")}
    module = Module({"w": Tensor(1)}, buffers)
    root = export_model_spec.model_spec(module, "m", writer)["root"]
    assert root["buffers"] == [{"name": "i", "shape": [], "dtype": "int64"}]
    assert writer.left_out == ["r (complex64)"]


def test_parameters_of_other_dtypes_are_refused():
    with pytest.raises(export_model_spec.NotASpec, match="w: has the dtype complex64"):
        root_of(Module({"w": Tensor(1, dtype="complex64")}))


def test_lazy_parameters_are_refused():
    with pytest.raises(export_model_spec.NotASpec, match="w: has no shape yet"):
        root_of(Module({"w": UninitializedParameter()}))


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, *arguments],
        cwd=HERE / "golden" / "export",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_help_needs_no_torch():
    assert run("--help").returncode == 0


def check_golden(name):
    target, settings = export_goldens.MODELS[name]
    done = run(target, f"--name={name}", *(f"{key}={value}" for key, value in settings.items()))
    assert done.returncode == 0, done.stderr
    golden = json.loads((HERE / "golden" / "export" / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == golden["spec"]
    left_out = [line.removeprefix("left out the buffer ") for line in done.stderr.splitlines()]
    assert left_out == golden["left_out"]


def test_command_line_with_torch():
    pytest.importorskip("torch", reason="torch is not installed")
    for name in export_goldens.MODELS:
        check_golden(name)
    assert "is not MODULE:CALLABLE" in run("torch.nn").stderr
    assert "returned a dict" in run("builtins:dict").stderr
    assert "cannot be imported" in run("torch.nn:Nothing").stderr
