"""Steps for GPUs, captured where there is none: what only GPUs have whole stays whole."""

import pytest
import torch
from torch import nn

import fsdp_mlir
from fsdp_mlir import CaptureError
from fsdp_mlir._demo import Llama

aten = torch.ops.aten
IDS = torch.arange(32).view(2, 16)


def make(dtype: torch.dtype = torch.float32) -> Llama:
    torch.manual_seed(0)
    return Llama(32, 48, 2, 2, 64, 16).to(dtype)


def count(program, operator) -> int:
    return len(program.graph.find_nodes(op="call_function", target=operator.default))


# save() compares the step with eager PyTorch: loss, gradients and values.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rms_norm_stays_whole_for_gpus(dtype, tmp_path):
    program = fsdp_mlir.capture(make(dtype), (), {"ids": IDS}, device="cuda")
    assert count(program, aten._fused_rms_norm) == count(program, aten._fused_rms_norm_backward) == 5
    assert not count(program, aten.rsqrt)
    fsdp_mlir.save(program, tmp_path / "m.pt2")
    shapes = {node.meta["val"][1].dtype for node in program.graph.find_nodes(op="call_function", target=aten._fused_rms_norm.default)}
    assert shapes == {torch.float64 if dtype == torch.float64 else torch.float32}
    parts = fsdp_mlir.capture(make(dtype), (), {"ids": IDS})
    assert not count(parts, aten._fused_rms_norm) and count(parts, aten.rsqrt) == 5


class Norms(nn.Module):
    """A norm without a weight, over two dimensions, one that is fixed, and one whose weight has another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.fixed, self.other = nn.RMSNorm((4, 8), elementwise_affine=False), nn.RMSNorm(8, eps=1e-3), nn.RMSNorm(8, dtype=torch.float64)
        self.fixed.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.fixed(self.plain(x * self.scale))).square().mean()


# A GPU has a norm whole where weight and input are of one dtype, as PyTorch's rms_norm asks.
@pytest.mark.filterwarnings("ignore")
def test_norms_of_all_kinds(tmp_path):
    program = fsdp_mlir.capture(Norms(), (torch.randn(2, 4, 8),), device="cuda")
    assert count(program, aten._fused_rms_norm) == 2 and count(program, aten.rsqrt) == 1
    fsdp_mlir.save(program, tmp_path / "m.pt2")


# FSDP's policies cast for a GPU as for a CPU.
def test_norms_of_mixed_precision(tmp_path):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    program = fsdp_mlir.capture(make(), (), {"ids": IDS}, device="cuda", mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    assert count(program, aten._fused_rms_norm) == 5
    fsdp_mlir.save(program, tmp_path / "m.pt2")


def test_other_devices_are_rejected():
    with pytest.raises(CaptureError, match="device: expected 'cpu' or 'cuda', found 'tpu'"):
        fsdp_mlir.capture(make(), (), {"ids": IDS}, device="tpu")
