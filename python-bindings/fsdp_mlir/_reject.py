"""What capture must not let pass: rejections by a sentence that names the module.

torch.export runs the module's own Python once. Whatever it cannot express it either rejects with a message about its own
insides, or drops without a word. This file turns the first into sentences for people and finds the second.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)

from fsdp_mlir import _sources
from fsdp_mlir._constants import SizedByContent
from fsdp_mlir._step import path_of
from fsdp_mlir.errors import CaptureError

_CHECKPOINT = "torch.utils.checkpoint._NoopSaveInputs"  # non-re-entrant checkpointing: saves inputs, computes nothing
_HARMLESS = (
    _CHECKPOINT,
    "torch._library.autograd.GeneratedBackwardFor_",  # register_autograd: the graph keeps the operation itself
)
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule"}


class Names:
    """The qualified names of a module's submodules, to say where something happened."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._names = {id(vars(m)): name for name, m in module.named_modules()}  # torch.export makes copies that share it

    def of(self, name: str) -> str:
        return f"module `{name}`" if name else "the model itself"

    def innermost(self, frames: Iterable[FrameType]) -> str:
        """The module whose method is deepest in `frames` (outermost first), as words."""
        found = ""
        for frame in frames:
            name = self._names.get(id(getattr(frame.f_locals.get("self"), "__dict__", None)))
            found = found if name is None else name
        return self.of(found)

    def current(self) -> str:
        return self.innermost(reversed([f for f, _ in traceback.walk_stack(sys._getframe(1))]))


def check_module(module: torch.nn.Module) -> None:
    """Raises CaptureError for what is visible before tracing: wrappers, parameter hooks, nothing to train."""
    names = Names(module)
    for name, part in module.named_modules():
        kinds = {k.__name__ for k in type(part).__mro__ if k.__module__.startswith("torch.")}
        if kinds & _WRAPPERS:
            raise CaptureError(
                f"{names.of(name)} is wrapped in {sorted(kinds & _WRAPPERS)[0]}; capture the plain module: sharding is the plan's"
            )
        if isinstance(part, torch.nn.SyncBatchNorm) and part.training:
            raise CaptureError(
                f"{names.of(name)} is a SyncBatchNorm, whose statistics are those of all ranks, which a plan cannot compute; "
                "use BatchNorm, with the statistics of each rank's own batch"
            )
        if isinstance(part, torch.nn.RNNBase) and part.dropout > 0 and part.num_layers > 1 and part.training:
            raise CaptureError(f"{names.of(name)} has dropout between its layers, which capture cannot keep; set its dropout to 0")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"parameter `{name}` has a gradient hook, which capture cannot keep; remove the hook before capture"
            )
    if not any(p.requires_grad for p in module.parameters()):
        raise CaptureError("no parameter requires grad; there is nothing to train")


@contextlib.contextmanager
def watching(module: torch.nn.Module, seen: Any) -> Iterator[None]:
    """While the module is traced, rejects the calls whose effect torch.export drops silently.

    Adds the modules that use activation checkpointing, which has no effect on them, to `checkpointed`.

    Raises CaptureError from inside the traced call. Patches process-wide entry points of torch.autograd and restores
    them; do not train in another thread meanwhile.
    """
    names = Names(module)
    apply = vars(torch.autograd.Function)["apply"].__func__
    convert = torch.nn.Module._apply

    def function_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        kind, where = f"{cls.__module__}.{cls.__qualname__}", names.current()
        if kind.startswith(_HARMLESS):
            if kind.startswith(_CHECKPOINT):
                seen.checkpointed.add(where)
            return apply(cls, *args, **kwargs)
        if cls.__module__.startswith("torch._higher_order_ops."):
            raise _holds_graph(where)
        if kind == "torch.utils.checkpoint.CheckpointFunction":
            return _checkpoint(where, seen, *args)
        if cls.__name__ == "BackwardHookFunction":
            raise CaptureError(f"{where} has a backward hook, which capture cannot keep; remove the hook before capture")
        return seen.functions.call(where, cls, args)

    def module_apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
        tensors = [*self.parameters(recurse), *self.buffers(recurse)]
        return self if all(fn(tensor) is tensor for tensor in tensors) else convert(self, fn, recurse)

    def reject(what: str, advice: str) -> Any:
        return _rejection(lambda: f"{names.current()} {what}, which capture cannot keep; {advice}")

    differentiates = reject(
        "differentiates inside its forward (torch.autograd.grad or backward)",
        "return the loss and leave its gradients to capture",
    )
    hooks = reject("puts a gradient hook on a tensor (register_hook)", "write its effect into the loss")
    seeds = reject("seeds random numbers in its forward (torch.manual_seed)", "seed before the first step: fsdp-run --seed")
    with patched(
        (torch.autograd.Function, "apply", classmethod(function_apply)),
        (torch.nn.Module, "_apply", module_apply),  # torch.export cannot trace even a conversion that changes nothing
        (torch.Tensor, "register_hook", hooks),
        (torch.Tensor, "backward", differentiates),
        (torch.autograd, "grad", differentiates),
        (torch.autograd, "backward", differentiates),
        (torch, "_check_tensor_all", lambda *args, **kwargs: None),  # a check of data, as _constants leaves them out
        (torch, "manual_seed", seeds),
        (torch.random, "manual_seed", seeds),
    ):
        yield


