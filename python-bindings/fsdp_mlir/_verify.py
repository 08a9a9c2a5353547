"""Does a captured graph compute what the module does? One step of both, compared. Plans train: _training."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_mlir import _compiled, _precision, _step, _training
from fsdp_mlir._state import Attributes
from fsdp_mlir._training import Results
from fsdp_mlir.errors import CaptureError

_WIDE = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE = {"bf16": torch.bfloat16, "f16": torch.float16}
_SHALLOW = 64  # results of 16 bits in a row: what fewer may add up to is allowed to all
_AVERAGED = 8  # so many elements average out what rounding does to them; beyond that, errors are not independent, as those of an LSTM's steps
_SEED = 20241122
_NOISE = 1e-3  # of the largest gradient: what the tolerance of any is at least relative to
_ROUNDINGS = 8  # so many steps that round otherwise show how far rounding moves a result


def _tolerance(program: ExportedProgram) -> float:
    """How far an element may be from eager PyTorch's, relative to the largest: by the least precise dtype of the graph.

    With 16 bits, the graph and eager PyTorch round at different places, and differences add up like the steps of a random walk:
    with the root of how many results of 16 bits depend on each other.
    """
    real = {v.dtype.to_real() for n in program.graph.nodes if _is_real(v := n.meta.get("val"))}
    if not any(dtype.itemsize < 4 for dtype in real):
        return _WIDE[torch.float32 if torch.float32 in real else torch.float64]
    depth: dict[torch.fx.Node, int] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        depth[node] = max((depth[n] for n in node.all_input_nodes), default=0) + (_is_real(value) and value.dtype.itemsize < 4)
    coarse = torch.bfloat16 if real - {torch.float16, torch.float32, torch.float64} else torch.float16
    return torch.finfo(coarse).eps / 2 * max(*depth.values(), _SHALLOW) ** 0.5


def tolerance(program: ExportedProgram, plan: _training.Plan) -> float:
    """The same for a plan of the program, which may keep, send and sum in 16 bits what the graph does not."""
    return max([_tolerance(program), *(torch.finfo(_COARSE[d]).eps / 2 * _SHALLOW**0.5 for d in plan.types & _COARSE.keys())])


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


class TrainingProgram(ExportedProgram):
    """What capture returns: an ExportedProgram that knows which module it is of.

    `module()` gives each caller buffers of its own; torch.export's would write to those of the captured module.
    """

    source: tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]  # the module, and the arguments of its example call
    mixed_precision: Any  # as capture takes it

    def module(self, check_guards: bool = True) -> torch.nn.Module:
        clash = next(filter(_clashes, [*self.state_dict, *self.constants]), None)
        if clash is not None:
            raise CaptureError(f"torch.fx needs the name of `{clash}` for itself, so the program has no module(); verify() runs it")
        with _step.any_names():
            step = super().module(check_guards=check_guards)
        written = [s.target for s in self.graph_signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION]
        for owner, _, name in (target.rpartition(".") for target in written):
            part = step.get_submodule(owner)
            part._buffers[name] = part._buffers[name].detach().clone()
        return step


def _clashes(name: str) -> bool:
    return hasattr(torch.fx.GraphModule, name.partition(".")[0])


class Incomparable(CaptureError):
    """There is nothing in eager PyTorch to compare the program with."""


def verify(
    module: torch.nn.Module,
    program: ExportedProgram,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    plan: str | os.PathLike[str] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
) -> None:
    """Compares one step of `program`, which capture returned, with eager PyTorch on `inputs` and `kwargs`, arguments of `module`.

    Compares the loss, each gradient and each buffer that the step changes, all with the module's present weights, and leaves
    the module as it was. Sizes that are fixed in the program must be those of the inputs. Both draw the same random numbers.

    With `plan`, a file that fsdp-plan has made of the program, two updates of fsdp-run as well: losses, gradients, parameters, states of
    the optimizer and buffers; the second once more by a run that goes on from a checkpoint, with the same bits. Each rank of each update
    gets the elements of the inputs in another order, where the module takes them. `optimizer` is torch.optim.AdamW or SGD as the training
    would have it, with its groups, by default with a learning rate of 1e-3; with `max_norm`, gradients are clipped as by
    torch.nn.utils.clip_grad_norm_. The tools are those that fsdp_mlir_tools.find() finds.

    Raises CaptureError if they differ, and if they cannot be compared: without weights, or with what is said of the plan or optimizer.
    """
    kwargs = kwargs or {}
    with _compiled.eager(module) as module, torch.random.fork_rng(devices=[]):
        _check_content(module)

        def step(run: Callable[..., Results]) -> Results:
            torch.manual_seed(_SEED)  # not where capture has left the generator: a module may have seeded it
            return run(module, program, inputs, kwargs)

        wrong = _wrong(step(_eager), step(_graph), _tolerance(program), lambda: step(_eager))
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise CaptureError(f"the graph does not compute what the model does: {wrong[0]}{more}; please report this model")
        if plan is not None:
            _verify_training(module, program, inputs, kwargs, _training.Plan(plan), optimizer, max_norm, norm_type)


def _verify_training(module: torch.nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any], plan: _training.Plan,
                     optimizer: torch.optim.Optimizer | None, max_norm: float | None, norm_type: float) -> None:  # fmt: skip
    parameters = dict(module.named_parameters())
    trained = [s.target for s in program.graph_signature.output_specs if s.kind == OutputKind.GRADIENT_TO_PARAMETER]
    if optimizer is None:
        optimizer = plan.rule([parameters[name] for name in trained], lr=1e-3)
    ours = _training.Optimizer(optimizer, plan, {parameter: name for name, parameter in parameters.items()}, trained)
    batches = [fresh((args, kwargs), seed) for seed in range(_training.UPDATES * plan.ranks)]
    if not all(_fits(module, program, batch) for batch in batches):
        batches = [(args, kwargs)] * len(batches)
    allowed = tolerance(program, plan)
    sentence = _training.compare(
        module,
        lambda batch: _eager(module, program, *batch),
        lambda expected, found, again: _wrong(expected, found, allowed, again, "the plan"),
        batches,
        lambda batch: _users(module, program, *batch),
        plan,
        ours,
        max_norm,
        norm_type,
    )
    if sentence:
        raise CaptureError(f"{plan.path} does not train as PyTorch does: {sentence}")


def _precision_of(module: torch.nn.Module, program: ExportedProgram) -> _precision.Precision:
    if isinstance(program, TrainingProgram):
        return _precision.Precision(module, program.mixed_precision)
    if "param_dtype" in program.graph_module.meta["custom"]:
        raise Incomparable("not compared with eager PyTorch: mixed precision is not in the archive; verify what capture returned")
    return _precision.Precision(module)


def _check_content(module: torch.nn.Module) -> None:
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(value, FakeTensor) or value.is_meta:
            raise Incomparable(f"not compared with eager PyTorch: `{name}` has no content")


def fresh(value: Any, seed: int = 0) -> Any:
    """Arguments like these with other contents: the elements of each tensor, shuffled. Numbers in order (offsets, positions)
    stay in order."""
    generator = torch.Generator().manual_seed(seed)

    def shuffle(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() and not tensor.is_floating_point() and not tensor.is_complex() and (tensor.diff() >= 0).all():
            return tensor
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        shuffled = torch.empty_like(tensor)
        shuffled.copy_(tensor.detach().reshape(-1)[order].view(tensor.shape))
        return shuffled.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, shuffle, value)


def verify_example(program: TrainingProgram) -> None:
    """verify() of a program that capture returned, on new data where the module takes it, else on the example."""
    module, args, kwargs = program.source
    _check_content(module)
    with _compiled.eager(module) as original:
        fits = _fits(original, program, fresh((args, kwargs)))
    verify(module, program, *(fresh((args, kwargs)) if fits else (args, kwargs)))


def _fits(module: torch.nn.Module, program: ExportedProgram, batch: Any) -> bool:
    """Whether the module computes a loss of it: shuffled lengths or offsets may be invalid."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _unchanged(module), _precision_of(module, program).applied():
            return bool(_loss(module, program, *batch).isfinite())
    except Exception:
        return False


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Puts back the module's attributes and buffers."""
    attributes = Attributes(module)
    buffers = [(part, key, b, b.detach().clone()) for part in module.modules() for key, b in part._buffers.items() if b is not None]
    try:
        yield
    finally:
        attributes.restore()
        for part, key, buffer, value in buffers:
            # A step may have written a value with a gradient; a view cannot be detached in place.
            part._buffers[key] = buffer.detach() if buffer.requires_grad else buffer
            part._buffers[key].copy_(value)


