"""Files that sources and pages name are there, and so is all code that CONTRIBUTING.md names."""

import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = re.compile(
    r"(?<![\w/.}-])(?:benchmarks|cmake|docs|examples|fuzz|hardware|include|lib|schema|scripts|test|tools)/[\w./-]+\."
    r"(?:cpp|fbs|h|inc|jsonl|md|mlir|py|sh|td|toml|txt)\b")
CODE = re.compile(r"`(?:\w+::)*(\w+(?:\.(?:cpp|h|md|mlir|py|td|toml))?)`")
PLACEHOLDER = re.compile("NAME|ROOM|VERBNOUN|VerbNoun|verb-noun")


@functools.cache
def read_tracked():
    """The text of each tracked file that has one."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    texts = {}
    for name in filter(None, names):
        if not name.startswith(("fuzz/corpus/", "test/fixtures/")) and (ROOT / name).is_file():
            texts[ROOT / name] = (ROOT / name).read_text(errors="ignore")
    return texts


def find_missing_files(file, text):
    places = ROOT, file.parent, ROOT / "docs"
    return [name for name in PATH.findall(text) if not PLACEHOLDER.search(name) and not any((place / name).exists() for place in places)]


def find_missing_code(text):
    """What is neither the name of a file nor a word of a source."""
    sources = (content for file, content in read_tracked().items() if file.suffix != ".md" and file != pathlib.Path(__file__).resolve())
    known = {word for content in sources for word in re.findall(r"\w+", content)} | {file.name for file in read_tracked()}
    return [name for name in CODE.findall(text) if not PLACEHOLDER.search(name) and name not in known]


# A comment that leads to a file that has moved is worse than none.
def test_files_are_where_they_are_said_to_be():
    assert [f"{file.relative_to(ROOT)} names {name}" for file, text in read_tracked().items() for name in find_missing_files(file, text)] == []


def test_the_recipes_name_code_that_is_there():
    assert find_missing_code((ROOT / "CONTRIBUTING.md").read_text()) == []


def test_what_has_moved_is_found():
    moved = "lib/" + "Guard.cpp"
    assert find_missing_files(ROOT / "lib" / "A.cpp", f"// see {moved}, and docs/operators.md") == [moved]
    assert find_missing_code("`Guard.cpp`, `Moved.cpp`, `Program::prepare`, `prepareAllOfThem`") == ["Moved.cpp", "prepareAllOfThem"]
