"""A machine is measured once, and fsdp-plan knows it from then on."""

import json
import os
import subprocess
import sys
import tomllib

import pytest
import torch
from conftest import BUILD, FIXTURES, ROOT, succeed, tool

from fsdp_mlir import PlanError, _calibrate


def test_a_machine_that_was_measured_is_the_default(tmp_path):
    variables = {"XDG_CONFIG_HOME": str(tmp_path)}
    before = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--auto", **variables).stdout
    assert "by the costs of" not in before
    done = subprocess.run([sys.executable, "-m", "fsdp_mlir", "calibrate"], capture_output=True, text=True,
                          env={**os.environ, **variables, "PYTHONPATH": str(ROOT / "python-bindings"), "FSDP_BIN": str(BUILD / "bin")})
    assert done.returncode == 0, done.stderr
    file = tmp_path / "fsdp-mlir" / "cpu.toml"
    assert done.stdout.endswith(f"{file}: this machine\n") and [path.name for path in file.parent.iterdir()] == ["cpu.toml"]
    found, builtin = tomllib.loads(file.read_text()), tomllib.loads((ROOT / "hardware" / "cpu.toml").read_text())
    assert found.keys() == builtin.keys() and found["compute"] != builtin["compute"]
    # A core of a cache multiplies faster than it adds from memory, whatever machine it is.
    assert found["compute"]["matrix"]["f32"] > found["compute"]["vector"] > 0 and found["memory"]["cache_gbytes"] > 0
    report = tmp_path / "r.json"
    said = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--auto", "--report", report, **variables).stdout
    assert f"\n  by the costs of {file}\n" in said
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--auto", "--hardware", file, "--report", tmp_path / "named.json")
    assert json.loads(report.read_text())["predicted"] == json.loads((tmp_path / "named.json").read_text())["predicted"]
    # All rows of a comparison are of this machine; a name that is given is another one.
    assert "predicted" in tool("fsdp-plan", "compare", FIXTURES / "gpt2.pt2", "--ranks", 2, **variables).stdout
    assert "by the costs of" not in tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--hardware", "h100", **variables).stdout
    # What was kept is a file that people edit.
    file.write_text("name = 1\n")
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--auto", **variables)
    assert result.returncode == 1 and f"{file}: " in result.stderr


# Only rates are measured on a GPU: its links are those of a file, which the name that PyTorch has for it chooses.
def test_a_gpu_without_a_file(tmp_path):
    names = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-80GB": "a100-80", "NVIDIA B200": "b200", "NVIDIA GB200": "gb200-nvl72"}
    assert {name: _calibrate._builtin(name, 79) for name in names} == names
    assert _calibrate._builtin("NVIDIA A100-SXM4-40GB", 39.4) == "a100-40"
    assert all((ROOT / "hardware" / f"{file}.toml").exists() for file in (*names.values(), "a100-40"))
    with pytest.raises(PlanError, match="expected an A100, H100, H200, B200 or GB200, found NVIDIA L4; name a hardware file that has its links with --hardware"):
        _calibrate._builtin("NVIDIA L4", 22)
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="calibrate: expected a GPU that PyTorch can use, found none"):
            _calibrate.calibrate(tmp_path / "cuda.toml", "cuda")
        assert not list(tmp_path.iterdir())
