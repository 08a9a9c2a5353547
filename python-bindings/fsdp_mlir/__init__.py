"""fsdp-mlir: compile a PyTorch training step into a sharded, scheduled, memory-planned program."""

import importlib
from typing import TYPE_CHECKING, Any

from fsdp_mlir.errors import CaptureError, CaptureWarning, FSDPError, PlanError

if TYPE_CHECKING:
    from fsdp_mlir._ablate import Ablation, ablate
    from fsdp_mlir._capture import capture, save
    from fsdp_mlir._compare import Comparison, compare
    from fsdp_mlir._compile import compile
    from fsdp_mlir._fully_sharded import fully_sharded
    from fsdp_mlir._initialize import initialize
    from fsdp_mlir._options import options
    from fsdp_mlir._plan import Plan
    from fsdp_mlir._trainer import Trainer
    from fsdp_mlir._verify import verify

__all__ = ["Ablation", "CaptureError", "CaptureWarning", "Comparison", "FSDPError", "Plan", "PlanError", "Trainer", "ablate", "capture", "compare", "compile", "fully_sharded", "initialize", "options", "save", "verify"]

_HOMES = {"Ablation": "_ablate", "ablate": "_ablate", "capture": "_capture", "save": "_capture", "Comparison": "_compare", "compare": "_compare", "compile": "_compile",
          "fully_sharded": "_fully_sharded", "initialize": "_initialize", "options": "_options", "Plan": "_plan", "Trainer": "_trainer", "verify": "_verify"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports it when it is first asked for: what PyTorch exports graphs with takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
