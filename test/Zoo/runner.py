"""One case from a module to a trained plan, compared with eager PyTorch at both ends.

Each set of options is drawn from the case's name: ranks, strategy, units, schedule, recomputation, and how the plan is run.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from case import Case, Inputs
from safetensors.torch import save_file
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FSDP_BUILD", ROOT / "build" / "gcc"))
sys.path[:0] = [str(ROOT / "python-bindings"), str(ROOT / "test" / "ForkServer")]

import fork_server  # noqa: E402
import fsdp_mlir  # noqa: E402

RANKS, STEPS, SETS = 4, 5, 3
# A large eps: a gradient that is zero but for rounding would otherwise move its parameter by the learning rate.
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 1e-2}


class Failed(Exception):
    """What a case does not do, as one sentence; `stage` is capture, crash of capture, plan, step or training."""

    def __init__(self, stage: str, sentence: str, command: str = "") -> None:
        super().__init__(f"{stage}: {sentence}" + (f"\n  {command}" if command else ""))
        self.stage, self.sentence, self.command = stage, sentence, command


@dataclasses.dataclass
class Outcome:
    """One row of docs/models.md."""

    name: str
    library: str
    parameters: int = 0
    nodes: int = 0
    options: list[str] = dataclasses.field(default_factory=list)
    stage: str = ""
    sentence: str = ""


def build(case: Case) -> nn.Module:
    """The module, the same at every call; a parameter that is 0 at first would hide what its gradient passes through."""
    torch.manual_seed(0)
    module = case.make().train()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn_like(parameter)
    return module


def batch(case: Case, number: int) -> Inputs:
    torch.manual_seed(1000 + number)
    return case.batch()


def tensors(inputs: Inputs) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]


def stacked(batches: list[Inputs]) -> dict[str, torch.Tensor]:
    """What fsdp-run reads: each input with an axis of batches."""
    return {f"in_{i}": torch.stack(row).contiguous() for i, row in enumerate(zip(*map(tensors, batches)))}


def loss_of(module: nn.Module, inputs: Inputs) -> torch.Tensor:
    result = module(**copy.deepcopy(inputs))
    return result if isinstance(result, torch.Tensor) else result["loss"]


def mean(values: list[torch.Tensor]) -> torch.Tensor:
    """Over ranks, in fp32 (or wider), in the values' dtype."""
    wide = torch.stack([v.to(torch.promote_types(v.dtype, torch.float32)) for v in values])
    return wide.mean(0).to(values[0].dtype).contiguous()


def generators(ranks: int) -> list[torch.Tensor]:
    """The states of the ranks' generators, as fsdp-run has them at first."""
    return [torch.Generator().manual_seed(rank).get_state() for rank in range(ranks)]


def losses_and_gradients(replicas: list[nn.Module], batches: list[Inputs], states: list[torch.Tensor]) -> list[torch.Tensor]:
    """The loss of each rank, of which its replica then has the gradients; `states` are left where its draws end."""
    losses = []
    for rank, (replica, inputs) in enumerate(zip(replicas, batches, strict=True)):
        torch.set_rng_state(states[rank])
        losses.append(loss_of(replica, inputs))
        losses[-1].backward()
        states[rank] = torch.get_rng_state()
    return losses


def one_step(case: Case, batches: list[Inputs]) -> dict[str, torch.Tensor]:
    """Eager loss and gradients, the mean over one rank for each batch."""
    replicas = [build(case) for _ in batches]  # not copies: copy.deepcopy unties what shares memory
    losses = [loss.detach() for loss in losses_and_gradients(replicas, batches, generators(len(batches)))]
    grads = [{name: p.grad for name, p in replica.named_parameters() if p.grad is not None} for replica in replicas]
    return {"loss": mean(losses), **{f"grad.{name}": mean([g[name] for g in grads]) for name in grads[0]}}


