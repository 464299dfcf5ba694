"""The style that a machine can check: clang-format, lengths, and one kind of mutex."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What .clang-format means changes from version to version; this is Debian 12's.
CLANG_FORMAT_VERSION = "14."

COLUMNS = 100
PROTO_COLUMNS = 128  # a field's comment stands at the end of its line

# Files longer than their limit, each with the reason and the length it may have for now.
LONGER = {}

RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)


def tracked(*suffixes):
    """The project's files with these suffixes that are there, as paths from its root."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [path for path in done.stdout.splitlines() if path.endswith(suffixes)]
    return sorted(path for path in paths if (ROOT / path).is_file())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def limit_of(path):
    """The greatest number of lines of a file."""
    if path in LONGER:
        return LONGER[path][0]
    name = pathlib.Path(path).name
    if path.startswith("tests/") or "_test." in name:
        return 600
    return 200 if path.endswith(".h") else 400


def over_long_lines(path, columns):
    # JSON in a raw string can't be wrapped without changing it.
    text = RAW_STRING.sub(lambda match: "\n" * match.group().count("\n"), read(path))
    return [
        f"{path}:{number}: {len(line)} columns"
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > columns
    ]


def test_there_are_files_to_check():
    assert "common/mutex.h" in tracked(".h")
    assert len(tracked(".cc")) > 100


def test_clang_format_would_change_nothing():
    program = shutil.which("clang-format")
    assert program is not None, "run deploy/install_packages"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if f"version {CLANG_FORMAT_VERSION}" not in version.stdout:
        pytest.skip(f"formats as version {CLANG_FORMAT_VERSION}x: {version.stdout.strip()}")
    done = subprocess.run(
        [program, "--dry-run", "-Werror", *tracked(".cc", ".h", ".cu")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_lines_have_at_most_a_hundred_columns():
    lines = []
    for path in tracked(".cc", ".h", ".cu", ".py"):
        lines += over_long_lines(path, COLUMNS)
    for path in tracked(".proto"):
        lines += over_long_lines(path, PROTO_COLUMNS)
    assert lines == []


def test_files_are_short():
    lengths = {path: len(read(path).splitlines()) for path in tracked(".cc", ".h", ".cu", ".py")}
    assert [
        f"{path}: {lines} lines, {limit_of(path)} allowed"
        for path, lines in lengths.items()
        if lines > limit_of(path)
    ] == []


def test_no_exception_to_the_lengths_is_idle():
    for path in LONGER:
        if (ROOT / path).exists():
            length = len(read(path).splitlines())
            assert length > (200 if path.endswith(".h") else 400), f"{path} needs no exception"


def test_one_kind_of_mutex():
    # Others are not annotated, or ThreadSanitizer does not see them.
    other = re.compile(r"std::\w*mutex|std::\w+_lock\b|lock_guard|condition_variable|absl::Mutex")
    paths = set(tracked(".cc", ".h", ".cu")) - {"common/mutex.h"}
    assert [path for path in sorted(paths) if other.search(read(path))] == []


# Clang refuses others, and tests/run_all builds with GCC alone.
def test_formats_are_literals():
    broken = re.compile(r"\bStr(?:Format\(|AppendFormat\([^,]+,)\s*(?!\s|\")")
    assert [path for path in tracked(".cc", ".h", ".cu") if broken.search(read(path))] == []
