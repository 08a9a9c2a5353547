"""`python -m fsdp_mlir demo`: a small Llama from nn.Module to a trained model, in a minute or two and without a network."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import fsdp_mlir_tools
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from fsdp_mlir import _options
from fsdp_mlir._compile import compile
from fsdp_mlir._plan import Plan
from fsdp_mlir.errors import PlanError

VOCABULARY, WIDTH, HIDDEN, HEADS, LAYERS = 256, 128, 384, 4, 4
SEQUENCES, TOKENS, RANKS, STEPS = 4, 64, 2, 40  # sequences: of a rank in each step
_BATCHES = 16


class Block(nn.Module):
    """Attention with rotary positions, then SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x


class Llama(nn.Module):
    """Returns the mean loss of the next tokens of `ids`, [sequences, tokens]."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(TOKENS), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def main() -> None:
    """Captures, compiles and trains, and prints what it does. Raises PlanError."""
    torch.manual_seed(0)
    model = Llama()
    ids = (torch.randint(VOCABULARY, (_BATCHES, SEQUENCES, 1)) + torch.arange(TOKENS)) % VOCABULARY  # it learns to count
    print(f"capture and compile: a Llama of {LAYERS} layers, {sum(p.numel() for p in model.parameters()):,} parameters, for {RANKS} ranks")
    plan = compile(model, {"ids": ids[0]}, ranks=RANKS, hardware="cpu")
    plan.show()
    print(f"\ntrain: {STEPS} steps of {RANKS} x {SEQUENCES} sequences of {TOKENS} tokens")
    with tempfile.TemporaryDirectory() as scratch:
        data, profile = Path(scratch) / "data.safetensors", Path(scratch) / "profile.json"
        save_file({"ids": ids}, data)
        seconds = _train(plan, data, profile)
        timed = compile(model, {"ids": ids[0]}, world=RANKS, profile=profile)
    print(f"\na step took {statistics.median(seconds[STEPS // 4 :]) * 1e3:.2f} ms (the median), and was predicted to take")
    print(f"  {_predicted(plan):.2f} ms by published figures of a CPU (hardware cpu)")
    print(f"  {_predicted(timed):.2f} ms by the times of its operators and collectives, as fsdp-run --profile measured them in this run")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores + RANKS:
        print(f"  Others use this machine, too (load {load:.1f}, {cores} cores): times are not those of an idle one")
    print(f"the plan is {plan.path}\nand the model {plan.model_path}")


def _predicted(plan: Plan) -> float:
    """Milliseconds of a step."""
    return float(plan.summary["predicted"]["step_ns"]) / 1e6


def _train(plan: Plan, data: Path, profile: Path) -> list[float]:
    """Seconds of each step."""
    try:
        fsdp_mlir_tools.check_torch()
    except fsdp_mlir_tools.ToolError as error:
        raise PlanError(str(error)) from None
    command = [_options.find("fsdp-run"), plan.path, "--weights", plan.model_path, "--data", data, "--profile", profile]
    options = ["--steps", str(STEPS), "--lr", "3e-3", "--json"]
    environment = {"OMP_NUM_THREADS": "1", **fsdp_mlir_tools.environment()}
    seconds = []
    with subprocess.Popen([*map(str, command), *options], stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        for step in map(json.loads, run.stdout):
            if "loss" not in step:
                continue
            seconds.append(step["seconds"])
            if len(seconds) == 1 or len(seconds) % (STEPS // 8) == 0:
                print(f"  step {step['step']:3}  loss {step['loss']:.4f}", flush=True)
    if run.returncode:
        raise PlanError(f"fsdp-run ended with exit code {run.returncode}; what it said stands above")
    return seconds