def train(case: Case, batches: list[Inputs], ranks: int) -> list[float]:
    """The mean loss of each step of eager data-parallel AdamW; batch t * ranks + r is rank r's at step t."""
    replicas = [build(case) for _ in range(ranks)]
    optimizers = [torch.optim.AdamW(replica.parameters(), fused=True, **ADAMW) for replica in replicas]
    states, losses = generators(ranks), []
    for step in range(len(batches) // ranks):
        here = losses_and_gradients(replicas, batches[step * ranks : (step + 1) * ranks], states)
        for shared in zip(*(replica.parameters() for replica in replicas)):
            if shared[0].grad is not None:
                average = mean([p.grad for p in shared])
                for p in shared:
                    p.grad = torch.empty_like(p).copy_(average)  # fused AdamW takes the parameter's strides for the gradient's
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(torch.stack([loss.detach().double() for loss in here]).mean()))
    return losses


def scopes(module: nn.Module, program: torch.export.ExportedProgram) -> dict[str, str]:
    """Path and class of each module inside of `module` that has parameters and whose forward is part of the graph."""
    stacks = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes]
    paths = sorted({path for stack in stacks for path, _ in stack.values() if path})
    parts = {path: module.get_submodule(path) for path in paths}
    names = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))  # a tied parameter is no single module's
    return {path: type(part).__name__ for path, part in parts.items() if any(names[id(p)] == 1 for p in part.parameters())}


def draw(case: Case, scopes: dict[str, str], index: int) -> tuple[int, list[str], list[str]]:
    """Number of ranks, options of fsdp-plan, options of fsdp-run."""
    rng = random.Random(f"{case.name} {index}")
    ranks = rng.randint(1, RANKS)
    reshard = ["true", "false"] + (["2"] if ranks == 4 else [])
    wraps, remats = [f"size:{rng.choice([500, 5000, 50000])}"], []
    if scopes:
        path = rng.choice(list(scopes))
        layers = re.sub(r"\d+", r"\\d+", re.escape(path))
        wraps += [f"class:{scopes[path]}", f"scope:{layers}"]
        remats = ["--remat", f"{rng.choice(['scope', 'cheap'])}:{layers}"]
    schedules = [
        ["--backward-prefetch", rng.choice(["backward_pre", "backward_post", "none"]), "--forward-prefetch", str(rng.randint(0, 2))],
        ["--limit-all-gathers", str(rng.randint(0, 3))],
        ["--bucket", rng.choice(["copy:units:2", "copy:bytes:20000", "merge:units:2", "merge:bytes:20000"])],
        ["--schedule", rng.choice(["fsdp1", "fsdp2", "manual-block", "inductor", "list"])],
    ]
    choices = [
        rng.choice([["--strategy", rng.choice(["full_shard", "shard_grad_op", "no_shard"])], ["--reshard-after-forward", rng.choice(reshard)]]),
        ["--wrap", rng.choice(["auto", "auto", *wraps])],
        rng.choice(schedules),
        rng.choice([[], remats]),
    ]
    if rng.random() < 0.2:  # a search takes the place of rules
        hardware = rng.choice(["cpu", "h100"])
        offload = ["--offload", rng.choice(["params", "optimizer", "all"])] if hardware == "h100" and rng.random() < 0.5 else []
        pieces = ["--reshard-after-forward", "2"] if ranks == 4 and rng.random() < 0.5 else []
        axes = ["--mesh", "shard=2,local=2", "--unit", ".*: shard=auto"] if ranks == 4 and rng.random() < 0.5 else []
        choices = [choices[1], ["--auto", "--hardware", hardware, "--evaluations", "500", *offload, *pieces, *axes]]
    plan = list(case.options) if case.options is not None else sum(choices, [])
    run = rng.choice([[], ["--overlap"]]) + rng.choice([[], ["--chaos", str(index + 1)]])
    return ranks, plan, run


def command(stage: str, tool: str, *arguments: Any) -> str:
    """The standard output of a tool that ends well."""
    words = [str(BUILD / "bin" / tool), *map(str, arguments)]
    try:
        result = fork_server.run(words, 300)
    except subprocess.TimeoutExpired:
        raise Failed(stage, f"{tool} takes longer than 300 s", " ".join(words)) from None
    if result.returncode:
        sentences = [line.split("error: ", 1)[1] for line in result.stderr.splitlines() if "error: " in line]
        raise Failed(stage, (sentences or [f"{tool} ended with {result.returncode}: {result.stderr[:500]}"])[0], " ".join(words))
    return result.stdout


