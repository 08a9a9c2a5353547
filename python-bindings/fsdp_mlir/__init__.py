"""fsdp-mlir: compile a PyTorch training step into a sharded, scheduled, memory-planned program."""

from fsdp_mlir.capture import capture, save
from fsdp_mlir.errors import CaptureError, CaptureWarning
from fsdp_mlir._initialize import initialize
from fsdp_mlir._verify import verify

__all__ = ["CaptureError", "CaptureWarning", "capture", "initialize", "save", "verify"]
