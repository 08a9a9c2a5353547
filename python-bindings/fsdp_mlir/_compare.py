"""Where a step of a plan first computes something else than PyTorch: the values of all operators, side by side."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fsdp_mlir import _compiled, _first_steps, _plan, _sources, _verify
from fsdp_mlir._plan import Plan
from fsdp_mlir._trainer import Batch, Trainer
from fsdp_mlir.errors import CaptureError, FSDPError, PlanError

_FIXED = ("--ranks", "--device")  # options that no other plan for the same ranks can do without
_CANCELLED = 1e-2  # of the largest input of an operator: what the tolerance of its result is at least relative to


@dataclass(frozen=True)
class Comparison:
    """What compare() finds, the same on all ranks. It is false if anything differs; print() shows it."""

    node: str
    """The first of the graph, in its order, whose value differs; empty if none does."""
    rank: int
    """The first with this node's difference."""
    operator: str
    """That of the node, as "aten.mul.Tensor"."""
    module: str
    """The path and class of the module that calls it; empty for what is outside of all."""
    source: str
    """The line of the model's source that calls the operator, or for the backward the one that it is the gradient of, as
    "model.py:12: y = self.linear(x)"; empty where nobody knows."""
    unit: str
    """Of the plan, which has that module's parameters."""
    values: str
    """Both values of the element that is farthest off, or their ratio."""
    graph: str
    """How the captured graph, run by PyTorch, differs from the module; empty if it does not."""
    step: str
    """What of the loss, the gradients and the buffers differs, of which the first two are means over the ranks; empty if nothing does."""
    compared: int
    """Operators of the plan whose values were compared on rank 0: those with the name of a node, which text of a plan has with
    --mlir-print-debuginfo alone."""
    options: tuple[str, ...] | None = None
    """The fewest options of the plan with which it still differs: without any one of them it does not. None if nothing differs, or if
    compare() was not asked for it."""

    def __bool__(self) -> bool:
        return not (self.node or self.graph or self.step)

    def __str__(self) -> str:
        lines = [f"the captured graph: {self.graph}"] if self.graph else []
        if self.node:
            lines.append(f"rank {self.rank}, unit {self.unit}, module {self.module or 'none'}, {self.operator}: {self.values}")
            lines += [f"  {self.source}"] if self.source else []
        if self.step:
            agree = "; all operators agree, so a collective or a copy does not" if self.compared and not (self.node or self.graph) else ""
            lines.append(self.step + agree)
        if self.options is not None:
            lines.append(f"the plan differs with {' '.join(self.options)}, and with fewer options does not" if self.options else "the plan differs without any option")
        return "\n".join([*lines, f"{self.compared} operators compared" + ("" if lines else ", none differs")])


def compare(
    model: torch.nn.Module, plan: Plan, batch: Batch, *, group: dist.ProcessGroup | None = None, seed: int = 0, bisect: bool = False
) -> Comparison:
    """Runs forward and backward of `plan` on this rank's `batch`, and the same in PyTorch, and compares the value of each operator.

    `model`: the module that compile() made the plan of, in this process, with the parameters to begin with; it stays as it is. `batch`,
    `group` and `seed` are those of Trainer; all ranks call it. Operators are compared with the captured graph, that with the module, and the
    results with those of the module. All values of the graph are in memory at once.

    `bisect`: where the plan differs, it is made again without one option after the other, and compared, until none can be left out: at worst
    as often as the square of their number.

    Raises FSDPError for what cannot be compared (as Trainer's verify_first_step), for a plan to bisect that is not what its options make,
    and as Trainer does.
    """
    found = _compare(model, plan, batch, group, seed)
    if not bisect or not (found.node or found.step):
        return found

    def differs(options: Sequence[str]) -> bool:
        with tempfile.TemporaryDirectory() as scratch:
            other = _remade(plan, options, Path(scratch))
            again = other and _compare(model, other, batch, group, seed)
            return again is not None and bool(again.node or again.step)

    options = [argument for argument in plan._arguments if argument.partition("=")[0] not in _FIXED]
    if not differs(options):
        raise FSDPError(f"{plan.path}: expected a plan that its options make, found that the same options make one that does not differ; compile it again")
    return replace(found, options=tuple(_fewest(options, differs)))


def _remade(plan: Plan, options: Sequence[str], folder: Path) -> Plan | None:
    """The plan of the same model for as many ranks, with these options; None where the compiler rejects them."""
    fixed = [argument for argument in plan._arguments if argument.partition("=")[0] in _FIXED]
    if not any(argument.partition("=")[0] in ("--ranks", "--mesh") for argument in (*fixed, *options)):
        fixed.append(f"--ranks={plan.ranks}")
    try:
        _plan.make(folder, plan._models, [*fixed, *options], is_dry=False, flags=["--unproved"])
    except PlanError:
        return None
    return Plan(folder, plan._models, reference=plan._reference)


