"""The extension module, which is compiled (python-bindings/runtime) and imported when it is needed: capture does without."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import fsdp_mlir
import fsdp_mlir_tools
import torch  # noqa: F401  ahead of the module, which finds its libraries where torch has loaded them
from fsdp_mlir.errors import FSDPError


def libraries() -> Path:
    """The folder of libfsdp_cuda.so and libfsdp_nccl.so, of the build that the extension module is of."""
    folder = Path(str(runtime().__file__)).parent
    return Path(fsdp_mlir_tools.__file__).parent / "lib" if folder == Path(__file__).parent else folder.parents[1] / "lib"


def runtime() -> ModuleType:
    """`fsdp_mlir._runtime`. Raises FSDPError where it was not built, or for another torch.

    An installed package has it beside this file, a source tree in the folder `python` of its build: $FSDP_BUILD, or build/gcc.
    """
    built = Path(os.environ.get("FSDP_BUILD", Path(__file__).parents[2] / "build" / "gcc")) / "python" / "fsdp_mlir"
    if built.is_dir() and str(built) not in fsdp_mlir.__path__:
        fsdp_mlir.__path__.append(str(built))
    try:
        fsdp_mlir_tools.check_torch()
        return importlib.import_module("fsdp_mlir._runtime")
    except fsdp_mlir_tools.ToolError as error:
        raise FSDPError(str(error)) from None
    except ImportError as error:
        raise FSDPError(f"expected the extension module fsdp_mlir._runtime, found none that loads ({error}); build the target "
                        f"fsdp-python-runtime with the torch that this Python has") from error  # fmt: skip
