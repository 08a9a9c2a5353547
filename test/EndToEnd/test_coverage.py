"""docs/fsdp-coverage.md is what docs/fsdp-coverage.toml and the tests say, and its script notices what does not fit."""

import subprocess
import sys

import make_coverage
import pytest
from conftest import ROOT

ROW = {"FSDP1": {"f, g": "an option"}}


def test_page_is_current():
    result = subprocess.run([sys.executable, ROOT / "scripts" / "make_coverage.py", "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_test_of_either_name_is_enough():
    make_coverage.check(ROW, {"g": ["test_g"]})
    assert "| `f`, `g` | an option | `test_g` |" in make_coverage.page(ROW, {"g": ["test_g"]})


@pytest.mark.parametrize("rows, tests, sentence", [
    (ROW, {}, "FSDP1: f, g: expected a test that names the row, or a reason; found neither"),
    (ROW, {"g": ["t"], "h": ["a", "b"]}, "a, b: there is no row h"),
    ({"FSDP1": {"f": {"here": "nothing", "missing": "an option"}}}, {"f": ["t"]},
     "FSDP1: f: has a test, but is called missing: say what it is here"),
    ({"FSDP1": {"f": "x"}, "FSDP2": {"f": "y"}}, {"f": ["t"]}, "f: there are two rows of this name"),
])
def test_what_does_not_fit_is_said(rows, tests, sentence):
    with pytest.raises(make_coverage.Wrong) as caught:
        make_coverage.check(rows, tests)
    assert str(caught.value) == sentence


def test_markers_are_found(tmp_path):
    python, unit, lit = tmp_path / "test_a.py", tmp_path / "A.cpp", tmp_path / "a.mlir"
    python.write_text("@pytest.mark.covers('f', 'g')\n@other\ndef test_x(): pass\ndef test_y(): pass\n")
    unit.write_text("// covers: f, g\n// covers: h\n// why\nTEST_F(Suite, X) {}\nTEST(Suite, Y) {}\n")
    lit.write_text("// covers: f\n// RUN: fsdp-opt %s\n\n// covers: g\n")
    assert make_coverage.python_markers(python) == {"test_x": ["f", "g"]}
    assert make_coverage.comment_markers(unit) == {"Suite.X": ["f", "g", "h"]}
    assert make_coverage.comment_markers(lit) == {"": ["f", "g"]}


@pytest.mark.parametrize("name, text", [
    ("test_a.py", "class T:\n    @pytest.mark.covers('f')\n    def test_x(self): pass\n"),
    ("test_a.py", "@pytest.mark.covers('f')\ndef helper(): pass\n"),
    ("A.cpp", "// covers: f\n\nTEST(Suite, X) {}\n"),
    ("a.mlir", "// covers: f\n"),
])
def test_a_marker_without_a_test_is_noticed(name, text, tmp_path, monkeypatch):
    monkeypatch.setattr(make_coverage, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    read = make_coverage.python_markers if name.endswith(".py") else make_coverage.comment_markers
    with pytest.raises(make_coverage.Wrong, match=name):
        read(tmp_path / name)
