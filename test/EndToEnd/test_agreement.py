"""Ranks with plans of their own: they must communicate alike, or nothing is run."""

import re

import pytest
from conftest import FIXTURES, succeed, tool


def run(graph, *plans):
    return tool("fsdp-run", *plans, "--ranks", 2, "--weights", FIXTURES / f"{graph}.pt2",
                "--reference", FIXTURES / f"{graph}_train2x5.safetensors")


def test_equal_plans_run(plans):
    plan = plans("gpt2", 2)
    assert run("gpt2", plan, plan).returncode == 0


# Another strategy gathers less often: both sequences are named where they part.
@pytest.mark.covers("HOMOGENEOUS_ATTR_NAMES", "Object", "execution order differs among ranks", "DebugLevel")
def test_other_collectives_are_a_failed_check(plans):
    first, second = plans("gpt2", 2), plans("gpt2", 2, "--strategy", "shard_grad_op")
    result = run("gpt2", first, second)
    assert result.returncode == 2 and result.stdout == ""
    assert re.fullmatch(rf"error: {second}, rank 1: expected collective 3 of communicator shard_gather to be all_gather \d+ bytes f32 \S+ "
                        rf"as on rank 0, found the end\n", result.stderr), result.stderr


# The same collectives around other commands would still be another training.
def test_other_commands_are_a_failed_check(plans, tmp_path):
    first, text, second = plans("gpt2", 2), tmp_path / "p.mlir", tmp_path / "p.plan"
    succeed("fsdp-translate", "--import-plan", first, "-o", text)
    lines = text.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "plan.adamw @root" not in line]
    assert len(kept) == len(lines) - 1
    text.write_text("".join(kept))
    succeed("fsdp-translate", "--export-plan", text, "-o", second)
    result = run("gpt2", first, second)
    assert (result.returncode, result.stderr) == (
        2, f"error: {second}, rank 1: expected the same plan as on rank 0, found another one with the same collectives\n")


def test_as_many_plans_as_ranks(plans):
    plan = plans("gpt2", 2)
    result = run("gpt2", plan, plan, plan)
    assert (result.returncode, result.stderr) == (1, "error: expected one plan, or one for each of 2 ranks; found 3\n")
