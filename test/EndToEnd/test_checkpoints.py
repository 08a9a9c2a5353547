"""Checkpoints: a training that goes on has the bits of one that was never stopped, whatever stopped it."""

import contextlib
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import BUILD, FIXTURES, ORACLE, children, needs_mpi, outcome, start_processes, succeed, tool
from safetensors.torch import load_file, save_file

STEPS = 6
HYBRID = "--strategy hybrid_shard --mesh 2x2"
INNER = "--mesh shard=2,local=2 --unit root:shard=local;.*h.1:shard=shard"
# Graph, ranks, options of fsdp-plan, options of fsdp-run: all that outlives a step, and each way in which it lies in memory.
TRAININGS = [
    ("gpt2", 1, "", ""),
    ("gpt2", 3, "", "--lr-schedule cosine --warmup-steps 2"),
    ("gpt2", 2, "--strategy no_shard --optimizer sgd --momentum", "--momentum 0.9"),
    ("gpt2", 4, f"{HYBRID} --accumulate 2 --no-sync", ""),
    ("llama_bf16", 2, "", ""),
    ("role_batch_norm", 2, "", ""),
    ("role_dropout", 2, "--offload all", "--seed 5"),
    ("gpt2", 3, "--offload optimizer --clip-grad-norm 0.5", ""),
    ("llama_bf16", 2, "--offload params --storage-dtype f32", ""),
    ("gpt2", 4, "--mesh 2x2 --offload all --accumulate 2", ""),
    ("gpt2", 2, "--mesh 1x2", ""),
    ("gpt2", 2, "--mesh 2x1", ""),
    ("gpt2", 4, f"{INNER} --clip-grad-norm 0.5", ""),
    ("role_bf16", 2, "--grad-scaler init_scale=1024,growth_interval=2", ""),
    ("role_channels_last", 3, "", ""),
    ("role_tied", 2, "", ""),
    ("frozen", 2, "--strategy no_shard --ignore h.0", ""),
]


def arguments(plans, references, graph, ranks, planned, options):
    return [plans(graph, ranks, *planned.split()), "--data", references(graph, max(ranks, 2)), "--json", *options.split()]


def weights(graph):
    return ["--weights", FIXTURES / f"{graph}.pt2"]


def train(command, *more) -> tuple:
    return outcome(succeed("fsdp-run", *command, *more).stdout)


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: "-".join(map(str, training)).replace(" ", "_"))
def test_a_training_that_goes_on_has_the_same_bits(training, plans, references, tmp_path):
    command = arguments(plans, references, *training)
    losses, parameters = train(command, *weights(training[0]), "--steps", STEPS)
    before, _ = train(command, *weights(training[0]), "--steps", 2, "--checkpoint", tmp_path / "all")
    after, found = train(command, "--steps", STEPS, "--resume", tmp_path / "all")
    assert (before + after, found) == (losses, parameters)


@pytest.fixture(scope="module")
def training(plans, references):
    """The arguments of a training, which lack its steps, and what it is to end with after STEPS of them."""
    command = arguments(plans, references, "gpt2", 2, "", "") + weights("gpt2")
    return command, train(command, "--steps", STEPS)


# A learning rate that is forgotten is another training, and nobody sees it.
def test_hyper_parameters_come_from_the_checkpoint(plans, references, tmp_path):
    command = arguments(plans, references, "gpt2", 2, "", "") + weights("gpt2")
    hyper = ["--steps", STEPS, "--lr", 0.0123, "--beta1", 0.8, "--beta2", 0.98, "--eps", 1e-7, "--weight-decay", 0.1,
             "--lr-schedule", "cosine", "--warmup-steps", 3]
    losses, parameters = train(command, *hyper, "--checkpoint", tmp_path, "--every", 2)
    shutil.rmtree(tmp_path / "step-00000006")
    result = succeed("fsdp-run", *command, "--resume", tmp_path / "step-00000002")
    assert outcome(result.stdout) == (losses[2:], parameters) and "goes on with" not in result.stderr
    result = succeed("fsdp-run", *command, "--resume", "auto", "--checkpoint", tmp_path, "--lr", 0.5, "--steps", STEPS + 1)
    for name, after, before in ("--lr", "0.5", "0.0123"), ("--steps", "7", "6"):
        assert f"note: --resume: the training goes on with {name} {after}, it was {before}\n" in result.stderr, result.stderr
    assert result.stderr.count("goes on with") == 2
    # Earlier versions spelled all 17 digits.
    facts = json.loads((tmp_path / "step-00000002/manifest.json").read_text())["facts"]
    assert facts["--weight-decay"] == "0.1"
    sign(tmp_path / "step-00000002", facts=facts | {"--weight-decay": f"{0.1:.17g}"})
    result = succeed("fsdp-run", *command, "--resume", tmp_path / "step-00000002", "--weight-decay", 0.1)
    assert outcome(result.stdout) == (losses[2:], parameters) and "goes on with" not in result.stderr
    # Nothing to go on from says nothing.
    result = tool("fsdp-run", *command, "--resume", "auto", "--checkpoint", tmp_path / "new")
    assert result.returncode == 1 and "expected --steps N, how many steps to train on" in result.stderr


