"""Training what no file has values for: models of the meta device, and parameters that fsdp-run makes itself."""

import sys
from pathlib import Path

import fsdp_mlir
import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent / "oracle"))

import ranks  # noqa: E402

DATA = FIXTURES / "gpt2_train2x5.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the archive of a model on the meta device, its initial values, a plan for two ranks, and data."""
    folder = tmp_path_factory.mktemp("initial")
    with torch.device("meta"):
        model = ranks.Model()
    with pytest.warns(fsdp_mlir.CaptureWarning, match="not compared with eager PyTorch"):
        fsdp_mlir.save(fsdp_mlir.capture(model, tuple(ranks.rows()[0])), folder / "model.pt2")
    fsdp_mlir.initialize(model, folder / "init.safetensors", seed=11)
    succeed("fsdp-plan", folder / "model.pt2", "--ranks", 2, "--optimizer", "sgd", "-o", folder / "step.plan")
    save_file({f"in_{i}": torch.stack([row[i] for row in ranks.rows()]) for i in range(2)}, folder / "data.safetensors")
    return folder


# The training is that of the model made on the CPU: ranks.build() begins with the same seed.
@pytest.mark.covers("Materialize", "meta-device modules", "Run")
def test_a_model_of_the_meta_device_is_trained(files, tmp_path):
    output = tmp_path / "out.safetensors"
    succeed("fsdp-run", files / "step.plan", "--init", "from-module", "--weights", files / "init.safetensors", "--data", files / "data.safetensors",
            "--steps", ranks.STEPS, "--lr", ranks.LR, "--weight-decay", 0, "--summon", output)
    copies = [ranks.build() for _ in range(ranks.WORLD)]
    for step in range(ranks.STEPS):
        for rank, module in enumerate(copies):
            module.zero_grad()
            module(*ranks.rows()[step * ranks.WORLD + rank]).backward()
        with torch.no_grad():
            for own in zip(*(module.parameters() for module in copies), strict=True):
                mean = sum(parameter.grad for parameter in own) / ranks.WORLD
                for parameter in own:
                    parameter -= ranks.LR * mean
    found = load_file(output)
    for name, value in copies[0].state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")


def begin(plan, output, *options, data=DATA):
    """What the parameters begin with: a step that changes nothing."""
    succeed("fsdp-run", plan, *options, "--data", data, "--steps", 1, "--lr", 0, "--weight-decay", 0, "--summon", output)
    return load_file(output)


# Drawn by name and place: how a tensor is cut has no part in it.
@pytest.mark.covers("param_init_fn", "Materialize", "Synchronize")
def test_drawn_values_are_of_the_name_and_the_seed(plans, tmp_path):
    normal = ["--init", "normal:0.02", "--seed", 4]
    first = begin(plans("gpt2", 1), tmp_path / "a", *normal)
    for ranks_, options in [(2, []), (3, ["--wrap", r"scope:.*mlp"]), (4, ["--mesh", "2x2"]), (2, ["--strategy", "no_shard", "--bucket", "merge:units:2"])]:
        other = begin(plans("gpt2", ranks_, *options), tmp_path / "b", *normal)
        assert other.keys() == first.keys()
        assert all(torch.equal(value, first[name]) for name, value in other.items()), (ranks_, options)
    assert len({value.flatten()[0].item() for value in first.values()}) == len(first)
    assert 0.019 < torch.cat([value.flatten() for value in first.values()]).std() < 0.021
    other = begin(plans("gpt2", 2), tmp_path / "b", "--init", "normal:0.02", "--seed", "5:shared")
    assert not any(torch.equal(value, first[name]) for name, value in other.items())
    zeros = begin(plans("gpt2", 2), tmp_path / "b", "--init", "zeros")
    assert zeros.keys() == first.keys() and not any(value.any() for value in zeros.values())


def test_a_file_may_lack_some(plans, tmp_path):
    known = begin(plans("gpt2", 1), tmp_path / "a", "--weights", FIXTURES / "gpt2.pt2")
    some = {name: value for name, value in known.items() if ".h.0." in name}
    save_file(some, tmp_path / "some.safetensors")
    result = succeed("fsdp-run", plans("gpt2", 2), "--weights", tmp_path / "some.safetensors", "--init", "zeros", "--data", DATA, "--steps", 1,
                     "--lr", 0, "--weight-decay", 0, "--summon", tmp_path / "b")
    missing = len(known) - len(some)
    assert result.stderr == f"note: {tmp_path}/some.safetensors: {missing} parameters are not in it and begin as --init zeros\n"
    for name, value in load_file(tmp_path / "b").items():
        assert torch.equal(value, some.get(name, torch.zeros_like(value))), name


@pytest.mark.covers("param_init_fn", "Materialize")
def test_values_that_nothing_says_are_rejected(files, plans):
    plan, data = files / "step.plan", files / "data.safetensors"
    for options, sentence in [
        ([], "error: expected --weights FILE, or --init to make parameters without a file; found neither"),
        (["--weights", files / "model.pt2"], f"error: {files}/model.pt2: expected a value for each of 15 parameters and buffers, found none for 15: "
         "stem.weight, stem.bias, norm.weight, norm.bias, head.weight, head.bias, " + ", ".join(
             f"blocks.{block}.{name}" for block in range(2) for name in ("inner.weight", "inner.bias", "outer.weight")) +
         ", norm.running_mean, norm.running_var, norm.num_batches_tracked"),
        (["--init", "zeros"], "error: --init zeros: expected a value for each of 3 parameters and buffers, found none for 3: "
         "norm.running_mean, norm.running_var, norm.num_batches_tracked"),
        (["--init", "ones"], "error: --init: expected from-module, zeros, or normal:STD with a standard deviation of at least 0, found ones"),
        (["--init", "normal:-1"], "error: --init: expected from-module, zeros, or normal:STD with a standard deviation of at least 0, found normal:-1"),
        (["--init", "from-module"], "error: --init from-module: expected --weights FILE, which Python's fsdp_mlir.initialize writes; found none"),
        (["--init", "from-module", "--weights", data], f"error: {data}: expected initial values, which Python's fsdp_mlir.initialize writes, found a "
         "file of others; leave out --init from-module"),
        (["--init", "zeros", "--weights", files / "init.safetensors"], f"error: --init zeros: expected a parameter that {files}/init.safetensors "
         "lacks, found none; leave out one of the two"),
    ]:
        result = tool("fsdp-run", plan, *options, "--data", data, "--steps", 1)
        assert (result.returncode, result.stderr.strip()) == (1, sentence)
