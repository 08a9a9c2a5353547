"""Operators that PyTorch runs whole on a GPU and in parts on a CPU: kept whole in the step of a GPU, wherever it is captured.

In the graph they are PyTorch's own. While it is traced they have names of ours, since PyTorch takes its own apart for a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import _fused_rms_norm_backward

aten = torch.ops.aten

_library = torch.library.Library("fsdp_mlir_gpu", "DEF")
_library.define("rms_norm(Tensor x, int[] shape, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_library.define("rms_norm_backward(Tensor gradient, Tensor x, int[] shape, Tensor rstd, Tensor? weight, bool[2] mask) -> (Tensor, Tensor)")
_own = torch.ops.fsdp_mlir_gpu

_cpu = torch.library.Library("aten", "IMPL")
_cpu.impl("_fused_rms_norm_backward", _fused_rms_norm_backward, "CPU")  # which has none: a captured step is compared with eager PyTorch on a CPU


@torch.library.register_fake("fsdp_mlir_gpu::rms_norm", lib=_library)
def _(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    kept = x.dim() - len(shape)
    statistics = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape), x.new_empty([*x.shape[:kept], *[1] * len(shape)], dtype=statistics)


@torch.library.register_fake("fsdp_mlir_gpu::rms_norm_backward", lib=_library)
def _(gradient: Tensor, x: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(shape)


class _RMSNorm(torch.autograd.Function):
    """As derivatives.yaml differentiates `_fused_rms_norm`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> Tensor:
        out, rstd = _own.rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, rstd, weight)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, rstd, weight = ctx.saved_tensors
        of_weight = ctx.needs_input_grad[2]
        grads = _own.rms_norm_backward(gradient, x, ctx.shape, rstd, weight, [ctx.needs_input_grad[0], of_weight])
        return grads[0] if ctx.needs_input_grad[0] else None, None, grads[1] if of_weight else None, None


def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Whole where a GPU has it whole (ATen, layer_norm.cpp, rms_norm_symint): with a weight of the same dtype."""
    if torch.is_autocast_enabled("cpu") or not x.is_floating_point() or (weight is not None and weight.dtype != x.dtype):
        return torch.rms_norm(x, shape, weight, eps)
    return _RMSNorm.apply(x, shape, weight, eps)


FORWARD = {aten.rms_norm.default: _rms_norm}
"""What takes the place of operators of an exported forward (see _decompose.rewrite_forward)."""

_NAMES = {_own.rms_norm.default: aten._fused_rms_norm.default, _own.rms_norm_backward.default: aten._fused_rms_norm_backward.default}


def rename(graph: torch.fx.Graph) -> None:
    """Gives what was traced under names of ours the names of PyTorch."""
    for node in graph.nodes:
        node.target = _NAMES.get(node.target, node.target)