# A double has not all digits of a seed.
def test_seeds_that_are_next_to_each_other_differ(training, tmp_path):
    command, _ = training
    train(command, "--steps", 1, "--seed", 2**53 + 1, "--checkpoint", tmp_path)
    result = succeed("fsdp-run", *command, "--steps", 2, "--seed", 2**53, "--resume", tmp_path)
    assert f"the training goes on with --seed {2**53}, it was {2**53 + 1}\n" in result.stderr, result.stderr


def test_rates_of_a_file_are_given_again(plans, references, tmp_path):
    command = arguments(plans, references, "gpt2", 2, "", "") + weights("gpt2")
    rates = tmp_path / "rates"
    rates.write_text("0.01\n" * STEPS)
    train(command, "--steps", 2, "--lr-schedule", rates, "--checkpoint", tmp_path / "run")
    result = tool("fsdp-run", *command, "--steps", STEPS, "--resume", tmp_path / "run")
    assert result.returncode == 1 and "expected --lr-schedule, since the rates of the checkpoint came from a file" in result.stderr
    train(command, "--steps", STEPS, "--lr-schedule", rates, "--resume", tmp_path / "run")


def test_facts_of_a_manifest_are_checked(two_checkpoints):
    command, _, folder = two_checkpoints
    newest = folder / "step-00000004"
    facts = json.loads((newest / "manifest.json").read_text())["facts"]
    for changes, why in [({"--lr": "fast"}, "expected a number as --lr of the checkpoint, found 'fast'"), ({"--lr": "-1"}, "learning rate"),
                         ({"--beta1": "1.5"}, "expected"), ({"--steps": "6 "}, "--steps"), ({"--warmup-steps": "7"}, "--warmup-steps"),
                         ({"--lr-scale": "0=1"}, "--lr-scale"), ({"--lr-scale": " 1=0.500000"}, "a version that rounded")]:
        sign(newest, facts=facts | changes)
        result = tool("fsdp-run", *command, "--resume", newest, *([] if "--steps" in changes else ["--steps", STEPS]))
        assert result.returncode == 1 and why in result.stderr and result.stderr.count("error:") == 1, (changes, result.stderr)


def steps_of(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-????????"))


def test_old_checkpoints_are_removed(training, tmp_path):
    command, expected = training
    train(command, "--steps", 5, "--checkpoint", tmp_path, "--every", 1, "--keep", 2)
    assert steps_of(tmp_path) == [4, 5] and len(list(tmp_path.iterdir())) == 2
    _, found = train(command, "--steps", STEPS, "--checkpoint", tmp_path, "--keep", 1, "--resume", "auto")
    assert found == expected[1] and steps_of(tmp_path) == [6]


def test_nothing_is_left_to_train(training, tmp_path):
    command, expected = training
    train(command, "--steps", STEPS, "--checkpoint", tmp_path)
    assert train(command, "--steps", STEPS, "--resume", tmp_path) == ([], expected[1])
    result = tool("fsdp-run", *command, "--steps", STEPS - 1, "--resume", tmp_path)
    assert result.returncode == 1 and "--steps: expected at least the 6 of the checkpoint, found 5" in result.stderr
    result = tool("fsdp-run", *command, "--steps", STEPS, "--resume", tmp_path, "--summon", tmp_path / "end.safetensors", "--with-grads")
    assert result.returncode == 1 and "--with-grads: expected a step to train after that of the checkpoint" in result.stderr


# As a shell completes them.
def test_names_of_folders_may_end_with_a_slash(training, tmp_path):
    command, expected = training
    succeed("fsdp-run", *command, "--steps", 2, "--checkpoint", f"{tmp_path}/run/")
    result = succeed("fsdp-run", *command, "--steps", STEPS, "--json", "--checkpoint", f"{tmp_path}/run/", "--resume", f"{tmp_path}/run/step-00000002/")
    assert "step-00000002 (next: step 3)\n" in result.stderr and outcome(result.stdout)[1] == expected[1]
    assert steps_of(tmp_path / "run") == [2, 6]


# Boxes are put together anew: states and parameters are those of the checkpoint, bit by bit.
@pytest.mark.parametrize("planned", ["--ranks 1", "--ranks 3", "--ranks 4 --strategy no_shard", f"--ranks 4 {HYBRID}", "--ranks 2 --wrap size:2000", INNER])
def test_any_mesh_and_strategy_loads_a_checkpoint(planned, plans, references, training, tmp_path):
    command, _ = training
    train(command, "--steps", 2, "--checkpoint", tmp_path / "old")
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *planned.split(), "-o", tmp_path / "other.plan")
    succeed("fsdp-run", tmp_path / "other.plan", "--data", references("gpt2", 4), "--steps", 2, "--resume", tmp_path / "old", "--checkpoint", tmp_path / "new")
    assert succeed("fsdp-ckpt", "diff", tmp_path / "old" / "step-00000002", tmp_path / "new" / "step-00000002").stdout == "112 tensors are equal\n"


