#!/usr/bin/env python3
"""Replay the first steps of the demo in plain PyTorch, and hold fsdp-run's losses against PyTorch's.

DEMO is the folder that capture_demo.py wrote, LOSSES what `fsdp-run --json` printed. The replay is eager transformers
on one process: step t takes the batches t * RANKS to t * RANKS + RANKS - 1 of tokens.bin, averages their gradients, and
lets torch.optim.AdamW update. With --checkpoint, the replay goes on from there: torch.distributed.checkpoint reads the
optimizer's state, and `from_pretrained` what fsdp-run has exported. Exit codes: 0 all losses agree, 1 the input is not usable, 2 a loss differs by more than
the tolerance.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python-bindings"))

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from capture_demo import WithLoss


class Unusable(Exception):
    """The input cannot be compared; the message says why."""


def recorded(path: Path, start: int, steps: int) -> list[float]:
    """The losses of `steps` steps after `start` in a file of JSON lines. Raises Unusable if a line is none, or a step is missing."""
    losses: dict[int, float] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if "step" in entry:
                losses[int(entry["step"])] = float(entry["loss"])
        except (ValueError, TypeError, KeyError) as error:
            raise Unusable(f'{path}:{number}: expected an object with "step" and "loss", found {line[:60]!r}') from error
    wanted = range(start + 1, start + steps + 1)
    missing = [step for step in wanted if step not in losses]
    if missing:
        raise Unusable(f"{path}: step {missing[0]} is missing: run fsdp-run with --json and --steps {start + steps} or more")
    return [losses[step] for step in wanted]


def load(folder: Path) -> tuple[WithLoss, tuple[int, int]]:
    """The eager model with the graph's initial weights, and the graph's (batch, length). Raises Unusable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.load(folder / "gpt2.pt2")
            config = transformers.GPT2Config.from_pretrained(folder)
        except Exception as error:
            raise Unusable(f"{folder}: not a folder that capture_demo.py wrote: {str(error).splitlines()[0]}") from error
    model = WithLoss(transformers.GPT2LMHeadModel(config)).train()
    missing, extra = model.load_state_dict({n: t.detach() for n, t in program.state_dict.items()}, strict=False)
    tied = program.graph_module.meta["custom"]["tied"]
    if extra or set(missing) - set(tied):
        raise Unusable(f"{folder}: config.json and gpt2.pt2 are of different models: {[*extra, *missing][0]} is not in both")
    return model, tuple(program.example_inputs[0][0].shape)


def resume(checkpoint: Path, exported: Path, lr: float) -> tuple[WithLoss, torch.optim.AdamW, int]:
    """The exported model, its optimizer as it is in a checkpoint, and the step of that. Raises Unusable."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        start = json.loads((checkpoint / "manifest.json").read_text())["step"]
        model = WithLoss(transformers.GPT2LMHeadModel.from_pretrained(exported)).train()
    except (OSError, ValueError, KeyError) as error:
        raise Unusable(f"{checkpoint}, {exported}: not a checkpoint and what was exported after it: {error}") from error
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    state = {name: {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)} for name, p in model.named_parameters()}
    flat = {f"optim.state.{name}.{key}": value for name, values in state.items() for key, value in values.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about running alone
        dcp.load(flat, storage_reader=HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {key: flat[f"optim.state.{name}.{key}"] for key in state[name]}
    return model, optimizer, start


def replay(model: WithLoss, optimizer: torch.optim.AdamW, tokens: np.ndarray, shape: tuple[int, int], ranks: int, start: int, steps: int) -> list[float]:
    """The mean loss over `ranks` batches of `shape` at each of `steps` steps after `start` of training on the mean gradient.

    Changes the model.
    """
    batch, length = shape
    sequences = torch.from_numpy(tokens[: len(tokens) // length * length].astype(np.int64)).view(-1, length)
    if len(sequences) < batch:
        raise Unusable(f"tokens.bin has {len(tokens)} tokens, a batch needs {batch * length}")
    losses = []
    for step in tqdm(range(start, start + steps), desc="PyTorch", unit="step", leave=False):
        optimizer.zero_grad()
        total = 0.0
        for place in range(step * ranks, (step + 1) * ranks):
            ids = sequences[torch.arange(place * batch, (place + 1) * batch) % len(sequences)]
            loss = model(ids, ids)
            (loss / ranks).backward()
            total += loss.item()
        losses.append(total / ranks)
        optimizer.step()
    return losses


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, metavar="DEMO")
    parser.add_argument("--losses", type=Path, required=True, metavar="LOSSES", help="a file of JSON lines")
    parser.add_argument("--ranks", type=int, required=True, help="the ranks of the fsdp-run")
    parser.add_argument("--lr", type=float, default=1e-3, help="its learning rate (default 0.001, as in PyTorch)")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="greatest relative difference (default 1e-5)")
    parser.add_argument("--checkpoint", type=Path, help="go on from this checkpoint; needs --exported")
    parser.add_argument("--exported", type=Path, help="the folder that fsdp-run --export has written at that step")
    options = parser.parse_args(arguments)
    if (options.checkpoint is None) != (options.exported is None):
        parser.error("--checkpoint and --exported belong together")
    if options.ranks < 1 or options.steps < 1:
        parser.error("--ranks and --steps must be at least 1")
    logging.disable(logging.WARNING)
    try:
        model, shape = load(options.demo)
        optimizer, start = torch.optim.AdamW(model.parameters(), lr=options.lr), 0
        if options.checkpoint:
            model, optimizer, start = resume(options.checkpoint, options.exported, options.lr)
        ours = recorded(options.losses, start, options.steps)
        tokens = np.fromfile(options.demo / "tokens.bin", dtype="<u2")
        theirs = replay(model, optimizer, tokens, shape, options.ranks, start, options.steps)
    except (Unusable, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    table = Table(title=f"loss, {options.ranks} ranks x batch {shape[0]} x {shape[1]} tokens")
    for name in ("step", "fsdp-run", "PyTorch", "relative difference"):
        table.add_column(name, justify="right")
    wrong = 0
    for step, (a, b) in enumerate(zip(ours, theirs), start + 1):
        difference = abs(a - b) / abs(b)
        good = difference <= options.tolerance  # false for NaN
        wrong += not good
        table.add_row(str(step), f"{a:.6f}", f"{b:.6f}", f"{difference:.1e}", style=None if good else "red")
    Console().print(table)
    if wrong:
        print(f"error: {wrong} of {options.steps} losses differ by more than {options.tolerance:g}", file=sys.stderr)
        return 2
    print(f"all {options.steps} losses agree within {options.tolerance:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
