"""What a model computes from constants alone is known while it is traced: branches and sizes that depend on it are resolved.

torch.export knows the sizes and types of tensors, not their contents. Here each tensor that comes from constants, from
buffers or from sizes only has its content computed beside the trace, so that `if mask.all():` takes the branch that every
step will take, and `mask.nonzero()` has a size. The contents of the example's inputs are known, too, but only for tests of
the data that raise or warn and do nothing else: what passes such a test computes the same.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

_MOST_ELEMENTS = 1 << 24
_FILLED = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
_FACTORIES = {
    getattr(torch, name)
    for name in (
        "tensor as_tensor arange eye full linspace logspace ones zeros scalar_tensor tril_indices triu_indices "
        "hann_window hamming_window blackman_window bartlett_window kaiser_window polar"
    ).split()
}
_TO_PYTHON = {
    getattr(torch.Tensor, name) for name in "__bool__ __int__ __float__ __index__ __contains__ item tolist is_nonzero equal allclose".split()
} | {torch.is_nonzero, torch.equal, torch.allclose}
_SIZED_BY_CONTENT = {
    getattr(owner, name)
    for owner in (torch, torch.Tensor)
    for name in "nonzero argwhere unique unique_consecutive repeat_interleave bincount masked_select".split()
}
_BY_COUNTS = {torch.repeat_interleave, torch.Tensor.repeat_interleave}  # sized by content if the counts are a tensor
_MASKED_SELECT = {torch.masked_select, torch.Tensor.masked_select}
_TAKES_SIZES = set(
    "arange zeros ones empty full rand randn new_zeros new_ones new_empty new_full view reshape expand repeat tile unflatten narrow "
    "split pad multinomial interpolate adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d".split()
)
_SAYS = {"warn", "warning", "warning_once", "warn_once", "info", "debug", "print"}
_BETWEEN = (os.path.dirname(__file__) + os.sep, torch.overrides.__file__, torch._tensor.__file__)  # a call and its mode
_EXAMPLE = ""  # among the names of buffers: also depends on the content of an input
_COMPARISONS = {"__lt__": "<", "lt": "<", "__le__": "<=", "le": "<=", "__gt__": ">", "gt": ">", "__ge__": ">=", "ge": ">="}


class SizedByContent(Exception):
    """The size of what `function` returns depends on data."""

    def __init__(self, function: str) -> None:
        self.function = function


class Constants(TorchFunctionMode):
    """While this is entered, knows the content of what is computed from constants.

    `values` are the contents of the module's buffers by name; `used` gets the names of those that a branch, a number or a
    size has come from.
    """

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.values = values
        self.used: set[str] = set()
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # traced tensor -> (content, names of buffers)
        self.written: list[torch.Tensor] = []  # those with content that the forward writes to
        self.examples: list[Any] = []  # the leaves of the example's arguments, in the order of the signature
        self._uniform: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # what torch.rand returned
        self._kept: set[int] = set()  # the model's own memory: never written to

    def start(self, module: torch.nn.Module, arguments: list[Any]) -> None:
        """To be called in the traced forward, where the buffers and the leaves of the `arguments` are stand-ins without content."""
        for stand_in, value in zip(arguments, self.examples):
            fixed = isinstance(stand_in, FakeTensor) and not any(isinstance(size, torch.SymInt) for size in stand_in.shape)
            if fixed and self._is_known(value):
                self._kept.add(value.untyped_storage()._cdata)
                self._known[stand_in] = (value, frozenset([_EXAMPLE]))
        for name, stand_in in module.named_buffers():
            value = self.values.get(name)
            if isinstance(stand_in, FakeTensor) and value is not None and not isinstance(value, FakeTensor) and not value.is_meta:
                self._kept.add(value.untyped_storage()._cdata)
                self._known[stand_in] = (value, frozenset([name]))

    def content(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The content of a traced tensor, if it is a constant."""
        return self._known[tensor][0] if self._is_constant(tensor) and tensor in self._known else None

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MASKED_SELECT and len(args) == 2 and args[0].shape == args[1].shape:
            func = torch.Tensor.__getitem__
        if func is torch._assert:
            return None
        if func is torch.Tensor.__iter__:
            return iter(self.__torch_function__(torch.Tensor.unbind, types, args))
        args, kwargs = self._with_numbers(func, args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        fixed = not any(isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)) for leaf in leaves)
        known = fixed and all(map(self._is_known, tensors)) and (bool(tensors) or func in _FACTORIES)
        names = self._names(tensors)
        constant = known and _EXAMPLE not in names
        if constant and _is_sized_by_content(func, args) or func in _TO_PYTHON and (constant or known and _only_says(_place())):
            ok, result = self._evaluate(func, args, kwargs)
            if ok:
                self.used.update(names - {_EXAMPLE})
                return result
        if func is torch.Tensor.__bool__ and isinstance(args[0], FakeTensor):
            passing = _passing(_place())
            if passing is not None:
                return passing
        if func in _SIZED_BY_CONTENT and (func not in _BY_COUNTS or tensors[1:] and "output_size" not in kwargs):
            raise SizedByContent(func.__name__)
        if func is torch.Tensor.__getitem__:
            args = self._without_masks(args)
            if any(map(_is_mask, pytree.tree_leaves(args[1]))):
                raise SizedByContent("x[mask]")
        out = func(*args, **kwargs)
        if _writes(func, args, kwargs, out):
            self._write(func, args, kwargs, tensors, known)
        elif known and any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(out)):
            ok, real = self._evaluate(func, args, kwargs)
            if ok:
                self._learn(out, real, names)
        elif fixed and isinstance(out, FakeTensor):
            self._learn_filled(func, args, kwargs, out)
        return out

    # ---- what is known

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return tensor in self._known
        return type(tensor) is torch.Tensor and not tensor.is_meta and not tensor.requires_grad

    def _is_constant(self, tensor: torch.Tensor) -> bool:
        return self._is_known(tensor) and _EXAMPLE not in self._names([tensor])

    def _names(self, tensors: list[torch.Tensor]) -> frozenset[str]:
        return frozenset().union(*(self._known[t][1] for t in tensors if t in self._known))

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._known[tensor][0] if isinstance(tensor, FakeTensor) else tensor

    def _evaluate(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether the result is known, and the result. What draws random numbers is not, nor what fails."""
        with _real_world():
            before = torch.get_rng_state()
            try:
                args, kwargs = pytree.tree_map_only(torch.Tensor, self._real, (args, kwargs))
                result = func(*args, **kwargs)
            except Exception:  # the traced call says why
                return False, None
            if not torch.equal(before, torch.get_rng_state()):
                torch.set_rng_state(before)
                return False, None
            return True, result

    def _learn(self, out: Any, real: Any, names: frozenset[str]) -> None:
        for traced, value in zip(pytree.tree_leaves(out), pytree.tree_leaves(real)):
            if not isinstance(traced, FakeTensor) or not isinstance(value, torch.Tensor):
                continue
            if value.numel() <= _MOST_ELEMENTS and tuple(value.shape) == tuple(traced.shape) and value.dtype == traced.dtype:
                self._known[traced] = (value, names)

    def _learn_filled(self, func: Callable[..., Any], args: Any, kwargs: Any, out: FakeTensor) -> None:
        """Results whose content does not depend on that of the arguments."""
        name, value = getattr(func, "__name__", ""), None
        if name in _FILLED:
            value = _FILLED[name]
        elif name in ("full_like", "new_full"):
            value = kwargs.get("fill_value", args[-1] if len(args) > 1 else None)
        elif name == "rand":
            self._uniform[out] = True
        elif name in _COMPARISONS and args and isinstance(args[0], FakeTensor) and args[0] in self._uniform:
            value = _compare_uniform(_COMPARISONS[name], args[1])
        if isinstance(value, (bool, int, float)) and out.numel() <= _MOST_ELEMENTS:
            with _real_world():
                self._learn(out, torch.full(tuple(out.shape), value, dtype=out.dtype), frozenset())

    def _write(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[torch.Tensor], known: bool) -> None:
        target = kwargs.get("out", args[0] if args else None)
        if not isinstance(target, FakeTensor):
            self.written += [target] * isinstance(target, torch.Tensor)
            return
        if known and target in self._known:
            content = self._known[target][0]
            if content.untyped_storage()._cdata not in self._kept:
                ok, _ = self._evaluate(func, args, kwargs)
                if ok and content.shape == target.shape:
                    self._known[target] = (content, self._names(tensors))
                    return
        memory = target.untyped_storage()._cdata
        for tensor in [t for t in self._known.keys() if t.untyped_storage()._cdata == memory]:
            del self._known[tensor]

    def _without_masks(self, args: Any) -> Any:
        """Masks that are constants become the numbers of what they choose, so that the result has a size."""
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(_is_mask(part) and self._is_constant(part) for part in index):
            return args
        parts: list[Any] = []
        for part in index:
            if _is_mask(part) and self._is_constant(part):
                self.used.update(self._names([part]))
                with _real_world():
                    parts += self._real(part).nonzero(as_tuple=True)
            else:
                parts.append(part)
        return (args[0], tuple(parts))

    def _with_numbers(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Constants of one element where PyTorch wants a size or the end of a slice become Python numbers."""

        def number(leaf: Any) -> Any:
            is_number = isinstance(leaf, FakeTensor) and leaf.dim() == 0 and not leaf.dtype.is_floating_point
            if not is_number or leaf not in self._known or not self._is_constant(leaf):
                return leaf
            self.used.update(self._names([leaf]))
            return self._real(leaf).item()

        def part(index: Any) -> Any:
            return slice(*map(number, (index.start, index.stop, index.step))) if isinstance(index, slice) else index

        if getattr(func, "__name__", "") in _TAKES_SIZES:
            return pytree.tree_map(number, (args, kwargs))
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = tuple(map(part, args[1])) if isinstance(args[1], tuple) else part(args[1])
            args = (args[0], index, *args[2:])
        return args, kwargs


def _is_sized_by_content(func: Callable[..., Any], args: Any) -> bool:
    if func is torch.where:
        return len(args) == 1
    if func is torch.Tensor.__getitem__:
        return any(_is_mask(leaf) for leaf in pytree.tree_leaves(args[1]))
    return func in _SIZED_BY_CONTENT


def _place() -> tuple[str, int]:
    """File and line of the code that asks: the model's, or PyTorch's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _only_says(place: tuple[str, int]) -> bool:
    """Whether the line is part of a test that raises or prints, and does nothing else."""
    return any(place[1] in lines for lines, _ in _tests(place[0]))


def _passing(place: tuple[str, int]) -> bool | None:
    """The truth value of the one thing that such a test asks, with which it does not raise."""
    return next((passing for lines, passing in _tests(place[0]) if place[1] in lines), None)


@functools.cache
def _tests(file: str) -> list[tuple[range, bool | None]]:
    """The lines of each such test, and what passes it; None where it asks several things."""
    try:
        statements = list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except SyntaxError:
        return []
    tests = [(s.test, True) for s in statements if isinstance(s, ast.Assert)]
    for function in (s for s in statements if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))):
        ifs = [s for s in ast.walk(function) if isinstance(s, ast.If)]
        tests += [(s.test, False) for s in ifs if isinstance(s.body[-1], ast.Raise) or _is_said(s) and not _leaves_names(s, function)]
    return [(range(test.lineno, (test.end_lineno or test.lineno) + 1), _answer(test, wanted)) for test, wanted in tests]


def _answer(test: ast.expr, wanted: bool) -> bool | None:
    """What a tensor's truth value must be for `test` to be `wanted`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _answer(test.operand, not wanted)
    return None if isinstance(test, (ast.BoolOp, ast.IfExp)) else wanted


def _is_said(statement: ast.stmt) -> bool:
    """Whether the statement warns or raises, or makes ready what is said."""
    if isinstance(statement, ast.If):
        return all(map(_is_said, statement.body + statement.orelse))
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return all(isinstance(target, ast.Name) for target in targets)
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) if isinstance(call, ast.Call) else ""
    return isinstance(statement, ast.Raise) or name in _SAYS


def _leaves_names(statement: ast.stmt, function: ast.AST) -> bool:
    """Whether `function` uses elsewhere what `statement`, a part of it, assigns."""

    def names(part: ast.AST, kind: type) -> list[str]:
        return [node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, kind)]

    inside, everywhere = Counter(names(statement, ast.Load)), Counter(names(function, ast.Load))
    return any(everywhere[name] > inside[name] for name in names(statement, ast.Store))


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _compare_uniform(comparison: str, number: Any) -> bool | None:
    """u < number and the like for u in [0, 1), where that is the same for all u."""
    if not isinstance(number, (bool, int, float)):
        return None
    below, above = {"<": (0, 1), "<=": (-1e-300, 1), ">": (-1e-300, 1), ">=": (0, 1)}[comparison]
    if number <= below:
        return comparison[0] == ">"
    return comparison[0] == "<" if number >= above else None


def _writes(func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or name.startswith("__i") and args and out is args[0] or "out" in kwargs


@contextlib.contextmanager
def _real_world() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield
