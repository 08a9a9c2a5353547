"""Capture one training step (the loss and every gradient) of a module as an ExportedProgram, and save it.

The graph's metadata says what the graph alone cannot; in the archive it is the JSON text under
graph_module.metadata["custom"] of the model's JSON (here: ep.graph_module.meta["custom"]), and nowhere else:

    parameters     every name of named_parameters(remove_duplicate=False), in order
    requires_grad  one boolean for each of them
    tied           other name of a shared parameter -> its first name; the archive holds only the first
    unused         parameters that require grad but do not take part in the step: kept as inputs, without gradient
    inputs         the name of each input in_0, in_1, ...: the argument of the module's forward, and where it holds
                   several tensors, the path to each: `batch.input_ids`, `images.0`
    symbols        name of a torch.export.Dim -> the symbol that stands for it in the graph's sizes
    loss_index     the place of the loss among all outputs of the module
    gradient_seed  the name of the node that is d(loss)/d(loss) = 1
    param_dtype    parameter -> the dtype that the step computes with, where mixed precision makes that another one than its own
    reduce_dtype   parameter -> the dtype in which ranks sum its gradient, where that is another one than the step computes with

Each node's "custom" metadata holds `phase`, "fw" or "bw", and `seq`, the same number on a forward operation and on its
backward operations (-1: unknown).
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import OutputKind

from fsdp_mlir import _compiled, _decompose, _dtypes, _export, _functions, _gpu_operators, _joint, _masks, _meta, _precision, _reject, _state, _step, _verify, _write
from fsdp_mlir.errors import CaptureError, CaptureWarning


def capture(
    module: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    loss_index: int | None = None,
    outputs: Sequence[str | int] = (),
    gradients: bool = True,
    mixed_precision: MixedPrecision | MixedPrecisionPolicy | Mapping[str, MixedPrecision | MixedPrecisionPolicy] | None = None,
    device: str = "cpu",
) -> _verify.TrainingProgram:
    """Captures the loss of `module(*example_inputs, **kwargs)` and its gradients as one graph.

    With `gradients=False`, the graph has the loss alone: a program that evaluates (`fsdp-plan --program eval=eval.pt2`);
    call `eval()` first.

    The module returns the loss: one 0-dim floating-point tensor. If it returns more, the loss is the output named
    `loss`, or number `loss_index` of the flattened outputs. `outputs` asks for others, by name (`"logits"`; the name of a
    tuple means all of it) or by number; they get no gradient. Outputs that nobody asks for may be of any kind.
    `dynamic_shapes` is that of torch.export.export; without it every size is the example's. Parameters may be on the meta
    device or fake: the archive then has no weights.

    `mixed_precision` is the policy of FSDP1 or FSDP2 for the whole module, or a dict: the policy of each module whose whole name
    a regular expression matches ("" is the module itself), and of what that contains; the innermost counts. The step then
    computes as FSDP does: with parameters in `param_dtype`, buffers in `buffer_dtype`, inputs and outputs of the modules that
    have a policy of their own cast as it says, and modules of the ignored classes (FSDP1; by default batch norm) in full
    precision. The program keeps the dtypes of the module: the casts are in the graph.

    `device="cuda"`: the graph is for GPUs alone, and keeps operators whole that only they have: `rms_norm` of PyTorch, whose parts would
    take several times as long there. No GPU is needed for that.

    The result's inputs are the parameters, the buffers and the tensors among the example inputs (`in_0`, `in_1`, ...,
    positional ones first); its outputs are the buffer mutations, the outputs that are kept, and one gradient of the
    parameter's shape and dtype for each parameter that requires grad and is used, then those of inputs that require
    grad. `result.module()(*tensors)` runs it and returns the outputs after the mutations as a list.

    Raises CaptureError, by a sentence that names the place, for whatever cannot be captured without changing what is
    computed. Warns (CaptureWarning) about eval mode, about activation checkpointing, which the graph does not keep, and about
    parameters that are not used. The module is left as it was. Of what torch.compile has made, the original is captured, by its names.
    """
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(f"capture takes a torch.nn.Module, not a {type(module).__name__}")
    if not isinstance(example_inputs, tuple):
        raise CaptureError(f"example_inputs must be a tuple of the positional arguments, not a {type(example_inputs).__name__}")
    if device not in ("cpu", "cuda"):
        raise CaptureError(f"device: expected 'cpu' or 'cuda', found {device!r}")
    with _compiled.uncompiled(module) as module:
        _reject.check_module(module)
        precision = _precision.Precision(module, mixed_precision)
        program, checkpointed = _capture(module, example_inputs, kwargs or {}, dynamic_shapes, loss_index, outputs, gradients, precision, device)
    program.mixed_precision = mixed_precision
    for sentence in _warnings(module, program, checkpointed) if gradients else ():
        warnings.warn(sentence, CaptureWarning, stacklevel=2)
    return program


def _capture(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    loss_index: int | None,
    outputs: Sequence[str | int],
    gradients: bool,
    precision: _precision.Precision,
    device: str,
) -> tuple[_verify.TrainingProgram, set[str]]:
    """The program, and which modules use activation checkpointing."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_step.any_names())
        examples, named = _apart(stack.enter_context(_meta.on_cpu(module, (args, kwargs))))
        functions = stack.enter_context(_functions.functions())
        step = _step.Step(module, loss_index, outputs, functions, precision)
        if hasattr(dynamic_shapes, "dynamic_shapes"):  # torch.export.ShapesCollection, AdditionalInputs
            dynamic_shapes = dynamic_shapes.dynamic_shapes(step, examples, named)
        step.set_examples(examples, named)
        attributes = _state.Attributes(module)
        forward = _export.export(step, module, attributes, examples, named, dynamic_shapes)
        try:
            with _reject.differentiating():
                whole = _gpu_operators.FORWARD if device == "cuda" else {}
                joint = _joint.trace(forward, step.seen.loss_place, functions.table() | whole)
            _gpu_operators.rename(joint.graph)
            _decompose.rewrite_complex_numbers(joint.graph)
            _dtypes.correct(joint.graph)
            _dtypes.leave_out(joint.graph)
            _masks.recognize(joint.graph)
        except Exception as error:
            raise _reject.explain(error, module) from error
        _reject.check_graph(joint.graph, module)
        names = _step.input_names(step, forward.call_spec.in_spec)
        program = _joint.assemble(joint, forward, _joint.Parameters.of(module), step.seen.loss_place, names, gradients)
        _export.check_written(step, module, attributes, program)
    program.source = (module, args, kwargs)
    metadata = program.graph_module.meta["custom"]
    metadata["symbols"] = _step.symbols(step, dynamic_shapes, forward)
    metadata["loss_index"] = step.seen.loss_index
    metadata.update(precision.metadata)
    return program, step.seen.checkpointed


