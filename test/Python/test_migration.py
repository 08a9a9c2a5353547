"""Each row of the tables for people who come from other trainers: our option is there, and takes the value."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build" / "gcc" / "bin" if "FSDP_BUILD" not in os.environ else ROOT / os.environ["FSDP_BUILD"] / "bin"
PLACES = {"N": "2", "K": "2", "M": "1", "S": "2", "R": "2", "L": "2", "RxS": "2x2", "REGEX": "block", "SIZE": "4GiB", "SECONDS": "60", "STD": "0.02",
          "FILE": "file", "FOLDER": "folder", "PATH": "path", "p": "2"}  # fmt: skip


def rows(page):
    for number, line in enumerate((ROOT / "docs" / page).read_text().splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", line.strip("|"))] if line.startswith("| ") else []
        if len(cells) == 2 and cells[0] not in ("theirs", "argument"):
            yield pytest.param(*cells, id=f"{page}:{number}")


def commands(cell):
    """The command lines of a cell, of fsdp-plan where no other command is named; values for what stands for them."""
    for span in re.findall(r"`([^`]+)`", cell):
        if re.match(r"(fsdp-\w+ )?--\w", span):
            words = shlex.split(span.replace("\\|", "|"))
            tool = words.pop(0) if words[0].startswith("fsdp-") else "fsdp-plan"
            yield tool, [re.sub(r"\b(RxS|[A-Z]+|p)\b", lambda m: PLACES.get(m[0], m[0]), word) for word in words]


# What an option cannot be given without.
NEEDS = {"--no-sync ": {"--accumulate": "2"}, "--no-all-reduce ": {"--accumulate": "2"},
         "reshard-after-backward=": {"--accumulate": "2"}, "--reshard-after-backward ": {"--accumulate": "2"},
         "--every ": {"--checkpoint": "c"}, "--keep ": {"--checkpoint": "c"}, "--resume ": {"--checkpoint": "c"},
         "--summon-only ": {"--summon": "s"}, "--with-grads ": {"--summon": "s"}, "--lr-scale ": {"--lr": "1"}}  # fmt: skip
ALWAYS = {"fsdp-plan": {"--ranks": "4"}, "fsdp-run": {"--weights": "w", "--data": "d", "--steps": "2"}}


def reject(tool, words, folder):
    """What a tool says of a file that there is not: it reads its options first."""
    needed = dict(ALWAYS[tool])
    for word in NEEDS:
        if word in " ".join(words) + " ":
            needed |= NEEDS[word]
    if "--mesh" in words or any(word.startswith("hybrid") for word in words):
        del needed["--ranks"]
        needed["--mesh"] = "2x2"
    given = [part for option, value in needed.items() if option not in words for part in (option, value)]
    result = subprocess.run([TOOLS / tool, "none.file", *given, *words], capture_output=True, text=True, timeout=60, cwd=folder)
    assert result.returncode == 1
    return result.stderr


def takes_no_value(tool, option):
    listed = subprocess.run([TOOLS / tool, "--help"], capture_output=True, text=True, timeout=60).stdout
    found = re.search(rf"^ +{option}( .*)$", listed, re.MULTILINE)
    assert found, f"{tool} has no {option}"
    return not re.match(r" \S", found[1])


@pytest.mark.parametrize("theirs, ours", [*rows("migration.md"), *rows("from-pytorch.md")])
def test_row(theirs, ours, tmp_path):
    for tool, words in commands(ours):
        if len(words) == 1 and not takes_no_value(tool, words[0]):
            continue  # named without a value
        for path in ("file", "path", "d", "w"):
            (tmp_path / path).touch()
        error = reject(tool, words, tmp_path)
        assert "none.file: " in error or "expected passes of --load-pass-plugin" in error, f"{tool} {shlex.join(words)}: {error}"


@pytest.mark.parametrize("theirs, ours", [*rows("migration.md")])
def test_row_says_what_to_do(theirs, ours):
    """An option, a function, "always", or why there is nothing."""
    assert [*commands(ours)] or "`fsdp_mlir." in ours or re.match("always|not there, because ", ours)


def test_functions_are_there():
    import fsdp_mlir

    names = set(re.findall(r"fsdp_mlir\.(\w+)", (ROOT / "docs" / "migration.md").read_text()))
    assert {"compile", "capture", "initialize"} <= names <= set(dir(fsdp_mlir))


def test_there_are_rows():
    assert len([*rows("migration.md")]) > 100 and len([*rows("from-pytorch.md")]) > 40
