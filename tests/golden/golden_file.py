"""Golden files: JSON lines. The first line is the header; each other one is a case.

    header  {"generator": "generate_wrap.py", "sources": [...], "sha256": "...", "torch": "...",
             "fairscale": "...", "cases": 700}

sha256 is over the generator and what it imports from here, so a golden file tells whether it is
of the generator that stands beside it. Needs no torch.
"""

import hashlib
import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent


def source_sha256(sources):
    """Over names and contents, in the order given."""
    digest = hashlib.sha256()
    for source in sources:
        content = (FOLDER / source).read_bytes()
        digest.update(f"{source} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def write(name, sources, versions, cases):
    """Writes `cases` (dicts) to the golden file `name`; `sources[0]` is the generator."""
    header = {
        "generator": sources[0],
        "sources": sources,
        "sha256": source_sha256(sources),
        **versions,
        "cases": len(cases),
    }
    path = FOLDER / name
    with path.open("w", encoding="utf-8") as file:
        for line in [header, *({"case": i, **c} for i, c in enumerate(cases))]:
            file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(cases)} cases, {path.stat().st_size:,} bytes")


def read_header(path):
    with path.open(encoding="utf-8") as file:
        return json.loads(file.readline())