def _checkpoint(where: str, seen: Any, function: Any, preserve_rng_state: bool, *args: Any) -> Any:
    """What is computed without re-entrant checkpointing: its gradients, which it has for tensor arguments that require grad."""
    seen.checkpointed.add(where)
    with torch.set_grad_enabled(any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)):
        return function(*args)


@contextlib.contextmanager
def differentiating() -> Iterator[None]:
    """While the forward is differentiated, rejects the gradients that a custom autograd.Function gives to others than its arguments."""
    rejected = _rejection(
        lambda: "a custom autograd.Function calls backward() in its backward, whose gradients capture would lose; return them "
        "all from the Function's backward (torch.autograd.grad)"
    )
    with patched((torch.Tensor, "backward", rejected), (torch.autograd, "backward", rejected)):
        yield


def _rejection(sentence: Callable[[], str]) -> Callable[..., Any]:
    def rejected(*args: Any, **kwargs: Any) -> Any:
        raise CaptureError(sentence())

    return rejected


@contextlib.contextmanager
def patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, attribute, replacement in patches:
            stack.callback(setattr, owner, attribute, vars(owner)[attribute])
            setattr(owner, attribute, replacement)
        yield


def depends_on_data(error: BaseException | None) -> bool:
    """Whether the error is a rejection: nothing that the model does otherwise where it is not compiled."""
    while error is not None:  # dynamo wraps what watching() raised
        if isinstance(error, (CaptureError, GuardOnDataDependentSymNode, SizedByContent)):
            return True
        error = error.__cause__ or error.__context__
    return False


def explain(error: Exception, module: torch.nn.Module) -> CaptureError:
    """The CaptureError that says in user terms why torch.export failed: file and line, module, and what to do."""
    cause: BaseException | None = error
    while cause is not None:  # dynamo wraps what watching() raised
        if isinstance(cause, CaptureError):
            return cause
        cause = cause.__cause__ or cause.__context__
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    where = _place([(f.f_code.co_filename, line) for f, line in frames], Names(module).innermost(f for f, _ in frames))
    text = str(error).strip()
    first = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    if isinstance(error, SizedByContent):
        return _size(where, error.function)
    if isinstance(error, GuardOnDataDependentSymNode):
        if "Eq(" in str(error.cond):
            return CaptureError(
                f"{where}: the branch depends on a tensor's value, and a plan is one fixed graph; "
                "use torch.where, or move the test out of the step"
            )
        return _number(where)
    if text.startswith("This higher order operator"):
        return _holds_graph(where)
    if "but got FakeTensor" in text:
        return _number(where)
    if ".numpy() is not supported" in text:
        return CaptureError(f"{where}: `.numpy()` leaves PyTorch; keep it out of the training step")
    if "FlexAttention does not support backward on CPU" in text:
        return CaptureError(
            f'{where}: flex attention has no backward on CPU; load the model with attn_implementation="sdpa"'
        )
    if "entirely functional graph" in text or "mutating a non-functional tensor" in text:
        where = _place(_sources.frames_of(text), "") or where
        return CaptureError(f"{where} writes to a tensor that it keeps in an attribute; make that a buffer (register_buffer)")
    return CaptureError(f"{where}: torch.export cannot trace this: {first}")


def check_graph(graph: torch.fx.Graph, module: torch.nn.Module) -> None:
    """Raises CaptureError if a value or a size in the graph depends on the contents of a tensor."""
    for node in graph.nodes:
        if node.op != "call_function" or not free_unbacked_symbols(node.meta.get("val")):
            continue
        where = place_of(node, module)
        if node.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default):
            raise _number(where)
        raise _size(where, node.target)


def place_of(node: torch.fx.Node, module: torch.nn.Module) -> str:
    """Where a node of an exported graph comes from: file, line and module; of a constant, where it is used."""
    if node.op in ("placeholder", "get_attr"):
        node = next(iter(node.users), node)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return _place(_sources.frames_of(node.meta.get("stack_trace") or ""), Names(module).of(path_of(stack[-1][0]) if stack else ""))


def _holds_graph(where: str) -> CaptureError:
    return CaptureError(
        f"{where} uses a torch operation that holds a graph of its own (such as torch.cond), which a plan cannot run; "
        "write it with plain operations, such as torch.where"
    )


def _number(where: str) -> CaptureError:
    return CaptureError(
        f"{where}: a Python number is taken from a tensor's value (int(), float() or .item()), and a plan is one fixed graph; "
        "keep it a tensor, or pad to a fixed size and mask"
    )


def _size(where: str, function: Any) -> CaptureError:
    return CaptureError(
        f"{where}: the size of the result of `{function}` depends on a tensor's value, and a plan is for one shape; "
        "pad to a fixed size and mask"
    )


def _place(frames: list[tuple[str, int]], module: str) -> str:
    """`file.py:12` (module `block`): the deepest frame outside torch and this package."""
    own = _sources.innermost(frames)
    return f"`{_sources.shorten(own)}` ({module})" if own else module
