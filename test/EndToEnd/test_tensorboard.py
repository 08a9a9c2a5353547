"""`fsdp-run --tensorboard`: what its reader finds, and that a training neither needs nor awaits who writes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BUILD, FIXTURES, children, needs_mpi, start_processes, succeed, tool
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {"loss": "loss", "learning_rate": "lr", "tokens_per_second": "tokens_per_second", "milliseconds_per_step": "seconds",
        "exposed_communication_milliseconds": "exposed_seconds", "memory_MiB": "peak_bytes"}
FACTORS = {"milliseconds_per_step": 1e3, "exposed_communication_milliseconds": 1e3, "memory_MiB": 2**-20}


@pytest.fixture
def command(plans):
    return [plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors"]


@pytest.fixture(scope="module", autouse=True)
def python():
    """python3 on the PATH is the one of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        yield


def read(folder) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_the_reader_finds_what_json_says(command, tmp_path):
    ran = succeed("fsdp-run", *command, "--steps", 5, "--lr-schedule", "linear", "--json", "--tensorboard", tmp_path / "runs" / "one")
    lines = [json.loads(line) for line in ran.stdout.splitlines()[:-1]]
    found = read(tmp_path / "runs" / "one")
    assert found.keys() == TAGS.keys() and ran.stderr == ""
    for tag, key in TAGS.items():
        expected = [(line["step"], pytest.approx(line[key] * FACTORS.get(tag, 1), rel=1e-5)) for line in lines]
        assert found[tag] == expected
    assert all(0 < line["collective_seconds"] < line["seconds"] for line in lines)


# On a terminal or in a log, people read other lines.
def test_other_output_stays_as_it_is(command, tmp_path):
    ran = succeed("fsdp-run", *command, "--steps", 2, "--tensorboard", tmp_path)
    assert ran.stdout.startswith("step 1/2  loss ") and "{" not in ran.stdout and len(read(tmp_path)["loss"]) == 2


def test_a_restart_appends_after_the_resumed_step(command, tmp_path):
    options = ["--tensorboard", tmp_path / "events", "--checkpoint", tmp_path / "run", "--json"]
    succeed("fsdp-run", *command, "--steps", 4, "--every", 2, *options)
    whole = succeed("fsdp-run", *command, "--steps", 6, "--json").stdout.splitlines()[:-1]
    for name in "manifest.json", "ranks/rank-00001.json":  # as if it had been killed in step 3
        (tmp_path / "run" / "step-00000004" / name).unlink()
    succeed("fsdp-run", *command, "--steps", 6, "--resume", "auto", *options)
    found = read(tmp_path / "events")["loss"]
    assert found == [(step, pytest.approx(json.loads(line)["loss"], rel=1e-6)) for step, line in enumerate(whole, 1)]


def test_evaluations_are_written(plans, tmp_path):
    plan = plans("gpt2", 2, "--program", f"eval={FIXTURES / 'gpt2.pt2'}")
    data = FIXTURES / "gpt2_train2x5.safetensors"
    succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", data, "--eval-data", data, "--eval-every", 2, "--steps", 4,
            "--tensorboard", tmp_path)
    assert [step for step, _ in read(tmp_path)["eval_loss"]] == [2, 4]


@needs_mpi
def test_processes_have_one_writer(command, tmp_path):
    process = start_processes((2, *command, "--steps", 3, "--tensorboard", tmp_path))
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 0, stderr
    assert len(list(tmp_path.iterdir())) == 1 and len(read(tmp_path)["loss"]) == 3


#===-- Without it ------------------------------------------------------------------------------------------------------------------------------===#


def fake(folder: Path, script: str) -> dict[str, str]:
    """A PATH whose python3 is a script of the shell."""
    folder.mkdir()
    (folder / "python3").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "python3").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


# At the start: nobody wants to learn it after a night.
def test_what_is_missing_is_said_at_the_start(command, tmp_path):
    def fails(where=tmp_path / "events", **variables) -> str:
        result = tool("fsdp-run", *command, "--steps", 2, "--tensorboard", where, **variables)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1), result.stderr
        return result.stderr

    (tmp_path / "empty").mkdir()
    assert "expected python3 on the PATH, with the library tensorboard, found that it cannot be started: No such file" in fails(PATH=str(tmp_path / "empty"))
    (tmp_path / "hidden" / "tensorboard").mkdir(parents=True)
    (tmp_path / "hidden" / "tensorboard" / "__init__.py").write_text("raise ImportError('not for you')")
    assert "not for you; pip install tensorboard" in fails(PYTHONPATH=str(tmp_path / "hidden"))
    (tmp_path / "file").write_text("")
    assert re.search("--tensorboard .*file", fails(where=tmp_path / "file"))
    assert "expected python3 to be ready, found that it ended" in fails(**fake(tmp_path / "mute", "exit 0"))
    assert "--data" in tool("fsdp-run", command[0], "--reference", FIXTURES / "gpt2_ref2.safetensors", "--tensorboard", tmp_path).stderr


# The first of them has often ended before anybody hears that it is ready.
@pytest.mark.parametrize("script, sentence", [
    ("echo ready; exec <&-; echo the disk is full >&2; exit 1", "the process that writes has"), ("echo ready; kill -9 $$", "the process that writes has"),
    ("echo ready; exec sleep 100", "the process that writes did not end in time"),
], ids=["dead", "killed", "asleep"])
def test_a_training_goes_on_without_its_writer(script, sentence, command, tmp_path):
    expected = succeed("fsdp-run", *command, "--steps", 300, "--json").stdout.splitlines()[-2:]
    started = time.monotonic()
    ran = succeed("fsdp-run", *command, "--steps", 300, "--json", "--tensorboard", tmp_path / "events", **fake(tmp_path / "bin", script))
    assert time.monotonic() - started < 15
    assert ran.stderr.count("note: --tensorboard") == ran.stderr.count("\n") == 1 and sentence in ran.stderr, ran.stderr
    losses = [json.loads(output[-2])["loss"] for output in (expected, ran.stdout.splitlines())]
    assert losses[0] == losses[1]


# Neither a signal nor the end of the training leaves a process behind, or loses a step.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_writer_ends_with_the_training(number, command, tmp_path):
    process = subprocess.Popen([*map(str, [BUILD / "bin" / "fsdp-run", *command, "--steps", 1000000, "--json", "--tensorboard", tmp_path])],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = [process.stdout.readline() for _ in range(20)]
    (writer,) = children(process.pid)
    process.send_signal(number)
    process.communicate(timeout=30)
    until = time.monotonic() + 10
    while Path(f"/proc/{writer}/cmdline").exists() and Path(f"/proc/{writer}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.05)
    found = read(tmp_path)["loss"]
    assert len(found) >= len(seen) and found[0][1] == pytest.approx(json.loads(seen[0])["loss"], rel=1e-6)
