#!/usr/bin/env python3
"""Write docs/fsdp-coverage.md: what each part of PyTorch's FSDP is here, and the tests that show it.

The rows are those of docs/fsdp-coverage.toml, the tests are those that name a row: `@pytest.mark.covers("name", ...)` on a test
in Python, a comment `covers: name, name` ahead of a test in C++, or anywhere in a lit test. Fails if a row has neither test nor
reason, if a test names no row, or if what is called missing has a test. `--strict` also fails if anything is missing.
`test/EndToEnd/test_coverage.py` holds that the page is current.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "docs" / "fsdp-coverage.toml", ROOT / "docs" / "fsdp-coverage.md"
KINDS = {"reason": "needs no test", "missing": "not yet"}


class Wrong(Exception):
    """What does not fit, one sentence a line."""


def names_of(key: str) -> list[str]:
    return [name.strip() for name in key.split(",")]


def python_markers(path: Path) -> dict[str, list[str]]:
    """Test function -> names that its markers have. Raises Wrong for a marker on what pytest does not collect."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.covers":
                if not node.name.startswith("test_") or node.col_offset:
                    raise Wrong(f"{path.relative_to(ROOT)}: {node.name} has a marker, but is no test function")
                found.setdefault(node.name, []).extend(ast.literal_eval(argument) for argument in mark.args)
    return found


def comment_markers(path: Path) -> dict[str, list[str]]:
    """Test -> names of the comments `covers:` ahead of it; a lit test is the whole file, and has a RUN line."""
    text, found = path.read_text(), defaultdict(list)
    for comments in re.finditer(r"^(?:(?://|#|;).*\n)+", text, re.M):
        names = [name for line in re.findall(r"^\S+ covers: (.*)", comments[0], re.M) for name in names_of(line)]
        test = re.compile(r"TEST(?:_F|_P)?\((\w+),\s*(\w+)\)").match(text, comments.end())
        if names and not test and (path.suffix == ".cpp" or "RUN:" not in text):
            raise Wrong(f"{path.relative_to(ROOT)}: no test follows the comment `covers: {names[0]}`")
        if names:
            found[f"{test[1]}.{test[2]}" if test else ""] += names
    return found


def collect() -> dict[str, list[str]]:
    """Name of a row -> the tests that name it."""
    tests = defaultdict(list)
    for path in sorted((ROOT / "test").rglob("*")):
        read = {".cpp": comment_markers, ".mlir": comment_markers, ".test": comment_markers}.get(path.suffix)
        if path.suffix == ".py" and path.name.startswith("test_"):
            read = python_markers
        for test, names in (read(path) if read else {}).items():
            for name in names:
                tests[name].append(str(path.relative_to(ROOT / "test")) + (f"::{test}" if test else ""))
    return tests


def check(sections: dict[str, dict[str, Any]], tests: dict[str, list[str]]) -> None:
    problems, known = [], set()
    for title, rows in sections.items():
        for key, row in rows.items():
            names = names_of(key)
            problems += [f"{name}: there are two rows of this name" for name in names if name in known]
            known |= set(names)
            kinds = [kind for kind in KINDS if kind in row] if isinstance(row, dict) else []
            tested = any(name in tests for name in names)
            if not kinds and not tested:
                problems.append(f"{title}: {key}: expected a test that names the row, or a reason; found neither")
            if tested and "missing" in kinds:
                problems.append(f"{title}: {key}: has a test, but is called missing: say what it is here")
    problems += [f"{', '.join(where)}: there is no row {name}" for name, where in tests.items() if name not in known]
    if problems:
        raise Wrong("\n".join(problems))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def listed(names: list[str], mark: str) -> str:
    return cell(", ".join(f"{mark}{name}{mark}" for name in names))


def page(sections: dict[str, dict[str, Any]], tests: dict[str, list[str]]) -> str:
    count, body, missing = dict.fromkeys(["", *KINDS], 0), [], []
    for title, rows in sections.items():
        mark = "`" if title.startswith(("FSDP1", "Strategies", "Initialisation", "Common", "Words")) else ""
        lines = []
        for key, row in rows.items():
            row = {"here": row} if isinstance(row, str) else row
            own = sorted({test for name in names_of(key) for test in tests.get(name, ())})
            kind = next((kind for kind in KINDS if kind in row), "")
            count[kind] += 1
            if kind == "missing":
                missing.append(f"| {listed(names_of(key), mark)} | {cell(row.get('here', ''))} | {cell(row[kind])} |")
                continue
            shown = listed(own, "`") + (" and " if own and kind else "") + cell(row.get("reason", ""))
            lines.append(f"| {listed(names_of(key), mark)} | {cell(row['here'])} | {shown} |")
        if lines:
            body += ["", f"## {title}", "", "| FSDP | here | test, or why none is needed |", "|---|---|---|", *lines]
    if missing:
        body += ["", "## Not yet", "", "| FSDP | here | missing |", "|---|---|---|", *missing]
    head = f"""# Coverage of FSDP

<!-- Generated by scripts/make_coverage.py from fsdp-coverage.toml and the tests; don't edit -->

What each part of PyTorch's FSDP (2.11) is here: identifiers of FSDP1's modules, what FSDP2 adds, and errors of both. The tests of a row
are those that name it. Of {sum(count.values())} rows, {count['']} have tests, {count['reason']} have a reason why a compiled system needs none,
and {count['missing']} are not built yet. Tests are paths under `test/`."""
    return "\n".join([head, *body]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the page is not current")
    parser.add_argument("--strict", action="store_true", help="fail if a row is not built yet")
    options = parser.parse_args()
    sections = tomllib.loads(ROWS.read_text())
    try:
        tests = collect()
        check(sections, tests)
        absent = [key for rows in sections.values() for key, row in rows.items() if isinstance(row, dict) and "missing" in row]
        if options.strict and absent:
            raise Wrong(f"{len(absent)} rows are not built yet:\n" + "\n".join(absent))
        text = page(sections, tests)
        if options.check and (not PAGE.exists() or PAGE.read_text() != text):
            raise Wrong(f"{PAGE.relative_to(ROOT)} is not current: run scripts/make_coverage.py")
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    if not options.check:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
