"""examples/training: loops of PyTorch and of other trainers train the same with a plan as without, on one rank and on two."""

import os
import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, free_port

EXAMPLES = ROOT / "examples" / "training"
pytestmark = pytest.mark.skipif(not list((BUILD / "python" / "fsdp_mlir").glob("_runtime.*")),
                                reason="not run: no headers of Python, or a sanitizer, when the project was built")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def losses(cache, ranks, script, *arguments):
    """What a script prints: the loss of each step, by its number."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", free_port(), EXAMPLES / script, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XDG_CACHE_HOME": str(cache), "FSDP_BIN": str(BUILD.resolve() / "bin"),
                   "FSDP_BUILD": str(BUILD.resolve()), "PYTHONPATH": str(ROOT / "python-bindings")}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)", result.stdout, re.MULTILINE)}


def settings(tmp_path, ranks, **changes):
    text = (EXAMPLES / "loop.toml").read_text()
    for key, value in changes.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    path = tmp_path / f"loop_{ranks}.toml"
    path.write_text(text)
    return path


# A checkpoint of the one is a checkpoint of the other.
def test_a_loop_with_a_config_file_trains_as_fsdp2_does(cache, tmp_path):
    config = settings(tmp_path, 2, folder=f'"{tmp_path}/run"', interval=4)
    expected = losses(cache, 2, "loop.py", EXAMPLES / "loop.toml", ROOT / "LICENSE", "--fsdp2")
    assert list(expected) == [1, 2, 3, 4, 5, 6]
    assert losses(cache, 2, "loop.py", config, ROOT / "LICENSE") == pytest.approx(expected, rel=1e-5)
    rest = {5: expected[5], 6: expected[6]}
    assert losses(cache, 2, "loop.py", config, ROOT / "LICENSE") == pytest.approx(rest, rel=1e-5)
    assert losses(cache, 2, "loop.py", config, ROOT / "LICENSE", "--fsdp2") == pytest.approx(rest, rel=1e-5)
    alone = losses(cache, 1, "loop.py", EXAMPLES / "loop.toml", ROOT / "LICENSE")
    assert alone == pytest.approx(losses(cache, 1, "loop.py", EXAMPLES / "loop.toml", ROOT / "LICENSE", "--fsdp2"), rel=1e-5)