def _fewest(options: Sequence[str], differs: Callable[[Sequence[str]], bool]) -> list[str]:
    """Some of the options, for which `differs` is true, but not if any one of them is left out."""
    kept, tried = list(options), 0
    while tried < len(kept):
        fewer = [*kept[:tried], *kept[tried + 1 :]]
        if differs(fewer):
            kept, tried = fewer, 0
        else:
            tried += 1
    return kept


def _compare(model: torch.nn.Module, plan: Plan, batch: Batch, group: dist.ProcessGroup | None, seed: int) -> Comparison:
    with Trainer(plan, model, group=group, seed=seed, keep_module=True, verify_first_step=False) as trainer:
        if trainer._session.device != "cpu":
            raise FSDPError(f"{trainer.path}: expected a plan for cpu to compare, found one for cuda; compile the model with device='cpu'")
        steps = _first_steps.start(trainer, plan, True, "compare a plan of the same model without")
        assert steps is not None
        inputs = trainer._tensors(batch, trainer._programs[0])
        observed = _observe(trainer, steps, inputs)
        return _result(plan, steps, *observed)


def _observe(trainer: Trainer, steps: _first_steps.FirstSteps, inputs: list[torch.Tensor]) -> tuple[dict[str, str], str, str]:
    """By node, how its value differs, or nothing; how the graph does; and the results."""
    reference, model, session = steps.reference, trainer._model, trainer._session
    assert model is not None
    program, graph = reference.program, ""
    with torch.inference_mode(False), _compiled.eager(model) as module, torch.random.fork_rng(devices=[]):
        args, kwargs = reference.batch(module, inputs)
        try:
            with reference.in_mode(module):
                _verify.verify(module, program, args, kwargs)
        except CaptureError as error:
            graph = str(error).partition(": ")[2].partition(";")[0]
        torch.set_rng_state(session.generator_state())
        expected = _Values(program.graph_module)
        with torch.no_grad():
            expected.run(*_verify.graph_inputs(module, program, args, kwargs))
    found: dict[str, str] = {}

    def observe(node: str, values: list[torch.Tensor | None]) -> None:
        if node in expected.values:  # the last of several operators has the value of the node
            found[node] = expected.difference(node, values, steps.tolerance)

    session.observe(observe)
    try:
        _, step = steps.run(inputs)
    finally:
        session.observe(None)
    return found, graph, step


class _Values(_verify._Interpreter):
    """A run of a graph that keeps all values."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.nodes = {node.name: node for node in graph.graph.nodes if node.op == "call_function"}
        self.values: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.values[n.name] = value = super().run_node(n)
        return value

    def difference(self, name: str, found: list[torch.Tensor | None], tolerance: float) -> str:
        expected, node = self.values[name], self.nodes.get(name)
        if node is None:
            return ""
        inputs = [v.abs().double() for n in node.all_input_nodes if _verify._is_real(v := self.values[n.name]) and v.numel() and v.isfinite().all()]
        element = _CANCELLED * max((v.max().item() for v in inputs), default=0.0)
        length = _CANCELLED * max((v.norm().item() for v in inputs), default=0.0)
        for mine, its in zip(expected if isinstance(expected, (tuple, list)) else [expected], found):
            if isinstance(mine, torch.Tensor) and its is not None and mine.shape == its.shape and mine.dtype == its.dtype:
                for sentence in _verify._difference(f"`{name}`", mine, its, [], element, length, tolerance, "the plan"):
                    return sentence
        return ""


def _result(plan: Plan, steps: _first_steps.FirstSteps, found: dict[str, str], graph: str, step: str) -> Comparison:
    """Of all ranks."""
    nodes = list(steps.reference.program.graph.nodes)
    places = {node.name: place for place, node in enumerate(nodes)}
    first = min((name for name in found if found[name]), key=places.__getitem__, default="")
    every = [json.loads(text) for text in steps.ranks.texts(json.dumps([first, found.get(first, ""), len(found)]))]
    rank = min(range(len(every)), key=lambda r: places.get(every[r][0], len(places)))
    name, values, _ = every[rank]
    node = nodes[places[name]] if name else None
    path, kind = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())[-1] if node else ("", "")
    units = sorted((unit["name"] for unit in plan.summary["units"]), key=len)
    unit = next((u for u in reversed(units) if f"{path}.".startswith(f"{u}.")), "root") if node else ""
    module = f"{path} ({str(kind).rpartition('.')[2]})" if path else ""
    source = _sources.quote(node.meta["source"]) if node and node.meta.get("source") else ""
    return Comparison(name, rank, str(node.target) if node else "", module, source, unit, values, steps.ranks.first(graph), step, every[0][2])
