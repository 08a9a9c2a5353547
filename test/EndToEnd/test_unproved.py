"""A right plan that cannot be proved is written only on request, and says so wherever it goes."""

import json

import fsdp_mlir
import pytest
import torch
from conftest import succeed, tool
from safetensors.torch import save_file
from torch import nn


class Reversed(nn.Module):
    """Writes a tensor of twelve dimensions half by half and reads it in the opposite order: too many steps to follow."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        y, halves = torch.zeros([2] * 12), (x @ self.w).view([2] * 12)
        y[0], y[1] = halves[0] * 2, halves[1] * 3
        return (y.permute(*reversed(range(12))).reshape(64, 64) @ torch.ones(64, 2)).square().sum()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("unproved") / "model.pt2"
    model, x = Reversed(), torch.randn(512, 8)
    model(x).backward()
    save_file({"in_0": x, "loss": model(x).detach(), "grad.w": model.w.grad}, path.with_suffix(".safetensors"))
    fsdp_mlir.save(fsdp_mlir.capture(model, (x,)), path)
    return path


def test_is_not_written(archive, tmp_path):
    result = tool("fsdp-plan", archive, "--ranks", 1, "-o", tmp_path / "step.plan")
    assert result.returncode == 1 and not (tmp_path / "step.plan").exists()
    assert "cannot prove the plan: the end of the forward of program step: expected the loss of the model" in result.stderr
    assert "needs bytes that are whole elements in few pieces; --unproved writes it all the same" in result.stderr


def test_says_so_in_report_and_run(archive, tmp_path):
    plan = tmp_path / "step.plan"
    options = ("--unproved", "--report", tmp_path / "report.json")
    shown = succeed("fsdp-plan", archive, "--ranks", 1, "-o", plan, *options).stdout
    reason = json.loads((tmp_path / "report.json").read_text())["unproved"]
    assert reason.startswith("the end of the forward of program step: expected the loss") and f"not proved: {reason}\n" in shown
    run = ("fsdp-run", plan, "--weights", archive, "--reference", archive.with_suffix(".safetensors"))
    assert f"step.plan: not proved to do what its model means: {reason}\n" in succeed(*run).stderr
    verified = tool(*run, "--verify")
    assert verified.returncode == 2 and "cannot prove the plan: the end of the forward" in verified.stderr


# A plan that is proved has no mark, whatever was asked for.
def test_does_not_mark_what_is_proved(plans):
    assert plans("gpt2", 2, "--unproved").read_bytes() == plans("gpt2", 2).read_bytes()
