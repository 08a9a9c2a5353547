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

RANKS, STEPS = 2, 40
_SEQUENCES, _TOKENS = 4, 64  # of a rank in each step
_VOCABULARY, _BATCHES = 256, 16


class Block(nn.Module):
    """Attention with rotary positions, then SwiGLU."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x


class Llama(nn.Module):
    """Returns the mean loss of the next tokens of `ids`, [sequences, tokens]."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, width: int, hidden: int, heads: int, layers: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList(Block(width, hidden, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)  # also where a policy casts parameters alone
        for block in self.blocks:
            x = block(x, cos, sin)
        following = F.pad(ids[:, 1:], (0, 1), value=-100)  # the last token has none
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), following.flatten())


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def main() -> None:
    """Captures, compiles and trains, and prints what it does. Raises PlanError."""
    torch.manual_seed(0)
    model = Llama(width=128, hidden=384, heads=4, layers=4, vocabulary=_VOCABULARY, tokens=_TOKENS)
    ids = (torch.randint(_VOCABULARY, (_BATCHES, _SEQUENCES, 1)) + torch.arange(_TOKENS)) % _VOCABULARY  # it learns to count
    print(f"capture and compile: a Llama of {len(model.blocks)} layers, {sum(p.numel() for p in model.parameters()):,} parameters, for {RANKS} ranks")
    plan = compile(model, {"ids": ids[0]}, ranks=RANKS, hardware="cpu")
    plan.show()
    print(f"\ntrain: {STEPS} steps of {RANKS} x {_SEQUENCES} sequences of {_TOKENS} tokens")
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
