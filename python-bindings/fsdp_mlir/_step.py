"""What of a module's call a training step is made of: its arguments by name, and of its outputs the loss and those asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export.dynamic_shapes import _combine_args
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import InputKind

from fsdp_mlir import _constants, _decompose, _functions, _precision
from fsdp_mlir.errors import CaptureError

_LABELS = ("label", "target")
_INSIDE = "model"  # torch.fx has attributes of its own (`code`, `graph`) where a root has submodules


@contextlib.contextmanager
def any_names() -> Iterator[None]:
    """While this is entered, torch.fx writes Python for attributes of any name: keywords, quotes."""
    plain = torch.fx.graph._format_target

    def format_target(base: str, target: str) -> str:
        for name in target.split("."):
            is_plain = name.isidentifier() and not keyword.iskeyword(name)
            base = f"{base}.{name}" if is_plain else f"getattr({base}, {name!r})"
        return base

    torch.fx.graph._format_target = format_target
    try:
        yield
    finally:
        torch.fx.graph._format_target = plain


def path_of(name: str) -> str:
    """The path in the user's module of what torch.export calls `name`."""
    return "" if name == _INSIDE else name.removeprefix(_INSIDE + ".")


class Step(torch.nn.Module):
    """Calls `module`. Its one submodule shares the parameters, buffers and submodules of that.

    Its result is the tuple of the outputs that are kept: the loss, which is number `seen.loss_place` of them once it has run, and
    those that `outputs` asks for; all others are left alone, whatever they are.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss_index: int | None,
        outputs: Sequence[str | int],
        functions: _functions.Functions | None = None,
        precision: _precision.Precision | None = None,
    ) -> None:
        super().__init__()
        inside = torch.nn.Module()
        for key in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"):
            vars(inside)[key] = vars(module)[key]
        self.add_module(_INSIDE, inside)  # not the module: torch.export would put back the attributes that its forward sets
        self.seen = seen = _Seen(_constants.Constants(dict(module.named_buffers())), functions)
        signature = inspect.signature(module.forward)

        def forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            with seen.constants, _decompose.Substitute():
                seen.constants.start(module, self._leaves(args, kwargs))
                with precision.applied() if precision else contextlib.nullcontext():
                    result = module(*args, **kwargs)
            hint = _forgotten(signature, signature.bind(*args, **kwargs).arguments)
            seen.loss_index, seen.loss_place, kept = _select(result, loss_index, outputs, hint)
            return kept

        forward.__signature__ = signature
        self.forward = forward

    def set_examples(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the arguments contain in the example."""
        self.seen.constants.examples = self._leaves(args, kwargs)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return pytree.tree_leaves(dict(inspect.signature(self.forward).bind(*args, **kwargs).arguments))


@dataclasses.dataclass
class _Seen:
    """What a call found out; no attributes of the module, since torch.export watches those."""

    constants: _constants.Constants
    functions: _functions.Functions | None
    loss_index: int = 0
    loss_place: int = 0
    checkpointed: set[str] = dataclasses.field(default_factory=set)  # modules, in words


def _forgotten(signature: inspect.Signature, arguments: dict[str, Any]) -> str:
    """Says which labels the example inputs leave out, if it looks like that."""
    for name, parameter in signature.parameters.items():
        missing = parameter.default is None and arguments.get(name) is None
        if missing and any(word in name for word in _LABELS):
            return f"; the example inputs leave out `{name}`, with which the model may return its loss"
    return ""


