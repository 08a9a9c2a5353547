"""Every command of docs/tutorial.md runs, in its order, and prints what the page says; the notebook has the same cells."""

import os
import sys

import nbformat
import pytest
from conftest import BUILD, ROOT
from test_tour import missing

sys.path.insert(0, str(ROOT / "scripts"))
import make_notebook


@pytest.mark.covers("Examples")
def test_every_command_of_the_tutorial_runs(tmp_path):
    environment = {**os.environ, "PATH": f"{BUILD.resolve() / 'bin'}:{os.environ['PATH']}", "FSDP_BIN": str(BUILD.resolve() / "bin"), "OMP_NUM_THREADS": "1",
                   "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "python-bindings"), "XDG_CACHE_HOME": str(tmp_path)}
    notebook, expected = make_notebook.read_page()
    make_notebook.execute(notebook, tmp_path, environment)
    for number, blocks in expected.items():
        for block in blocks:
            printed = make_notebook.printed_by(notebook.cells[number])
            assert missing(block, printed) is None, printed
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(sources) >= 8 and sum(source.startswith("%%bash") for source in sources) >= 4 and len(expected) >= 3
    assert {"predicted.json", "measured.json", "trained"} <= {path.name for path in tmp_path.iterdir()}


def test_the_notebook_is_the_page(tmp_path):
    page, _ = make_notebook.read_page()
    stored = nbformat.read(make_notebook.NOTEBOOK, as_version=4)
    assert [(cell.cell_type, cell.source) for cell in stored.cells] == [(cell.cell_type, cell.source) for cell in page.cells], \
        "run scripts/make_notebook.py"
    assert all(cell.execution_count for cell in stored.cells if cell.cell_type == "code")
