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
from safetensors.torch import load_file
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
        fsdp_mlir.save(fsdp_mlir.capture(module, example, **options), path)
    return path


def wrap(case):
    """Units as in PyTorch."""
    own = case.precision if isinstance(case.precision, dict) else {}
    patterns = [pattern for pattern in (*own, case.units) if pattern and pattern != "$."]
    return ["--wrap", "scope:" + "|".join(patterns)] if patterns else []


# Loss and gradients of a step; losses and parameters of five.
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
