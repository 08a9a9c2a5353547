"""The snippets of README.md and docs/ are what the commands beside them print."""

import os
import re
import subprocess

import pytest
from conftest import BUILD, ROOT

SNIPPET = re.compile(r"^<!-- check: (.+?) -->\n```.*\n((?:.*\n)*?)```$", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(command, block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, (command, block) in enumerate(SNIPPET.findall(page.read_text()), 1)
]


def missing(block: str, output: str) -> str | None:
    """The first line of `block` that `output` lacks. Lines follow each other; a line `...` skips some, `...` in one a part."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    lines = [line for line in lines if line]
    place, skip = 0, True
    for line in filter(None, (" ".join(line.split()) for line in block.splitlines())):
        if line == "...":
            skip = True
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        candidates = range(place, len(lines) if skip else min(place + 1, len(lines)))
        found = next((k for k in candidates if pattern.fullmatch(lines[k])), None)
        if found is None:
            return line
        place, skip = found + 1, False
    return None


@pytest.mark.covers("Example")
@pytest.mark.parametrize(("command", "block"), SNIPPETS)
def test_snippet_is_what_the_command_prints(command, block, tmp_path):
    path = f"{BUILD.resolve() / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    shell = ["bash", "-o", "pipefail", "-c", command]
    result = subprocess.run(shell, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stderr
    line = missing(block, result.stdout + result.stderr)
    assert line is None, f"not printed, or not in this order: {line}"


def test_a_wrong_snippet_is_noticed():
    output = "one\n  two   words\nthree, or more\nfour\n"
    assert missing("one\ntwo words\n...\nfour", output) is None
    assert missing("two words\nthree, ...\n", output) is None
    assert missing("one\nfour", output) == "four"
    assert missing("four\n...\none", output) == "one"


def test_there_are_snippets():
    assert len(SNIPPETS) >= 8
