"""Checkpoints of PyTorch that are pickles: converted, a training goes on as in PyTorch; hostile ones are rejected in a sentence."""

import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ORACLE, succeed
from safetensors.torch import load_file, save_file

from fsdp_mlir import convert_checkpoint
from fsdp_mlir.errors import CheckpointError

sys.path.insert(0, str(ORACLE))
import ranks  # noqa: E402

WORLDS, SAVED = (1, 2, 3, 4), ranks.STEPS // 2
FORMS = {"full": "full.pt", "sharded": "sharded-*.pt", "mesh": "mesh-*.pt", "dcp": "dcp", "dcp-flat": "dcp-flat"}


@pytest.fixture(scope="module")
def saved(once):
    """The folder that oracle/pickles.py writes."""

    def make(folder: Path) -> None:
        result = subprocess.run([sys.executable, ORACLE / "pickles.py", folder, *map(str, WORLDS)], capture_output=True, text=True, timeout=180,
                                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
        assert result.returncode == 0, result.stderr

    return once("pickles", make)


def sources(saved: Path, world: int, form: str) -> list[Path]:
    return sorted((saved / str(world)).glob(FORMS[form]))


def write_data(path: Path, first: int = 0) -> Path:
    rows = ranks.rows()
    save_file({f"in_{i}": torch.stack([row[i] for row in rows[first:] + rows[:first]]) for i in range(2)}, path)
    return path


def losses_of(stdout: str) -> list[float]:
    return [json.loads(line)["loss"] for line in stdout.splitlines()[:-1]]


@pytest.mark.covers("FULL_STATE_DICT", "SHARDED_STATE_DICT", "ShardedTensor", "DTensors in a state dict")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_training_of_pytorch_goes_on(world, form, saved, small_archive, tmp_path):
    checkpoint = tmp_path / "run" / f"step-{SAVED:08}"
    checkpoint.parent.mkdir()
    said = convert_checkpoint.convert(sources(saved, world, form), checkpoint, position=SAVED * world)
    assert said == f"{checkpoint}: 15 tensors, states of 12 parameters, after step {SAVED}"
    assert succeed("fsdp-ckpt", "verify", checkpoint).stdout == f"{checkpoint}: whole\n"
    succeed("fsdp-plan", small_archive, "--ranks", world, "-o", tmp_path / "step.plan")
    ran = succeed("fsdp-run", tmp_path / "step.plan", "--resume", checkpoint.parent, "--data", write_data(tmp_path / "data.safetensors"),
                  "--lr", ranks.LR, "--steps", ranks.STEPS, "--json", "--summon", tmp_path / "end.safetensors")
    assert f"step-{SAVED:08} (next: step {SAVED + 1})" in ran.stderr
    losses = load_file(saved / str(world) / "losses.safetensors")["losses"]
    torch.testing.assert_close(torch.tensor(losses_of(ran.stdout)), losses, atol=1e-5, rtol=1e-5)
    found, expected = load_file(tmp_path / "end.safetensors"), load_file(saved / str(world) / "end.safetensors")
    # A batch norm follows the bias: its true gradient is 0, and AdamW makes steps of what rounding leaves. Running means are each rank's own.
    for name in {name for name, _ in ranks.build().named_parameters()} - {"stem.bias"}:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-5)


# Of weights alone, the next loss is the same.
@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_of_pytorch(form, saved, small_archive, tmp_path):
    world, weights = 2, tmp_path / "w.safetensors"
    assert "15 tensors, without the states of the optimizer" in convert_checkpoint.convert(sources(saved, world, form), weights)
    expected = torch.load(saved / str(world) / "full.pt", weights_only=True)["model"]
    found = load_file(weights)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found if "running" not in name)
    succeed("fsdp-plan", small_archive, "--ranks", world, "-o", tmp_path / "step.plan")
    data = write_data(tmp_path / "data.safetensors", SAVED * world)
    ran = succeed("fsdp-run", tmp_path / "step.plan", "--weights", weights, "--data", data, "--steps", 1, "--json")
    assert losses_of(ran.stdout) == pytest.approx(load_file(saved / str(world) / "losses.safetensors")["losses"][:1].tolist(), rel=1e-5)


