"""The commands of fsdp-mlir: where they are, and how they are started.

A package of its own, which a wheel puts the programs into: `import fsdp_mlir` imports PyTorch, which takes longer than `fsdp-plan`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parents[1] / "build" / "gcc" / "bin"


class ToolError(RuntimeError):
    """A command is not there, or is not one for this PyTorch. The message says where it was expected and what to do."""


def find(name: str, *, on_path: bool = True) -> Path:
    """The program `name`, such as "fsdp-plan": in the folder that the environment variable FSDP_BIN names; if it is not set, in this
    package (a wheel), on the PATH, or in build/gcc/bin of a checkout, in this order. Raises ToolError."""
    chosen = os.environ.get("FSDP_BIN")
    if chosen:
        if (program := Path(chosen).resolve() / name).is_file():
            return program
        raise ToolError(f"{name}: expected it in {chosen}, the folder of FSDP_BIN, found none; correct FSDP_BIN, or unset it")
    found = shutil.which(name) if on_path else None
    for program in (_HERE / "bin" / name, *([Path(found)] if found else []), _CHECKOUT / name):
        if program.is_file():
            return program
    raise ToolError(f"{name}: expected it in this Python's fsdp_mlir_tools/bin, on the PATH or in {_CHECKOUT}, found none; "
                    "install the wheel of fsdp-mlir, or build it and name the folder of the tools in FSDP_BIN")  # fmt: skip


def check_torch() -> None:
    """Raises ToolError if this package's programs were linked with another version of PyTorch than this Python has."""
    record = _HERE / "torch-version.txt"  # a wheel has it
    if not record.exists():
        return
    built = record.read_text().strip()
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    version = built.partition("+")[0]
    if found.partition("+")[0] != version:
        raise ToolError(f"fsdp-mlir: expected torch {built}, which its runtime was built with, found {found}; "
                        f"install torch=={version}, or build the wheel again with this one")  # fmt: skip


def environment() -> dict[str, str]:
    """The environment that a program is started in. Where PyTorch is installed elsewhere than beside this package, its libraries
    are named: programs look for them beside it."""
    variables = dict(os.environ)
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or (_HERE.parent / "torch" / "lib").is_dir() or not (_HERE / "bin").is_dir():
        return variables
    packages = Path(torch.origin).parents[1]
    folders = [packages / "torch" / "lib", packages / "nvidia" / "cu13" / "lib", packages / "nvidia" / "nccl" / "lib"]
    before = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, folders), *([before] if before else [])])
    return variables


def main() -> None:
    """The commands of a wheel: becomes the program that has the name of this one."""
    name = Path(sys.argv[0]).name
    try:
        if name == "fsdp-run":
            check_torch()
        program = find(name, on_path=False)  # what the PATH has is this command
        os.execve(program, [name, *sys.argv[1:]], environment())
    except (ToolError, OSError) as error:
        sys.exit(f"error: {error}")
