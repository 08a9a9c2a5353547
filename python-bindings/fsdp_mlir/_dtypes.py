"""Element types as the kernels return them, and results that they leave out.

What PyTorch says of an operator's results while it traces is not always what the operator returns: on the CPU a
normalisation of bf16 inputs by f32 weights keeps its statistics in f32, and a BatchNorm in bf16 its running ones in bf16.
Eager PyTorch passes on what the kernel has returned, and so does a plan.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

# What PyTorch says of them is right, and to ask takes minutes where sequences are long.
_KNOWN = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default}


def leave_out(graph: torch.fx.Graph) -> None:
    """A result whose place in `output_mask` is False is None, also where PyTorch's shapes have a tensor: batch norm's gradient."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), (tuple, list)):
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        mask = dict(zip(names, node.args), **node.kwargs).get("output_mask")
        if mask is not None:
            node.meta["val"] = tuple(value if wanted else None for value, wanted in zip(node.meta["val"], mask, strict=True))


def correct(graph: torch.fx.Graph) -> None:
    """Asks the kernels wherever an operator with several results mixes floating-point types, and carries on what they say."""
    answers: dict[Any, tuple[torch.dtype | None, ...] | None] = {}
    changed: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or "val" not in node.meta:
            continue
        before = _dtypes(node.meta["val"])
        if not changed.isdisjoint(node.all_input_nodes):
            node.meta["val"] = _evaluate(node)
        if isinstance(node.target, torch._ops.OpOverload) and node.target not in _KNOWN and _is_mixed(node):
            key = _signature(node)
            if key not in answers:
                answers[key] = _ask(node)
            if answers[key] is not None:
                node.meta["val"] = _retype(node.meta["val"], answers[key])
        if _dtypes(node.meta["val"]) != before:
            changed.add(node)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _dtypes(value: Any) -> tuple[torch.dtype | None, ...]:
    return tuple(leaf.dtype if isinstance(leaf, torch.Tensor) else None for leaf in tree_leaves(value))


def _values(node: torch.fx.Node) -> tuple[Any, Any]:
    return torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])


def _is_mixed(node: torch.fx.Node) -> bool:
    results = list(_tensors(node.meta["val"]))
    operands = list(_tensors(_values(node)))
    types = {t.dtype for t in operands + results if t.dtype.is_floating_point}
    return len(results) > 1 and len(types) > 1 and all(t.device.type == "cpu" for t in operands)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else size.node.hint


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(map(_hint, tensor.shape)), tuple(map(_hint, tensor.stride())), tensor.dtype


def _signature(node: torch.fx.Node) -> Any:
    leaves = tree_leaves(_values(node))
    return node.target, tuple(_layout(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves)


def _ask(node: torch.fx.Node) -> tuple[torch.dtype | None, ...] | None:
    """The types that the kernel returns for zeros of the node's sizes; None if it can't be called like that."""

    def zeros(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            sizes, strides, dtype = _layout(value)
            return torch.empty_strided(sizes, strides, dtype=dtype).zero_()
        return _hint(value) if isinstance(value, torch.SymInt) else value

    try:
        with torch.no_grad(), torch._subclasses.fake_tensor.unset_fake_temporarily():
            args, kwargs = tree_map(zeros, _values(node))
            return _dtypes(node.target(*args, **kwargs))
    except Exception:  # the runtime compares types once more
        return None


def _retype(value: Any, dtypes: tuple[torch.dtype | None, ...]) -> Any:
    """The same tensors without data, of these types."""
    rest = iter(dtypes)

    def convert(leaf: Any) -> Any:
        dtype = next(rest, None)
        if not isinstance(leaf, torch.Tensor) or dtype is None or leaf.dtype == dtype:
            return leaf
        with leaf.fake_mode:
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=dtype, device=leaf.device)

    return tree_map(convert, value)


def _evaluate(node: torch.fx.Node) -> Any:
    """What PyTorch says of the results for operands of the types they have now."""
    args, kwargs = _values(node)
    if node.target is operator.getitem:
        return args[0][args[1]]
    mode = next(t.fake_mode for t in _tensors((args, kwargs)))
    with mode:
        return node.target(*args, **kwargs)
