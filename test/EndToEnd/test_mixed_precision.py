"""Mixed precision, against PyTorch's own FSDP1 and FSDP2 on two ranks with the same policies."""

import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch
from conftest import ROOT, succeed
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import MixedPrecision

import fsdp_mlir

sys.path.insert(0, str(ROOT / "test" / "EndToEnd" / "Inputs"))
from mixed_precision import CASES  # noqa: E402


@pytest.fixture(scope="module")
def recorded(once):
    """The folder with what PyTorch's FSDP computes in all cases."""
    def make(folder):
        folder.mkdir(exist_ok=True)
        script = ROOT / "test" / "EndToEnd" / "Inputs" / "mixed_precision.py"
        subprocess.run([sys.executable, script, folder], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    return once("mixed-precision", make)


def capture(module, example, path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fsdp_mlir.save(fsdp_mlir.capture(module, example, **options), path, verify=False)  # what follows compares it with PyTorch
    return path


def wrap(case):
    """Units as in PyTorch."""
    own = case.precision if isinstance(case.precision, dict) else {}
    patterns = [pattern for pattern in (*own, case.units) if pattern and pattern != "$."]
    return ["--wrap", "scope:" + "|".join(patterns)] if patterns else []


# Loss and gradients of a step; losses and parameters of five.
@pytest.mark.covers("MixedPrecision", "Gradients", "param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs", "ignored classes of mixed precision")
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_fsdp(name, recorded, tmp_path):
    case = CASES[name]
    graph = capture(case.build(), case.batches()[0], tmp_path / "m.pt2", mixed_precision=case.precision)
    succeed("fsdp-plan", graph, "--ranks", 2, *wrap(case), "-o", tmp_path / "p.plan")
    for kind in "step", "training":
        reference = recorded / f"{name}.{kind}.safetensors"
        with safe_open(reference, "pt") as file:
            tensors = sum(not key.startswith("in_") for key in file.keys())
        shown = succeed("fsdp-run", tmp_path / "p.plan", "--weights", graph, "--reference", reference, "--tolerance", case.tolerance).stdout
        assert shown.startswith(f"compared {tensors} tensors, "), shown


# However collectives are grouped or copied, the sums are those of FSDP: in bf16, and cast afterwards.
@pytest.mark.parametrize("options", ["--schedule fsdp2", "--bucket copy:units:2", "--bucket units:2 --reduce-wait backward", "--strategy no_shard"])
def test_sums_of_other_schedules(options, recorded, tmp_path):
    case = CASES["gpt2-bf16-sums"]
    graph = capture(case.build(), case.batches()[0], tmp_path / "m.pt2", mixed_precision=case.precision)
    succeed("fsdp-plan", graph, "--ranks", 2, *options.split(), "-o", tmp_path / "p.plan")
    succeed("fsdp-run", tmp_path / "p.plan", "--weights", graph, "--reference", recorded / "gpt2-bf16-sums.step.safetensors")


class Positions(nn.Module):
    """Derives positions from a buffer that no checkpoint has, in the dtype of its parameters."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer("angles", torch.linspace(0, 3, 8), persistent=False)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)) * torch.cos(self.angles)).float().square().mean()


# The training computes in bf16, the evaluation in f32, both over the f32 weights of the archive.
@pytest.mark.covers("Disjointly", "Force")
@pytest.mark.parametrize("options", ["", "--strategy shard_grad_op --schedule fsdp2", "--strategy no_shard"])
def test_an_evaluation_in_full_precision(options, tmp_path):
    torch.manual_seed(0)
    module, rows = Positions(), torch.randn(4, 5, 8)
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
    train = capture(module, (rows[0],), tmp_path / "train.pt2", mixed_precision=policy)
    evaluation = capture(module.eval(), (rows[0],), tmp_path / "eval.pt2", gradients=False)
    save_file({"in_0": rows}, tmp_path / "data.safetensors")
    succeed("fsdp-plan", train, "--program", f"eval={evaluation}", "--ranks", 2, *options.split(), "-o", tmp_path / "p.plan")
    shown = succeed("fsdp-run", tmp_path / "p.plan", "--weights", train, "--data", tmp_path / "data.safetensors", "--steps", 2, "--lr", 0,
                    "--weight-decay", 0, "--eval-data", tmp_path / "data.safetensors", "--eval-every", 1, "--json").stdout
    found = [row["eval_loss"] for row in map(json.loads, shown.splitlines()) if "eval_loss" in row]
    with torch.no_grad():
        full = sum(module(row).item() for row in rows) / 4
        low = sum(module.bfloat16()(row).item() for row in rows.bfloat16()) / 4
    assert found == pytest.approx([full] * 2, rel=1e-6) and full != pytest.approx(low, rel=1e-5)


# What a capture has asked for, and what options say instead; gathers are in the dtype of the computation, sums in one type.
@pytest.mark.covers("reduce_dtype")
@pytest.mark.parametrize("options, storage, reduce", [([], "f32", "f32"), (["--reduce-dtype", "bf16"], "f32", "bf16"),
                                                      (["--storage-dtype", "bf16"], "bf16", "f32")])
def test_types_of_a_plan(options, storage, reduce, tmp_path):
    graph = capture(Positions(), (torch.randn(5, 8),), tmp_path / "m.pt2", mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16))
    succeed("fsdp-plan", graph, "--ranks", 2, *options, "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    assert set(re.findall(r"plan\.unit .* storage (\w+) reduce (\w+)", text)) == {(storage, reduce)}
    types = dict(re.findall(r"(%\w+) = plan\.(?:buffer|view) .* : tensor<(?:\d+x)*(\w+)[,>]", text))
    assert {types[target] for target in re.findall(r"plan\.all_gather @\w+ %\w+ to (%\w+)", text)} == {"bf16"}
    assert {types[value] for pair in re.findall(r"plan\.reduce_scatter .* (%\w+) to (%\w+)", text) for value in pair} == {reduce}
