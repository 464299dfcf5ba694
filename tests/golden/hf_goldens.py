#!/usr/bin/env python3
"""Writes tests/golden/hf/FAMILY.json: what transformers builds from config.json files.

    python3 -m venv VENV && VENV/bin/pip install torch==2.5.1 transformers==4.57.3
    VENV/bin/python tests/golden/hf_goldens.py

Nothing is downloaded and no memory is taken for values: models are built on the meta device.
tests/golden/hf compares the importer with the files, and needs neither library. A case has a
config, the number of elements, and the whole tree as lines: `m FQN CLASS BASES`, `m FQN = FQN`
(the same module), `p FQN SHAPE DTYPE[ = FQN]` (tied), `b FQN SHAPE DTYPE`. Where the tree is long
or like another one, the file has the SHA-256 of the lines instead, joined by newlines.
"""

import hashlib
import json
import pathlib
import random
import sys
import warnings

warnings.filterwarnings("ignore")
HERE = pathlib.Path(__file__).resolve().parent
EXPORTER = HERE.parent.parent / "client" / "export_model_spec.py"
sys.path.insert(0, str(EXPORTER.parent))

# pylint: disable=wrong-import-position
import torch  # noqa: E402
import transformers  # noqa: E402
from export_model_spec import join, model_spec  # noqa: E402

transformers.logging.set_verbosity_error()

# What the importer builds where a config names no architecture.
DEFAULTS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertModel",
    "t5": "T5ForConditionalGeneration",
}
GENERIC = [
    "ForCausalLM",
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
]
ARCHITECTURES = {
    "llama": ["Llama" + task for task in GENERIC],
    "mistral": ["Mistral" + task for task in GENERIC],
    "mixtral": ["Mixtral" + task for task in GENERIC],
    "qwen2": ["Qwen2" + task for task in GENERIC],
    "gpt2": [
        "GPT2LMHeadModel",
        "GPT2Model",
        "GPT2ForSequenceClassification",
        "GPT2ForTokenClassification",
        "GPT2ForQuestionAnswering",
    ],
    "bert": [
        "BertModel",
        "BertForPreTraining",
        "BertLMHeadModel",
        "BertForMaskedLM",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForMultipleChoice",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ],
    "t5": [
        "T5ForConditionalGeneration",
        "T5Model",
        "T5EncoderModel",
        "T5ForSequenceClassification",
        "T5ForTokenClassification",
        "T5ForQuestionAnswering",
    ],
}
RANDOM_CASES = 60  # of each family


def llama(hidden, intermediate, layers, heads, groups, vocab, **more):
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        **more,
    }


def gpt2(width, layers, heads):
    return {
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 1024,
        "vocab_size": 50257,
        "architectures": ["GPT2LMHeadModel"],
    }


def bert(hidden, layers, heads, vocab, **more):
    return {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "vocab_size": vocab,
        **more,
    }


def t5(model, kv, feed_forward, layers, heads, **more):
    return {
        "d_model": model,
        "d_kv": kv,
        "d_ff": feed_forward,
        "num_layers": layers,
        "num_heads": heads,
        "vocab_size": 32128,
        "architectures": ["T5ForConditionalGeneration"],
        **more,
    }


