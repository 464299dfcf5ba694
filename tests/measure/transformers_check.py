#!/usr/bin/env python3
"""Carries a GPT-2 from transformers to Tessera and back; asserts that not a bit of it changes.

    python3 -m venv v && v/bin/pip install -r tests/measure/transformers_requirements.txt
    v/bin/python tests/measure/transformers_check.py

A GPT2LMHeadModel with random weights is saved by transformers, imported by `tessera run`, trained
one step at a learning rate of 0 on two workers and exported; transformers loads the export. Run by
hand: transformers needs torch, which is large.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TESSERA = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin" / "client" / "tessera"
LAYERS, WIDTH, HEADS, CONTEXT, VOCAB = 3, 48, 4, 32, 256


def job_file(directory):
    job = {
        "name": "carried",
        "model": {
            "builtin": "gpt",
            "layers": LAYERS,
            "width": WIDTH,
            "heads": HEADS,
            "context": CONTEXT,
            "vocab": VOCAB,
        },
        "steps": 1,
        "global_batch": 4,
        "eval_every": 0,
        "optimizer": {"name": "sgd", "lr": 0, "weight_decay": 0},
        "checkpoint": {
            "import": "theirs/model.safetensors",
            "import_names": [{"from": r"transformer\.(.*)", "to": r"\1"}],
            "export_names": [{"from": "(.*)", "to": r"transformer.\1"}],
        },
    }
    path = directory / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def main():
    torch.manual_seed(1)
    config = GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, n_positions=CONTEXT, vocab_size=VOCAB
    )
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        theirs = GPT2LMHeadModel(config).eval()
        theirs.save_pretrained(directory / "theirs")
        subprocess.run([TESSERA, "run", f"--job={job_file(directory)}"], cwd=directory, check=True)
        export = directory / "carried.tessera" / "export"
        config.save_pretrained(export)
        ours, loading = GPT2LMHeadModel.from_pretrained(export, output_loading_info=True)
    problems = {key: list(found) for key, found in loading.items() if found}
    assert not problems, problems
    expected, actual = theirs.state_dict(), ours.eval().state_dict()
    assert expected.keys() == actual.keys()
    for fqn, tensor in expected.items():
        assert torch.equal(tensor, actual[fqn]), fqn
    tokens = torch.arange(CONTEXT).reshape(1, -1)
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, ours(tokens).logits)
    print(f"{len(expected)} tensors went through Tessera and came back bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
