#!/usr/bin/env python3
"""Writes docs/notebook.ipynb: the cells of docs/tutorial.md, executed, with what they print.

    .venv/bin/python scripts/make_notebook.py       with what build/gcc has

`test/EndToEnd/test_tutorial.py` executes them too, and compares what is printed with the page.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import nbclient
import nbformat
from nbformat import v4

ROOT = Path(__file__).resolve().parents[1]
PAGE, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "docs" / "notebook.ipynb"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def read_page() -> tuple[nbformat.NotebookNode, dict[int, list[str]]]:
    """The notebook of the page, and by the number of a cell, what the page says that it prints."""
    text = PAGE.read_text()
    cells, printed, place = [], {}, 0
    for block in BLOCK.finditer(text):
        if prose := text[place : block.start()].strip():
            cells.append(v4.new_markdown_cell(prose, id=f"cell-{len(cells)}"))
        kind, source = block.groups()
        if kind:
            cells.append(v4.new_code_cell(("%%bash\n" if kind == "sh" else "") + source.rstrip(), id=f"cell-{len(cells)}"))
        else:
            last = max(number for number, cell in enumerate(cells) if cell.cell_type == "code")
            printed.setdefault(last, []).append(source)
        place = block.end()
    if rest := text[place:].strip():
        cells.append(v4.new_markdown_cell(rest, id=f"cell-{len(cells)}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}), printed


def execute(notebook: nbformat.NotebookNode, folder: Path, environment: dict[str, str]) -> None:
    """Fills in the outputs. Raises nbclient's CellExecutionError where a cell fails."""
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", coalesce_streams=True, record_timing=False,
                                     resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)


def printed_by(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def main() -> None:
    notebook, _ = read_page()
    environment = {**os.environ, "PATH": f"{ROOT / 'build/gcc/bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "python-bindings"),
                   "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder), environment | {"XDG_CACHE_HOME": folder})
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                if "text" in output:
                    output["text"] = output["text"].replace(folder, ".")
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