BF16 = {"torch_dtype": "bfloat16"}
ROPE = {
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# The sizes of published models, by name.
REAL = {
    "llama": {
        "Llama-2-7B": llama(4096, 11008, 32, 32, 32, 32000, torch_dtype="float16"),
        "Llama-3.1-8B": llama(4096, 14336, 32, 32, 8, 128256, **BF16, **ROPE),
        "Llama-3.1-70B": llama(8192, 28672, 80, 64, 8, 128256, **BF16, **ROPE),
        "Llama-3.1-405B": llama(16384, 53248, 126, 128, 8, 128256, **BF16, **ROPE),
        "Llama-3.2-1B": llama(
            2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True, **BF16, **ROPE
        ),
    },
    "mistral": {
        "Mistral-7B-v0.1": llama(4096, 14336, 32, 32, 8, 32000, **BF16),
        "Mistral-Nemo-12B": llama(5120, 14336, 40, 32, 8, 131072, head_dim=128, **BF16),
    },
    "mixtral": {
        "Mixtral-8x7B": llama(4096, 14336, 32, 32, 8, 32000, num_local_experts=8, **BF16),
        "Mixtral-8x22B": llama(6144, 16384, 56, 48, 8, 32000, num_local_experts=8, **BF16),
    },
    "qwen2": {
        "Qwen2-0.5B": llama(896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True, **BF16),
        "Qwen2-7B": llama(3584, 18944, 28, 28, 4, 152064, **BF16),
        "Qwen2-72B": llama(8192, 29568, 80, 64, 8, 152064, **BF16),
    },
    "gpt2": {
        "GPT-2": gpt2(768, 12, 12),
        "GPT-2 medium": gpt2(1024, 24, 16),
        "GPT-2 large": gpt2(1280, 36, 20),
        "GPT-2 XL": gpt2(1600, 48, 25),
    },
    "bert": {
        "bert-base-uncased": bert(768, 12, 12, 30522, architectures=["BertModel"]),
        "bert-base-uncased, as its config.json says": bert(
            768, 12, 12, 30522, architectures=["BertForMaskedLM"]
        ),
        "bert-large-uncased": bert(1024, 24, 16, 30522, architectures=["BertModel"]),
    },
    "t5": {
        "t5-small": t5(512, 64, 2048, 6, 8),
        "t5-base": t5(768, 64, 3072, 12, 12),
        "t5-11b": t5(1024, 128, 65536, 24, 128),
        "t5-v1_1-xl": t5(2048, 64, 5120, 24, 32, **V11),
    },
}


def random_llama(rng):
    groups = rng.choice([1, 2, 3])
    heads = groups * rng.choice([1, 2, 4])
    config = llama(heads * rng.choice([2, 3, 8]), rng.randint(1, 40), rng.randint(1, 2), heads,
                   groups, rng.randint(1, 90))  # fmt: skip
    maybe(rng, config, "head_dim", [2, 6, 7])
    maybe(rng, config, "hidden_act", ["silu", "gelu", "swish", "relu", "gelu_pytorch_tanh"])
    return config


def random_mixtral(rng):
    config = random_llama(rng)
    config["num_local_experts"] = rng.randint(1, 3)
    return config


def random_gpt2(rng):
    heads = rng.randint(1, 4)
    config = {
        "n_embd": heads * rng.randint(1, 9),
        "n_layer": rng.randint(1, 2),
        "n_head": heads,
        "n_positions": rng.randint(1, 20),
        "vocab_size": rng.randint(1, 90),
    }
    maybe(rng, config, "n_inner", [None, 7, 32])
    maybe(rng, config, "activation_function", ["gelu_new", "relu", "tanh"])
    maybe(rng, config, "add_cross_attention", [True, False])
    return config


def random_bert(rng):
    heads = rng.randint(1, 4)
    config = bert(heads * rng.randint(1, 9), rng.randint(1, 2), heads, rng.randint(1, 90))
    config["intermediate_size"] = rng.randint(1, 40)
    config["max_position_embeddings"] = rng.randint(1, 20)
    config["type_vocab_size"] = rng.randint(1, 3)
    maybe(rng, config, "position_embedding_type", ["absolute", "relative_key"])
    maybe(rng, config, "hidden_act", ["gelu", "gelu_new", "relu"])
    if rng.random() < 0.3:
        config["is_decoder"] = config["add_cross_attention"] = True
    return config


def random_t5(rng):
    config = t5(rng.randint(1, 24), rng.randint(1, 8), rng.randint(1, 40), rng.randint(1, 2),
                rng.randint(1, 4), num_decoder_layers=rng.choice([None, 1, 3]))  # fmt: skip
    config["vocab_size"] = rng.randint(1, 90)
    maybe(rng, config, "relative_attention_num_buckets", [4, 32])
    maybe(
        rng,
        config,
        "feed_forward_proj",
        ["relu", "gated-gelu", "gated-silu", "gelu", "gated-gelu_new"],
    )
    return config


RANDOM = {
    "llama": random_llama,
    "mistral": random_llama,
    "mixtral": random_mixtral,
    "qwen2": random_llama,
    "gpt2": random_gpt2,
    "bert": random_bert,
    "t5": random_t5,
}


def maybe(rng, config, key, values):
    if rng.random() < 0.5:
        config[key] = rng.choice(values)


def random_config(rng, family, architecture):
    config = RANDOM[family](rng)
    config["architectures"] = [architecture]
    maybe(rng, config, "torch_dtype", ["float32", "bfloat16", "float16", "float64"])
    maybe(rng, config, "tie_word_embeddings", [True, False])
    if family == "llama":
        maybe(rng, config, "attention_bias", [True, False])
        maybe(rng, config, "mlp_bias", [True, False])
        maybe(rng, config, "partial_rotary_factor", [0.5, 1.0])
    if rng.random() < 0.2:
        config["num_labels"] = rng.randint(1, 5)
    elif rng.random() < 0.3:
        config["id2label"] = {str(i): f"L{i}" for i in range(rng.randint(1, 5))}
    return config


def build(config):
    """The model that transformers makes of a config.json, without values."""
    values = json.loads(json.dumps(config))
    parsed = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    name = (config.get("architectures") or [DEFAULTS[config["model_type"]]])[0]
    before = torch.get_default_dtype()
    torch.set_default_dtype(parsed.dtype or torch.float32)
    try:
        with torch.device("meta"):
            model = getattr(transformers, name)(parsed)
    finally:
        torch.set_default_dtype(before)
    model.tie_weights()
    return model


def lines_of(module, fqn=""):
    def tensor(kind, spec):
        shape = ",".join(str(extent) for extent in spec["shape"])
        tie = f" = {spec['tied_to']}" if "tied_to" in spec else ""
        return f"{kind} {join(fqn, spec['name'])} [{shape}] {spec['dtype']}{tie}"

    if "same_as" in module:
        yield f"m {fqn} = {module['same_as']}"
        return
    yield f"m {fqn} {module['class_name']} {','.join(module['base_classes'])}"
    yield from (tensor("p", parameter) for parameter in module.get("parameters", []))
    yield from (tensor("b", buffer) for buffer in module.get("buffers", []))
    for child in module.get("children", []):
        yield from lines_of(child, join(fqn, child["name"]))


def check_names(model, lines):
    """The names in the lines are those of the state_dict, where shared modules are there twice."""
    aliases = [line.split() for line in lines if line.startswith("m ") and " = " in line]
    names = {line.split()[1] for line in lines if line[0] == "p"}
    for _, fqn, _, target in aliases:
        names |= {fqn + name[len(target) :] for name in names if name.startswith(target + ".")}
    buffers = {name for name, _ in model.named_buffers()}
    assert names == set(model.state_dict()) - buffers, names ^ set(model.state_dict())


def case_of(family, config, name=None, whole=False):
    config = {"model_type": family, **config}
    model = build(config)
    lines = list(lines_of(model_spec(model)["root"]))
    check_names(model, lines)
    case = {"name": name} if name else {}
    case["config"] = config
    case["numel"] = sum(parameter.numel() for parameter in model.parameters())
    if whole:
        case["tree"] = lines
    else:
        case["sha256"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return case


def cases_of(family):
    rng = random.Random(f"tessera {family}")
    architectures = ARCHITECTURES[family]
    cases = [case_of(family, config, name) for name, config in REAL[family].items()]
    for index in range(RANDOM_CASES):
        architecture = architectures[index % len(architectures)]
        config = random_config(rng, family, architecture)
        cases.append(case_of(family, config, whole=index < len(architectures)))
    return cases


def main():
    generator = pathlib.Path(__file__).read_bytes() + EXPORTER.read_bytes()
    for family in DEFAULTS:
        head = {
            "generator": "tests/golden/hf_goldens.py, with client/export_model_spec.py",
            "generator_sha256": hashlib.sha256(generator).hexdigest(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        cases = ",\n".join(json.dumps(case) for case in cases_of(family))
        text = json.dumps(head)[:-1] + ', "cases": [\n' + cases + "\n]}\n"
        path = HERE / "hf" / f"{family}.json"
        path.write_text(text, encoding="utf-8")
        print(path, len(text), "bytes")


if __name__ == "__main__":
    main()
