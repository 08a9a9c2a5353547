"""Whole parameters and gradients of a training, against `summon_full_params` of PyTorch's FSDP1 on two ranks."""

import sys
from pathlib import Path

import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors.torch import load_file, save_file

ORACLE = Path(__file__).parent / "oracle"
sys.path.insert(0, str(ORACLE))

import ranks  # noqa: E402


def train(plan, weights, data, output, steps, *options):
    succeed("fsdp-run", plan, "--weights", weights, "--data", data, "--steps", steps, "--lr", ranks.LR, "--weight-decay", 0,
            "--summon", output, *options)
    return load_file(output)


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")


# Where the update of a unit stands in the step decides how long its gradient lives.
@pytest.mark.covers("summon_full_params", "summon_full_params: with_grads", "summon_full_params: rank0_only", "offload_to_cpu",
                    "summon_full_params: writeback", "_unshard_grads")
@pytest.mark.parametrize("options", [[], ["--reduce-wait", "next"], ["--strategy", "no_shard"], ["--bucket", "copy:units:2"], ["--offload", "all"]], ids=" ".join)
def test_a_training_is_summoned_edited_and_continued(options, small_archive, on_two_ranks, tmp_path):
    plan = tmp_path / "step.plan"
    succeed("fsdp-plan", small_archive, "--ranks", ranks.WORLD, "--wrap", r"scope:blocks\.\d", "--optimizer", "sgd", *options, "-o", plan)
    half = train(plan, small_archive, on_two_ranks / "first.safetensors", tmp_path / "half.safetensors", ranks.STEPS // 2, "--with-grads")
    expected = load_file(on_two_ranks / "summon" / "half.safetensors")
    assert any(name.startswith("grad.") for name in expected)
    assert_close(half, expected)
    half["head.weight"] *= 2
    save_file(half, tmp_path / "edited.safetensors")
    final = train(plan, tmp_path / "edited.safetensors", on_two_ranks / "second.safetensors", tmp_path / "final.safetensors", ranks.STEPS // 2)
    expected = load_file(on_two_ranks / "summon" / "final.safetensors")
    assert_close({name: final[name] for name in expected}, expected)


def test_one_unit_is_summoned(small_archive, on_two_ranks, tmp_path):
    plan = tmp_path / "step.plan"
    succeed("fsdp-plan", small_archive, "--ranks", ranks.WORLD, "--optimizer", "sgd", "-o", plan)
    one = train(plan, small_archive, on_two_ranks / "first.safetensors", tmp_path / "one.safetensors", ranks.STEPS // 2, "--with-grads",
                "--summon-only", r"^blocks\.1\.")
    expected = {name: value for name, value in load_file(on_two_ranks / "summon" / "half.safetensors").items() if "blocks.1." in name}
    assert len(expected) == 6
    assert_close(one, expected)


# The last step is run in two parts where its gradients are asked for.
@pytest.mark.parametrize("options", [[], ["--accumulate", "2"], ["--accumulate", "2", "--no-sync"], ["--clip-grad-norm", "0.1"]], ids=" ".join)
def test_asking_for_gradients_changes_nothing(options, plans, tmp_path):
    plan = plans("gpt2", 2, *options)
    found = []
    for more in [], ["--with-grads"], ["--with-grads", "--overlap", "--chaos", "3"]:
        succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2,
                "--summon", tmp_path / "a.safetensors", *more)
        found.append(load_file(tmp_path / "a.safetensors"))
    for name, value in found[0].items():
        assert all(torch.equal(other[name], value) for other in found[1:]), name
    for name, value in found[1].items():
        assert torch.equal(found[2][name], value) and value.isfinite().all(), name


def test_what_cannot_be_summoned_is_said_before_the_first_step(plans, tmp_path):
    plan = plans("gpt2", 2)
    usual = ["fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 1]
    output = ["--summon", tmp_path / "a.safetensors"]
    for options, sentence in [
        (["--summon-only", "h.1"], "error: --summon-only requires --summon"),
        (["--with-grads"], "error: --with-grads requires --summon"),
        ([*output, "--summon-only", "mlp("], "error: --summon-only: expected a regular expression, found 'mlp(': Unmatched ( or \\("),
        ([*output, "--summon-only", "zz"], f"error: --summon-only: expected 'zz' to match the name of a parameter or model buffer of {plan}, found none"),
        (["--summon", tmp_path], f"error: {tmp_path}: cannot write the file: Is a directory"),
        (["--summon", FIXTURES / "gpt2.pt2"], f"error: {FIXTURES}/gpt2.pt2: expected a file of its own for --summon, found that of --weights"),
    ]:
        result = tool(*usual, *options)
        assert (result.returncode, result.stderr.strip()) == (1, sentence)
    # A parameter that does not train has no gradient.
    frozen = ["fsdp-run", plans("frozen", 2), "--weights", FIXTURES / "frozen.pt2", "--data", FIXTURES / "frozen_train2x5.safetensors", "--steps", 1]
    succeed(*frozen, *output, "--with-grads")
    found = load_file(tmp_path / "a.safetensors")
    fixed = next(name for name in found if not name.startswith("grad.") and f"grad.{name}" not in found)
    result = tool(*frozen, *output, "--with-grads", "--summon-only", f"^{fixed}$")
    assert result.returncode == 1 and result.stderr.startswith("error: --with-grads: expected a parameter of ")
    assert result.stderr.endswith(f"that trains and that '^{fixed}$' matches, found none\n")
