"""Data: the order of samples is one for any files, ranks and restarts, and NumPy writes what is read."""

import json

import numpy as np
import pytest
from conftest import FIXTURES, outcome, succeed, tool

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


# The wrapped batch too: step 4 of 6 takes the last sequence of an epoch.
@pytest.mark.parametrize("shuffle", [[], ["--shuffle", 3]], ids=str)
def test_a_training_goes_on_in_the_data(shuffle, plans, tokens, tmp_path):
    np.save(tmp_path / "tokens.npy", tokens.astype("<u2"))
    plan = plans("gpt2", 2)
    losses, parameters = train(plan, tmp_path / "tokens.npy", *shuffle)
    before, _ = train(plan, tmp_path / "tokens.npy", *shuffle, "--checkpoint", tmp_path / "run", steps=4)
    after, found = train(plan, tmp_path / "tokens.npy", *shuffle, "--resume", tmp_path / "run")
    assert (before + after, found) == (losses, parameters)


def test_evaluations_read_the_same_kinds_of_files(plans, tokens, tmp_path):
    plan = plans("gpt2", 2, "--program", f"eval={FIXTURES / 'gpt2.pt2'}")
    np.save(tmp_path / "tokens.npy", tokens[:12])
    (tmp_path / "same").write_bytes(tokens[:12].astype("<u2").tobytes())
    # Each evaluation is of all batches, from the first one on, in the order of the file.
    found = [succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", data, "--steps", 2, "--lr", 0, "--json", "--eval-data", data,
                     "--eval-every", 1).stdout for data in (tmp_path, tmp_path / "same")]
    losses = [[step["eval_loss"] for step in map(json.loads, text.splitlines()) if "eval_loss" in step] for text in found]
    assert losses[0] == losses[1] and losses[0][0] == losses[0][1]


def test_no_output_takes_the_place_of_a_shard(plans, tokens, tmp_path):
    np.save(tmp_path / "tokens.npy", tokens.astype("<u2"))
    result = tool("fsdp-run", plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", tmp_path, "--steps", 1,
                  "--trace", tmp_path / "tokens.npy")
    assert result.returncode == 1 and "expected a file of its own for --trace, found that of --data" in result.stderr
