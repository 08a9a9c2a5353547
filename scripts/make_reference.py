#!/usr/bin/env python3
"""Write docs/reference/: the descriptions of all operations, passes and options, from their .td files, and the help of programs.

`test/EndToEnd/test_reference.py` holds that the pages are current.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gcc"
LLVM = Path("/usr/lib/llvm-22")
# The help of these is a page.
TOOLS = {"fsdp-plan.md": "fsdp-plan", "fsdp-run.md": "fsdp-run", "fsdp-ckpt.md": "fsdp-ckpt"}
# page: (title, generator, file under include/fsdp)
PAGES = {
    "aten.md": (None, ["-gen-dialect-doc", "-dialect=aten"], "Dialect/ATen/IR/ATenOps.td"),
    "fsdp.md": (None, ["-gen-dialect-doc", "-dialect=fsdp"], "Dialect/FSDP/IR/FSDPAsyncOps.td"),
    "plan.md": (None, ["-gen-dialect-doc", "-dialect=plan"], "Dialect/Plan/IR/PlanCommands.td"),
    "aten-passes.md": ("Passes of the aten level", ["-gen-pass-doc"], "Dialect/ATen/Transforms/Passes.td"),
    "fsdp-passes.md": ("Passes of the logical and the scheduled level", ["-gen-pass-doc"], "Dialect/FSDP/Transforms/Passes.td"),
    "plan-passes.md": ("Passes of the plan level", ["-gen-pass-doc"], "Dialect/Plan/Transforms/Passes.td"),
    "conversion.md": ("From the scheduled level to the plan level", ["-gen-pass-doc"], "Conversion/FSDPToPlan/Passes.td"),
    "proof.md": ("Both ends of the proof", ["-gen-pass-doc"], "Pipelines/Passes.td"),
    "options.md": ("Options of fsdp-plan and --fsdp-pipeline", ["-gen-pass-doc"], "Dialect/FSDP/Transforms/Options/Pipeline.td"),
}


def make(page: str) -> str:
    """The text of a page. Raises CalledProcessError if mlir-tblgen rejects the file."""
    if page in TOOLS:
        return f"# {TOOLS[page]}\n\n```\n{help_of(TOOLS[page])}\n```\n"
    title, generator, source = PAGES[page]
    command = [LLVM / "bin/mlir-tblgen", *generator, "-I", ROOT / "include", "-I", LLVM / "include", ROOT / "include/fsdp" / source]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return (f"# {title}\n\n" if title else "") + text.strip() + "\n"


def help_of(*command: str) -> str:
    """What a program of the build folder says of itself, in lines of 100 columns."""
    shown = subprocess.run([BUILD / "bin" / command[0], *command[1:], "--help"], check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    return "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())


def main() -> None:
    folder = ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    index = "# Reference\n\nGenerated from the `.td` files and the programs by `scripts/make_reference.py`.\n\n"
    for page in (*PAGES, *TOOLS):
        text = make(page)
        (folder / page).write_text(text)
        index += f"* [{next(line for line in text.splitlines() if line.startswith('# '))[2:]}]({page})\n"
    (folder / "README.md").write_text(index)


if __name__ == "__main__":
    main()
