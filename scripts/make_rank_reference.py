#!/usr/bin/env python3
"""Make references with a different batch on every rank: what a data-parallel step, or training, must produce.

Without --steps, each graph GRAPH.pt2 gets GRAPH_refRANKS.safetensors beside it, for one forward and backward:
  in_k         [RANKS, ...]  the inputs, one batch per rank; rank 0 has the graph's example
  loss         []            the mean over ranks
  grad.NAME                  the mean over ranks, taken in fp32, in the gradient's dtype
  output.K   [RANKS, ...]    the K-th output beside the loss, counted from 0, of every rank

With --steps K it gets GRAPH_trainRANKSxK.safetensors, for K steps of AdamW (or SGD) on the mean gradient:
  in_k         [K * RANKS, ...]  batch t * RANKS + r is rank r's at step t, counted from 0
  losses       [K] f32           the mean over ranks, before each update
  param.NAME                     every parameter after the last update; frozen ones as they were
With --micro-batches M, each step sums the gradients of M micro-batches, and the loss is their mean: in_k is
[M, RANKS, ...], or [K * M * RANKS, ...] with --steps, where batch (t * M + m) * RANKS + r is that of step t. With --mean,
the gradients are divided by M.
The file's metadata holds the hyper-parameters. The update is that of torch.optim.AdamW(fused=True). Buffers that a step
changes are kept per rank, and so is the generator of what draws random numbers: rank r's begins as after
torch.manual_seed(SEED + r), or all of them as after torch.manual_seed(SEED); the metadata says which.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python-bindings"))

import torch
from safetensors.torch import save_file
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from tqdm import tqdm

Tensors = dict[str, torch.Tensor]


class Rejected(Exception):
    """The graph has no such reference; the message says why."""


def load(path: Path) -> ExportedProgram:
    """A training graph from a .pt2 file. Raises Rejected if the file is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
    except Exception as error:
        raise Rejected(
            f"{path}: not a torch.export archive that this torch can load; "
            f"if it has custom operations, name the module that registers them with --import ({str(error).splitlines()[0].strip()})"
        ) from error
    if not any(s.kind == OutputKind.LOSS_OUTPUT for s in program.graph_signature.output_specs):
        raise Rejected(f"{path}: the graph has no loss output; capture it with fsdp_mlir.capture")
    return program


class Generators:
    """The state of PyTorch's generator on each rank."""

    def __init__(self, ranks: int, seed: str) -> None:
        first, _, shared = seed.partition(":")
        self.states = [torch.Generator().manual_seed(int(first) + (0 if shared else rank)).get_state() for rank in range(ranks)]

    @contextlib.contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """What draws random numbers meanwhile does so as on `rank`."""
        torch.set_rng_state(self.states[rank])
        yield
        self.states[rank] = torch.get_rng_state()


def examples(program: ExportedProgram) -> list[torch.Tensor]:
    return [t.detach() for t in program.example_inputs[0]]


def batches(first: list[torch.Tensor], count: int, seed: int) -> list[list[torch.Tensor]]:
    """`count` batches: the given one, then tokens or noise of the same kind and range, no two alike.

    An input that equals an earlier one (labels that are the input ids) equals it in every batch.
    """
    generator, result = torch.Generator().manual_seed(seed), [first]
    for _ in range(count - 1):
        row: list[torch.Tensor] = []
        for i, t in enumerate(first):
            twin = next((j for j in range(i) if first[j].shape == t.shape and torch.equal(first[j], t)), None)
            if twin is not None:
                row.append(row[twin].clone())
            elif t.is_floating_point():
                row.append(torch.randn(t.shape, generator=generator).to(t.dtype))
            else:
                row.append(torch.randint(int(t.min()), int(t.max()) + 1, t.shape, generator=generator).to(t.dtype))
        result.append(row)
    return result


@dataclass
class Results:
    """What the graph returns on one batch: gradients by parameter, new values of changed buffers, and other outputs in order."""

    loss: torch.Tensor | None = None
    grads: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)


