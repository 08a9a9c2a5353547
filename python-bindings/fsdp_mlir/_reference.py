"""The model that a plan was made of, for comparisons of the plan with eager PyTorch. It holds no weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from fsdp_mlir import _compiled, _step, _verify
from fsdp_mlir._training import Results


@dataclass(frozen=True)
class Reference:
    program: _verify.TrainingProgram
    """Without its parameters, buffers and module."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    """Of the example call, positional ones and by name."""
    modes: dict[str, bool]
    """Of each module of the model, whether it was in train mode."""

    @classmethod
    def of(cls, program: _verify.TrainingProgram) -> Reference:
        """Takes what capture() has returned, which afterwards keeps neither the module nor its weights."""
        module, args, kwargs = program.source
        with _compiled.uncompiled(module) as original:
            modes = {name: part.training for name, part in original.named_modules()}
        del program.source
        program._state_dict = {}
        return cls(program, (args, kwargs), modes)

    def batch(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """The arguments of the module with these inputs of the plan in the places of the example's."""
        leaves, spec = pytree.tree_flatten(self.arguments)
        names = _step.input_names(_step.Step(module, None, ()), spec)
        given = dict(zip(self.program.graph_module.meta["custom"]["inputs"], tensors, strict=True))
        return pytree.tree_unflatten([_like(leaf, given[name]) if name in given else leaf for name, leaf in zip(names, leaves)], spec)

    def eager(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Results:
        """The loss, gradients and buffers of one step of the module, which it leaves as it was, on these inputs of the plan."""
        with torch.inference_mode(False), _compiled.eager(module) as original, self.in_mode(original):
            return _verify._eager(original, self.program, *self.batch(original, tensors))

    @contextlib.contextmanager
    def in_mode(self, module: torch.nn.Module) -> Iterator[None]:
        """As when it was captured."""
        before = {part: part.training for part in module.modules()}
        try:
            for name, part in module.named_modules():
                part.training = self.modes.get(name, part.training)
            yield
        finally:
            for part, mode in before.items():
                part.training = mode


def _like(leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(leaf.requires_grad)
