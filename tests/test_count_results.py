"""The counting of tests/run_all: nothing that was not run may look like a success."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("count_results.py")

CASE_A = '<testcase name="A" classname="T">{}</testcase>'
CASE_B = '<testcase name="B" classname="T"/>'
PASSING = f"<testsuites><testsuite>{CASE_A.format('')}{CASE_B}</testsuite></testsuites>"
FAILING = f"<testsuite>{CASE_A.format('<failure/>')}{CASE_B}</testsuite>"
SKIPPED = '<skipped message="no GPU\n here"/>'
SKIPPING = f"<testsuite>{CASE_A.format(SKIPPED)}</testsuite>"


class Results:
    def __init__(self, folder):
        self.folder = folder
        self._events, self._targets = [], []

    def target(self, label, status="PASSED", xml=None):
        self._targets.append(label)
        if status is not None:
            self._events.append(
                {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}
            )
        if xml is not None:
            path = self.folder / f"test {len(self._targets)}.xml"
            path.write_text(xml, encoding="utf-8")
            self._events.append(
                {
                    "id": {"testResult": {"label": label}},
                    "testResult": {
                        "testActionOutput": [{"name": "test.xml", "uri": path.as_uri()}]
                    },
                }
            )
        return self

    def pytest(self, xml=PASSING):
        (self.folder / "pytest.xml").write_text(xml, encoding="utf-8")
        return self

    def broken(self, line):
        (self.folder / "broken.build").write_text(line, encoding="utf-8")
        return self

    def count(self):
        (self.folder / "targets.txt").write_text("\n".join(self._targets), encoding="utf-8")
        (self.folder / "bazel.json").write_text(
            "\n".join(map(json.dumps, self._events)), encoding="utf-8"
        )
        done = subprocess.run(
            [sys.executable, "-B", SCRIPT, self.folder], capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def test_counts_cases_of_both(results):
    assert results.target("//a:t", xml=PASSING).pytest().count() == (0, ["4 passed, 0 failed"])


def test_a_test_without_cases_is_one(results):
    assert results.target("//a:t").pytest().count() == (0, ["3 passed, 0 failed"])


def test_names_failures_and_skips(results):
    code, lines = (
        results.target("//a:t", "FAILED", FAILING).target("//b:t", xml=SKIPPING).pytest().count()
    )
    assert code == 1
    assert lines == ["FAILED //a:t T.A", "SKIPPED //b:t T.A: no GPU here", "3 passed, 1 failed"]


def test_a_crashed_target_counts_although_its_cases_passed(results):
    code, lines = results.target("//a:t", "FAILED", PASSING).pytest().count()
    assert (code, lines[-1]) == (1, "4 passed, 1 failed")


def test_a_target_that_was_not_built_counts(results):
    code, lines = results.target("//a:t", status=None).target("//b:t").pytest().count()
    assert (code, lines) == (1, ["FAILED //a:t (NOT RUN)", "3 passed, 1 failed"])


def test_a_broken_build_counts(results):
    code, lines = results.target("//a:t").pytest().broken("the build failed\n").count()
    assert (code, lines) == (1, ["FAILED the build failed", "3 passed, 1 failed"])


def test_no_cluster_tests_is_a_failure(results):
    code, lines = results.target("//a:t").count()
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")


def test_nothing_at_all_is_a_failure(results):
    code, lines = results.pytest().count()
    assert (code, lines[-1]) == (1, "2 passed, 1 failed")


def count_deep(folder, steps):
    (folder / "steps.txt").write_text("\n".join(steps), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-B", SCRIPT, "--deep", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_deep_steps_are_counted(tmp_path):
    (tmp_path / "passed.shellcheck").touch()
    (tmp_path / "tsan").mkdir()
    Results(tmp_path / "tsan").target("//a:t", xml=PASSING).pytest().count()
    assert count_deep(tmp_path, ["shellcheck", "tsan"]) == (0, ["3 passed, 0 failed"])


def test_a_deep_step_that_left_nothing_failed(tmp_path):
    (tmp_path / "passed.shellcheck").touch()
    code, lines = count_deep(tmp_path, ["shellcheck", "tsan"])
    assert (code, lines) == (1, ["FAILED tsan did not run", "1 passed, 1 failed"])


def test_a_broken_deep_step_counts_although_its_tests_passed(tmp_path):
    (tmp_path / "asan").mkdir()
    Results(tmp_path / "asan").target("//a:t", xml=PASSING).pytest().count()
    (tmp_path / "broken.asan").write_text("the build failed\n", encoding="utf-8")
    code, lines = count_deep(tmp_path, ["asan"])
    assert (code, lines) == (1, ["FAILED asan: the build failed", "2 passed, 1 failed"])
