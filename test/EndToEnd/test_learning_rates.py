"""The learning rate of each step, against the schedulers of transformers and eager AdamW."""

import json

import pytest
import torch
from conftest import succeed, tool
from safetensors.torch import save_file
from torch import nn
from transformers import get_scheduler

import fsdp_mlir

STEPS, WARMUP, LR = 12, 3, 0.05


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return (self.net(x).squeeze(-1) - x.sum(-1).sin()).square().mean()


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The model, its batches, and the command that trains it on one rank."""
    folder = tmp_path_factory.mktemp("rates")
    torch.manual_seed(0)
    model, batches = Model(), torch.randn(STEPS, 4, 6)
    fsdp_mlir.save(fsdp_mlir.capture(model, (batches[0],)), folder / "m.pt2")
    save_file({"in_0": batches}, folder / "d.safetensors")
    succeed("fsdp-plan", folder / "m.pt2", "--ranks", 1, "-o", folder / "p.plan")
    return model, batches, ["fsdp-run", folder / "p.plan", "--weights", folder / "m.pt2", "--data", folder / "d.safetensors",
                            "--steps", STEPS, "--json"]


def rows(command):
    return [row for row in map(json.loads, succeed(*command).stdout.splitlines()) if "loss" in row]


@pytest.mark.parametrize("warmup", [0, WARMUP, STEPS])
@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_rates_and_losses_are_those_of_pytorch(name, warmup, training):
    model, batches, command = training
    state = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scheduler = get_scheduler(name if name != "constant" else "constant_with_warmup", optimizer, warmup, STEPS)
    expected = []
    for batch in batches:
        loss = model(batch)
        loss.backward()
        expected.append((optimizer.param_groups[0]["lr"], loss.item()))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    model.load_state_dict(state)
    found = rows([*command, "--lr", LR, "--lr-schedule", name, "--warmup-steps", warmup])
    assert [row["lr"] for row in found] == pytest.approx([lr for lr, _ in expected], rel=1e-8, abs=1e-12)
    assert [row["loss"] for row in found] == pytest.approx([loss for _, loss in expected], rel=1e-5)


def test_a_file_has_a_rate_for_each_step(training, tmp_path):
    command = training[2]
    cosine = rows([*command, "--lr", LR, "--lr-schedule", "cosine"])
    path = tmp_path / "rates.txt"
    path.write_text("".join(f"{row['lr']!r}\r\n" for row in cosine) + "7\n")  # more than there are steps
    assert [row["lr"] for row in rows([*command, "--lr-schedule", path])] == [row["lr"] for row in cosine]


# What a file may hold that is no rate.
@pytest.mark.parametrize("text, sentence", [
    ("0.1\n" * 5, "expected a line for each of 12 steps, found 5"),
    ("0.1\nfast\n", "line 2: expected one number, found 'fast'"),
    ("0.1 0.2\n", "line 1: expected one number, found '0.1 0.2'"),
    ("0.1\n\n0.1\n", "line 2: expected one number, found ''"),
    ("-1\n", "line 1: expected a rate of at least 0, found -1"),
    ("nan\n", "line 1: expected a rate of at least 0, found nan"),
    ("inf\n", "line 1: expected a rate of at least 0, found inf"),
    ("1e999\n", "line 1: expected one number, found '1e999'"),
    ("8\0\x1b", "line 1: expected one number, found '8\\x00\\x1b'"),
])
def test_a_bad_file_is_rejected(text, sentence, training, tmp_path):
    path = tmp_path / "rates.txt"
    path.write_text(text)
    result = tool(*training[2], "--lr-schedule", path)
    assert result.returncode == 1 and f"error: --lr-schedule: {path}: {sentence}" in result.stderr, result.stderr


@pytest.mark.parametrize("arguments, sentence", [
    (["--lr-schedule", "none"], "--lr-schedule: expected constant, linear, cosine or a file; "),
    (["--warmup-steps", "13"], "--warmup-steps: expected from 0 to the 12 of --steps, found 13"),
    (["--warmup-steps", "-1"], "--warmup-steps: expected from 0 to the 12 of --steps, found -1"),
    (["--lr-schedule", "rates.txt", "--lr", "1"], "--lr: the file of --lr-schedule already says the rate of each step"),
    (["--lr-schedule", "rates.txt", "--warmup-steps", "1"], "--warmup-steps: the file of --lr-schedule already says the rate"),
])
def test_what_contradicts_itself_is_rejected(arguments, sentence, training):
    result = tool(*training[2], *arguments)
    assert result.returncode == 1 and f"error: {sentence}" in result.stderr, result.stderr