def load_whole(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint as PyTorch reads them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    manifest = json.loads((folder / "manifest.json").read_text())
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
    tensors = {name: torch.full(info["shape"], 77, dtype=kinds[info["dtype"]]) for name, info in manifest["tensors"].items()}
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return tensors


# torch.distributed.checkpoint reads the folder as it is: no tool of ours is in the way.
@pytest.mark.covers("FULL_STATE_DICT", "SHARDED_STATE_DICT", "OptimStateDictConfig", "ShardedOptimStateDictConfig")
@pytest.mark.parametrize("graph, planned", [("gpt2", "--ranks 3"), ("llama_bf16", f"--ranks 4 {HYBRID}"), ("gpt2", INNER), ("role_channels_last", "--ranks 2"),
                                            ("role_batch_norm", "--ranks 2")])
def test_pytorch_reads_a_checkpoint(graph, planned, references, tmp_path):
    succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", *planned.split(), "-o", tmp_path / "step.plan")
    succeed("fsdp-run", tmp_path / "step.plan", *weights(graph), "--data", references(graph, 4), "--steps", 2, "--checkpoint", tmp_path / "all",
            "--summon", tmp_path / "whole.safetensors")
    found = load_whole(tmp_path / "all" / "step-00000002")
    expected = load_file(tmp_path / "whole.safetensors")
    parameters = {name for name in found if not name.startswith("optim.")}
    assert parameters == expected.keys() and all(torch.equal(found[name], expected[name]) for name in parameters)
    trained = {name.removeprefix("optim.state.").removesuffix(".step") for name in found if name.endswith(".step")}
    assert trained and all(found[f"optim.state.{name}.step"] == 2 for name in trained)
    assert all(found[f"optim.state.{name}.exp_avg_sq"].float().abs().sum() > 0 for name in trained)


# DTensors of FSDP2, with the optimizer's state: PyTorch goes on with the training, and we with what it writes then.
@pytest.mark.covers("ShardedTensor", "DTensor", "DTensors in a state dict", "state_dict")
@pytest.mark.parametrize("planned, world", [("--ranks 2", 2), ("--ranks 3", 2), ("--ranks 2", 3)])
def test_fsdp2_goes_on_from_a_checkpoint(planned, world, small_archive, tmp_path):
    sys.path.insert(0, str(ORACLE))
    import ranks

    rows = ranks.rows()
    save_file({f"in_{i}": torch.stack([row[i] for row in rows]) for i in range(2)}, tmp_path / "data.safetensors")
    succeed("fsdp-plan", small_archive, *planned.split(), "-o", tmp_path / "step.plan")
    command = ["--data", tmp_path / "data.safetensors", "--lr", ranks.LR]
    succeed("fsdp-run", tmp_path / "step.plan", "--weights", small_archive, *command, "--steps", 2, "--checkpoint", tmp_path / "run")
    result = subprocess.run([sys.executable, ORACLE / "checkpoints.py", tmp_path / "run" / "step-00000002", tmp_path, str(world)],
                            capture_output=True, text=True, timeout=120, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    expected = load_file(tmp_path / "end.safetensors")
    # The same ranks, and so the same batches, in a plan of ours.
    succeed("fsdp-plan", small_archive, "--ranks", world, "-o", tmp_path / "same.plan")
    sequel = tmp_path / "step-00000002"
    shutil.copytree(tmp_path / "run" / "step-00000002", sequel)
    if not planned.endswith(str(world)):
        text = (sequel / "manifest.json").read_text()
        position = json.loads(text)["position"]
        sign(sequel, position=position // int(planned[-1]) * world)
    succeed("fsdp-run", tmp_path / "same.plan", "--resume", sequel, *command, "--steps", ranks.STEPS, "--summon", tmp_path / "ours.safetensors")
    found = load_file(tmp_path / "ours.safetensors")
    # A batch norm follows the bias: its true gradient is 0, and AdamW makes steps of what rounding leaves.
    for name in expected.keys() - {"stem.bias"}:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-5)
    # Boxes of rows, as FSDP2 has them, are read where the plan needs other ones.
    succeed("fsdp-run", tmp_path / "step.plan", "--weights", tmp_path / "hub", *command[:2], "--steps", 1, "--lr", 0, "--weight-decay", 0,
            "--summon", tmp_path / "read.safetensors")
    found = load_file(tmp_path / "read.safetensors")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


#===-- What is damaged -------------------------------------------------------------------------------------------------------------------------===#


@pytest.fixture
def two_checkpoints(training, tmp_path):
    command, expected = training
    train(command, "--steps", 4, "--checkpoint", tmp_path / "all", "--every", 2)
    return command, expected, tmp_path / "all"


def flip_bit(path: pathlib.Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "a bit": flip_bit,
    "truncated": lambda path, place: path.write_bytes(path.read_bytes()[:int(place * path.stat().st_size)]),
    "missing": lambda path, place: path.unlink(),
}


# Of every kind of file, at its start, in its middle and at its end.
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["manifest.json", "ranks/rank-00002.json", "ranks/rank-00001.safetensors",
                                  "shard-00001-model-00001-of-00002.safetensors", "shard-00002-model-00002-of-00002.safetensors"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(damage, name, two_checkpoints):
    command, expected, folder = two_checkpoints
    newest = folder / "step-00000004"
    place = random.Random(name + damage).random()
    DAMAGES[damage](newest / name, place)
    alone = tool("fsdp-run", *command, "--steps", STEPS, "--resume", newest)
    assert alone.returncode == 1 and name in alone.stderr, alone.stderr
    result = succeed("fsdp-run", *command, "--steps", STEPS, "--resume", "auto", "--checkpoint", folder, "--every", 2)
    assert name in result.stderr and "trying the checkpoint before it" in result.stderr and "(next: step 3)" in result.stderr
    assert outcome(result.stdout)[1] == expected[1]
    # What was damaged is not lost, and not in the way.
    assert steps_of(folder) == [2, 4, 6] and (folder / "step-00000004.damaged").exists()


# One that was damaged before keeps its name, and all that it has.
def test_nothing_that_is_damaged_is_deleted(two_checkpoints):
    command, expected, folder = two_checkpoints
    kept = {name: folder / name for name in ("step-00000004.damaged", "step-00000004.damaged-2")}
    for name, path in kept.items():
        path.mkdir()
        (path / name).write_text(name)
    flip_bit(folder / "step-00000004" / "manifest.json", 0.5)
    train(command, "--steps", STEPS, "--resume", "auto", "--checkpoint", folder)
    assert all((path / name).read_text() == name for name, path in kept.items())
    assert steps_of(folder) == [2, 6] and (folder / "step-00000004.damaged-3" / "manifest.json").exists()


@pytest.fixture(scope="session")
def failing_files(once):
    """A library for LD_PRELOAD, with which calls of the system fail."""
    source = pathlib.Path(__file__).parent / "Inputs" / "failing_files.c"
    return once("libfailing_files.so", lambda path: subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", path], check=True))


# What cannot be read today may be whole tomorrow.
@pytest.mark.parametrize("call, number, name", [
    ("open", errno.EIO, "manifest.json"), ("open", errno.ESTALE, "ranks/rank-00002.json"), ("open", errno.EMFILE, "ranks/rank-00001.safetensors"),
    ("open", errno.EACCES, "shard-00001-model-00001-of-00002.safetensors"), ("pread", errno.ESTALE, "manifest.json"),
    ("pread", errno.EIO, "shard-00002-model-00002-of-00002.safetensors"), ("openat", errno.EACCES, ""), ("openat", errno.EMFILE, "")])
def test_what_cannot_be_read_is_not_damaged(call, number, name, two_checkpoints, failing_files):
    command, _, folder = two_checkpoints
    failing = folder if call == "openat" else pathlib.Path("step-00000004") / name
    result = tool("fsdp-run", *command, "--steps", STEPS, "--resume", "auto", "--checkpoint", folder,
                  LD_PRELOAD=str(failing_files), FSDP_FAIL=f"{call} {number} {failing}")
    assert result.returncode == 1 and result.stderr.count("error:") == 1 and os.strerror(number) in result.stderr, result.stderr
    assert "before it" not in result.stderr and steps_of(folder) == [2, 4] and not list(folder.glob("*.damaged*"))


# One process cannot read what the other one can: none goes back to an older one.
@needs_mpi
def test_what_one_process_cannot_read_stops_all(two_checkpoints, failing_files):
    command, _, folder = two_checkpoints
    options = [*command, "--steps", STEPS, "--resume", "auto", "--checkpoint", folder]
    failing = {"LD_PRELOAD": str(failing_files), "FSDP_FAIL": f"pread {errno.EIO} step-00000004/ranks/rank-00002.safetensors"}
    script = '[ $OMPI_COMM_WORLD_RANK = 0 ] && unset FSDP_FAIL; exec "$@"'
    process = start_processes((2, *options), before=["bash", "-c", script, "bash"], **failing)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and os.strerror(errno.EIO) in stderr, stderr
    assert steps_of(folder) == [2, 4] and not list(folder.glob("*.damaged*"))


def limited(descriptors: int, *command) -> subprocess.CompletedProcess:
    """fsdp-run with so few descriptors."""
    script = f'ulimit -n {descriptors}; exec "$@"'
    return subprocess.run([*map(str, ["bash", "-c", script, "limited", BUILD / "bin" / "fsdp-run", *command])], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})


def put(path: pathlib.Path, kind: str) -> None:
    """Something else in place of a file."""
    content = path.read_bytes()
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a link to itself":
        path.symlink_to(path.name)
    elif kind == "a link into nothing":
        path.symlink_to("nothing")
    elif kind == "a link to what was there":
        (path.parent / f"{path.name}.elsewhere").write_bytes(content)
        path.symlink_to(f"{path.name}.elsewhere")
    else:
        path.write_bytes({"nothing": b"", "zeros": bytes(len(content)), "brackets": b"[" * 100000, "more": content + b"\0"}[kind])


# Nobody waits for a pipe, and what is damaged is kept, whatever it is. A link that leads nowhere but to itself is not read, today.
@pytest.mark.parametrize("name", ["manifest.json", "ranks/rank-00002.json", "ranks/rank-00001.safetensors", "shard-00001-model-00001-of-00002.safetensors"])
@pytest.mark.parametrize("kind", ["a pipe", "a directory", "a link to itself", "a link into nothing", "a link to what was there", "nothing", "zeros", "brackets", "more"])
def test_what_takes_the_place_of_a_file(kind, name, two_checkpoints):
    command, expected, folder = two_checkpoints
    newest = folder / "step-00000004"
    put(newest / name, kind)
    names = sorted(path.relative_to(newest) for path in newest.rglob("*"))
    result = tool("fsdp-run", *command, "--steps", STEPS, "--resume", "auto", "--checkpoint", folder)
    if kind == "a link to itself":
        assert result.returncode == 1 and os.strerror(errno.ELOOP) in result.stderr and steps_of(folder) == [2, 4], result.stderr
    else:
        assert result.returncode == 0, result.stderr
        isDamaged = kind != "a link to what was there"
        assert ("trying the checkpoint before it" in result.stderr) == isDamaged, result.stderr
        newest = folder / f"step-00000004{'.damaged' if isDamaged else ''}"
    assert sorted(path.relative_to(newest) for path in newest.rglob("*")) == names


# A checkpoint of 2 ranks, two of 8: with few descriptors, the newest one loads; with too few, nothing is given up.
def test_few_descriptors_lose_no_checkpoint(plans, references, training, tmp_path):
    command, _ = training
    train(command, "--steps", 2, "--checkpoint", tmp_path)
    wide = arguments(plans, references, "gpt2", 8, "", "") + weights("gpt2")
    train(wide, "--steps", 6, "--every", 2, "--checkpoint", tmp_path, "--resume", "auto")
    wide += ["--steps", 6, "--resume", "auto", "--checkpoint", tmp_path]
    for descriptors in (64, 32, 24):
        result = limited(descriptors, *wide)
        assert result.returncode == 0 and "(next: step 7)" in result.stderr, result.stderr
    for descriptors in (16, 12, 10, 8):
        result = limited(descriptors, *wide)
        assert "before it" not in result.stderr and (result.returncode != 0 or "(next: step 7)" in result.stderr), result.stderr
    assert steps_of(tmp_path) == [2, 4, 6] and not list(tmp_path.glob("*.damaged*"))


def test_names_lead_to_files_of_the_folder_only(two_checkpoints):
    command, _, folder = two_checkpoints
    newest = folder / "step-00000004"
    for name in ("../secret.safetensors", "/etc/passwd", "ranks/../x", "ranks/rank-00001.safetensors"):
        text = (folder / "step-00000002" / "ranks" / "rank-00002.json").read_text()
        (newest / "ranks" / "rank-00002.json").write_text(text.replace("shard-00002-model-00001-of-00002.safetensors", name))
        sign(newest)
        result = tool("fsdp-run", *command, "--steps", STEPS, "--resume", newest)
        assert result.returncode == 1 and "expected the name of a file in the same folder" in result.stderr, result.stderr


def sign(folder: pathlib.Path, **changes) -> None:
    """Makes checksums fit again, as who attacks would."""
    import xxhash

    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    lists = sorted((folder / "ranks").glob("*.json"))
    manifest["lists"] = [xxhash.xxh3_64_hexdigest(path.read_bytes()) for path in (lists + lists[:1])[:manifest["ranks"]]]
    del manifest["checksum"]
    text = json.dumps(manifest, indent=2).removesuffix("\n}") + ",\n"
    (folder / "manifest.json").write_text(f'{text}  "checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n')


def test_a_manifest_that_was_changed_on_purpose_is_rejected(two_checkpoints):
    command, _, folder = two_checkpoints
    newest = folder / "step-00000004"
    good = (newest / "manifest.json").read_text()
    tensors = json.loads(good)["tensors"]
    name = next(iter(tensors))
    for changes, why in [({"ranks": 3}, "mesh: expected the axes of 3 ranks"), ({"ranks": 1, "mesh": "shard=1"}, "expected runs of 1 ranks"), ({"ranks": 1 << 40}, "ranks"),
                         ({"step": -1}, "step"), ({"version": 3}, "version"), ({"version": 0}, "version"),
                         ({"tensors": tensors | {"extra": {"dtype": "F32", "shape": [2]}}}, "extra"),
                         ({"tensors": tensors | {name: tensors[name] | {"shape": [3]}}}, name),
                         ({"tensors": tensors | {name: tensors[name] | {"ranks": tensors[name]["ranks"][:1]}}}, name),
                         ({"tensors": tensors | {name: tensors[name] | {"ranks": tensors[name]["ranks"][::-1]}}}, name),
                         ({"tensors": tensors | {name: tensors[name] | {"dtype": "I32"}}}, name),
                         ({"tensors": {key: value for key, value in tensors.items() if key != name}}, name),
                         ({"tensors": []}, "tensors"), ({"names": {"a": 3}}, "names"),
                         *[({"mesh": mesh}, 'mesh: expected the axes of 2 ranks, as in shard=2, found "')
                           for mesh in ("shard=4", "shard=1", "shard=0", "shard=-2", "a=65536 b=65536", "=2 x", "shard=2=2")]]:
        (newest / "manifest.json").write_text(good)
        sign(newest, **changes)
        result = tool("fsdp-run", *command, "--steps", STEPS, "--resume", newest)
        assert result.returncode == 1 and why in result.stderr and result.stderr.count("error:") == 1, (changes, result.stderr)


# What nobody reads does not keep a training from going on, and who verifies is told.
def test_what_a_manifest_adds_is_not_verified(two_checkpoints):
    command, expected, folder = two_checkpoints
    newest = folder / "step-00000004"
    good = (newest / "manifest.json").read_text()
    extra = {"extra": {"dtype": "F32", "shape": [2], "ranks": [[0, 1, 2, 1]]}}
    for changes, why in [({"tensors": json.loads(good)["tensors"] | extra}, "extra"), ({"ranks": 3, "mesh": "replicate=1 shard=3"}, "rank-00003.json")]:
        (newest / "manifest.json").write_text(good)
        sign(newest, **changes)
        succeed("fsdp-run", *command, "--steps", STEPS, "--resume", newest)
        result = tool("fsdp-ckpt", "verify", newest)
        assert result.returncode == 1 and why in result.stderr, result.stderr
    (newest / "manifest.json").write_text(good)
    assert succeed("fsdp-ckpt", "verify", newest).stdout == f"{newest}: whole\n"


# Of version 1, which does not say who holds what.
def test_an_old_checkpoint_goes_on(two_checkpoints, tmp_path):
    command, expected, folder = two_checkpoints
    newest = folder / "step-00000004"
    manifest = json.loads((newest / "manifest.json").read_text())
    for tensor in manifest["tensors"].values():
        tensor.pop("ranks"), tensor.pop("order", None)
    sign(newest, version=1, tensors=manifest["tensors"])
    assert succeed("fsdp-ckpt", "verify", newest).stdout == f"{newest}: whole\n"
    assert train(command, "--steps", STEPS, "--resume", newest)[1] == expected[1]
    assert succeed("fsdp-ckpt", "diff", newest, newest).stdout.endswith(" tensors are equal\n")


@pytest.mark.covers("types and settings of state dicts")
def test_a_checkpoint_of_another_model_is_rejected(plans, references, training, tmp_path):
    command, _ = training
    train(command, "--steps", 2, "--checkpoint", tmp_path)
    other = arguments(plans, references, "llama", 2, "", "")
    result = tool("fsdp-run", *other, "--steps", 4, "--resume", tmp_path)
    assert result.returncode == 1 and re.search("expected a checkpoint of the model of .*plan, found one without ", result.stderr)


def test_what_would_lose_a_checkpoint_is_rejected(two_checkpoints, tmp_path):
    command, _, folder = two_checkpoints
    for options, why in [(["--checkpoint", folder], "expected --resume auto to go on with the training, or a folder without checkpoints; found step-00000004"),
                         (["--checkpoint", folder, "--resume", folder / "step-00000002"], "expected no checkpoint after step-00000002"),
                         (["--resume", tmp_path / "none"], "expected a checkpoint (a folder with manifest.json), a folder of them or auto"),
                         (["--resume", "auto"], "expected --checkpoint FOLDER"),
                         (["--every", 2], "--every"), (["--checkpoint", tmp_path / "new", "--every", 0], "--every: expected at least 1, found 0"),
                         (["--checkpoint", command[0]], "expected a folder that can be written to"),
                         (["--checkpoint", "/proc/self/nothing"], "expected a folder that can be written to")]:
        result = tool("fsdp-run", *command, "--steps", STEPS, *options)
        assert result.returncode == 1 and why in result.stderr, (options, result.stderr)
    assert steps_of(folder) == [2, 4]


def test_a_folder_belongs_to_one_training(training, tmp_path):
    command, _ = training
    with training_of(command, tmp_path, "--steps", 1000000, "--every", 10):
        result = tool("fsdp-run", *command, "--steps", STEPS, "--checkpoint", tmp_path, "--resume", "auto")
    assert result.returncode == 1 and "expected a folder of this training alone, found another run" in result.stderr


# The file of a process that was killed is taken over; of another machine, nobody can tell.
def test_a_lock_of_a_process_that_has_ended_is_taken_over(training, tmp_path):
    command, _ = training
    lock = tmp_path / ".lock"
    with training_of(command, tmp_path, "--steps", 1000000, "--every", 10) as process:
        host, boot, number, begun = lock.read_text().split()
        assert host == os.uname().nodename and int(number) == process.pid
    assert lock.exists()  # It was killed.
    ended = lock.read_text()
    go_on = [*command, "--checkpoint", tmp_path, "--resume", "auto"]
    steps = steps_of(tmp_path)[-1] + 1
    train(go_on, "--steps", steps)
    assert not lock.exists()
    own = f"{host} {boot} {os.getpid()} {pathlib.Path('/proc/self/stat').read_text().split(') ')[1].split()[19]}"
    for text, why in [(own, f"{lock} is of process {os.getpid()} on {host}\n"), (f"elsewhere 1-2-3 {number} {begun}", f"{lock} is of process {number} on elsewhere, of which this machine"),
                      ("", "is of process 0 on ?, of which this machine"), ("\0" * 2000, "of which this machine")]:
        lock.write_text(text)
        result = tool("fsdp-run", *go_on, "--steps", steps + 1)
        assert result.returncode == 1 and "expected a folder of this training alone, found another run" in result.stderr and why in result.stderr, (text, result.stderr)
        assert lock.read_text() == text
    # Its number is another process's now; and the machine has started anew.
    for text in (ended.replace(number, str(os.getpid())), f"{host} 1-2-3 {os.getpid()} {begun}"):
        lock.write_text(text)
        train(go_on, "--steps", steps := steps + 1)
        assert not lock.exists()


# The old one stays, and the training ends: nobody notices a note in the night.
def test_a_full_disk_leaves_the_old_checkpoint(training, tmp_path):
    command, _ = training
    train(command, "--steps", 2, "--checkpoint", tmp_path)
    limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "limited", BUILD / "bin" / "fsdp-run"]
    result = subprocess.run([*map(str, [*limited, *command, "--steps", 6, "--every", 2, "--checkpoint", tmp_path, "--resume", "auto"])],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 3 and re.search("shard-.*cannot write the file: File too large", result.stderr), result.stderr
    assert steps_of(tmp_path) == [2] and not list(tmp_path.glob(".*"))


#===-- What stops a run ------------------------------------------------------------------------------------------------------------------------===#


@contextlib.contextmanager
def training_of(command, folder, *more, start=None):
    """A training that is going on, and has written a checkpoint."""
    process = (start or start_threads)([*command, "--checkpoint", folder, "--resume", "auto", *more])
    try:
        until = time.monotonic() + 60
        while not steps_of(folder):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def start_threads(command) -> subprocess.Popen:
    return subprocess.Popen([BUILD / "bin" / "fsdp-run", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})


def start_mpi(command) -> subprocess.Popen:
    return start_processes((2, *command))


KINDS = [pytest.param(start_threads, id="threads"), pytest.param(start_mpi, id="processes", marks=needs_mpi)]


# mpirun passes on SIGUSR1; after the others, it ends its processes a second later.
@pytest.mark.parametrize("start, number", [(start_threads, signal.SIGTERM), (start_threads, signal.SIGINT), (start_threads, signal.SIGUSR1),
                                           pytest.param(start_mpi, signal.SIGUSR1, marks=needs_mpi)])
def test_a_signal_ends_a_training_after_a_step_with_a_checkpoint(start, number, training, tmp_path):
    command, _ = training
    with training_of(command, tmp_path, "--steps", 100000, "--every", 50, start=start) as process:
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 4, stderr
    losses, parameters = outcome(stdout)
    step = len(losses)
    assert f"stopped by a signal after step {step}" in stderr and steps_of(tmp_path)[-1] == step
    assert train(command, "--steps", step) == (losses, parameters)
    assert train(command, "--steps", step, "--resume", tmp_path) == ([], parameters)


@pytest.fixture(scope="module")
def long_training(plans, references):
    """The arguments of a training that is long enough to be killed, and what it is to end with."""
    command = arguments(plans, references, "gpt2", 2, "", "") + weights("gpt2") + ["--steps", 300]
    return command, train(command)


# Whatever is there afterwards is whole; what goes on has the bits of what was never stopped.
@pytest.mark.parametrize("start", KINDS)
def test_a_kill_leaves_checkpoints_that_load(start, long_training, pytestconfig, tmp_path):
    (command, expected), dice = long_training, random.Random(7)
    for _ in range(200 if pytestconfig.getoption("--all-mutants") else 10):
        with training_of(command, tmp_path, "--every", 1, "--keep", 3, start=start) as process:
            time.sleep(dice.random() * 0.2)
            victims = [process.pid] if start is start_threads else []
            while not victims and process.poll() is None:
                victims = children(process.pid, "fsdp-run")
            for victim in victims if dice.random() < 0.5 else dice.sample(victims, min(1, len(victims))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            begin = time.monotonic()
            process.communicate(timeout=60)
            assert time.monotonic() - begin < 10
        for step in steps_of(tmp_path):
            succeed("fsdp-ckpt", "verify", tmp_path / f"step-{step:08}")
        if steps_of(tmp_path)[-1] == 300:
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()
    assert train(command, "--resume", tmp_path)[1] == expected[1]


# A slow disk is no failure: the others wait as long as the process lives.
@needs_mpi
def test_writing_may_take_longer_than_the_timeout(training, failing_files, tmp_path):
    command, expected = training
    script = '[ $OMPI_COMM_WORLD_RANK = 0 ] && unset FSDP_FAIL; exec "$@"'
    process = start_processes((2, *command, "--steps", STEPS, "--every", 3, "--checkpoint", tmp_path, "--timeout", 1), before=["bash", "-c", script, "bash"],
                              LD_PRELOAD=str(failing_files), FSDP_FAIL="fsync -1 (deleted)")
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert outcome(stdout) == expected and steps_of(tmp_path) == [3, 6]


@needs_mpi
def test_processes_write_what_threads_write(training, tmp_path):
    command, _ = training
    train(command, "--steps", 2, "--checkpoint", tmp_path / "threads")
    process = start_mpi([*command, "--steps", 2, "--checkpoint", tmp_path / "processes"])
    assert process.wait(60) == 0, process.communicate()
    names = {path.relative_to(tmp_path / "threads") for path in (tmp_path / "threads").rglob("*") if path.is_file()}
    assert names == {path.relative_to(tmp_path / "processes") for path in (tmp_path / "processes").rglob("*") if path.is_file()}
    assert all((tmp_path / "threads" / name).read_bytes() == (tmp_path / "processes" / name).read_bytes() for name in names)
