"""Does a plan train as eager PyTorch does? Two updates of both; and the second once more, by a run that goes on from a checkpoint.

An update is followed from what the plan itself has before it. Its loss, gradients and buffers are compared with those of the module with
these parameters; its parameters and states with what torch.optim makes of its gradients. So each comparison is as sharp as its own
arithmetic, where the parameters at the end would not be: AdamW makes whole steps of a gradient that is all rounding.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsdp_mlir_tools
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fsdp_mlir.errors import CaptureError

Results = dict[str, torch.Tensor]
"""The loss, gradients and buffers of a step, by what they are; in those of a run, also by rank."""

Eager = Callable[[Any], Results]
"""One step of the module with its present parameters and buffers, on a batch. Leaves all but the random numbers as they were."""

UPDATES = 2
_OPTIMIZERS = {torch.optim.AdamW: ("lr", "betas", "eps", "weight_decay"), torch.optim.SGD: ("lr", "momentum", "weight_decay")}
_IRRELEVANT = ("params", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay", "initial_lr", "param_names")
_STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")
EXACT = 1e-4  # of a change: what two orders of a sum of squares (the norm) make of it, with room


class Plan:
    """What of a plan a training needs to know. Raises CaptureError for what is not compared."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        text = run("fsdp-translate", "--import-plan", self.path)
        self.ranks = math.prod(map(int, re.findall(r'"[^"]*" = (\d+)', re.search(r"plan\.module @\S+ mesh \[(.*?)\]", text)[1])))
        self.rule = torch.optim.SGD if re.search(r" plan\.sgd ", text) else torch.optim.AdamW
        self.has_momentum = '"momentum"' in text
        self.types = set(re.findall(r" (?:storage|reduce|via) (\w+)", text))
        for pattern, what, remedy in (
            (r" plan\.(adamw|sgd) ", None, "plan with --optimizer adamw or sgd"),
            (r"micro_batches = ", "accumulates gradients over micro-batches", "plan without --accumulate"),
            (r" (found_inf|skipped) %", "scales the loss", "plan without --grad-scaler"),
            (r" for buffer <", "makes the buffers of all ranks alike", "plan without --sync-buffers"),
            (r"plan\.unit \S+ shard \[\] replicate \[\] ", "leaves parameters to each rank", "plan without --ignore"),
            (r"hyper number [1-9]", "has groups of parameters with learning rates of their own", "plan without --lr-groups"),
            (r"device cuda", "is for GPUs", "plan with --device cpu"),
        ):
            found = re.search(pattern, text)
            if (found is None) == (what is None):
                raise CaptureError(f"{self.path} {what or 'makes no update'}, which is not compared with PyTorch; {remedy}")


def run(tool: str, *arguments: Any) -> str:
    """The standard output of a tool (fsdp_mlir_tools.find). Raises CaptureError with its error."""
    try:
        program = fsdp_mlir_tools.find(tool)
    except fsdp_mlir_tools.ToolError as error:
        raise CaptureError(f"{error}; or leave out plan=") from None
    environment = {"OMP_NUM_THREADS": "1", **fsdp_mlir_tools.environment()}
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=environment)
    if result.returncode:
        raise CaptureError(f"{tool} failed: {result.stderr.strip() or result.returncode}")
    return result.stdout


class Optimizer:
    """An optimizer of torch with the rule, groups and hyper-parameters of the caller's. Raises CaptureError for what a plan has not."""

    def __init__(self, given: torch.optim.Optimizer, plan: Plan, names: dict[torch.Tensor, str], trained: list[str]) -> None:
        kind = next((kind for kind in _OPTIMIZERS if type(given) is kind), None)
        if kind is not plan.rule:
            raise CaptureError(f"{plan.path} updates with {plan.rule.__name__}, the optimizer is {type(given).__name__}")
        takes, default = _OPTIMIZERS[kind], kind([torch.zeros(())]).param_groups[0]
        groups = [{k: v.item() if k in takes and torch.is_tensor(v) else v for k, v in group.items()} for group in given.param_groups]
        for group in groups:
            for key, value in group.items():
                if key not in (*takes, *_IRRELEVANT) and value != default[key]:
                    raise CaptureError(f"{key}={value} of the optimizer is none of a plan's: leave it at {default[key]}")
        self.hyper: dict[str, Any] = {}
        for key in takes:
            values = {group[key] for group in groups} - ({0} if key == "weight_decay" and len(groups) > 1 else set())
            if len(values) > 1:
                raise CaptureError(f"the groups of the optimizer differ in {key} ({', '.join(map(str, sorted(values)))}), and those of a plan do not")
            self.hyper[key] = values.pop() if values else 0.0
        if self.hyper.get("momentum") and not plan.has_momentum:
            raise CaptureError(f"{plan.path} has no momentum, the optimizer has {self.hyper['momentum']}; plan with --momentum")
        held = {names[p] for group in groups for p in group["params"] if p in names}
        left = [name for name in trained if name not in held]
        if left:
            raise CaptureError(f"the optimizer lacks `{left[0]}`, which the plan trains; give it all parameters that require grad")
        self.torch = kind([{k: g[k] for k in ("params", *takes)} for g in groups], fused=True)

    def options(self) -> Iterator[Any]:
        """For fsdp-run."""
        beta1, beta2 = self.hyper.get("betas", (None, None))
        spelled = {"lr": self.hyper["lr"], "beta1": beta1, "beta2": beta2, "eps": self.hyper.get("eps"),
                   "weight-decay": self.hyper["weight_decay"], "momentum": self.hyper.get("momentum")}  # fmt: skip
        for name, value in spelled.items():
            if value is not None:
                yield from (f"--{name}", repr(float(value)))