def _apart(arguments: Any) -> Any:
    """Copies a tensor that is passed a second time (labels=input_ids): a trace takes both arguments for one."""
    seen: set[int] = set()

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            return tensor
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copy, arguments)


def _warnings(module: torch.nn.Module, program: ExportedProgram, checkpointed: set[str]) -> Iterator[str]:
    if not module.training:
        yield "the model is in eval mode: dropout and batch norm are captured as in inference; call train() first"
    if checkpointed:
        yield (
            f"{', '.join(sorted(checkpointed))} {'uses' if len(checkpointed) == 1 else 'use'} activation checkpointing, which "
            "the graph does not keep; choose what is recomputed with fsdp-plan --remat"
        )
    unused = program.graph_module.meta["custom"]["unused"]
    if unused:
        yield (
            f"{len(unused)} of the model's parameters {'is' if len(unused) == 1 else 'are'} not used and will not be trained: "
            + ", ".join(f"`{name}`" for name in unused)
        )


def save(program: ExportedProgram, path: str | os.PathLike[str], *, verify: bool = True) -> None:
    """Writes what capture() returned to `path`, a .pt2 archive, weights included.

    Before that one step of it is compared with eager PyTorch, on new data like the example's: see verify(). It takes as
    long as one step on this machine, and is left out with `verify=False`, for a program that torch.export.load returned,
    and with a CaptureWarning for one that cannot be compared.

    Raises CaptureError if `program` is not a training graph, if it does not compute what the module does, or if `path` does
    not end in .pt2; OSError if the file cannot be written. A file that is there already is replaced only once the new one is
    whole; a link is followed, a device or a pipe written to.
    """
    path = Path(path)
    if not any(s.kind == OutputKind.LOSS_OUTPUT for s in program.graph_signature.output_specs):
        raise CaptureError("the program has no loss output: save takes what fsdp_mlir.capture returned")
    if path.suffix != ".pt2":
        raise CaptureError(f"`{path.name}` should end in .pt2, the archive format of torch.export")
    _write.check(path)
    if verify and isinstance(program, _verify.TrainingProgram):
        try:
            _verify.verify_example(program)
        except _verify.Incomparable as reason:
            warnings.warn(str(reason), CaptureWarning, stacklevel=2)
    with _write.replacing(path) as part:  # the archive's inner folder is called like the file
        torch.export.save(program, part)
