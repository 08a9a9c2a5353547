"""What `--export` writes is what transformers loads, and training goes on from there."""

import json
import shutil

import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_weights import llama  # noqa: F401

import fsdp_mlir


def export(llama, weights, tmp_path, target, *options):
    """Trains two steps; returns the losses of four: two more, from what was exported."""
    succeed("fsdp-plan", llama / "model.pt2", "--ranks", 2, "--optimizer", "sgd", "-o", tmp_path / "step.plan")
    run = ["fsdp-run", tmp_path / "step.plan", "--data", llama / "data.safetensors", "--json", "--lr", 0.1, "--weight-decay", 0]
    losses = []
    for start, more in (weights, ["--export", target, *options]), (target, []):
        lines = succeed(*run, "--weights", start, "--steps", 2, *more).stdout.splitlines()
        losses += [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
    whole = succeed(*run, "--weights", weights, "--steps", 4).stdout.splitlines()
    assert losses == [json.loads(line)["loss"] for line in whole if "loss" in json.loads(line)]
    return losses


@pytest.mark.parametrize("options, files", [([], 1), (["--max-shard-size", "20kB"], 4), (["--max-shard-size", "1"], 20)])
def test_transformers_loads_a_folder(options, files, llama, tmp_path):  # noqa: F811
    from transformers import AutoModelForCausalLM

    losses = export(llama, llama / "hub", tmp_path, tmp_path / "trained", *options)
    found = sorted(path.name for path in (tmp_path / "trained").iterdir())
    assert len(found) == (1 if files == 1 else files + 1), found
    shutil.copy(llama / "hub" / "config.json", tmp_path / "trained")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    batch = load_file(llama / "data.safetensors")
    loss = model(input_ids=batch["in_0"][0], labels=batch["in_1"][0]).loss.item()
    assert loss == pytest.approx(losses[2], rel=1e-5)


def test_a_file_has_the_names_of_the_weights(llama, tmp_path):  # noqa: F811
    export(llama, llama / "hub", tmp_path, tmp_path / "model.safetensors")
    names = {name for path in (llama / "hub").glob("*.safetensors") for name in load_file(path)}
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == names and file.metadata() == {"format": "pt"}


# An archive has the names of the module that was captured.
def test_names_of_an_archive_may_be_changed(llama, tmp_path):  # noqa: F811
    succeed("fsdp-plan", llama / "model.pt2", "--ranks", 2, "-o", tmp_path / "step.plan")
    succeed("fsdp-run", tmp_path / "step.plan", "--weights", llama / "model.pt2", "--rename", r"^m\.=", "--data", llama / "data.safetensors", "--steps", 1,
            "--export", tmp_path / "model.safetensors")
    names = {name for path in (llama / "hub").glob("*.safetensors") for name in load_file(path)}
    assert set(load_file(tmp_path / "model.safetensors")) == names


# Nothing is overwritten, and what can't be written is known before the training.
def test_targets_that_cannot_be_are_rejected(llama, tmp_path):  # noqa: F811
    succeed("fsdp-plan", llama / "model.pt2", "--ranks", 2, "-o", tmp_path / "step.plan")
    run = ["fsdp-run", tmp_path / "step.plan", "--weights", llama / "hub", "--data", llama / "data.safetensors", "--steps", 1]
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "x").touch()
    file.write_text("mine")
    for target in full, file, llama / "hub":
        result = tool(*run, "--export", target)
        assert result.returncode == 1 and "--export: expected a folder that does not exist yet" in result.stderr
    assert file.read_text() == "mine" and [path.name for path in full.iterdir()] == ["x"]
    result = tool(*run, "--export", tmp_path / "no" / "where")
    assert result.returncode == 1 and "--export" in result.stderr
    result = tool(*run, "--export", next((llama / "hub").glob("*.safetensors")))
    assert result.returncode == 1 and "expected a file of its own for --export" in result.stderr
    result = tool(*run, "--export", tmp_path / "out", "--max-shard-size", 0)
    assert result.returncode == 1 and "--max-shard-size" in result.stderr
    empty.mkdir()
    succeed(*run, "--export", f"{empty}/")
    assert [path.name for path in empty.iterdir()] == ["model.safetensors"]
    assert not list(tmp_path.glob("*.??????"))


def test_batch_norm_is_exported_whole(tmp_path):
    succeed("fsdp-plan", FIXTURES / "role_batch_norm.pt2", "--ranks", 2, "-o", tmp_path / "step.plan")
    succeed("fsdp-run", tmp_path / "step.plan", "--weights", FIXTURES / "role_batch_norm.pt2", "--data",
            FIXTURES / "role_batch_norm_train2x5.safetensors", "--steps", 1, "--export", tmp_path / "model.safetensors")
    assert any("running_mean" in name for name in load_file(tmp_path / "model.safetensors"))


class Tied(torch.nn.Module):
    """One parameter by two names, as that of an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return torch.nn.functional.cross_entropy(self.head(self.embed(ids)), ids)


# Both names load into the model, as what PyTorch saves does, and training goes on from either.
@pytest.mark.parametrize("options", [[], ["--offload", "all"], ["--strategy", "no_shard"]], ids=" ".join)
def test_a_tied_parameter_is_exported(options, tmp_path):
    torch.manual_seed(0)
    model, ids = Tied(), torch.arange(8).view(2, 4)
    fsdp_mlir.save(fsdp_mlir.capture(model, (ids[0],)), tmp_path / "model.pt2")
    save_file({"ids": ids}, tmp_path / "data.safetensors")
    succeed("fsdp-plan", tmp_path / "model.pt2", "--ranks", 2, *options, "-o", tmp_path / "step.plan")
    run = ["fsdp-run", tmp_path / "step.plan", "--data", tmp_path / "data.safetensors", "--steps", 2, "--summon", tmp_path / "summoned.safetensors"]
    succeed(*run, "--weights", tmp_path / "model.pt2", "--export", tmp_path / "trained.safetensors")
    trained, summoned = load_file(tmp_path / "trained.safetensors"), load_file(tmp_path / "summoned.safetensors")
    missing, unexpected = model.load_state_dict(trained, strict=False)
    assert not unexpected and len(missing) <= 1 and model.head.weight is model.embed.weight
    assert all(torch.equal(model.embed.weight, value) for value in summoned.values())
    succeed(*run, "--weights", tmp_path / "trained.safetensors")
