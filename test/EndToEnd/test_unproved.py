"""A right plan that cannot be proved is written only on request, and says so wherever it goes."""

import json

import fsdp_mlir
import pytest
import torch
from conftest import succeed, tool
from safetensors.torch import save_file
from torch import nn


class Interleaved(nn.Module):
    """Writes every second element and reads every third: too many pieces to follow them all."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        y = torch.zeros(100_000)
        y[:80_000:2] = (x @ self.w).flatten()
        return y[:90_000:3].square().sum()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("unproved") / "model.pt2"
    model, x = Interleaved(), torch.randn(5000, 8)
    model(x).backward()
    save_file({"in_0": x, "loss": model(x).detach(), "grad.w": model.w.grad}, path.with_suffix(".safetensors"))
    fsdp_mlir.save(fsdp_mlir.capture(model, (x,)), path)
    return path


def test_is_not_written(archive, tmp_path):
    result = tool("fsdp-plan", archive, "--ranks", 1, "-o", tmp_path / "step.plan")
    assert result.returncode == 1 and not (tmp_path / "step.plan").exists()
    assert "cannot prove the plan: the end of the backward: expected the gradient w of the model" in result.stderr
    assert "needs bytes that are whole elements in few pieces; --unproved writes it all the same" in result.stderr


def test_says_so_in_report_and_run(archive, tmp_path):
    plan = tmp_path / "step.plan"
    options = ("--unproved", "--report", tmp_path / "report.json")
    shown = succeed("fsdp-plan", archive, "--ranks", 1, "-o", plan, *options).stdout
    reason = json.loads((tmp_path / "report.json").read_text())["unproved"]
    assert reason.startswith("the end of the backward: expected the gradient w") and f"not proved: {reason}\n" in shown
    run = ("fsdp-run", plan, "--weights", archive, "--reference", archive.with_suffix(".safetensors"))
    assert f"step.plan: not proved to do what its model means: {reason}\n" in succeed(*run).stderr
    verified = tool(*run, "--verify")
    assert verified.returncode == 2 and "cannot prove the plan: the end of the backward" in verified.stderr


# A plan that is proved has no mark, whatever was asked for.
def test_does_not_mark_what_is_proved(plans):
    assert plans("gpt2", 2, "--unproved").read_bytes() == plans("gpt2", 2).read_bytes()