def _select(
    result: Any, loss_index: int | None, outputs: Sequence[str | int], hint: str
) -> tuple[int, int, tuple[torch.Tensor, ...]]:
    """The place of the loss among all outputs and among those that are kept, and these, in the order of the model."""
    found = list(_leaves(result))
    names, count = [name for name, _ in found], len(found)
    if loss_index is None:
        if isinstance(result, torch.Tensor):
            loss_index = 0
        elif "loss" in names:
            loss_index = names.index("loss")
        else:
            choice = f", or name it with loss_index=0 to {count - 1}" if count else ""
            raise CaptureError(
                f"the model returns {count} output{'s' * (count != 1)} and none is named `loss`; return the loss alone{choice}{hint}"
            )
    if not 0 <= loss_index < count:
        raise CaptureError(f"loss_index is {loss_index}, but the model returns {count} output{'s' * (count != 1)}")
    kept = {loss_index}
    for wanted in outputs:
        if isinstance(wanted, int):
            places = [wanted] if 0 <= wanted < count else []
        else:
            places = [i for i, name in enumerate(names) if name == wanted or name.startswith(wanted + ".")]
        if not places:
            raise CaptureError(f"the model has no output {wanted!r}; it returns " + ", ".join(f"`{n}`" for n in names))
        kept.update(places)
    for place in kept:
        name, value = found[place]
        if not isinstance(value, torch.Tensor):
            what = repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
            need = "the loss" if place == loss_index else "what outputs= asks for"
            raise CaptureError(f"output {place if name.isdigit() else f'`{name}`'} is not a tensor but {what}; {need} must be a tensor")
    loss = found[loss_index][1]
    if loss.dim() != 0:
        raise CaptureError(f"the loss has shape {list(loss.shape)}; reduce it to one number, for example with mean(){hint}")
    if not loss.dtype.is_floating_point:
        raise CaptureError(f"the loss has dtype {str(loss.dtype).removeprefix('torch.')}; it must be a floating-point number")
    order = sorted(kept)
    return loss_index, order.index(loss_index), tuple(found[place][1] for place in order)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The outputs inside mappings, tuples, lists and dataclasses, each with its name; None is no output."""
    if value is None:
        return
    if isinstance(value, Mapping):
        parts: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value))
    elif isinstance(value, (tuple, list)):
        parts = list(enumerate(value))
    elif hasattr(value, "__dataclass_fields__"):
        parts = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    else:
        yield path or "0", value
        return
    for key, part in parts:
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def input_names(step: Step, in_spec: pytree.TreeSpec) -> list[str]:
    """The name of each leaf of (args, kwargs): the argument of the module's forward, and the path inside it."""
    args, kwargs = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    arguments = _combine_args(step, args, kwargs)
    parameters = inspect.signature(step.forward).parameters
    names: dict[int, str] = {}
    for name, value in arguments.items():
        prefix = [] if parameters[name].kind == inspect.Parameter.VAR_KEYWORD else [name]
        for path, number in pytree.tree_flatten_with_path(value)[0]:
            names[number] = ".".join([*prefix, *map(_word, path)])
    return [names[number] for number in range(in_spec.num_leaves)]


def _word(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def symbols(step: Step, dynamic_shapes: Any, forward: ExportedProgram) -> dict[str, str]:
    """For each Dim("name") of `dynamic_shapes` the symbol that stands for it in the exported graph."""
    if dynamic_shapes is None:
        return {}
    kinds = {s.arg.name: s.kind for s in forward.graph_signature.input_specs}
    values = [n.meta["val"] for n in forward.graph.nodes if n.op == "placeholder" and kinds[n.name] == InputKind.USER_INPUT]
    args, kwargs = pytree.tree_unflatten(values, forward.call_spec.in_spec)
    arguments = _combine_args(step, args, kwargs)
    by_name = dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(arguments, dynamic_shapes))
    found: dict[str, str] = {}

    def visit(value: Any, spec: Any) -> None:
        if spec is None:
            return
        pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for key, part in pairs:
            if not isinstance(value, torch.Tensor):
                visit(value[key], part)
            elif isinstance(value.shape[key], torch.SymInt) and hasattr(part, "__name__"):
                size = value.shape[key].node.expr
                if size.is_Symbol:
                    found[part.__name__] = str(size)

    for name, spec in by_name.items():
        visit(arguments[name], spec)
    return found
