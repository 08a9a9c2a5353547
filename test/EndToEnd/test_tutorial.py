"""Every command of docs/tutorial.md runs, in its order, and prints what the page says."""

import os
import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT
from test_tour import missing

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.covers("Examples")
def test_every_command_of_the_tutorial_runs(tmp_path):
    environment = {**os.environ, "PATH": f"{BUILD.resolve() / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                   "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "python-bindings")}
    script, printed, kinds = "", "", []
    for kind, text in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        kinds.append(kind)
        if kind == "python":
            script += text  # one session from the first block to the last
            continue
        if script:
            subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment, timeout=300)
            script = ""
        if kind == "sh":
            result = subprocess.run(["bash", "-e", "-c", text], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
            assert result.returncode == 0, result.stderr
            printed = result.stdout + result.stderr
        else:
            assert missing(text, printed) is None, printed
    assert kinds.count("python") == 2 and kinds.count("sh") >= 4 and kinds.count("") >= 2
    assert {"predicted.json", "measured.json"} <= {path.name for path in tmp_path.iterdir()}
