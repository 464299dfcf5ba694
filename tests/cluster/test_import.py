"""`tessera plan` of models that others describe: configs, safetensors files, and exported specs."""

import json
import pathlib
import struct

import numpy
import pytest
from safetensors.numpy import save_file

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def plan(sandbox, *flags):
    program = sandbox.tessera("plan", *flags, "--output=json")
    assert program.code == 0, program.transcript()
    return json.loads("\n".join(program.out))["plan"]


def refused(program, *words):
    assert program.code == 2, program.transcript()
    assert len(program.err) == 1 and program.out == [], program.transcript()
    for word in words:
        assert word in program.err[0], program.err[0]


def numel(document):
    return sum(int(unit["numel"]) for unit in document["units"])


@pytest.mark.parametrize("path", ["config.json", "."])
def test_config_of_a_large_model(sandbox, path):
    (sandbox.directory / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    document = plan(
        sandbox, f"--hf_config={path}", "--wrap=class", "--wrap_classes=LlamaDecoderLayer"
    )
    assert len(document["units"]) == 127
    assert document["units"][125]["fqn"] == "model.layers.125"
    assert document["units"][0]["original_dtype"] == "BFLOAT16"
    assert numel(document) == 405_853_388_800


def test_config_with_a_wrong_key(sandbox):
    (sandbox.directory / "config.json").write_text(
        json.dumps({**LLAMA, "num_hidden_layers": -1}), encoding="utf-8"
    )
    refused(
        sandbox.tessera("plan", "--hf_config=config.json"), "config.json", "num_hidden_layers"
    )


def arrays():
    return {
        "h.0.w": numpy.zeros((3, 5), numpy.float32),
        "h.1.w": numpy.zeros((3, 5), numpy.float32),
        "out.w": numpy.zeros((7, 2), numpy.float32),
        "ids": numpy.zeros((1, 9), numpy.int64),
    }


def names(document):
    return [
        (parameter["fqn"], parameter["shape"])
        for unit in document["units"]
        for parameter in unit["parameters"]
    ]


EXPECTED = [("h.0.w", ["3", "5"]), ("h.1.w", ["3", "5"]), ("out.w", ["7", "2"])]


def test_file_that_the_library_wrote(sandbox):
    save_file(arrays(), sandbox.directory / "any.safetensors", metadata={"format": "pt"})
    for path in ("any.safetensors", "."):
        assert names(plan(sandbox, f"--safetensors={path}", "--wrap=none")) == EXPECTED


def test_shards_that_the_library_wrote(sandbox):
    tensors = arrays()
    index = {"metadata": {"total_size": 0}, "weight_map": {}}
    for number, part in enumerate((["h.1.w", "ids"], ["out.w", "h.0.w"]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, sandbox.directory / file)
        index["weight_map"].update({name: file for name in part})
    (sandbox.directory / "model.safetensors.index.json").write_text(
        json.dumps(index), encoding="utf-8"
    )
    for path in (".", "model.safetensors.index.json"):
        assert names(plan(sandbox, f"--safetensors={path}", "--wrap=none")) == EXPECTED


def test_header_that_lies(sandbox):
    tensor = {"dtype": "U8", "shape": [2**63], "data_offsets": [0, 2**63]}
    header = json.dumps({"w": tensor}).encode()
    path = sandbox.directory / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    program = sandbox.tessera("plan", "--safetensors=model.safetensors", "--wrap=none")
    refused(program, "model.safetensors, tensor w", "9223372036854775808")
    path.write_bytes(struct.pack("<Q", 2**63) + header)
    program = sandbox.tessera("plan", "--safetensors=model.safetensors", "--wrap=none")
    refused(program, "model.safetensors: says that its header has 9223372036854775808 bytes")


# Elements worked out by hand. Transformer: two encoder layers of 4 x 32 x 32 + 4 x 32 (attention),
# 2 x 32 x 64 + 64 + 32 (feed forward) and 4 x 32 (norms), two decoder layers with one more
# attention and norm, and the two last norms. The shared modules: embedding 16 x 8, alias 8 x 8,
# 3 frozen, norm 16, biases 8 + 8, the second block's 8 x 8.
EXPORTED = {
    "transformer": 2 * (4224 + 4192 + 128) + 2 * (2 * 4224 + 4192 + 192) + 2 * 64,
    "shared_modules": 128 + 64 + 3 + 16 + 16 + 64,
    "batch_norm": 8,
}


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_spec(sandbox, name):
    golden = json.loads((GOLDEN / "export" / f"{name}.json").read_text(encoding="utf-8"))
    spec = golden["spec"]
    # One dtype in a unit: the frozen parameter of the shared modules has another.
    for parameter in spec["root"].get("parameters", []):
        parameter["dtype"] = "float32"
    (sandbox.directory / "model.json").write_text(json.dumps(spec), encoding="utf-8")
    document = plan(sandbox, "--model=model.json", "--wrap=none")
    assert numel(document) == EXPORTED[name]
