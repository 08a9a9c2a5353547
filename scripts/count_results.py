"""Says what a check has found: stages beside their shares of last time, what tests have recorded, the slowest of them, and `N passed, M failed`.

Exit status 1 if anything failed or nothing ran. `--record` writes the shares of this run to scripts/stage_shares.json.
"""

import argparse
import json
import pathlib
import statistics
import sys
import xml.etree.ElementTree as ElementTree


SHARES = pathlib.Path(__file__).with_name("stage_shares.json")


def count(path: pathlib.Path) -> tuple[int, int, list[str], list[tuple[float, str]]]:
    """Passed and failed cases of one file, a line for each that failed or was skipped, and the seconds of each."""
    passed, failed, lines, times = 0, 0, [], []
    try:
        cases = ElementTree.parse(path).iter("testcase")
    except ElementTree.ParseError as error:
        return 0, 1, [f"failed: {path}: {error}"], []
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        times.append((float(case.get("time") or 0), name))
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            lines.append(f"failed: {name}")
        elif (skipped := case.find("skipped")) is not None:
            # A filter of lit leaves out what another stage runs; all else that is skipped is told.
            if not (why := skipped.get("message", "")).startswith("Test not selected"):
                lines.append(f"skipped: {name}: {why}")
        elif case.get("status") != "notrun":
            passed += 1
    return passed, failed, lines, times


def read_figures(path: pathlib.Path) -> dict[str, list[float]]:
    """By name what tests have recorded as properties whose names begin with "measured: " (`record_property` of pytest)."""
    figures: dict[str, list[float]] = {}
    try:
        properties = ElementTree.parse(path).iterfind(".//testcase/properties/property")
    except ElementTree.ParseError:
        return {}
    for entry in properties:
        if (name := entry.get("name", "")).startswith("measured: "):
            figures.setdefault(name.removeprefix("measured: "), []).append(float(entry.get("value", "nan")))
    return figures


def read_stages(path: pathlib.Path) -> list[tuple[str, str, int]]:
    """Name, result and seconds of each stage: the lines that check.sh has written."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(name, result, int(seconds)) for name, result, seconds in rows]


def compare(stages: list[tuple[str, str, int]], recorded: dict[str, float]) -> list[str]:
    """A line for each stage: its seconds, and its share of the time of all beside the recorded one, in percent."""
    total = sum(seconds for _, _, seconds in stages) or 1
    lines = []
    for name, _, seconds in stages:
        before = f"{recorded[name]:5.1f} %" if name in recorded else "  none"
        lines.append(f"check: {name:28} {seconds:5} s {100 * seconds / total:5.1f} %, recorded {before}")
    return [*lines, f"check: {'all stages':28} {total:5} s"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="folder of JUnit XML files, searched in depth")
    parser.add_argument("--stages", type=pathlib.Path, required=True, help='a line for each stage: "NAME ok|FAILED SECONDS"')
    parser.add_argument("--record", action="store_true", help=f"write the shares of the stages to {SHARES.name}")
    arguments = parser.parse_args()
    stages = read_stages(arguments.stages)
    passed = sum(result == "ok" for _, result, _ in stages)
    failed = len(stages) - passed
    times: list[tuple[float, str]] = []
    figures: dict[str, list[float]] = {}
    for path in sorted(arguments.folder.rglob("*.xml")):
        one_passed, one_failed, lines, one_times = count(path)
        passed, failed, times = passed + one_passed, failed + one_failed, times + one_times
        print(*lines, sep="\n", end="\n" if lines else "")
        for name, values in read_figures(path).items():
            figures.setdefault(name, []).extend(values)
    print(*compare(stages, json.loads(SHARES.read_text())), sep="\n")
    for name, values in sorted(figures.items()):
        print(f"check: {name}: {len(values)} measured, median {statistics.median(values):.2f}, from {min(values):.2f} to {max(values):.2f}")
    print("check: the slowest tests")
    for seconds, name in sorted(times, reverse=True)[:20]:
        print(f"check: {seconds:7.1f} s  {name}")
    if arguments.record:
        total = sum(seconds for _, _, seconds in stages) or 1
        shares = {name: round(100 * seconds / total, 1) for name, _, seconds in stages}
        SHARES.write_text(json.dumps(shares, indent=2) + "\n")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