class Run:
    """What fsdp-run leaves after an update: a checkpoint, and the gradients of the last step."""

    def __init__(self, plan: Plan, folder: Path, steps: int, options: list[Any]) -> None:
        folder.mkdir()
        said = run("fsdp-run", plan.path, "--steps", steps, "--json", "--checkpoint", folder, "--summon", folder / "end.safetensors", "--with-grads", *options)
        self.loss = json.loads(said.splitlines()[-2])["loss"]
        self.checkpoint = folder / f"step-{steps:08}"
        self.gradients = {k.removeprefix("grad."): v for k, v in load_file(folder / "end.safetensors").items() if k.startswith("grad.")}
        self.tensors = _whole(self.checkpoint)
        self.of_ranks = [load_file(path) for path in sorted(self.checkpoint.glob("ranks/*.safetensors"))]
        self.manifest = json.loads((self.checkpoint / "manifest.json").read_text())

    def results(self) -> Results:
        found = {"the loss": torch.tensor(self.loss, dtype=torch.float64)} | {f"the gradient of `{n}`": g for n, g in self.gradients.items()}
        for rank, tensors in enumerate(self.of_ranks):
            for name in (key.removeprefix("buffer.") for key in tensors if key.startswith("buffer.")):
                found[f"buffer `{name}` of rank {rank}"] = tensors[f"buffer.{name}"].view(self.tensors[name].shape)
        return found

    def difference(self, other: Run) -> str:
        """The first thing that has other bits in another run."""
        for key in "step", "position", "updates":
            if self.manifest[key] != other.manifest[key]:
                return f"{key} is {self.manifest[key]} without the checkpoint, {other.manifest[key]} after it"
        mine, its = ({str(i): t for i, t in enumerate([r.tensors, r.gradients, *r.of_ranks])} for r in (self, other))
        for place, tensors in mine.items():
            for name, value in tensors.items():
                if not torch.equal(value.contiguous().view(-1).view(torch.uint8), its[place][name].contiguous().view(-1).view(torch.uint8)):
                    return f"`{name}` has other bits than without the checkpoint"
        return ""


