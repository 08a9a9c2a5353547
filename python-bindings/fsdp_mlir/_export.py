"""torch.export of a module's forward, twice: what Python computes anew in each call must come out the same."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._export.passes import replace_set_grad_with_hop_pass
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from fsdp_mlir import _reject
from fsdp_mlir._state import Attributes, Change, check_memory, keep_constants
from fsdp_mlir._step import Step
from fsdp_mlir.errors import CaptureError

_NOISY = ("torch.export", "torch._export", "torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
_ALWAYS = "a plan computes the same in every step"


def export(
    step: Step, module: torch.nn.Module, attributes: Attributes, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """The exported forward. Raises CaptureError for what torch.export rejects, for what it would lose, and for a forward that
    depends on Python's state. The module's attributes are afterwards what they were."""
    try:
        program = _export(step, module, args, kwargs, dynamic_shapes)
        program = _export_again(program, step, module, attributes, args, kwargs, dynamic_shapes)
    finally:
        attributes.restore()
    _reject.check_graph(program.graph, module)
    written = {tensor.untyped_storage()._cdata for tensor in step.seen.constants.written}
    for name, value in attributes.tensors():
        if value.layout == torch.strided and value.untyped_storage()._cdata in written:
            raise CaptureError(f"the forward writes to {name}; make that a buffer (register_buffer)")
    return program


def check_written(step: Step, module: torch.nn.Module, attributes: Attributes, program: ExportedProgram) -> None:
    """Raises CaptureError if what a step writes, or training changes, is also something else."""
    written = {s.target for s in program.graph_signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION}
    for name in sorted(written & step.seen.constants.used):
        raise CaptureError(
            f"a branch or a size depends on buffer `{name}`, which the forward changes; {_ALWAYS}: move the test out of the step"
        )
    constants = [s.target for s in program.graph_signature.input_specs if s.kind == InputKind.CONSTANT_TENSOR]
    values = [program.constants[name] for name in constants]
    _check_arguments(module, values)
    check_memory(module, attributes, written, values)


def _check_arguments(module: torch.nn.Module, constants: list[torch.Tensor]) -> None:
    """A Function that is called with a module takes the parameters from there, where no graph sees them."""
    used = {id(value) for value in constants}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if id(tensor) in used:
            raise CaptureError(
                f"a custom autograd.Function uses `{name}`, which it is not called with; pass the tensor to apply(), not the module"
            )


def _export_again(
    first: ExportedProgram, step: Step, module: torch.nn.Module, attributes: Attributes, args: Any, kwargs: Any, dynamic_shapes: Any
) -> ExportedProgram:
    """Calls the forward as a second step would, and returns what it computes in every step."""
    changes = list(attributes.changes())
    constant = keep_constants(changes, step.seen.constants)
    before = Attributes(module)
    try:
        second = _export(step, module, args, kwargs, dynamic_shapes)
    except CaptureError:
        if not any(change.is_state for change in changes):
            raise
        raise _depends(changes) from None
    again = list(before.changes())
    counting = [change for change in again if change.is_number]
    different = _difference(first, second)
    if different is None:
        if counting:
            raise _depends(counting)
        return first
    if changes and not again:
        third = _difference(second, _export(step, module, args, kwargs, dynamic_shapes))
        if third is None and constant:  # tables that the first call keeps for all others
            return second
        if third is not None:  # not because of what the first call has set
            different, changes = third, []
    if changes:
        raise _depends(changes)
    raise CaptureError(
        f"{_reject.place_of(different, module)}: the forward computes something else each time it is called (a random number of "
        f"Python or NumPy, the time, or a variable outside of the module), and {_ALWAYS}; make it an input, or turn it off"
    )


def _depends(changes: list[Change]) -> CaptureError:
    change = next((c for c in changes if c.is_number), next((c for c in changes if c.is_state), changes[0]))
    return CaptureError(
        f"{change.module} changes its attribute `{change.attribute}` in its forward, and {_ALWAYS}; "
        "keep it in a buffer (register_buffer), or change it outside of the forward"
    )


def _difference(a: ExportedProgram, b: ExportedProgram) -> torch.fx.Node | None:
    """The first node of `b` that computes something else than that of `a`."""
    constants = {s.arg.name: s.target for s in b.graph_signature.input_specs if s.kind == InputKind.CONSTANT_TENSOR}
    for name, target in constants.items():
        if target not in a.constants or not _same_value(a.constants[target], b.constants[target]):
            return next((n for n in b.graph.nodes if n.name == name), b.graph.output_node())
    return _different_node(a.graph_module, b.graph_module)


def _different_node(a: torch.fx.GraphModule, b: torch.fx.GraphModule) -> torch.fx.Node | None:
    nodes_a, nodes_b = list(a.graph.nodes), list(b.graph.nodes)
    numbers = {node: place for nodes in (nodes_a, nodes_b) for place, node in enumerate(nodes)}
    for x, y in zip(nodes_a, nodes_b):
        if x.op == y.op == "get_attr":
            if not _same_value(_attribute(a, x.target), _attribute(b, y.target)):
                return y
            continue
        arguments = [torch.fx.map_arg((n.args, n.kwargs), lambda m: ("node", numbers[m])) for n in (x, y)]
        if x.op != y.op or str(x.target) != str(y.target) or repr(arguments[0]) != repr(arguments[1]):
            return y
    return None if len(nodes_a) == len(nodes_b) else b.graph.output_node()


def _attribute(module: torch.nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, torch.fx.GraphModule) and isinstance(b, torch.fx.GraphModule):
        return _different_node(a, b) is None
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b
    if a is b or a.is_meta or isinstance(a, FakeTensor):
        return a.shape == b.shape
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _export(step: Step, module: torch.nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any) -> ExportedProgram:
    def attempt() -> ExportedProgram:
        with _reject.watching(module, step.seen), _reject.patched((replace_set_grad_with_hop_pass, "_is_set_grad_enabled_sub_mod", _is_region)), _quiet():
            return torch.export.export(step, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)

    try:
        return attempt()
    except Exception as error:
        rejection = _reject.explain(error, module)
        if _reject.depends_on_data(error):
            raise rejection from error
    try:
        with _as_eager():
            return attempt()
    except Exception as error:
        raise (_reject.explain(error, module) if _reject.depends_on_data(error) else rejection) from error


def _is_region(node: torch.fx.Node, omit_if_same_with_ambient: bool = False) -> bool:
    """Whether a part of the graph is one of torch.no_grad(), or of enable_grad(). torch.export asks its first node alone, and where the
    part lies inside of autocast, that enters autocast again."""
    if node.op != "call_module":
        return False
    part = node.graph.owning_module.get_submodule(node.target)
    sets = part.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    return bool(sets) and not (omit_if_same_with_ambient and sets[0].args[0] == torch.is_grad_enabled())


@contextlib.contextmanager
def _as_eager() -> Iterator[None]:
    """What a model does only where it is not compiled (`if not torch.compiler.is_compiling()`), it may not do without."""

    def torch_asks() -> bool:
        return sys._getframe(2).f_globals.get("__name__", "").startswith("torch.")

    def answer(function: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: torch_asks() and function()

    class OfTorch(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return torch_asks() and isinstance(value, FakeTensor)

    class Hidden(metaclass=OfTorch):
        pass

    with _reject.patched(
        (torch.compiler, "is_compiling", answer(torch.compiler.is_compiling)),
        (torch.compiler, "is_exporting", answer(torch.compiler.is_exporting)),
        (torch._subclasses, "FakeTensor", Hidden),
    ):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch.export's dumps of half-traced graphs and of its own insides from the terminal: the error says what matters."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad=True to a scalar")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
