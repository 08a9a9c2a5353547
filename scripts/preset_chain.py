"""The model of docs/schedules.md, on which the five presets are drawn and measured: four units in a row, two ranks."""

import pathlib
import sys

import torch
from fixture_models import Chain
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python-bindings"))
import fsdp_mlir  # noqa: E402

PRESETS = ["fsdp1", "fsdp2", "manual-block", "inductor", "list"]
BATCHES = 8


def write_chain(folder: pathlib.Path, width: int, batch: int) -> list[object]:
    """Writes chain.pt2 and data.safetensors, `BATCHES` of f32 [batch, width] for each rank. Returns what fsdp-plan is called with."""
    torch.manual_seed(0)
    torch.export.save(fsdp_mlir.capture(Chain(4, width), (torch.randn(batch, width),)), folder / "chain.pt2")
    save_file({"in_0": torch.randn(2 * BATCHES, batch, width)}, folder / "data.safetensors")
    return [folder / "chain.pt2", "--ranks", "2", "--wrap", r"scope:u\.\d+"]
