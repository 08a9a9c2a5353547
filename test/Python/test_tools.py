"""fsdp_mlir_tools: which program is run, as it lies in a wheel, on the PATH or in a checkout; and for which PyTorch."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = '#!/bin/sh\necho "$0 $*"; echo "libraries $LD_LIBRARY_PATH"; exit 7\n'


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


@pytest.fixture
def wheel(tmp_path):
    """The package as a wheel installs it, with two programs."""
    folder = tmp_path / "site" / "fsdp_mlir_tools"
    shutil.copytree(ROOT / "python-bindings" / "fsdp_mlir_tools", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("fsdp-plan", "fsdp-run"):
        program(folder / "bin" / name)
    (folder / "torch-version.txt").write_text(importlib.metadata.version("torch") + "\n")
    return folder


def command(name, *arguments, site, **variables):
    """As the console script of a wheel does."""
    code = f"import sys; sys.argv[0] = '/usr/bin/{name}'; import fsdp_mlir_tools; fsdp_mlir_tools.main()"
    environment = {key: value for key, value in os.environ.items() if key not in ("FSDP_BIN", "LD_LIBRARY_PATH")}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60,
                          env={**environment, "PYTHONPATH": str(site), **variables})


def test_command_becomes_the_program(wheel):
    result = command("fsdp-plan", "a b", "--ranks=2", site=wheel.parent)
    assert result.returncode == 7 and result.stdout.splitlines()[0] == f"{wheel}/bin/fsdp-plan a b --ranks=2"


def test_libraries_are_those_of_this_torch(wheel):
    """PyTorch is installed in another folder than the wheel."""
    import torch

    packages = os.path.dirname(os.path.dirname(torch.__file__))
    said = command("fsdp-run", site=wheel.parent, LD_LIBRARY_PATH="/mine").stdout
    assert f"libraries {packages}/torch/lib:{packages}/nvidia/cu13/lib:{packages}/nvidia/nccl/lib:/mine\n" in said
    (wheel.parent / "torch" / "lib").mkdir(parents=True)
    (wheel.parent / "torch" / "__init__.py").touch()
    assert "libraries \n" in command("fsdp-run", site=wheel.parent).stdout


def test_another_torch_is_rejected(wheel):
    (wheel / "torch-version.txt").write_text("1.2.3+cpu\n")
    result = command("fsdp-run", site=wheel.parent)
    found = importlib.metadata.version("torch")
    assert result.returncode == 1 and result.stderr == (
        f"error: fsdp-mlir: expected torch 1.2.3+cpu, which its runtime was built with, found {found}; "
        "install torch==1.2.3, or build the wheel again with this one\n")
    assert command("fsdp-plan", site=wheel.parent).returncode == 7  # which needs none


def test_same_torch_for_another_device_is_taken(wheel):
    (wheel / "torch-version.txt").write_text(importlib.metadata.version("torch").partition("+")[0] + "+other\n")
    assert command("fsdp-run", site=wheel.parent).returncode == 7


def test_folder_of_the_environment_is_first(wheel, tmp_path):
    program(tmp_path / "mine" / "fsdp-plan")
    assert f"{tmp_path}/mine/fsdp-plan" in command("fsdp-plan", site=wheel.parent, FSDP_BIN=str(tmp_path / "mine")).stdout
    result = command("fsdp-run", site=wheel.parent, FSDP_BIN=str(tmp_path / "mine"))
    assert result.returncode == 1 and "the folder of FSDP_BIN, found none; correct FSDP_BIN, or unset it" in result.stderr


def test_command_does_not_find_itself(wheel):
    """Without programs in the package: those of the PATH may be this very command."""
    shutil.rmtree(wheel / "bin")
    result = command("fsdp-plan", site=wheel.parent, PATH=f"{wheel.parent}:{os.environ['PATH']}")
    assert result.returncode == 1 and result.stderr.startswith("error: fsdp-plan: expected it in this Python's fsdp_mlir_tools/bin")


def test_order(wheel, tmp_path, monkeypatch):
    monkeypatch.delenv("FSDP_BIN", raising=False)
    monkeypatch.syspath_prepend(wheel.parent)
    for name in [name for name in sys.modules if name.startswith("fsdp_mlir_tools")]:
        monkeypatch.delitem(sys.modules, name)
    import fsdp_mlir_tools

    monkeypatch.setenv("PATH", str(program(tmp_path / "path" / "fsdp-plan").parent))
    assert fsdp_mlir_tools.find("fsdp-plan") == wheel / "bin" / "fsdp-plan"
    (wheel / "bin" / "fsdp-plan").unlink()
    assert fsdp_mlir_tools.find("fsdp-plan") == tmp_path / "path" / "fsdp-plan"
    (tmp_path / "path" / "fsdp-plan").unlink()
    program(tmp_path / "build" / "gcc" / "bin" / "fsdp-plan")  # site stands where python-bindings does
    assert fsdp_mlir_tools.find("fsdp-plan") == tmp_path / "build" / "gcc" / "bin" / "fsdp-plan"
    (tmp_path / "build" / "gcc" / "bin" / "fsdp-plan").unlink()
    with pytest.raises(fsdp_mlir_tools.ToolError, match="install the wheel of fsdp-mlir, or build it and name the folder of the tools in FSDP_BIN$"):
        fsdp_mlir_tools.find("fsdp-plan")
