"""Adds up JUnit result files and prints `N passed, M failed`; exit status 1 if anything failed or nothing ran."""

import argparse
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(path: pathlib.Path) -> tuple[int, int, list[str]]:
    """Passed and failed cases of one file, and a line for each that failed or was skipped."""
    passed, failed, lines = 0, 0, []
    try:
        cases = ElementTree.parse(path).iter("testcase")
    except ElementTree.ParseError as error:
        return 0, 1, [f"failed: {path}: {error}"]
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            lines.append(f"failed: {name}")
        elif (skipped := case.find("skipped")) is not None:
            # A filter of lit leaves out what another stage runs; all else that is skipped is told.
            if not (why := skipped.get("message", "")).startswith("Test not selected"):
                lines.append(f"skipped: {name}: {why}")
        elif case.get("status") != "notrun":
            passed += 1
    return passed, failed, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="folder of JUnit XML files, searched in depth")
    parser.add_argument("--stages-passed", type=int, default=0, help="stages of the check itself that ended well")
    parser.add_argument("--stages-failed", type=int, default=0, help="stages of the check itself that did not")
    arguments = parser.parse_args()
    passed, failed = arguments.stages_passed, arguments.stages_failed
    for path in sorted(arguments.folder.rglob("*.xml")):
        one_passed, one_failed, lines = count(path)
        passed, failed = passed + one_passed, failed + one_failed
        print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
