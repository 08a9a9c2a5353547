"""Operators that a plan does not run, in terms of those that it does.

Some are replaced in the exported forward graph, before it is differentiated: autograd then sees plain operations. Others,
which only autograd or functionalization makes, are replaced as the joint graph is traced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten

Rules = dict[Any, Callable[..., Any]]


def rewrite_forward(module: torch.fx.GraphModule, functions: Rules) -> None:
    """Replaces the operators of FORWARD and `functions` in `module` and in the regions (autocast, no_grad) inside it."""
    table = FORWARD | _of_libraries() | functions
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.target = table.get(node.target, node.target)
            part.recompile()


def _of_libraries() -> dict[Any, Callable[..., Any]]:
    """Operators that Python libraries register, if they are loaded."""
    found = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return {} if found is None else {found.default: grouped_mm}


def _outside_autocast(function: Callable[..., Any], in_f32: bool = False) -> Callable[..., Any]:
    """Under autocast, computed as the operator that `function` stands for: what that is made of, PyTorch does not cast. `in_f32`: the
    operator is on autocast's list of those that are computed in f32."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        if in_f32:
            args, kwargs = pytree.tree_map_only(Tensor, _widen, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return run


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() and x.dtype.itemsize < 4 else x


_in_f32 = functools.partial(_outside_autocast, in_f32=True)


@_outside_autocast
def grouped_mm(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """[S, K] x [E, K, N] -> [S, N]: rows offs[e - 1] to offs[e] times weight[e], zeros after the last.

    One product for each expert with all rows, of which the others are zeroed: which rows are whose is known only in the step.
    """
    row = torch.arange(rows.shape[0], device=rows.device)
    before_end = row < offs[:, None]
    start = torch.nn.functional.pad(offs[:-1], (1, 0))
    mine = before_end & (row >= start[:, None])
    return torch.bmm(torch.where(mine[:, :, None], rows, 0), weight).sum(0)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Only the first result is computed; the others serve PyTorch's own backward."""
    bags = offsets.shape[0] - bool(include_last_offset)
    starts = indices.new_zeros(indices.shape[0] + 1).index_add(0, offsets[:bags], torch.ones_like(offsets[:bags]))
    bag = starts.cumsum(0)[:-1] - 1
    pad = -1 if padding_idx is None else padding_idx % weight.shape[0]
    rows = aten.embedding(weight, indices, pad, scale_grad_by_freq)
    counted = torch.ones_like(indices) if pad < 0 else (indices != pad).to(indices.dtype)
    sizes = counted.new_zeros(bags).index_add(0, bag, counted)
    shape = (bags, weight.shape[1])
    if mode == 2:
        lowest = torch.where(counted.bool()[:, None], rows, -torch.inf)
        most = rows.new_full(shape, -torch.inf).scatter_reduce(0, bag[:, None].expand_as(rows), lowest, "amax")
        return torch.where(sizes[:, None] > 0, most, 0), bag, sizes, sizes
    factor = counted.to(rows.dtype) if per_sample_weights is None else counted * per_sample_weights
    total = rows.new_zeros(shape).index_add(0, bag, rows * factor[:, None])
    if mode == 1:
        total = total / sizes.clamp_min(1).to(total.dtype)[:, None]
    return total, bag, sizes, sizes


@_in_f32
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """By products of matrices where PyTorch does so, else by differences. The gradient of a distance of 0 is 0."""
    large = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p != 2 or compute_mode == 2 or not (large or compute_mode == 1):
        return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    square_1, square_2 = (x.square().sum(-1, keepdim=True) for x in (x1, x2))
    left = torch.cat([-2 * x1, square_1, torch.ones_like(square_1)], -1)
    right = torch.cat([x2, torch.ones_like(square_2), square_2], -1)
    squares = (left @ right.mT).clamp_min(0)
    zero = squares == 0
    return torch.where(zero, 0, torch.where(zero, 1, squares).sqrt())


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """With a dense gradient: that of a shard is a part of a flat one."""
    return aten.embedding(weight, indices, padding_idx, scale_grad_by_freq)


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """PyTorch's own decomposition counts what stands behind the end of the labels, the first -1."""
    label = (target == -1).cumsum(-1) == 0
    chosen = torch.where(label, target, 0)
    is_label = (torch.nn.functional.one_hot(chosen, x.shape[-1]).bool() & label[..., None]).any(-2)
    margins = (1 - x.gather(-1, chosen)[..., :, None] + x[..., None, :]).clamp_min(0)
    counts = label[..., :, None] & ~is_label[..., None, :]
    loss = torch.where(counts, margins, 0).sum((-1, -2)) / x.shape[-1]
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Without the test that no variance is negative."""
    var = var * torch.ones_like(input) if isinstance(var, float) else var
    var = var.unsqueeze(-1) if var.shape != input.shape and var.shape == input.shape[:-1] else var
    var = var + (var.clamp_min(eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


@_in_f32
def quantile(x: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    if not isinstance(q, (int, float)) or interpolation != "linear":
        return torch.quantile(x, q, dim, keepdim, interpolation=interpolation)
    values, place = (x.reshape(-1), 0) if dim is None else (x, dim)
    rank = q * (values.shape[place] - 1)
    below = int(rank)
    ranked = values.sort(place).values
    low, high = (ranked.narrow(place, number, 1) for number in (below, min(below + 1, values.shape[place] - 1)))
    result = torch.lerp(low, high, rank - below).masked_fill(values.isnan().any(place, keepdim=True), torch.nan)
    if dim is None:
        return result.reshape([1] * x.dim() if keepdim else [])
    return result if keepdim else result.squeeze(place)


class _Solve(torch.autograd.Function):
    """A X = B by the two routines of LAPACK that torch.linalg.solve calls."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        lu, pivots, _ = torch.linalg.lu_factor_ex(a)
        x = torch.linalg.lu_solve(lu, pivots, b)
        ctx.save_for_backward(lu, pivots, x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        lu, pivots, x = ctx.saved_tensors
        grad_b = torch.linalg.lu_solve(lu, pivots, grad, adjoint=True)
        return -grad_b @ x.mH, grad_b


@_in_f32
def linalg_solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vector else b
    if not left:
        a, b = a.mT, b.mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = _Solve.apply(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]))
    x = x if left else x.mT
    return x.squeeze(-1) if vector else x


@_in_f32
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | list[int],
    target_lengths: Tensor | list[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """log_probs [T, N, C] or [T, C]; targets [N, S], or all in a row. One step of the recursion after another."""
    device, never = log_probs.device, -1e30
    if log_probs.dim() == 2:
        log_probs = log_probs[:, None]
        targets = targets.reshape(1, -1)
    steps, count, _ = log_probs.shape
    inputs, lengths = (torch.as_tensor(x, device=device).reshape(count).long() for x in (input_lengths, target_lengths))
    if targets.dim() == 1:  # one text after the other: each has room for all
        place = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(targets.shape[0], device=device)
        targets = targets[place.clamp_max(targets.shape[0] - 1)]
    targets = torch.where(torch.arange(targets.shape[1], device=device) < lengths[:, None], targets.long(), blank)
    labels = torch.stack([torch.full_like(targets, blank), targets], -1).flatten(1)
    labels = torch.nn.functional.pad(labels, (0, 1), value=blank)
    skips = torch.nn.functional.pad((labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2]), (2, 0))
    scores = log_probs.gather(2, labels.expand(steps, *labels.shape))
    alpha = torch.where(torch.arange(labels.shape[1], device=device) < 2, scores[0], never)
    for step in range(1, steps):
        by_one, by_two = (torch.nn.functional.pad(alpha, (k, 0), value=never)[:, : labels.shape[1]] for k in (1, 2))
        ways = torch.stack([alpha, by_one, torch.where(skips, by_two, never)])
        alpha = torch.where(step < inputs[:, None], torch.logsumexp(ways, 0).clamp_min(never) + scores[step], alpha)
    last = alpha.gather(1, 2 * lengths[:, None])
    before = torch.where(lengths[:, None] > 0, alpha.gather(1, (2 * lengths[:, None] - 1).clamp_min(0)), never)
    loss = -torch.logsumexp(torch.cat([last, before], 1), 1)
    loss = torch.where(loss > -never / 2, 0 if zero_infinity else torch.inf, loss)
    if reduction == "mean":
        return (loss / lengths.clamp_min(1)).mean()
    return loss.sum() if reduction == "sum" else loss


def lstm(*args: Any) -> Any:
    """Step by step: the fused layer that PyTorch takes where the input needs no gradient has no backward of its own."""
    with torch.backends.mkldnn.flags(enabled=False):
        return aten.lstm.input(*args)


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """All dropped needs no mask: PyTorch draws none."""
    return x * 0 if train and p == 1 else aten.dropout(x, p, train)


def dropout_(x: Tensor, p: float, train: bool) -> Tensor:
    return x.copy_(dropout(x, p, train))


def bernoulli_(x: Tensor, p: float = 0.5) -> Tensor:
    """Drawn in the order of memory, as in place; the overload that returns a tensor draws in that of the dimensions."""
    order = _memory_order(x)
    back = sorted(range(x.dim()), key=order.__getitem__)
    return x.copy_(aten.bernoulli.p(x.permute(order), p).permute(back))


def adaptive_avg_pool(x: Tensor, size: list[int]) -> Tensor:
    """To one element a mean, without the strides that PyTorch forces on channels-last results."""
    if all(n == 1 for n in size):
        return x.mean([-1 - d for d in range(len(size))], keepdim=True)
    return (aten.adaptive_avg_pool2d if len(size) == 2 else aten.adaptive_avg_pool3d)(x, size)


FORWARD: dict[Any, Callable[..., Any]] = {
    aten._weight_norm.default: weight_norm,
    aten.embedding_bag.padding_idx: embedding_bag,
    aten.embedding_bag.default: embedding_bag,
    aten._embedding_bag.default: embedding_bag,
    aten.embedding.default: embedding,
    aten.multilabel_margin_loss.default: _in_f32(multilabel_margin_loss),
    aten.cdist.default: cdist,
    aten.pdist.default: pdist,
    aten.linalg_solve.default: linalg_solve,
    aten.lstm.input: lstm,
    aten.dropout.default: dropout,
    aten.dropout_.default: dropout_,
    aten.bernoulli_.float: bernoulli_,
    aten.adaptive_avg_pool2d.default: adaptive_avg_pool,
    aten.adaptive_avg_pool3d.default: _in_f32(adaptive_avg_pool),
}


def rewrite_complex_numbers(graph: torch.fx.Graph) -> None:
    """Complex numbers among the arguments, which an archive cannot hold, become tensors made of their two parts."""
    for node in graph.nodes:
        overloads = getattr(node.target, "overloadpacket", None)
        if not any(isinstance(arg, complex) for arg in node.args) or not hasattr(overloads, "Tensor"):
            continue
        result = node.meta["val"]
        options = {"dtype": result.dtype.to_real(), "device": result.device, "pin_memory": False}
        with graph.inserting_before(node):
            for place, arg in enumerate(node.args):
                if not isinstance(arg, complex):
                    continue
                parts = [graph.call_function(aten.full.default, ([], x), options) for x in (arg.real, arg.imag)]
                number = graph.call_function(aten.complex.default, tuple(parts))
                for made in (*parts, number):
                    made.meta = node.meta | {"val": result.new_empty([], dtype=result.dtype if made is number else options["dtype"])}
                node.update_arg(place, number)
        node.target = overloads.Tensor


def conj(x: Tensor | complex) -> Tensor:
    if not isinstance(x, Tensor):
        return torch.complex(torch.full([], x.real), torch.full([], -x.imag))
    return torch.conj_physical(x) if x.is_complex() else x


def as_strided(x: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Tensor:
    places = _places(x, size, stride, storage_offset)
    if places is NotImplemented:
        return places
    return x.view(size) if places is None else _in_memory_order(x)[places]


def as_strided_scatter(
    x: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    places = _places(x, size, stride, storage_offset)
    if places is NotImplemented:
        return places
    if places is None:
        return src.clone()
    written = aten.index_put(_in_memory_order(x), [places.reshape(-1)], src.reshape(-1))
    order = _memory_order(x)
    back = sorted(range(x.dim()), key=order.__getitem__)
    return written.view([x.shape[d] for d in order]).permute(back)


def _memory_order(x: Tensor) -> list[int]:
    """The dimensions from the outermost in memory to the innermost."""
    return sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))


def _in_memory_order(x: Tensor) -> Tensor:
    return x.permute(_memory_order(x)).reshape(-1)


def _places(x: Tensor, size: list[int], stride: list[int], storage_offset: int | None) -> Tensor | None:
    """Where in the memory of `x`, which must be dense, each element of the view lies; None if the view is `x` itself."""
    offset = 0 if storage_offset is None else storage_offset - x.storage_offset()
    same = offset == 0 and list(size) == list(x.shape)
    if same and all(s == t for n, s, t in zip(size, stride, x.stride()) if n > 1):
        return None
    dense = 1
    for d in reversed(_memory_order(x)):
        if x.shape[d] != 1 and x.stride(d) != dense:
            return NotImplemented
        dense *= x.shape[d]
    place = torch.full([], offset, dtype=torch.long, device=x.device)
    for n, step in zip(size, stride):
        place = place.unsqueeze(-1) + torch.arange(n, device=x.device) * step
    return place


class Substitute(TorchFunctionMode):
    """Replaces calls that torch.export cannot trace."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _UNTRACEABLE.get(func, func)(*args, **(kwargs or {}))


_UNTRACEABLE: dict[Any, Callable[..., Any]] = {
    torch.quantile: quantile,
    torch.Tensor.quantile: quantile,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
}


JOINT: dict[Any, Callable[..., Any]] = {
    aten._conj.default: conj,
    aten.as_strided.default: as_strided,
    aten.as_strided_scatter.default: as_strided_scatter,
}
