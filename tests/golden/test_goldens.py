"""Golden files are of the generators beside them: an edited generator must be run again."""

import json

import pytest

import golden_file

GOLDENS = sorted(golden_file.FOLDER.glob("*.jsonl"))


def test_every_generator_has_its_golden_file():
    generators = {path.name for path in golden_file.FOLDER.glob("generate_*.py")}
    assert generators == {golden_file.read_header(path)["generator"] for path in GOLDENS}


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.name)
def test_golden_is_of_this_generator(path):
    header = golden_file.read_header(path)
    assert header["sha256"] == golden_file.source_sha256(header["sources"]), (
        f"{header['generator']} or what it imports has changed since {path.name} was made; "
        "run it again (tests/golden/README.md says how)"
    )


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.name)
def test_golden_is_whole(path):
    header = golden_file.read_header(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["case"] for line in lines[1:]] == list(range(header["cases"]))


def test_goldens_are_small():
    assert sum(path.stat().st_size for path in GOLDENS) < 2_500_000