def run(program: ExportedProgram, batch: list[torch.Tensor], state: Tensors | None = None) -> Results:
    """The results of the graph on one batch.

    `state` replaces the archive's parameters and buffers by name; what it lacks is the archive's.
    """
    values: dict[str, Any] = {**program.constants, **program.state_dict, **(state or {})}
    inputs = iter(batch)
    args = [next(inputs) if s.kind == InputKind.USER_INPUT else values[s.target] for s in program.graph_signature.input_specs]
    with torch.no_grad():
        results = program.graph_module(*[a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args])
    found = Results()
    for value, spec in zip(results, program.graph_signature.output_specs):
        if spec.kind == OutputKind.LOSS_OUTPUT:
            found.loss = value
        elif spec.kind == OutputKind.GRADIENT_TO_PARAMETER:
            found.grads[spec.target] = value
        elif spec.kind == OutputKind.BUFFER_MUTATION:
            found.buffers[spec.target] = value
        elif spec.kind == OutputKind.USER_OUTPUT:
            found.outputs.append(value)
    return found


def mean(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([v.float() for v in values]).mean(0)


def stacked(rows: list[list[torch.Tensor]]) -> Tensors:
    return {f"in_{i}": torch.stack([row[i] for row in rows]).contiguous() for i in range(len(rows[0]))}


def run_ranks(program: ExportedProgram, rows: list[list[torch.Tensor]], states: list[Tensors], generators: Generators) -> list[Results]:
    """The results of each rank on its batch, with its state."""
    results = []
    for rank, (row, state) in enumerate(zip(rows, states, strict=True)):
        with generators.of(rank):
            results.append(run(program, row, state))
    return results


@dataclass(frozen=True)
class MicroBatches:
    """How many micro-batches a step has, and whether their gradients are divided by that."""

    count: int = 1
    is_mean: bool = False

    def run(self, program: ExportedProgram, rows: list[list[torch.Tensor]], weights: Tensors, buffers: list[Tensors], generators: Generators) -> list[list[Results]]:
        """The results of each micro-batch of one step, by rank. `buffers` of the ranks become what the step leaves in them."""
        ranks, found = len(buffers), []
        for first in range(0, len(rows), ranks):
            found.append(run_ranks(program, rows[first : first + ranks], [weights | own for own in buffers], generators))
            for own, result in zip(buffers, found[-1]):
                own |= result.buffers
        return found

    def gradient(self, results: list[list[Results]], name: str) -> torch.Tensor:
        """The sum over micro-batches of the means over ranks, in fp32."""
        total = sum(mean([r.grads[name] for r in row]) for row in results)
        return total / self.count if self.is_mean else total


def mean_loss(results: list[list[Results]]) -> torch.Tensor:
    return mean([result.loss for row in results for result in row])


def one_step(program: ExportedProgram, ranks: int, seed: int, draws: str = "0", micro: MicroBatches = MicroBatches()) -> Tensors:
    """The tensors of a reference for one forward and backward."""
    rows = batches(examples(program), ranks * micro.count, seed)
    results = micro.run(program, rows, {}, [{} for _ in range(ranks)], Generators(ranks, draws))
    reference = stacked(rows)
    if micro.count > 1:
        reference = {key: value.unflatten(0, (micro.count, ranks)) for key, value in reference.items()}
    last = results[-1]
    reference["loss"] = mean_loss(results).to(last[0].loss.dtype)
    for name, grad in last[0].grads.items():
        reference[f"grad.{name}"] = micro.gradient(results, name).to(grad.dtype).contiguous()
    for i, output in enumerate(last[0].outputs):
        if isinstance(output, torch.Tensor):
            reference[f"output.{i}"] = torch.stack([r.outputs[i] for r in last])
    return reference


def training(
    program: ExportedProgram,
    ranks: int,
    steps: int,
    seed: int,
    storage: torch.dtype | None,
    make: Callable[..., torch.optim.Optimizer],
    draws: str = "0",
    micro: MicroBatches = MicroBatches(),
) -> Tensors:
    """The tensors of a reference for `steps` steps of the optimizer that `make` makes of the parameters.

    Parameters that train are kept in `storage` where it is given (fp32 masters of a bf16 graph) and cast for each step;
    the mean gradient is taken in fp32 and cast to the dtype in which the parameter is kept.
    """
    trained = {s.target for s in program.graph_signature.output_specs if s.kind == OutputKind.GRADIENT_TO_PARAMETER}
    names = [s.target for s in program.graph_signature.input_specs if s.kind == InputKind.PARAMETER]
    original = {name: program.state_dict[name].detach() for name in names}
    kept = {n: torch.nn.Parameter(original[n].to(storage or original[n].dtype, copy=True)) for n in names if n in trained}
    optimizer = make(kept.values())
    buffers: list[Tensors] = [{} for _ in range(ranks)]
    generators = Generators(ranks, draws)
    size = ranks * micro.count # of a step
    rows = batches(examples(program), size * steps, seed)
    losses = []
    for step in tqdm(range(steps), unit="step", leave=False):
        weights = {n: p.detach().to(original[n].dtype) for n, p in kept.items()}
        results = micro.run(program, rows[step * size : (step + 1) * size], weights, buffers, generators)
        for name, parameter in kept.items():
            parameter.grad = torch.empty_like(parameter).copy_(micro.gradient(results, name).to(parameter.dtype))
        losses.append(mean_loss(results))
        optimizer.step()
    reference = stacked(rows) | {"losses": torch.stack(losses)}
    for name in names:
        reference[f"param.{name}"] = kept.get(name, original[name]).detach().contiguous()
    return reference


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int, metavar="RANKS")
    parser.add_argument("graphs", type=Path, nargs="+", metavar="GRAPH.pt2")
    parser.add_argument("--seed", type=int, default=7, help="of the other batches (default 7)")
    parser.add_argument("--draws", default="0", metavar="SEED[:shared]", help="seed of what draws random numbers, as fsdp-run --seed (default 0)")
    parser.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help="import this Python module first")
    parser.add_argument("--output", type=Path, help="the file to write, for a single graph")
    parser.add_argument("--micro-batches", type=int, default=1, metavar="M", help="sum the gradients of M micro-batches")
    parser.add_argument("--mean", action="store_true", help="divide these gradients by M")
    train = parser.add_argument_group("training")
    train.add_argument("--steps", type=int, metavar="K", help="train for K steps")
    train.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    train.add_argument("--lr", type=float, default=1e-3)
    train.add_argument("--beta1", type=float, default=0.9)
    train.add_argument("--beta2", type=float, default=0.999)
    train.add_argument("--eps", type=float, default=1e-8)
    train.add_argument("--momentum", type=float, default=0.0, help="of SGD")
    train.add_argument("--weight-decay", type=float, default=1e-2)
    train.add_argument("--storage-dtype", choices=["f32"], help="keep trained parameters and their gradients in fp32")
    options = parser.parse_args(arguments)
    if options.ranks < 1 or options.micro_batches < 1 or (options.steps is not None and options.steps < 1):
        parser.error("RANKS, --steps and --micro-batches must be at least 1")
    if options.output and len(options.graphs) > 1:
        parser.error("--output goes with a single graph")
    for module in options.modules:
        importlib.import_module(module)
    micro = MicroBatches(options.micro_batches, options.mean)
    storage = torch.float32 if options.storage_dtype else None
    for path in options.graphs:
        try:
            program = load(path)
        except Rejected as rejection:
            print(f"error: {rejection}", file=sys.stderr)
            return 1
        name, metadata = f"{path.stem}_ref{options.ranks}.safetensors", {"ranks": str(options.ranks), "seed": options.draws}
        if options.steps:
            name = f"{path.stem}_train{options.ranks}x{options.steps}.safetensors"
            common = {"lr": options.lr, "weight_decay": options.weight_decay}
            if options.optimizer == "sgd":
                own = {"momentum": options.momentum}
                make = partial(torch.optim.SGD, **common, **own)
            else:
                own = {"beta1": options.beta1, "beta2": options.beta2, "eps": options.eps}
                make = partial(torch.optim.AdamW, fused=True, betas=(options.beta1, options.beta2), eps=options.eps, **common)
            metadata |= {key: repr(value) for key, value in ({"steps": options.steps} | common | own).items()}
            reference = training(program, options.ranks, options.steps, options.seed, storage, make, options.draws, micro)
            said = f"losses {reference['losses'][0]:.6f} to {reference['losses'][-1]:.6f}"
        else:
            reference = one_step(program, options.ranks, options.seed, options.draws, micro)
            said = f"{sum(key.startswith('grad.') for key in reference)} gradients, loss {float(reference['loss']):.6f}"
        target = options.output or path.with_name(name)
        save_file(reference, target, metadata=metadata)
        print(f"{target.name}: {said}")
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    sys.exit(main())
