"""fsdp-mlir: compile a PyTorch training step into a sharded, scheduled, memory-planned program."""

from fsdp_mlir.capture import capture, save
from fsdp_mlir.errors import CaptureError, CaptureWarning, FSDPError, PlanError
from fsdp_mlir._ablate import Ablation, ablate
from fsdp_mlir._compare import Comparison, compare
from fsdp_mlir._compile import compile
from fsdp_mlir._fully_sharded import fully_sharded
from fsdp_mlir._initialize import initialize
from fsdp_mlir._options import options
from fsdp_mlir._plan import Plan
from fsdp_mlir._trainer import Trainer
from fsdp_mlir._verify import verify

__all__ = ["Ablation", "CaptureError", "CaptureWarning", "Comparison", "FSDPError", "Plan", "PlanError", "Trainer", "ablate", "capture", "compare", "compile", "fully_sharded", "initialize", "options", "save", "verify"]
