"""Counts what tests/run_all ran, or with --deep what tests/run_deep ran.

Its last line is `N passed, M failed`; it exits with 0 only if N > 0 and M is 0. The folder given
holds what the runs left: targets.txt (every Bazel test target), bazel.json (Bazel's build events),
pytest.xml (JUnit), and broken.* (a line for something that could not be run at all).

Deep runs are steps, named in steps.txt. A step leaves passed.STEP, or broken.STEP with a line that
says why it failed, or a folder STEP with targets.txt and bazel.json. One that left nothing failed.
"""

import collections
import json
import pathlib
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET

Counts = collections.namedtuple("Counts", "passed failed skipped")


def count_cases(xml_path, suite):
    """Counts of a JUnit file. Failed and skipped are lists of lines."""
    passed, failed, skipped = 0, [], []
    for case in ET.parse(xml_path).getroot().iter("testcase"):
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        name = f"{suite} {name}" if suite else name
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is not None or case.get("status") == "notrun":
            reason = " ".join((skip.get("message", "") if skip is not None else "not run").split())
            skipped.append(f"SKIPPED {name}: {reason or 'no reason given'}")
        else:
            passed += 1
    return Counts(passed, failed, skipped)


def bazel_results(folder):
    """Test target -> (status, paths of its test.xml)."""
    statuses, files = {}, collections.defaultdict(list)
    path = folder / "bazel.json"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for event in map(json.loads, lines):
        identity = event.get("id", {})
        if "testSummary" in identity and "testSummary" in event:
            statuses[identity["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
        elif "testResult" in identity and "testResult" in event:
            for output in event["testResult"].get("testActionOutput", []):
                if output["name"] == "test.xml":
                    url = urllib.parse.urlparse(output["uri"])
                    files[identity["testResult"]["label"]].append(
                        urllib.request.url2pathname(url.path)
                    )
    targets_path = folder / "targets.txt"
    targets = targets_path.read_text(encoding="utf-8").split() if targets_path.exists() else []
    return {
        target: (statuses.get(target, "NOT RUN"), files[target])
        for target in sorted(set(targets) | set(statuses))
    }


def count_target(target, status, xml_paths):
    """A target that failed counts as one failure at least, whatever its cases say."""
    passed, failed, skipped = 0, [], []
    for path in xml_paths:
        try:
            counts = count_cases(path, target)
        except (OSError, ET.ParseError):
            continue
        passed += counts.passed
        failed += counts.failed
        skipped += counts.skipped
    if status not in ("PASSED", "FLAKY") and not failed:
        failed.append(f"{target} ({status})")
    if status in ("PASSED", "FLAKY") and not passed and not failed and not skipped:
        passed = 1  # a test that is no gtest
    return Counts(passed, failed, skipped)


def report(parts):
    """Prints failed and skipped tests and the last line; the exit status."""
    failed = [line for part in parts for line in part.failed]
    for line in failed:
        print(f"FAILED {line}")
    for line in (line for part in parts for line in part.skipped):
        print(line)
    passed = sum(part.passed for part in parts)
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed > 0 and not failed else 1


def deep_step(folder, step):
    """The counts of one step, as a list of parts."""
    broken = folder / f"broken.{step}"
    parts = [
        count_target(f"{target} [{step}]", *result)
        for target, result in bazel_results(folder / step).items()
    ]
    if broken.exists():
        parts.append(Counts(0, [f"{step}: {broken.read_text(encoding='utf-8').strip()}"], []))
    elif (folder / f"passed.{step}").exists():
        parts.append(Counts(1, [], []))
    return parts or [Counts(0, [f"{step} did not run"], [])]


def main_deep(folder):
    steps = folder / "steps.txt"
    names = steps.read_text(encoding="utf-8").split() if steps.exists() else []
    return report([part for step in names for part in deep_step(folder, step)])


def main(folder):
    parts = [count_target(target, *result) for target, result in bazel_results(folder).items()]
    if not parts:
        parts.append(Counts(0, ["Bazel listed no test"], []))
    pytest_xml = folder / "pytest.xml"
    if pytest_xml.exists():
        parts.append(count_cases(pytest_xml, ""))
    broken = sorted(folder.glob("broken.*"))
    if not pytest_xml.exists() and not any(path.name == "broken.venv" for path in broken):
        parts.append(Counts(0, ["the cluster tests did not run"], []))
    for path in broken:
        parts.append(Counts(0, [path.read_text(encoding="utf-8").strip()], []))
    return report(parts)


if __name__ == "__main__":
    if sys.argv[1] == "--deep":
        sys.exit(main_deep(pathlib.Path(sys.argv[2])))
    sys.exit(main(pathlib.Path(sys.argv[1])))
