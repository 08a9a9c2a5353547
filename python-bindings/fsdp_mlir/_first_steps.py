"""The first steps of a training beside eager PyTorch, on all ranks: each step of the plan, and its update, as in _training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fsdp_mlir import _optimizer, _training, _verify
from fsdp_mlir._reference import Reference
from fsdp_mlir._training import Results
from fsdp_mlir.errors import CaptureError, CaptureWarning, FSDPError

if TYPE_CHECKING:
    from fsdp_mlir._trainer import Trainer

LARGEST = 32 << 20  # bytes of parameters up to which a training is compared that nobody asked to compare
_KINDS = {"the gradient of": "gradient", "buffer": "buffer"}
_LINE = 1024  # bytes of a sentence that a rank tells the others


class Ranks:
    """Of a training, over the group that its plan uses between steps: what needs send and recv alone."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size() if group else 1

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in their order, with the same bits on each."""
        if self.group is None or self.size == 1:
            return value
        value = value.contiguous()
        if self.rank:
            self.group.send([value], 0, 0).wait()
            result = torch.empty_like(value)
            self.group.recv([result], 0, 0).wait()
            return result
        result, other = value.clone(), torch.empty_like(value)
        for rank in range(1, self.size):
            self.group.recv([other], rank, 0).wait()
            result += other
        for rank in range(1, self.size):
            self.group.send([result], rank, 0).wait()
        return result

    def any(self, mine: bool) -> bool:
        return bool(self.total(torch.tensor([int(mine)])).item())

    def texts(self, mine: str) -> list[str]:
        """Of all ranks, up to a length."""
        lines = torch.zeros(self.size, _LINE, dtype=torch.uint8)
        said = mine.encode()[:_LINE]
        lines[self.rank, : len(said)] = torch.tensor(list(said), dtype=torch.uint8)
        return [bytes(line.tolist()).rstrip(b"\0").decode(errors="ignore") for line in self.total(lines)]

    def first(self, sentence: str) -> str:
        """That of the first rank that has one."""
        every = self.texts(sentence)
        return next((f"rank {rank}: {line}" if self.size > 1 else line for rank, line in enumerate(every) if line), "")

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        wide = value.to(torch.promote_types(value.dtype, torch.float32))
        return (self.total(wide) / self.size).to(value.dtype)


def start(trainer: Trainer, plan: Any, asked: bool | None, remedy: str = "leave out verify_first_step=True") -> FirstSteps | None:
    """None where no step is compared; all ranks call it. Raises FSDPError if that is `asked` for and cannot be done. None leaves it to the
    size of the module, and to what there is to compare with."""
    ranks, facts = Ranks(trainer._group, trainer.rank), None
    reason = _obstacle(trainer, plan) if asked is not False else "it is turned off"
    if not reason and asked is None and trainer._model is not None and sum(p.numel() * p.itemsize for p in trainer._model.parameters()) > LARGEST:
        reason = f"its parameters take more than {LARGEST >> 20} MiB"
    if not reason:
        try:
            facts = _training.Plan(trainer.path)
        except CaptureError as error:
            reason = str(error)
    if ranks.any(bool(reason)) or facts is None:
        if asked:
            raise FSDPError(f"{trainer.path}: expected a training to compare with eager PyTorch, found that {reason or 'another rank has none'}; "
                            f"{remedy}")  # fmt: skip
        return None
    return FirstSteps(trainer, plan._reference, facts, plan._arguments, ranks, bool(asked))


def _obstacle(trainer: Trainer, plan: Any) -> str:
    """Why no eager step can be that of the plan."""
    if trainer._model is None:
        return "the Trainer has no module"
    if getattr(plan, "_reference", None) is None:
        return "the plan is not what compile() has returned in this process"
    held = dict(trainer._model.named_parameters(remove_duplicate=False))
    for p in trainer._parameters.values():
        if p.name not in held:
            return f"the module calls {p.name} otherwise"
        if held[p.name].dtype != p.dtype:
            return f"the plan keeps {p.name} in {p.dtype}, the module in {held[p.name].dtype}"
    return ""


class FirstSteps:
    """Runs steps and compares them, until `is_done`. All ranks call the same."""

    def __init__(self, trainer: Trainer, reference: Reference, facts: _training.Plan, arguments: Sequence[str], ranks: Ranks, is_asked: bool) -> None:
        """`facts` and `arguments`, the options: of the plan."""
        self.trainer, self.session, self.reference, self.ranks = trainer, trainer._session, reference, ranks
        self.tolerance = _verify.tolerance(reference.program, facts)
        clip = next((a.partition("=")[2] for a in arguments if a.startswith("--clip-grad-norm=")), "")
        bound, _, order = clip.partition(":")
        self.clip = (float(bound), float(order or 2)) if clip else None
        self.left, self.is_asked = _training.UPDATES, is_asked
        assert trainer.optimizer is not None  # facts are those of a plan that updates
        self.optimizer = trainer.optimizer
        self.gradients: dict[str, torch.Tensor] = {}

    @property
    def is_done(self) -> bool:
        return not self.left

    def backward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Runs forward and backward of a step on these inputs of the plan. Raises FSDPError for a difference, on all ranks, before the update."""
        loss, sentence = self.run(inputs)
        self._report(sentence)
        return loss

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, str]:
        """The same, and what differs."""
        self.draws, self.inputs, self.update_number = self.session.generator_state(), inputs, self.session.updates + 1
        facts = self.optimizer._facts
        self.states = {p.name: {kind: self.session.read(kind, p.name) for kind in p.states} for p in facts} if self.update_number > 1 else {}
        self.before = {p.name: self.session.read("parameter", p.name) for p in facts} if self.trainer._keeps else {}
        expected = self._eager()
        loss = self.session.backward(inputs, 0)
        return loss, "" if expected is None else self.ranks.first(self._compare(expected, loss))

    def update(self) -> None:
        """The update of that step. Raises FSDPError for a difference, on all ranks."""
        self.session.update()
        if self.left:
            self.left -= 1
            self._report(self.ranks.first(self._compare_update()))
            self.before, self.states, self.gradients = {}, {}, {}

    def _report(self, sentence: str) -> None:
        if sentence:
            raise FSDPError(f"{self.trainer.path}: expected step {self.update_number} to be that of eager PyTorch, found that {sentence}; fsdp_mlir.compare() "
                            "finds the operator that differs: please report this model, or give verify_first_step=False to train it all the same")  # fmt: skip

    def _eager(self) -> Results | None:
        """What is expected of the step, means over the ranks and this rank's buffers; None where the module cannot compute it."""
        trainer, problem = self.trainer, ""
        found: Results = {}
        model = trainer._model
        assert model is not None
        with _training.kept(model) if trainer._keeps else nullcontext():
            whole: Any = model if hasattr(model, "_fsdp") else trainer
            with whole.summon_full_params(writeback=False):
                try:
                    with torch.random.fork_rng(devices=[]):
                        torch.set_rng_state(self.draws)
                        found = self.reference.eager(model, self.inputs)
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}".partition("\n")[0]
                if not trainer._keeps:
                    self.before = {p.name: model.get_parameter(p.name).detach() for p in self.optimizer._facts}
        if problem := self.ranks.first(problem):
            self._give_up(f"the module does not run in eager PyTorch ({problem})")
            return None
        return {key: value if key.startswith("buffer ") else self.ranks.mean(value) for key, value in found.items()}

    def _give_up(self, reason: str) -> None:
        if self.is_asked:
            raise FSDPError(f"{self.trainer.path}: expected a step to compare with eager PyTorch, found that {reason}; leave out verify_first_step=True")
        self.left = 0
        warnings.warn(f"{self.trainer.path}: not compared with eager PyTorch: {reason}", CaptureWarning, stacklevel=4)

    def _compare(self, expected: Results, loss: torch.Tensor) -> str:
        """What of loss, gradients and buffers differs. Keeps the gradients, which an update that clips overwrites."""
        found: Results = {}
        for key, value in expected.items():
            kind, _, name = key.removesuffix("`").partition(" `")
            found[key] = loss.to(value.dtype) if kind == "the loss" else self.session.read(_KINDS[kind], name)
        wrong = _verify._wrong(expected, found, self.tolerance, self._again, "the plan", self.ranks.any)
        self.gradients = {key[len("the gradient of `") : -1]: value for key, value in found.items() if key.startswith("the gradient")}
        return f"{wrong[0]}, where {self.tolerance:.2g} of the largest element is allowed" if wrong else ""

    def _again(self) -> Results:
        again = self._eager()
        assert again is not None
        return again

    def _compare_update(self) -> str:
        """What of parameters and states differs, one parameter after the other: a copy of all of them may be too much."""
        optimizer = self.optimizer
        takes, names = optimizer._takes, self.session.decay_groups()
        kind: Any
        kind, factor = _optimizer.RULES[self.session.update_rule][0], self._factor()
        if left := {name for name, value in self.gradients.items() if value.numel()} - {p.name for p in optimizer._facts}:
            return f"the plan never updates parameter `{min(left)}`, which has a gradient"
        for p in optimizer._facts:
            group = optimizer.param_groups[optimizer._indices.index(p.group)]
            hyper = {key: group[key] for key in takes} | ({"weight_decay": 0.0} if names[p.group] == "no_decay" else {})
            parameter = torch.nn.Parameter(self.before.pop(p.name))
            reference = kind([parameter], **hyper, fused=True)
            for name, value in self.states.get(p.name, {}).items():
                reference.state[parameter][_optimizer._STATES.get(name, name)] = value
            if "exp_avg" in self.states.get(p.name, {}):
                reference.state[parameter]["step"] = torch.tensor(float(self.update_number - 1))
            tensors = {p.name: self.session.read("parameter", p.name), f"optim.state.{p.name}.step": torch.tensor(self.session.updates)}
            for name in p.states:
                tensors[f"optim.state.{p.name}.{_optimizer._STATES.get(name, name)}"] = self.session.read(name, p.name)
            gradients = {p.name: self.gradients.pop(p.name) * factor}
            sentence = _training.check_update(self.update_number, gradients, tensors, {p.name: parameter}, reference)
            if sentence:
                return f"{sentence}, where {_training.EXACT:.2g} of the change is allowed"
        return ""

    def _factor(self) -> float | torch.Tensor:
        """What clipping makes of a gradient."""
        if self.clip is None:
            return 1.0
        norm = torch.nn.utils.get_total_norm(self.gradients.values(), self.clip[1])
        return (self.clip[0] / (norm + 1e-6)).clamp(max=1.0)
