"""Every error text that docs/faq.md explains is one of the sources."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("lib", "tools", "python-bindings")
TEXTS = [m[1] for m in re.finditer(r"^\| `(.+?)` \|", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)]


@pytest.fixture(scope="module")
def literals():
    """All string literals of the sources, as they are said: those in a row joined, what is put in between them left out."""
    joined = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cpp", ".h", ".py"):
                text = path.read_text()
                joined.append(re.sub(r'"\s*\n\s*f?"', "", text).replace('\\"', '"'))
    return "\n".join(joined)


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_one_of_the_sources(text, literals):
    for part in re.split(r"\s*\.\.\.\s*", text):
        assert not part or part in literals, part


def test_there_are_texts():
    assert len(TEXTS) >= 20
