"""examples/training: loops of PyTorch and of other trainers train the same with a plan as without, on one rank and on two."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import BUILD, ROOT, free_port, needs_trainer

EXAMPLES = ROOT / "examples" / "training"
pytestmark = needs_trainer


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def run(cache, ranks, script, *arguments):
    """What a script prints of each step: `step 1 loss 2.5 lr 0.1` is {(1, "loss"): 2.5, (1, "lr"): 0.1}."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", free_port(),
               pathlib.Path(__file__).with_name("run_script.py"), EXAMPLES / script, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XDG_CACHE_HOME": str(cache), "FSDP_BIN": str(BUILD.resolve() / "bin"),
                   "FSDP_BUILD": str(BUILD.resolve()), "PYTHONPATH": str(ROOT / "python-bindings")}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("step ")]
    found = {(int(number), what): float(value) for _, number, *rest in lines for what, value in zip(rest[::2], rest[1::2], strict=True)}
    assert found
    return found


def after(step, found):
    return {key: value for key, value in found.items() if key[0] > step}


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
    text = ROOT / "LICENSE"
    expected = run(cache, 2, "loop.py", EXAMPLES / "loop.toml", text, "--fsdp2")
    assert {step for step, _ in expected} == {1, 2, 3, 4, 5, 6}
    assert run(cache, 2, "loop.py", config, text) == pytest.approx(expected, rel=1e-5)
    rest = after(4, expected)
    assert run(cache, 2, "loop.py", config, text) == pytest.approx(rest, rel=1e-5)
    assert run(cache, 2, "loop.py", config, text, "--fsdp2") == pytest.approx(rest, rel=1e-5)
    assert run(cache, 1, "loop.py", EXAMPLES / "loop.toml", text) == pytest.approx(expected, rel=1e-5)  # of as large a global batch


# Losses are means over the tokens of all ranks and micro-batches, and texts are not of one length.
@pytest.mark.parametrize("ranks", [1, 2])
def test_transformers_trainer(ranks, cache, tmp_path):
    pytest.importorskip("accelerate")
    import transformers

    folders = tmp_path / "plan", tmp_path / "eager"
    expected = run(cache, ranks, "transformers_trainer.py", folders[1], "--eager")
    assert {what for _, what in expected} == {"loss", "grad_norm", "eval_loss", "learning_rate"}
    assert run(cache, ranks, "transformers_trainer.py", folders[0]) == pytest.approx(expected, rel=1e-5)
    found, trained = (transformers.LlamaForCausalLM.from_pretrained(folder / "trained").state_dict() for folder in folders)
    for name, value in trained.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    if ranks > 1:  # resumes, with the log
        shutil.rmtree(folders[0] / "checkpoint-6")
        assert run(cache, ranks, "transformers_trainer.py", folders[0]) == pytest.approx(expected, rel=1e-5)


def test_accelerate(cache, tmp_path):
    pytest.importorskip("accelerate")
    expected = run(cache, 2, "accelerate_loop.py", ROOT / "LICENSE", "--eager", "--save", tmp_path / "eager.pt")
    assert run(cache, 2, "accelerate_loop.py", ROOT / "LICENSE", "--save", tmp_path / "plan.pt") == pytest.approx(expected, rel=1e-5)
    trained, found = (torch.load(tmp_path / f"{name}.pt") for name in ("eager", "plan"))
    assert list(trained) == list(found)
    for name, value in trained.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_lightning(cache, tmp_path):
    pytest.importorskip("lightning")
    for done in 0, 4:  # the second time, both resume
        expected = run(cache, 2, "lightning_module.py", tmp_path / "eager", ROOT / "LICENSE", "--eager")
        found = run(cache, 2, "lightning_module.py", tmp_path / "plan", ROOT / "LICENSE")
        assert found == pytest.approx(expected, rel=1e-5)
        assert min(step for step, _ in found) == done + 1
