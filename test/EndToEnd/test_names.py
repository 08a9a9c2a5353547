"""Inputs keep the names that the model gives them, from the archive to the data file."""

import json
import pathlib
import zipfile

import pytest
from safetensors.torch import load_file, save_file

from conftest import FIXTURES, succeed, tool


def with_metadata(graph: str, path: pathlib.Path, **entries) -> pathlib.Path:
    """A copy of a fixture whose metadata has these entries, too."""
    with zipfile.ZipFile(FIXTURES / f"{graph}.pt2") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/models/model.json"):
                model = json.loads(content)
                metadata = model["graph_module"]["metadata"]
                metadata["custom"] = json.dumps({**json.loads(metadata.get("custom", "{}")), **entries})
                content = json.dumps(model).encode()
            target.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    graph = with_metadata("gpt2", folder / "gpt2.pt2", inputs=["input_ids", "labels"])
    succeed("fsdp-plan", graph, "--ranks", 2, "-o", folder / "p.plan")
    return folder / "p.plan"


def run(plan, path, *options):
    return tool("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", *options, path)


# Whatever the order in the file: with names, labels can't be taken for tokens.
def test_references_and_data_may_use_names(plan, tmp_path):
    reference = load_file(FIXTURES / "gpt2_ref.safetensors")
    reference["labels"], reference["input_ids"] = reference.pop("in_1"), reference.pop("in_0")
    save_file(reference, tmp_path / "r.safetensors")
    result = run(plan, tmp_path / "r.safetensors", "--reference")
    assert result.returncode == 0, result.stderr
    assert run(plan, FIXTURES / "gpt2_ref.safetensors", "--reference").returncode == 0

    reference["attention_mask"] = reference.pop("labels")
    save_file(reference, tmp_path / "r.safetensors")
    result = run(plan, tmp_path / "r.safetensors", "--reference")
    assert result.returncode == 1
    assert result.stderr == (f"error: {tmp_path / 'r.safetensors'}: expected the inputs input_ids, labels (or in_0, in_1), "
                             "found attention_mask, input_ids\n")


@pytest.mark.covers("FQNs", "Key")
def test_names_survive_the_plan_file_and_its_text(plan, tmp_path):
    succeed("fsdp-translate", "--import-plan", plan, "--mlir-print-debuginfo", "-o", tmp_path / "p.mlir")
    text = (tmp_path / "p.mlir").read_text()
    assert 'plan.buffer input @step "input_ids" number 0' in text and 'plan.buffer input @step "labels" number 1' in text
    succeed("fsdp-translate", "--export-plan", tmp_path / "p.mlir", "-o", tmp_path / "again.plan")
    assert (tmp_path / "again.plan").read_bytes() == plan.read_bytes()


def test_two_inputs_have_two_names(tmp_path):
    graph = with_metadata("gpt2", tmp_path / "m.pt2", inputs=["x", "x"])
    result = tool("fsdp-plan", graph, "--ranks", 2, "-o", tmp_path / "p")
    assert result.returncode == 1 and "input 'x' occurs twice" in result.stderr
