"""Masks of attention that are constants: the causal one, and those that hide nothing.

A decoder of transformers skips its mask where that only says "causal", but not while it is traced: a graph would keep a tensor
of [batch, 1, length, length], compute with what it hides, and on a GPU be left to the slowest of PyTorch's kernels.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_CAUSAL = {_ATTENTION: 4, _BACKWARD: 7}  # the place of is_causal
_MOST_ELEMENTS = 1 << 28  # of one tensor on the way to a mask


class _Unknown(Exception):
    """A value that depends on inputs, parameters, buffers or chance, or is too large to be computed here."""


def recognize(graph: torch.fx.Graph) -> None:
    """Attention with a mask that is a constant, and says what `is_causal` or no mask at all says, is called like that. The result is the
    same: what a mask of -inf hides has the weight 0. Constants are nodes that depend on no placeholder and draw no random numbers."""
    kinds: dict[torch.fx.Node, bool | None] = {}
    values: dict[torch.fx.Node, Any] = {}
    for target, place in _CAUSAL.items():
        for node in graph.find_nodes(op="call_function", target=target):
            mask = node.kwargs.get("attn_mask")
            if not isinstance(mask, torch.fx.Node):
                continue
            if mask not in kinds:
                kinds[mask] = _kind(mask, values)
            if kinds[mask] is None:
                continue
            defaults = [argument.default_value for argument in target._schema.arguments]
            args = [*node.args, *defaults[len(node.args) : place + 1]]
            args[place] = kinds[mask] or args[place]
            node.args = tuple(args)
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "attn_mask"}


def _kind(mask: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> bool | None:
    """True: causal, of as many keys as queries. False: it hides nothing. None: it is something else, or not a constant."""
    try:
        with torch.no_grad(), torch._subclasses.fake_tensor.unset_fake_temporarily():
            value = _evaluate(mask, values)
            if not isinstance(value, torch.Tensor) or value.dim() < 2 or not value.is_floating_point():
                return None
            rows, columns = value.shape[-2:]
            hidden = value == (-torch.inf if (value == -torch.inf).any() else torch.finfo(value.dtype).min)
            if not (hidden | (value == 0)).all():
                return None
            if not hidden.any():
                return False
            triangle = torch.ones(rows, columns, dtype=torch.bool).triu(1)
            return True if rows == columns and (hidden == triangle).all() else None
    except _Unknown:
        return None


def _evaluate(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    """What the node has in every step."""
    pending = [node]
    while pending:
        last = pending[-1]
        if last in values:
            pending.pop()
            continue
        _check(last)
        missing = [each for each in last.all_input_nodes if each not in values]
        if missing:
            pending += missing
            continue
        args, kwargs = torch.fx.map_arg((last.args, last.kwargs), values.__getitem__)
        try:
            values[last] = last.target(*args, **kwargs)
        except Exception as error:  # what fails here fails, or does not, when the step runs
            raise _Unknown from error
    return values[node]


def _check(node: torch.fx.Node) -> None:
    target, value = node.target, node.meta.get("val")
    is_known = target is operator.getitem or (
        isinstance(target, torch._ops.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and "empty" not in target._schema.name
    )
    is_small = not isinstance(value, torch.Tensor) or (all(isinstance(size, int) for size in value.shape) and value.numel() <= _MOST_ELEMENTS)
    if node.op != "call_function" or not is_known or not is_small:
        raise _Unknown
