"""The modules that people call have complete types (python-bindings/pyproject.toml, [tool.mypy])."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_types():
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / "build" / "mypy")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT / "python-bindings")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no issues found" in result.stdout