def compare(case: Case, module: nn.Module, program: torch.export.ExportedProgram, archive: Path, index: int) -> str:
    """Plans with one set of options and compares one step and a training; returns the options. Raises Failed."""
    ranks, plan_options, run_options = draw(case, scopes(module, program), index)
    plan = archive.with_name(f"{index}.plan")
    try:
        command("plan", "fsdp-plan", archive, "--ranks", ranks, *plan_options, "-o", plan)
    except Failed as failure:
        least = re.match(r"expected room for (\d+) gathered units", failure.sentence)
        if least is None or "--limit-all-gathers" not in plan_options:
            raise
        plan_options[plan_options.index("--limit-all-gathers") + 1] = least[1]  # shared parameters need more at once than was drawn
        command("plan", "fsdp-plan", archive, "--ranks", ranks, *plan_options, "-o", plan)
    said = " ".join(["--ranks", str(ranks), *plan_options, "|", *run_options])

    reference, data = archive.with_name(f"{index}_ref.safetensors"), archive.with_name(f"{index}_data.safetensors")
    batches = [batch(case, number) for number in range(STEPS * ranks)]
    save_file(stacked(batches[:ranks]) | one_step(case, batches[:ranks]), reference)
    command("step", "fsdp-run", plan, "--weights", archive, "--reference", reference, "--tolerance", case.tolerance, *run_options)

    save_file(stacked(batches), data)
    words = ["fsdp-run", plan, "--weights", archive, "--data", data, "--steps", STEPS, "--json",
             "--lr", ADAMW["lr"], "--eps", ADAMW["eps"], "--weight-decay", ADAMW["weight_decay"], *run_options]
    lines = [json.loads(line) for line in command("training", *words).splitlines()]
    found = [line["loss"] for line in lines if "step" in line]
    expected = train(case, batches, ranks)
    for step, (a, b) in enumerate(zip(expected, found, strict=True), 1):
        if not abs(a - b) <= case.tolerance * abs(a) + 1e-7:
            raise Failed("training", f"expected a loss of {a:.9g} at step {step}, found {b:.9g}", " ".join(map(str, words)))
    return said


def train_in_python(case: Case, archive: Path) -> None:
    """Two steps of a Trainer on one rank, from the module's own values. Raises Failed."""
    command("plan", "fsdp-plan", archive, "--ranks", 1, "-o", plan := archive.with_name("python.plan"))
    batches = [batch(case, number) for number in range(2)]
    try:
        with fsdp_mlir.Trainer(plan, build(case), **ADAMW) as trainer:
            found = [float(trainer.step(tuple(tensors(inputs)))) for inputs in batches]
    except fsdp_mlir.FSDPError as error:
        raise Failed("training in Python", str(error)) from error
    expected = train(case, batches, 1)
    for step, (a, b) in enumerate(zip(expected, found, strict=True), 1):
        if not abs(a - b) <= case.tolerance * abs(a) + 1e-7:
            raise Failed("training in Python", f"expected a loss of {a:.9g} at step {step}, found {b:.9g}")


def captured(case: Case, module: nn.Module, archive: Path) -> torch.export.ExportedProgram:
    """What is captured of the case, and saved. Raises Failed."""
    try:
        program = fsdp_mlir.capture(module, (), batch(case, 0))
        fsdp_mlir.save(program, archive)
    except fsdp_mlir.CaptureError as error:
        raise Failed("capture", str(error)) from error
    except Exception as error:
        raise Failed("crash of capture", f"{type(error).__name__}: {error}") from error
    return program


def run(case: Case, folder: Path) -> Outcome:
    """Whether the case agrees with PyTorch under every set of options; files are left in `folder`."""
    torch.set_num_threads(1)
    outcome = Outcome(case.name, case.library)
    module = build(case)
    outcome.parameters = sum(p.numel() for p in module.parameters())
    loss_of(build(case), batch(case, 0)).backward()  # a case that PyTorch cannot train is a mistake of the zoo
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fsdp_mlir.CaptureWarning)
            program = captured(case, module, archive := folder / "model.pt2")
        outcome.nodes = sum(node.op == "call_function" for node in program.graph.nodes)
        for index in range(SETS if case.options is None else 1):
            outcome.options.append(compare(case, module, program, archive, index))
        train_in_python(case, archive)
    except Failed as failure:
        outcome.stage, outcome.sentence = failure.stage, failure.sentence.replace(f"{folder}/", "")
        print(failure)
    return outcome
