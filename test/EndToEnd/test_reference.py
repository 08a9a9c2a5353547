"""docs/reference/ is what the .td files and the programs say."""

import re

import pytest
from conftest import ROOT  # puts scripts/ on the path

import make_reference


@pytest.mark.covers("API")
@pytest.mark.parametrize("page", [*make_reference.PAGES, *make_reference.TOOLS])
def test_page_is_current(page):
    assert (ROOT / "docs" / "reference" / page).read_text() == make_reference.make(page), "run scripts/make_reference.py"


def test_there_are_no_other_pages():
    assert {path.name for path in (ROOT / "docs" / "reference").iterdir()} == {*make_reference.PAGES, *make_reference.TOOLS, "README.md"}


# Who adds a pass looks for its place.
def test_passes_stand_in_alphabetical_order():
    for path in sorted((ROOT / "include").rglob("Passes.td")):
        names = re.findall(r"^def (\w+) : Pass<", path.read_text(), re.MULTILINE)
        assert names == sorted(names), path
