"""Data: the order of samples is one for any files, ranks and restarts, and NumPy writes what is read."""

import json
import os
import random
import struct
import subprocess

import numpy as np
import pytest
import torch
from conftest import BUILD, FIXTURES, needs_mpi, outcome, start_processes, succeed, tool
from safetensors.torch import save, save_file

VOCABULARY, BATCH, LENGTH = 128, 2, 16  # of gpt2.pt2
STEPS = 6


@pytest.fixture
def tokens():
    """Three batches of each of two ranks, and a sequence."""
    return np.random.default_rng(0).integers(0, VOCABULARY, (6 * BATCH + 1, LENGTH))


def train(plan, data, *options, steps=STEPS):
    return outcome(succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", data, "--steps", steps, "--json", *options).stdout)


# One training, whatever its tokens lie in.
@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4", "<i8"])
def test_shards_are_the_data_that_numpy_wrote(dtype, plans, tokens, tmp_path):
    plan, one, shards = plans("gpt2", 2), tmp_path / "one.bin", tmp_path / "shards"
    one.write_bytes(tokens.astype("<u2").tobytes())
    shards.mkdir()
    np.save(shards / "tokens-0.npy", tokens[:5].astype(dtype))
    np.save(shards / "tokens-1.npy", tokens[5:9].astype(dtype).reshape(-1))
    (shards / "tokens-2.bin").write_bytes(tokens[9:].astype("<u2").tobytes())
    (shards / "README.md").write_text("no tokens")
    expected = train(plan, one, "--shuffle", 3)
    assert train(plan, shards, "--shuffle", 3) == expected
    assert train(plan, one) != expected and train(plan, one, "--shuffle", 4) != expected


# Nobody raises the limit of descriptors to train on many files.
def test_five_thousand_files_need_few_descriptors(plans, tmp_path):
    data = np.random.default_rng(2).integers(0, VOCABULARY, (5000, LENGTH)).astype("<u2")
    one, many = tmp_path / "one.bin", tmp_path / "many"
    one.write_bytes(data.tobytes())
    many.mkdir()
    for i, sequence in enumerate(data):
        (many / f"{i:04}.bin").write_bytes(sequence.tobytes())
    options = ["--shuffle", 3, "--steps", STEPS, "--json"]
    command = [BUILD / "bin" / "fsdp-run", plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", many, *options]
    result = subprocess.run([*map(str, ["bash", "-c", 'ulimit -n 256; exec "$@"', "limited", *command])], capture_output=True, text=True, timeout=120,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert outcome(result.stdout) == train(plans("gpt2", 2), one, "--shuffle", 3)


# The wrapped batch too: step 4 of 6 takes the last sequence of an epoch.
@pytest.mark.parametrize("shuffle", [[], ["--shuffle", 3]], ids=str)
def test_a_training_goes_on_in_the_data(shuffle, plans, tokens, tmp_path):
    np.save(tmp_path / "tokens.npy", tokens.astype("<u2"))
    plan = plans("gpt2", 2)
    losses, parameters = train(plan, tmp_path / "tokens.npy", *shuffle)
    before, _ = train(plan, tmp_path / "tokens.npy", *shuffle, "--checkpoint", tmp_path / "run", steps=4)
    after, found = train(plan, tmp_path / "tokens.npy", *shuffle, "--resume", tmp_path / "run")
    assert (before + after, found) == (losses, parameters)


# At a rate of 0, a loss depends on its sequences alone: their sum over an epoch says whether each was taken once.
@pytest.mark.parametrize("before,after", [(4, 2), (1, 4), (2, 3)])
def test_an_epoch_has_each_sequence_once_on_any_ranks(before, after, plans, tmp_path):
    sequences = 12 * BATCH * 2
    np.save(tmp_path / "tokens.npy", np.random.default_rng(1).integers(0, VOCABULARY, (sequences, LENGTH)).astype("<u2"))
    common = (tmp_path / "tokens.npy", "--shuffle", 3, "--lr", 0)
    expected = sum(train(plans("gpt2", 1), *common, steps=sequences // BATCH)[0])
    done = 12 // before  # steps: half of the epoch
    first, _ = train(plans("gpt2", before), *common, "--checkpoint", tmp_path / "run", steps=done)
    rest, _ = train(plans("gpt2", after), *common, "--resume", tmp_path / "run", steps=done + 12 // after)
    assert sum(first) * before + sum(rest) * after == pytest.approx(expected, rel=1e-5)
    # The first half again is something else.
    assert sum(first) * before * 2 != pytest.approx(expected, rel=1e-5)


@needs_mpi
def test_processes_take_the_sequences_of_threads(plans, tokens, tmp_path):
    np.save(tmp_path / "tokens.npy", tokens.astype("<u2"))
    arguments = [plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", tmp_path / "tokens.npy", "--shuffle", 3, "--steps", STEPS, "--json"]
    stdout, stderr = start_processes((2, *arguments)).communicate(timeout=60)
    assert outcome(stdout) == outcome(succeed("fsdp-run", *arguments).stdout), stderr


def test_a_training_that_goes_on_is_evaluated_as_one_that_was_not_stopped(plans, tokens, tmp_path):
    np.save(tmp_path / "tokens.npy", tokens[:12].astype("<u2"))
    plan = plans("gpt2", 2, "--program", f"eval={FIXTURES / 'gpt2.pt2'}")
    command = [plan, "--data", tmp_path / "tokens.npy", "--eval-data", tmp_path / "tokens.npy", "--eval-every", 2, "--json"]
    evaluations = lambda *more: {said["step"]: said["eval_loss"] for line in succeed("fsdp-run", *command, *more).stdout.splitlines()
                                 if "eval_loss" in (said := json.loads(line))}
    start = ["--weights", FIXTURES / "gpt2.pt2"]
    whole = evaluations(*start, "--steps", 6)
    before = evaluations(*start, "--steps", 3, "--checkpoint", tmp_path / "run")
    assert sorted(whole) == [2, 4, 6] and {**before, **evaluations("--steps", 6, "--resume", tmp_path / "run")} == whole


def test_evaluations_read_the_same_kinds_of_files(plans, tokens, tmp_path):
    plan = plans("gpt2", 2, "--program", f"eval={FIXTURES / 'gpt2.pt2'}")
    np.save(tmp_path / "tokens.npy", tokens[:12])
    (tmp_path / "same").write_bytes(tokens[:12].astype("<u2").tobytes())
    # Each evaluation is of all batches, from the first one on, in the order of the file.
    found = [succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", data, "--steps", 2, "--lr", 0, "--json", "--eval-data", data,
                     "--eval-every", 1, *bits).stdout for data, *bits in ((tmp_path,), (tmp_path / "same", "--token-bits", 16))]
    losses = [[step["eval_loss"] for step in map(json.loads, text.splitlines()) if "eval_loss" in step] for text in found]
    assert losses[0] == losses[1] and losses[0][0] == losses[0][1]


def test_no_output_takes_the_place_of_a_shard(plans, tokens, tmp_path):
    np.save(tmp_path / "tokens.npy", tokens.astype("<u2"))
    result = tool("fsdp-run", plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", tmp_path, "--steps", 1,
                  "--trace", tmp_path / "tokens.npy")
    assert result.returncode == 1 and "expected a file of its own for --trace, found that of --data" in result.stderr


def messages(tokens) -> list[bytes]:
    """A batch for each of two ranks in each."""
    batches = torch.from_numpy(tokens[:12]).long().view(3, 2, BATCH, LENGTH)
    return [save({"in_0": both.clone(), "in_1": both.clone()}) for both in batches]


def feed(plan, stream: bytes, *options) -> subprocess.CompletedProcess:
    command = [BUILD / "bin" / "fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", "-", "--json", *options]
    result = subprocess.run([*map(str, command)], input=stream, capture_output=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return subprocess.CompletedProcess(command, result.returncode, result.stdout.decode(), result.stderr.decode())


def framed(message: bytes) -> bytes:
    return struct.pack("<Q", len(message)) + message


# A training takes what it needs, waits for no more, and goes on after what it has taken.
def test_a_stream_is_the_data_of_a_file(plans, tokens, tmp_path):
    plan, sent = plans("gpt2", 2), messages(tokens)
    batches = torch.from_numpy(tokens[:12]).long().view(6, BATCH, LENGTH)
    save_file({"in_0": batches, "in_1": batches.clone()}, tmp_path / "data.safetensors")
    stream = b"".join(map(framed, sent))
    expected = train(plan, tmp_path / "data.safetensors", steps=3)
    result = feed(plan, stream, "--steps", 3)
    assert result.returncode == 0 and outcome(result.stdout) == expected, result.stderr
    before = feed(plan, stream, "--steps", 2, "--checkpoint", tmp_path / "run")
    after = feed(plan, stream, "--steps", 3, "--resume", tmp_path / "run")
    assert (outcome(before.stdout)[0] + outcome(after.stdout)[0], outcome(after.stdout)[1]) == expected
    # Whoever feeds need not close the stream.
    with subprocess.Popen([*map(str, result.args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as open_end:
        open_end.stdin.write(stream)
        open_end.stdin.flush()
        assert outcome(open_end.stdout.read().decode()) == expected


def test_a_stream_that_does_not_fit_ends_a_training(plans, tokens):
    plan, (good, *_) = plans("gpt2", 2), messages(tokens)
    other = torch.zeros(2, BATCH, LENGTH)
    for stream, steps, why in [
            (b"", 0, "message 1: expected 8 bytes of a length and a batch for each of 2 ranks, found the end of the stream"),
            (framed(good) + b"\1\0", 1, "message 2: expected 8 bytes, found the end of the stream after 2"),
            (framed(good) + framed(good)[:100], 1, f"message 2: expected {len(good)} bytes, found the end of the stream after 92"),
            (struct.pack("<Q", 1 << 60), 0, "message 1: expected a length from 1 to "), (struct.pack("<Q", 0), 0, "found 0"),
            (framed(b"nonsense"), 0, "message 1: header length: expected at most 0"),
            (framed(save({"in_0": other, "in_1": other.clone()})), 0, "message 1: in_0: expected batches of "),
            (framed(save({"in_0": (one := torch.zeros(1, BATCH, LENGTH).long()), "in_1": one.clone()})), 0, "expected 2 batches, one for each rank, found 1"),
            (framed(save({"in_0": other.long() + VOCABULARY, "in_1": other.long()})), 0, "message 1: in_0: expected tokens below 128, found 128")]:
        result = feed(plan, stream, "--steps", 3)
        assert result.returncode == 3 and result.stdout.count("loss") == steps, result
        assert "error: standard input: " in result.stderr and why in result.stderr and "/proc" not in result.stderr, result.stderr


def test_random_streams_end_with_a_sentence(plans, tokens):
    plan, dice = plans("gpt2", 2), random.Random(5)
    stream = b"".join(map(framed, messages(tokens)))
    for _ in range(20):
        damaged = bytearray(stream[:dice.randrange(len(stream))])
        for _ in range(dice.randrange(4)):
            if (place := dice.randrange(1200)) < len(damaged):
                damaged[place] = dice.randrange(256)
        result = feed(plan, bytes(damaged), "--steps", 3)
        assert result.returncode == 3 and len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: "), result


def test_what_a_stream_cannot_do_is_rejected(plans, tokens, tmp_path):
    plan = plans("gpt2", 2, "--program", f"eval={FIXTURES / 'gpt2.pt2'}")
    for options, why in [(["--shuffle", 1], "--data -: expected the order of the stream, found --shuffle"),
                         (["--backend", "mpi"], "--data -: expected one process"),
                         (["--eval-data", "-", "--eval-every", 1], "--eval-data: expected files, which can be read again")]:
        result = feed(plan, b"", "--steps", 1, *options)
        assert result.returncode == 1 and why in result.stderr, result.stderr
