"""Weights out of files and folders of Hugging Face, of which ranks read what they hold."""

import json
import pathlib
import re
import shutil

import pytest
import torch
from conftest import FIXTURES, children, needs_mpi, start_processes, succeed, tool
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file

import fsdp_mlir


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder with a tied model as `save_pretrained` writes it, in files of 20 kB, and the archive of its loss."""
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, max_position_embeddings=32, use_cache=False, tie_word_embeddings=True))
    model.save_pretrained(folder / "hub", max_shard_size="20kB")

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.m = model

        def forward(self, input_ids, labels):
            return self.m(input_ids=input_ids, labels=labels).loss

    batch = tuple(torch.randint(0, 64, (2, 2, 8), generator=torch.Generator().manual_seed(1)))
    fsdp_mlir.save(fsdp_mlir.capture(Loss(), batch), folder / "model.pt2")
    save_file({"in_0": batch[0].expand(8, 2, 8).contiguous(), "in_1": batch[1].expand(8, 2, 8).contiguous()}, folder / "data.safetensors")
    return folder


def trained(llama, weights, tmp_path, *options, ways=("--ranks", 2)):
    succeed("fsdp-plan", llama / "model.pt2", *ways, "-o", tmp_path / "step.plan")
    result = succeed("fsdp-run", tmp_path / "step.plan", "--weights", weights, "--data", llama / "data.safetensors", "--steps", 2,
                     "--summon", tmp_path / "end.safetensors", *options)
    return load_file(tmp_path / "end.safetensors"), result.stderr


# Ranks end in the middle of rows, in the middle of tensors, and of several replicas one reads.
@pytest.mark.parametrize("ways", [("--ranks", 1), ("--ranks", 2), ("--ranks", 3), ("--mesh", "2x2")], ids=lambda ways: ways[-1])
def test_a_folder_has_the_bits_of_the_archive(ways, llama, tmp_path):
    assert len(list((llama / "hub").glob("model-*.safetensors"))) > 3
    expected, _ = trained(llama, llama / "model.pt2", tmp_path, ways=ways)
    found, stderr = trained(llama, llama / "hub", tmp_path, ways=ways)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], value) for name, value in expected.items())
    assert "not of the plan" not in stderr


def figures(command) -> dict[int, tuple[int, int]]:
    """By process of four: the bytes that it has read before the end of its first step, and the most that it had in memory, in KiB."""
    running = start_processes((4, *command, "--steps", 1000000, "--json"))
    try:
        assert running.stdout.readline().startswith('{"step": 1,')
        found = {}
        for pid in children(running.pid, "fsdp-run"):
            text = {name: pathlib.Path(f"/proc/{pid}/{name}").read_text() for name in ("io", "status", "environ")}
            rank = int(re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", text["environ"])[1])
            found[rank] = int(re.search(r"rchar: (\d+)", text["io"])[1]), int(re.search(r"VmHWM:\s+(\d+)", text["status"])[1])
    finally:
        running.terminate()
        running.communicate(timeout=60)
    assert sorted(found) == [0, 1, 2, 3]
    return found


LAYERS = 11
SIZE, PART = LAYERS * 4 << 20, 4 << 20  # bytes of the model below, and of what is read at a time


@pytest.fixture
def wide(tmp_path):
    """A training of a model of which no machine could hold as many copies as it has ranks; its weights are in `hub`."""
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(LAYERS)])

        def forward(self, x):
            return self.layers(x).square().mean()

    model = Model()
    fsdp_mlir.save(fsdp_mlir.capture(model, (torch.randn(1, 1024),)), tmp_path / "model.pt2", verify=False)
    (tmp_path / "hub").mkdir()
    save_torch_state_dict(model.state_dict(), tmp_path / "hub", max_shard_size="10MB")
    save_file({"in_0": torch.randn(8, 1, 1024)}, tmp_path / "data.safetensors")
    succeed("fsdp-plan", tmp_path / "model.pt2", "--ranks", 4, "-o", tmp_path / "step.plan")
    return [tmp_path / "step.plan", "--data", tmp_path / "data.safetensors"]


# All processes see the same files: none is read to compare it.
@needs_mpi
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_rank_reads_what_it_holds(kind, wide, tmp_path):
    weights = tmp_path / "hub"
    if kind == "file":
        tensors = {name: value for path in weights.glob("*.safetensors") for name, value in load_file(path).items()}
        weights = tmp_path / "weights.safetensors"
        save_file(tensors, weights)
    plain, loaded = figures([*wide, "--init", "zeros"]), figures([*wide, "--weights", weights])
    # Headers beside the shard.
    assert all(abs(loaded[rank][0] - plain[rank][0] - SIZE / 4) < PART / 16 for rank in range(4)), (loaded, plain)
    # A part at a time. Rank 0 has ended its first step: all its memory is in use.
    assert loaded[0][1] - plain[0][1] <= PART >> 10, (loaded, plain)


# Parameters and two states of AdamW: 33 MiB, for which what grows in powers of two would have 65 while it does.
@needs_mpi
def test_memory_for_checkpoints_is_there_once(wide, tmp_path):
    plain, saving = figures([*wide, "--init", "zeros"]), figures([*wide, "--init", "zeros", "--checkpoint", tmp_path / "run"])
    assert saving[0][1] - plain[0][1] == pytest.approx(3 * SIZE / 4 / 1024, rel=0.05), (saving, plain)


def copy(llama, tmp_path):
    shutil.copytree(llama / "hub", tmp_path / "hub")
    return tmp_path / "hub", json.loads((tmp_path / "hub" / "model.safetensors.index.json").read_text())


# Of another library, with names of its own.
def test_tensors_may_be_renamed(llama, tmp_path):
    tensors = {}
    for path in (llama / "hub").glob("*.safetensors"):
        tensors |= {name.replace("model.layers.", "blocks/").replace("self_attn.", "attention."): value for name, value in load_file(path).items()}
    (tmp_path / "other").mkdir()
    save_file(tensors, tmp_path / "other" / "model.safetensors")
    renames = ["--rename", r"blocks/([0-9]+)\.=model.layers.\1.", "--rename", r"attention\.=self_attn."]
    found, _ = trained(llama, tmp_path / "other", tmp_path, *renames)
    expected, _ = trained(llama, llama / "model.pt2", tmp_path)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_all_that_is_missing_and_all_that_is_extra_is_named(llama, tmp_path):
    folder, index = copy(llama, tmp_path)
    names = [f"model.layers.{layer}.mlp.{part}_proj.weight" for layer in range(2) for part in ("down", "gate", "up")]
    for file in set(index["weight_map"].values()):
        tensors = load_file(folder / file)
        save_file({name.replace("mlp", "moe"): value for name, value in tensors.items()}, folder / file)
    index["weight_map"] = {name.replace("mlp", "moe"): file for name, file in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    succeed("fsdp-plan", llama / "model.pt2", "--ranks", 2, "-o", tmp_path / "step.plan")
    result = tool("fsdp-run", tmp_path / "step.plan", "--weights", folder, "--data", llama / "data.safetensors", "--steps", 1)
    assert result.returncode == 1 and all(f"m.{name}" in result.stderr for name in names)
    result = tool("fsdp-run", tmp_path / "step.plan", "--weights", folder, "--init", "zeros", "--data", llama / "data.safetensors", "--steps", 1)
    assert result.returncode == 0 and all(name.replace("mlp", "moe") in result.stderr for name in names)


def change(index, **entries):
    index["weight_map"] |= entries


# Nothing outside the folder is opened, and the index says what is there.
@pytest.mark.parametrize("damage, sentence", [
    (lambda folder, index: change(index, x="../secret.safetensors"), "expected the name of a file in the same folder"),
    (lambda folder, index: change(index, x="/etc/passwd"), "expected the name of a file in the same folder"),
    (lambda folder, index: change(index, x=".."), "expected the name of a file in the same folder"),
    (lambda folder, index: change(index, x=7), "weight_map.x: expected"),
    (lambda folder, index: change(index, x="nosuch.safetensors"), "nosuch.safetensors"),
    (lambda folder, index: change(index, x=next(iter(index["weight_map"].values()))), "expected tensor x, as model.safetensors.index.json says"),
    (lambda folder, index: index.pop("weight_map"), "weight_map"),
    (lambda folder, index: index["weight_map"].clear(), "expected at least one tensor"),
    (lambda folder, index: shutil.copy(folder / index["weight_map"]["model.norm.weight"], folder / "again.safetensors") and change(
        index, **{"model.norm.weight": "again.safetensors"}), "expected tensors of its own, found"),
], ids=["parent", "absolute", "dots", "number", "no-file", "no-tensor", "no-map", "empty", "twice"])
def test_damaged_folders_are_rejected(damage, sentence, llama, tmp_path):
    folder, index = copy(llama, tmp_path)
    damage(folder, index)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    succeed("fsdp-plan", llama / "model.pt2", "--ranks", 2, "-o", tmp_path / "step.plan")
    result = tool("fsdp-run", tmp_path / "step.plan", "--weights", folder, "--data", llama / "data.safetensors", "--steps", 1)
    assert result.returncode == 1 and sentence in result.stderr and result.stderr.count("\n") == 1


def test_a_folder_without_weights_is_rejected(tmp_path):
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "-o", tmp_path / "step.plan")
    result = tool("fsdp-run", tmp_path / "step.plan", "--weights", tmp_path, "--reference", FIXTURES / "gpt2_ref.safetensors")
    assert result.returncode == 1 and "expected model.safetensors or model.safetensors.index.json, or the files of a checkpoint in the folder, found none" in result.stderr