# PyTorch reads the folder, too.
def test_pytorch_reads_what_was_converted(saved, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    convert_checkpoint.convert(sources(saved, 3, "sharded"), tmp_path / "out")
    expected = torch.load(saved / "3" / "full.pt", weights_only=True)
    wanted = {f"optim.state.{name}.{kind}": value for name, kinds in expected["optim"]["state"].items() for kind, value in kinds.items()}
    wanted |= {name: value for name, value in expected["model"].items() if "running" not in name}
    found = {name: torch.full_like(value, 77) for name, value in wanted.items()}
    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(tmp_path / "out")), no_dist=True)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_several_files_and_other_names(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(convert_checkpoint, "FILE", 300)
    whole = torch.load(saved / "1" / "full.pt", weights_only=True)
    torch.save({f"module.{name}": value for name, value in whole["model"].items()}, tmp_path / "model.pt")
    torch.save({"state": {f"module.{name}": value for name, value in whole["optim"]["state"].items()}, "param_groups": []}, tmp_path / "optim.pt")
    convert_checkpoint.convert([tmp_path / "model.pt", tmp_path / "optim.pt"], tmp_path / "out", renames=[r"^module\.=m."], step=7)
    assert len(list((tmp_path / "out").glob("shard-*.safetensors"))) > 5
    convert_checkpoint.convert(sources(saved, 1, "full"), tmp_path / "same", renames=["^=m."])
    assert succeed("fsdp-ckpt", "diff", tmp_path / "out", tmp_path / "same").stdout == "51 tensors are equal\n"
    assert "step 7" in succeed("fsdp-ckpt", "ls", tmp_path / "out").stdout


def test_sgd_does_not_say_its_steps(tmp_path):
    model = {"w": torch.arange(6.0).view(2, 3)}
    torch.save({"model": model, "optim": {"state": {"w": {"momentum_buffer": torch.ones(2, 3)}}}}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="give --step"):
        convert_checkpoint.convert([tmp_path / "c.pt"], tmp_path / "out")
    convert_checkpoint.convert([tmp_path / "c.pt"], tmp_path / "out", step=5, position=10)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [manifest[key] for key in ("step", "position", "updates")] == [5, 10, 5] and "optim.state.w.step" in manifest["tensors"]


#===-- What is rejected ------------------------------------------------------------------------------------------------------------------------===#


class Attack:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


REJECTED = "found posix.system: what could run code is not read\n"
SAID = {"zip": REJECTED, "legacy": REJECTED, "pickle": "damaged or something else (Unsupported operand 149)\n", "metadata": REJECTED, "piece": REJECTED}


# In a file of torch.save, old and new, in the metadata and in a piece of a folder.
@pytest.mark.parametrize("place", SAID)
def test_nothing_is_run(place, saved, capsys, tmp_path):
    attack, source = Attack(f"touch {tmp_path}/ran"), tmp_path / "c.pt"
    if place in ("zip", "legacy"):
        torch.save({"model": {"w": torch.ones(2)}, "more": attack}, source, _use_new_zipfile_serialization=place == "zip")
    elif place == "pickle":
        source.write_bytes(pickle.dumps(attack))
    else:
        source = shutil.copytree(saved / "2" / "dcp", tmp_path / "dcp")
        if place == "metadata":
            (source / ".metadata").write_bytes(pickle.dumps({"a": attack}))
        else:
            torch.save(attack, stream := io.BytesIO())
            length = (source / "__0_0.distcp").stat().st_size
            (source / "__0_0.distcp").write_bytes(stream.getvalue().ljust(length, b"\0"))
    assert convert_checkpoint.main([str(source), str(tmp_path / "out.safetensors")]) == 1
    said = capsys.readouterr()
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out.safetensors").exists()
    assert said.err.startswith("error: ") and SAID[place] in said.err and "weights_only" not in said.err and said.err.count("\n") == 1
    assert said.out == ""


def fails(given, tmp_path, **options) -> str:
    with pytest.raises((CheckpointError, OSError)) as raised:
        convert_checkpoint.convert(given, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists() and [path.name for path in tmp_path.glob(".convert-*")] == []
    return str(raised.value)


def good() -> dict:
    state = {name: {"step": torch.tensor(2.0), "exp_avg": torch.ones(2, 3), "exp_avg_sq": torch.ones(2, 3)} for name in ("v", "w")}
    return {"model": {name: torch.ones(2, 3) for name in ("v", "w")}, "optim": {"state": state, "param_groups": []}}


def change(path: str, value):
    """A change of a dictionary, at a path with dots."""
    def apply(tree: dict) -> None:
        *where, last = path.split(".")
        for key in where:
            tree = tree[key]
        tree[last] = value
    return apply


shared = torch.ones(2, 3)
DAMAGES = {
    "sizes of a state": (change("optim.state.w.exp_avg", torch.ones(3, 2)), r"exp_avg of w: expected sizes (2, 3), found (3, 2)"),
    "a state without parameter": (change("optim.state.u", {"exp_avg": torch.ones(2)}), "found some of u, which the model lacks"),
    "another optimizer": (change("optim.state.w.max_exp_avg_sq", torch.ones(2, 3)), "found max_exp_avg_sq of w"),
    "numbers": (change("optim.state", {0: {"exp_avg": torch.ones(2, 3)}}), "expected states by the names of parameters"),
    "other steps": (change("optim.state.w.step", 3), "expected one number of steps for all parameters, found [2.0, 3.0]"),
    "half a step": (lambda tree: [change(f"optim.state.{name}.step", 2.5)(tree) for name in "vw"], "expected a whole number of steps, found 2.5"),
    "NaN steps": (lambda tree: [change(f"optim.state.{name}.step", float("nan"))(tree) for name in "v"], "number of steps"),
    "two models": (change("ema", {"w": torch.ones(2, 3)}), "expected one dictionary with the tensors of the model, found 'ema', 'model': choose by --model"),
    "no model": (change("model", {}), "expected the tensors of a model, found none"),
    "no states": (change("optim", {}), "for weights alone, give a TARGET that ends in .safetensors"),
    "flat shards": (change("model._flat_param", torch.ones(3)), "expected a full or a sharded state dict, found _flat_param of a local one"),
    "a terabyte of one element": (change("model.w", torch.ones(()).expand(1 << 19, 1 << 19)), "expected an element of the file for each of its elements"),
    "sparse": (change("model.w", torch.ones(2, 3).to_sparse()), "model.w: expected a dense tensor"),
    "complex": (change("model.w", torch.ones(2, 3, dtype=torch.complex128)), "w: expected a type that safetensors has, found torch.complex128"),
    "one memory": (change("optim.state.w", {"step": 2, "exp_avg": shared, "exp_avg_sq": shared}), "save with offload_to_cpu=False"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_said(damage, tmp_path):
    apply, sentence = DAMAGES[damage]
    apply(tree := good())
    torch.save(tree, tmp_path / "c.pt")
    assert sentence in fails([tmp_path / "c.pt"], tmp_path)


# As people run it; a second time, nothing is overwritten.
def test_what_is_good_is_converted(tmp_path):
    torch.save(good(), tmp_path / "c.pt")
    command = [sys.executable, "-m", "fsdp_mlir.convert_checkpoint", "--position", "4", tmp_path / "c.pt", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(convert_checkpoint.__file__).parents[1])}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", f"{tmp_path}/out: 2 tensors, states of 2 parameters, after step 2\n")
    with pytest.raises(CheckpointError, match="expected a target that is not there yet"):
        convert_checkpoint.convert([tmp_path / "c.pt"], tmp_path / "out")


@pytest.mark.parametrize("options, sentence", [
    ({"renames": ["w"]}, "expected REGEX=TEXT"), ({"renames": ["x=y"]}, "found none that it changes"), ({"renames": ["(=y"]}, "regular expression"),
    ({"renames": [".*="]}, "found two with the same"), ({"renames": [r"w=\2"]}, "invalid group reference"), ({"model": "ema"}, "found none in 'ema'"),
])
def test_bad_options_are_said(options, sentence, tmp_path):
    torch.save(good(), tmp_path / "c.pt")
    assert sentence in fails([tmp_path / "c.pt"], tmp_path, **options)


@pytest.mark.parametrize("content", [3, [torch.ones(2)], torch.ones(2), None])
def test_what_is_no_state_dict_is_said(content, tmp_path):
    torch.save(content, tmp_path / "c.pt")
    assert "expected a state dict" in fails([tmp_path / "c.pt"], tmp_path)


def test_a_missing_rank_is_said(saved, tmp_path):
    for form in "sharded", "mesh":
        files = sources(saved, 3, form)
        assert "give the files of all ranks" in fails(files[:1] + files[2:], tmp_path)
        # Of another number of ranks.
        assert "expected" in fails(files[:2] + sources(saved, 2, form)[1:], tmp_path)
    assert "No such file" in fails([tmp_path / "none.pt"], tmp_path)
    assert "expected a folder of torch.distributed.checkpoint" in fails([saved / "2"], tmp_path)
    assert "expected the tensors of a model" in fails([], tmp_path)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "__1_0.distcp"])
def test_a_damaged_folder_is_said(name, saved, tmp_path):
    folder = shutil.copytree(saved / "2" / "dcp", tmp_path / "dcp")
    content = (folder / name).read_bytes()
    for size in (0, 1, len(content) // 3, len(content) - 1):
        (folder / name).write_bytes(content[:size])
        assert name in fails([folder], tmp_path), size
    (folder / name).unlink()
    assert name in fails([folder], tmp_path)


# Of places in other folders, sizes without elements, and pieces that lie on each other.
def test_metadata_that_was_changed_on_purpose_is_rejected(saved, tmp_path):
    from torch.distributed.checkpoint import metadata

    folder = shutil.copytree(saved / "2" / "dcp", tmp_path / "dcp")
    content = (folder / ".metadata").read_bytes()
    name = "app.model.stem.weight"
    first, second = (metadata.MetadataIndex(name, torch.Size(offsets)) for offsets in ((0, 0), (3, 0)))

    def overlap(found):
        found.state_dict_metadata[name].chunks[1].offsets = torch.Size([1, 0])
        found.storage_data[metadata.MetadataIndex(name, torch.Size([1, 0]))] = found.storage_data[second]

    for apply, sentence in [
        (lambda found: setattr(found.storage_data[first], "relative_path", "../full.pt"), "expected the name of a file in the folder"),
        (lambda found: setattr(found.storage_data[first], "relative_path", "/etc/passwd"), "expected the name of a file in the folder"),
        (lambda found: setattr(found.storage_data[first], "offset", 1 << 50), "found a file of"),
        (lambda found: setattr(found.storage_data[first], "length", -1), "at least 0"),
        (lambda found: setattr(found.storage_data[first], "transform_descriptors", ["zstd"]), "expected plain files"),
        (lambda found: found.storage_data.pop(first), "a place of its piece"),
        (lambda found: setattr(found.state_dict_metadata[name], "size", torch.Size([1 << 30, 1 << 30])), "expected"),
        (lambda found: setattr(found.state_dict_metadata[name], "size", "large"), "expected"),
        (lambda found: setattr(found.state_dict_metadata[name].properties, "dtype", torch.float64), "expected a piece of sizes"),
        (lambda found: setattr(found.state_dict_metadata[name], "chunks", []), "give the files of all ranks"),
        (lambda found: setattr(found.state_dict_metadata[name].chunks[0], "sizes", torch.Size([3, 1 << 40])), "expected"),
        (overlap, "expected pieces that do not overlap"),
        (lambda found: setattr(found, "state_dict_metadata", 3), "damaged or something else"),
        (lambda found: found.planner_data.update({name: ()}), "expected"),
    ]:
        apply(found := pickle.loads(content))
        (folder / ".metadata").write_bytes(pickle.dumps(found))
        assert sentence in fails([folder], tmp_path)


# Whatever is in a file, there is a sentence or a checkpoint.
@pytest.mark.parametrize("name", ["full.pt", "mesh-0.pt", "sharded-1.pt", "dcp/.metadata", "dcp/__1_0.distcp"])
def test_random_bytes_never_surprise(name, saved, tmp_path):
    dice = random.Random(name)
    source = shutil.copytree(saved / "2", tmp_path / "2")
    form = name.split("-")[0].split("/")[0].removesuffix(".pt")
    content = (source / name).read_bytes()
    for attempt in range(40):
        changed = bytearray(content)
        for _ in range(dice.choice([1, 1, 3, 20])):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        (source / name).write_bytes(changed[:dice.choice([len(changed), len(changed), dice.randrange(len(changed))])])
        try:
            convert_checkpoint.convert(sources(tmp_path, 2, form), tmp_path / "out")
            shutil.rmtree(tmp_path / "out")
        except (CheckpointError, OSError) as error:
            assert str(error).count("\n") == 0, error


def test_tensors_of_a_model_are_listed(tmp_path):
    """Of a folder as save_pretrained writes it, and of its file."""
    save_file({"b": torch.ones(3, dtype=torch.bfloat16), "a": torch.ones(2, 4)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert succeed("fsdp-ckpt", "ls", path).stdout == f"{path}: 2 tensors, 38 B\n  a 2x4xf32\n  b 3xbf16\n"
