import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import programs  # noqa: E402


def pytest_sessionstart(session):
    for path in (
        programs.TESSERA,
        programs.COORDINATOR,
        programs.WORKER,
        programs.CHAR_MODEL,
        programs.BUILT_MODEL,
    ):
        if not path.exists():
            pytest.exit(f"{path} is not built: bazel build //...", returncode=3)


@pytest.fixture
def sandbox(tmp_path):
    """A Sandbox; after the test no process of it may be left, and /dev/shm is as before."""
    box = programs.Sandbox(tmp_path)
    yield box
    box.close()


@pytest.fixture
def address(sandbox):
    """Of a coordinator of the sandbox."""
    return sandbox.start_coordinator()[1]
