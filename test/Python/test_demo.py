"""The demo's two scripts, at a tenth of the size."""

import json
import subprocess
import sys

import compare_demo
import numpy as np
import pytest
import torch
from compare_demo import load, replay


@pytest.fixture(scope="module")
def demo(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    text = folder / "text.txt"
    text.write_bytes(bytes(range(256)) * 5)
    sizes = ["--layers", "2", "--width", "16", "--heads", "2", "--length", "16", "--batch", "2"]
    subprocess.run([sys.executable, root / "scripts/capture_demo.py", folder, "--text", text, *sizes], check=True)
    return folder


@pytest.fixture(scope="module")
def losses(demo):
    model, shape = load(demo)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return replay(model, optimizer, np.fromfile(demo / "tokens.bin", "<u2"), shape, ranks=3, start=0, steps=4)


def compare(demo, losses):
    """The exit code of compare_demo.py for these losses."""
    log = demo / "losses.jsonl"
    log.write_text("".join(json.dumps({"step": i, "loss": loss, "seconds": 0.1}) + "\n" for i, loss in enumerate(losses, 1)))
    return compare_demo.main([str(demo), "--losses", str(log), "--ranks", "3", "--steps", "4"])


def test_files(demo):
    tokens = np.fromfile(demo / "tokens.bin", "<u2")
    assert len(tokens) == 1280 and tokens.max() == 255
    model, shape = load(demo)
    assert shape == (2, 16)


def test_the_graph_is_the_model(demo):
    from make_rank_reference import load as load_graph, run

    ids = torch.arange(32).view(2, 16)
    result = run(load_graph(demo / "gpt2.pt2"), [ids, ids])
    model, _ = load(demo)
    expected = model(ids, ids)
    expected.backward()
    torch.testing.assert_close(result.loss, expected.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_equal_losses_agree(demo, losses, capsys):
    assert compare(demo, losses) == 0
    out = capsys.readouterr().out
    assert out.endswith("all 4 losses agree within 1e-05\n") and f"{losses[0]:.6f}" in out


@pytest.mark.parametrize("wrong", [1.0001, float("nan")])
def test_a_wrong_loss_is_found(demo, losses, wrong, capsys):
    assert compare(demo, [*losses[:3], losses[3] * wrong]) == 2
    assert "error: 1 of 4 losses differ by more than 1e-05\n" in capsys.readouterr().err


def test_a_missing_step_is_rejected(demo, losses, capsys):
    assert compare(demo, losses[:3]) == 1
    assert capsys.readouterr().err == (
        f"error: {demo / 'losses.jsonl'}: step 4 is missing: run fsdp-run with --json and --steps 4 or more\n"
    )
