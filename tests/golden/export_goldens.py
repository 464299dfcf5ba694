#!/usr/bin/env python3
"""Writes tests/golden/export/NAME.json: what client/export_model_spec.py makes of torch models.

    python3 -m venv VENV && VENV/bin/pip install torch==2.5.1
    VENV/bin/python tests/golden/export_goldens.py

tests/test_export_model_spec.py compares where torch is installed; tests/cluster/test_import.py
plans what is kept.
"""

import hashlib
import json
import pathlib
import platform
import sys

HERE = pathlib.Path(__file__).resolve().parent
EXPORTER = HERE.parent.parent / "client" / "export_model_spec.py"
sys.path[:0] = [str(EXPORTER.parent), str(HERE / "export")]

# What each is made of: a target and settings, as on the command line.
MODELS = {
    "transformer": (
        "torch.nn:Transformer",
        {
            "d_model": 32,
            "nhead": 4,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "dim_feedforward": 64,
        },
    ),
    "shared_modules": ("shared_modules:SharedModules", {"width": 8}),
    "batch_norm": ("torch.nn:BatchNorm2d", {"num_features": 4}),
}


def golden_of(name):
    """The spec, and the buffers that are not in it."""
    # pylint: disable=import-outside-toplevel
    from export_model_spec import Writer, build, model_spec

    writer = Writer()
    return {"spec": model_spec(build(*MODELS[name]), name, writer), "left_out": writer.left_out}


def main():
    import torch  # pylint: disable=import-outside-toplevel

    generator = pathlib.Path(__file__).read_bytes() + EXPORTER.read_bytes()
    for name in MODELS:
        document = {
            "generator": "tests/golden/export_goldens.py, with client/export_model_spec.py",
            "generator_sha256": hashlib.sha256(generator).hexdigest(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            **golden_of(name),
        }
        path = HERE / "export" / f"{name}.json"
        path.write_text(json.dumps(document) + "\n", encoding="utf-8")
        print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
