"""Custom autograd.Functions: operators of their own while the forward is exported, themselves again once it is differentiated.

torch.export by itself would keep the operations of a Function's forward, and those would then be differentiated.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from fsdp_mlir.errors import CaptureError

_apply = vars(torch.autograd.Function)["apply"].__func__


@dataclasses.dataclass
class _Operator:
    """A Function with those of its arguments that are no tensors; it takes the tensors and returns those of the result."""

    function: type
    leaves: list[Any]  # of the arguments; Tensor where there is one
    arguments: pytree.TreeSpec
    overload: Any = None
    results: list[Tensor] = dataclasses.field(default_factory=list)  # what the latest call returns: sizes, strides, types

    def is_call_of(self, function: type, leaves: list[Any], arguments: pytree.TreeSpec) -> bool:
        """By their values numbers and strings are the same, all else by identity."""
        plain = (bool, int, float, str)
        same = all(a is b or type(a) is type(b) and isinstance(a, plain) and a == b for a, b in zip(self.leaves, leaves))
        return self.function is function and self.arguments == arguments and same

    def apply(self, tensors: list[Tensor]) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if leaf is Tensor else leaf for leaf in self.leaves]
        return _apply(self.function, *pytree.tree_unflatten(leaves, self.arguments))


class Functions:
    """The operators that stand for calls of autograd.Functions; each call with the same constants has the same one."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library = library
        self._operators: list[_Operator] = []

    def call(self, where: str, function: type, args: tuple[Any, ...]) -> Any:
        """Function.apply(*args) in a forward that is being exported; `where` names the module.

        Raises CaptureError for a Function that writes to its arguments.
        """
        leaves, arguments = pytree.tree_flatten(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        operator = self._operator(function, [Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves], arguments)
        versions = [tensor._version for tensor in tensors]
        with disable_proxy_modes_tracing():
            results, spec = pytree.tree_flatten(operator.apply(tensors))
        if [tensor._version for tensor in tensors] != versions:
            raise CaptureError(
                f"`{function.__qualname__}`, a custom autograd.Function in {where}, writes to its arguments, which capture cannot "
                "keep; write to a clone"
            )
        operator.results = [result for result in results if isinstance(result, Tensor)]
        traced = iter(operator.overload(tensors))
        return pytree.tree_unflatten([next(traced) if isinstance(r, Tensor) else r for r in results], spec)

    def table(self) -> dict[Any, Callable[..., Any]]:
        """Each operator, and the Function that it stands for."""
        return {operator.overload: _replay(operator) for operator in self._operators}

    def _operator(self, function: type, leaves: list[Any], arguments: pytree.TreeSpec) -> _Operator:
        for operator in self._operators:
            if operator.is_call_of(function, leaves, arguments):
                return operator
        operator = _Operator(function, leaves, arguments)
        name = f"{self._library.ns}::{function.__name__}_{len(self._operators)}"
        self._library.define(f"{name.partition('::')[2]}(Tensor[] tensors) -> Tensor[]")

        def allocate(tensors: list[Tensor]) -> list[Tensor]:
            return [torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=r.device) for r in operator.results]

        torch.library.register_fake(name, allocate, lib=self._library)
        operator.overload = getattr(getattr(torch.ops, self._library.ns), name.partition("::")[2]).default
        self._operators.append(operator)
        return operator


def _replay(operator: _Operator) -> Callable[..., Any]:
    def replay(tensors: list[Tensor]) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(operator.apply(tensors)) if isinstance(leaf, Tensor)]

    return replay


@contextlib.contextmanager
def functions() -> Iterator[Functions]:
    """The operators live as long as this is entered."""
    library = torch.library.Library("fsdp_mlir", "FRAGMENT")
    try:
        yield Functions(library)
    finally:
        library._destroy()