def _loss(module: torch.nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    (loss,) = _step.Step(module, program.graph_module.meta["custom"]["loss_index"], ())(*args, **kwargs)
    return loss


def _eager(module: torch.nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results:
    """The loss, the gradients and the changed buffers, by what they are."""
    specs = program.graph_signature.output_specs
    trained = [s.target for s in specs if s.kind == OutputKind.GRADIENT_TO_PARAMETER]
    written = [s.target for s in specs if s.kind == OutputKind.BUFFER_MUTATION]
    parameters = dict(module.named_parameters(remove_duplicate=False))
    precision = _precision_of(module, program)
    with torch.enable_grad(), _unchanged(module):
        with precision.explained(), precision.applied():  # checkpointing calls the module again in the backward
            loss = _loss(module, program, args, kwargs)
            inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            gradients = _gradients(loss, [parameters[name] for name in trained], inputs)
        found = {"the loss": loss.detach()} | {f"the gradient of `{n}`": g for n, g in zip(trained, gradients)}
        return found | {f"buffer `{name}`": module.get_buffer(name).detach().clone() for name in written}


def _gradients(loss: torch.Tensor, parameters: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """By backward(), which re-entrant checkpointing needs. Leaves the .grad of all of them as it was."""
    leaves = [*parameters, *inputs]
    before = [leaf.grad for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.grad = None
        loss.backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]  # those of Embedding(sparse=True) are sparse
    finally:
        for leaf, grad in zip(leaves, before):
            leaf.grad = grad


class _Interpreter(torch.fx.Interpreter):
    """Kernels may return other strides than the trace says, with which a view needs a copy."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target, args, kwargs)


class _Rounding(TorchDispatchMode):
    """Moves what is computed in 16 bits by up to a unit in the last place, at random. How far that moves a result is its noise: all
    that there is of a gradient whose terms cancel, as that of a bias ahead of a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(_SEED)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = not any(r.alias_info for r in func._schema.returns)
        return pytree.tree_map_only(torch.Tensor, self._move, result) if is_new else result

    def _move(self, value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.dtype.itemsize > 2:
            return value
        part = 2 * torch.rand(value.shape, generator=self._generator) - 1
        return (value + part * torch.finfo(value.dtype).eps * value).to(value.dtype)


def _users(module: torch.nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The inputs of the program, of these arguments of the module."""
    names = _step.input_names(_step.Step(module, None, ()), pytree.tree_structure((args, kwargs)))
    given = dict(zip(names, pytree.tree_leaves((args, kwargs))))
    wanted = program.graph_module.meta["custom"]["inputs"]
    missing = [name for name in wanted if name not in given]
    if missing:
        raise CaptureError(f"the program has the input `{missing[0]}`, which the inputs leave out; they are " + ", ".join(given))
    return [given[name] for name in wanted]


def _graph(module: torch.nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results:
    """What the graph computes, called as _eager calls it."""
    with torch.no_grad():
        results = _Interpreter(program.graph_module).run(*graph_inputs(module, program, args, kwargs))
    words = {
        OutputKind.LOSS_OUTPUT: "the loss",
        OutputKind.GRADIENT_TO_PARAMETER: "the gradient of `{}`",
        OutputKind.BUFFER_MUTATION: "buffer `{}`",
    }
    specs = program.graph_signature.output_specs
    return {words[s.kind].format(s.target): value for s, value in zip(specs, results) if s.kind in words}


def graph_inputs(module: torch.nn.Module, program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """All of the graph, for these arguments of the module: its tensors, constants, and those of the user."""
    users = iter(_users(module, program, args, kwargs))
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    values = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            values.append(next(users))
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            values.append(program.constants[spec.target])
        else:
            values.append(tensors[spec.target])
    return values


def _wrong(expected: Results, found: Results, tolerance: float, again: Callable[[], Results], where: str = "the graph",
           on_any: Callable[[bool], bool] = bool) -> list[str]:  # fmt: skip
    """A sentence for each result of `where` that is wrong; again() computes the expected ones, on all ranks if it must `on_any`."""
    wrong = _differences(expected, found, tolerance, [], where)
    if on_any(bool(wrong)):  # few need to know what noise there is
        with _Rounding():
            rounded = [again() for _ in range(_ROUNDINGS)]
        wrong = _differences(expected, found, tolerance, rounded, where)
    return wrong


def _differences(expected: Results, found: Results, tolerance: float, rounded: list[Results], where: str) -> list[str]:
    """`rounded`: what is expected by steps that round otherwise."""
    gradients = [value.abs().double() for key, value in expected.items() if "gradient" in key and value.numel() and value.isfinite().all()]
    element = _NOISE * max((g.max().item() for g in gradients), default=0.0)
    length = _NOISE * max((g.norm().item() for g in gradients), default=0.0)
    return [
        text
        for key in expected
        for text in _difference(key, expected[key], found[key], [other[key] for other in rounded], element, length, tolerance, where)
    ]


def _difference(
    what: str,
    expected: torch.Tensor,
    found: torch.Tensor,
    rounded: list[torch.Tensor],
    least_element: float,
    least_length: float,
    tolerance: float,
    where: str,
) -> Iterator[str]:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        yield f"{what} is {expected.dtype}{list(expected.shape)} in eager PyTorch, {found.dtype}{list(found.shape)} in {where}"
        return
    if not expected.numel() or torch.equal(expected, found):
        return
    wide = torch.complex128 if expected.is_complex() else torch.float64
    mine, eager, *others = (value.to(wide).reshape(-1) for value in (found, expected, *rounded))
    error = torch.where(mine.isfinite() | eager.isfinite(), (mine - eager).abs(), 0.0).nan_to_num(torch.inf, torch.inf)
    finite = eager.isfinite() & mine.isfinite()
    noise = [torch.where(finite & other.isfinite(), other - eager, 0.0) for other in others]
    scale = eager[finite].abs().max().item() if finite.any() else 0.0
    allowed = max(tolerance * scale, tolerance * least_element, *(n.abs().max().item() for n in noise))
    if error.max() > allowed + 1e-30:
        place = int(error.argmax())
        yield f"{what} is {eager[place].item():.6g} at element {place} in eager PyTorch, {mine[place].item():.6g} in {where}"
        return
    eager = torch.where(finite, eager, 0.0)
    length = eager.norm().item()

    def along(change: torch.Tensor) -> float:
        return (change.mul(eager.conj()).sum().real / max(length, 1e-150)).item()

    excess = along(torch.where(finite, mine - eager, 0.0))
    averaged = tolerance / min(max(int(finite.sum()), 1), _AVERAGED) ** 0.5
    if abs(excess) > max(averaged * (length + least_length), *(abs(along(n)) for n in noise), 1e-30):
        yield f"{what} is {1 + excess / length:.4g} times that of eager PyTorch"
