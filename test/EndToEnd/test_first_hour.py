"""What somebody sees in the first hour: `python -m fsdp_mlir demo`."""

import os
import re
import subprocess
import sys

from conftest import BUILD, ROOT


def demo(cache, *arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python-bindings"), "XDG_CACHE_HOME": str(cache), "FSDP_BIN": str(BUILD / "bin"), **variables}
    return subprocess.run([sys.executable, "-m", "fsdp_mlir", *arguments], capture_output=True, text=True, timeout=240, env=environment)


def test_demo(tmp_path):
    result = demo(tmp_path, "demo")
    assert result.returncode == 0, result.stderr
    losses = list(map(float, re.findall(r"^  step +\d+  loss (\S+)$", result.stdout, re.MULTILINE)))
    assert len(losses) == 9 and losses[0] > 5 and losses[-1] < 0.1
    measured, published, profiled = map(float, re.findall(r"(\d+\.\d+) ms (?:\(the median\)|by )", result.stdout))
    assert min(measured, published, profiled) > 0
    assert "proved: the plan computes what the model does" in result.stdout


def test_demo_without_tools_is_a_sentence(tmp_path):
    result = demo(tmp_path, "demo", FSDP_BIN=str(tmp_path))
    assert result.returncode == 1 and result.stderr.startswith("fsdp_mlir: error: fsdp-plan: expected it in ")
    assert demo(tmp_path).returncode == 2


def test_page_about_capture(tmp_path):
    """The first snippets of docs/capture.md, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "capture.md").read_text(), re.DOTALL)
    assert "fsdp_mlir.compile(" in blocks[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python-bindings"), "XDG_CACHE_HOME": str(tmp_path), "FSDP_BIN": str(BUILD / "bin")}
    result = subprocess.run([sys.executable, "-c", blocks[0] + blocks[1]], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert "predicted step" in result.stdout and (tmp_path / "page.html").exists() and (tmp_path / "folder" / "step.plan").exists()
