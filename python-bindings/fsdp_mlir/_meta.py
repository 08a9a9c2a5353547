"""Models without content: what torch.export wants of tensors on the meta device, and what cannot do without content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fsdp_mlir.errors import CaptureError


def is_empty(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


@contextlib.contextmanager
def on_cpu(module: torch.nn.Module, args: Any) -> Iterator[Any]:
    """Gives `args`, and for a while the module, fake tensors of the CPU for those of the meta device.

    Raises CaptureError for a buffer whose content no checkpoint can supply.
    """
    for path, part in module.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and is_empty(buffer) and name in part._non_persistent_buffers_set:
                raise CaptureError(
                    f"buffer `{f'{path}.{name}' if path else name}` has no content, and no checkpoint has it (persistent=False); "
                    "make it on the CPU before capture"
                )
    holders = [(h, k, t) for m in module.modules() for h in (m._parameters, m._buffers) for k, t in h.items() if _is_meta(t)]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_meta(tensor):
            return tensor
        if id(tensor) not in fakes:
            with mode:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            fakes[id(tensor)] = made
        return fakes[id(tensor)]

    try:
        for holder, key, tensor in holders:
            holder[key] = fake(tensor)
        yield pytree.tree_map_only(torch.Tensor, fake, args)
    finally:
        for holder, key, tensor in holders:
            holder[key] = tensor


def _is_meta(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_meta and not isinstance(tensor, FakeTensor)