def _whole(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, put together of their boxes as torch.distributed.checkpoint does."""
    sizes = {name: entry["shape"] for name, entry in json.loads((checkpoint / "manifest.json").read_text())["tensors"].items()}
    whole: dict[str, torch.Tensor] = {}
    for path in checkpoint.glob("shard-*.safetensors"):
        with safe_open(path, "pt") as file:
            places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                box = file.get_tensor(name)
                window = tuple(slice(start, start + n) for start, n in zip(places[name]["saved_offsets"], box.shape))
                whole.setdefault(name, box.new_zeros(sizes[name]))[window] = box
    return whole


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.stack([v.to(torch.promote_types(v.dtype, torch.float32)) for v in values])
    return wide.mean(0).to(values[0].dtype)


def _differs(expected: torch.Tensor, found: torch.Tensor, allowed: torch.Tensor) -> int | None:
    """The element that is farthest from what is expected, if that is too far."""
    excess = ((found.double() - expected.double()).abs() - allowed).nan_to_num(torch.inf, torch.inf, -torch.inf).reshape(-1)
    return int(excess.argmax()) if excess.numel() and excess.max() > 0 else None


class Training:
    """The module on all ranks: buffers and random numbers are each rank's own, as in a run."""

    def __init__(self, module: torch.nn.Module, eager: Eager, ranks: int) -> None:
        self.module, self.eager = module, eager
        draws = [torch.Generator().manual_seed(rank).get_state() for rank in range(ranks)]
        self.now: list[tuple[torch.Tensor, Results]] = [(state, {}) for state in draws]  # random numbers and buffers of each rank
        self.then = self.now

    def step(self, batches: list[Any]) -> Results:
        """Means over the ranks, and the buffers of each. The next step begins where this one did, unless it goes on()."""
        results: list[Results] = []
        self.then = []
        for batch, (draws, buffers) in zip(batches, self.now, strict=True):
            torch.set_rng_state(draws)
            for name, value in buffers.items():
                self.module.get_buffer(name).copy_(value)
            results.append(self.eager(batch))
            written = {key[len("buffer `") : -1]: value for key, value in results[-1].items() if key.startswith("buffer ")}
            self.then.append((torch.get_rng_state(), buffers | written))
        step = {key: _mean([found[key] for found in results]) for key in results[0] if not key.startswith("buffer ")}
        return step | {f"{k} of rank {rank}": v for rank, found in enumerate(results) for k, v in found.items() if k.startswith("buffer ")}

    def go_on(self) -> None:
        self.now = self.then


def check_update(update: int, gradients: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor], parameters: dict[str, torch.nn.Parameter],
                 optimizer: torch.optim.Optimizer, max_norm: float | None = None, norm_type: float = 2.0) -> str:  # fmt: skip
    """What is wrong with an update that made `tensors`, as a checkpoint names them, of these gradients; `optimizer`: of `parameters`, which
    are those before. Leaves those of `tensors` in them."""
    before = {name: p.detach().clone() for name, p in parameters.items()}
    for name, parameter in parameters.items():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else torch.empty_like(parameter).copy_(gradient)
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_([p for p in parameters.values() if p.grad is not None], max_norm, norm_type)
    optimizer.step()
    wrong = ""
    for name, parameter in parameters.items():
        eps = torch.finfo(parameter.dtype).eps if parameter.is_floating_point() else 0
        exact = max(EXACT, 4 * eps)
        expected, found = parameter.detach(), tensors.get(name, parameter.detach())
        if found.dtype != expected.dtype:
            raise CaptureError(f"the plan keeps `{name}` in {found.dtype}, the module in {expected.dtype}; plan without --storage-dtype")
        change = (expected.double() - before[name].double()).abs()
        pairs = [(f"parameter `{name}`", expected, found, exact * change + 4 * eps * expected.double().abs())]
        for kind in _STATES:
            state = optimizer.state.get(parameter, {}).get(kind)
            stored = tensors.get(f"optim.state.{name}.{kind}")
            if state is not None and stored is None:
                wrong = wrong or f"the plan has no {kind} of `{name}`"
            elif state is not None:
                pairs.append((f"{kind} of `{name}`", state, stored, exact * torch.linalg.vector_norm(state.double(), torch.inf) if state.numel() else state))
        for what, mine, its, allowed in pairs:
            place = _differs(mine, its, allowed)
            if place is not None and not wrong:
                mine, its = (t.reshape(-1)[place].item() for t in (mine, its))
                wrong = f"{what} is {mine:.8g} at element {place} after update {update} of {type(optimizer).__name__}, {its:.8g} in the plan"
        with torch.no_grad():
            parameter.copy_(found)
    count = tensors.get(next((f"optim.state.{n}.step" for n in gradients), ""))
    if not wrong and count is not None and count != update:
        wrong = f"the plan counts {count:g} updates after update {update}"
    return wrong


@contextlib.contextmanager
def kept(module: torch.nn.Module) -> Iterator[None]:
    """Puts back what an update changes."""
    values = [(t, t.detach().clone(), t.grad) for t in module.parameters()] + [(b, b.detach().clone(), None) for b in module.buffers()]
    try:
        yield
    finally:
        for tensor, value, grad in values:
            tensor.data.copy_(value)
            tensor.grad = grad


def compare(module: torch.nn.Module, eager: Eager, wrong: Callable[..., list[str]], batches: list[Any], inputs: Callable[[Any], list[torch.Tensor]],
            plan: Plan, optimizer: Optimizer, max_norm: float | None, norm_type: float) -> str:  # fmt: skip
    """What the plan does otherwise than PyTorch, or nothing.

    `wrong(expected, found, again)`: how the results of a step differ, of which again() computes the expected ones; `batches`: for each
    rank of each update; `inputs`: those of the plan, of a batch.
    """
    parameters = dict(module.named_parameters())
    with tempfile.TemporaryDirectory(prefix="fsdp-verify-") as place, kept(module):
        folder = Path(place)
        rows = zip(*map(inputs, batches))
        save_file({f"in_{i}": torch.stack(row).detach().contiguous() for i, row in enumerate(rows)}, folder / "data.safetensors")
        tensors = {**parameters, **dict(module.named_buffers())}
        save_file({name: value.detach().contiguous().clone() for name, value in tensors.items()}, folder / "weights.safetensors")
        options = ["--data", folder / "data.safetensors", *optimizer.options()]
        start = ["--weights", folder / "weights.safetensors"]
        whole = Run(plan, folder / "whole", UPDATES, options + start)
        first = Run(plan, folder / "first", 1, options + start)
        second = Run(plan, folder / "second", UPDATES, [*options, "--resume", first.checkpoint])
        training = Training(module, eager, plan.ranks)
        for update, end in enumerate((first, second), 1):
            here = batches[(update - 1) * plan.ranks : update * plan.ranks]
            expected, found = training.step(here), end.results()
            missing = [key for key in expected if key not in found]
            if missing:
                raise CaptureError(f"{plan.path} has nothing for {missing[0]}; is it a plan of this program?")
            found["the loss"] = found["the loss"].to(expected["the loss"].dtype)
            sentences = wrong(expected, found, lambda: training.step(here))
            if sentences:
                return f"in update {update}, {sentences[0]}"
            training.go_on()
            sentence = check_update(update, end.gradients, end.tensors, parameters, optimizer.torch, max_norm, norm_type)
            if sentence:
                return sentence
        difference = whole.difference(second)
        return f"after a resume, {difference}" if difference else ""
