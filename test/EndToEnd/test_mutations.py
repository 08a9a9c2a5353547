"""A check is worth what it notices: plans with one command changed, which the runtime accepts, must fail the comparison."""

import re

import pytest
from conftest import FIXTURES, succeed, tool


def text_of(plan, folder):
    """The plan as text, with its locations."""
    path = folder / "plan.mlir"
    succeed("fsdp-translate", "--import-plan", plan, "--mlir-print-debuginfo", "-o", path)
    return path.read_text()


def plan_of(text, folder):
    (folder / "mutant.mlir").write_text(text)
    succeed("fsdp-translate", "--export-plan", folder / "mutant.mlir", "-o", folder / "mutant.plan")
    return folder / "mutant.plan"


def substitute(pattern, replacement, text):
    """Replaces the first match; there must be one."""
    changed, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1, f"no {pattern} in the plan"
    return changed


def run(plan, graph, ranks, reference):
    return tool("fsdp-run", plan, "--ranks", ranks, "--weights", FIXTURES / f"{graph}.pt2", "--reference", reference)


def check_fails(plan, graph, ranks, reference, sentence):
    """The run is a check that failed, not a refusal and not a crash."""
    result = run(plan, graph, ranks, reference)
    assert result.returncode == 2, result.stdout + result.stderr
    assert re.search(sentence, result.stderr), result.stderr


REDUCE = r"plan\.reduce_scatter @shard divide <pre = 2, post = [0-9.]+> via f32 (%\d+) to (%\d+) of @([\w.]+) <backward> on reduce"


# Otherwise the tests below would measure the way through text, not their mutation.
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("graph", ["gpt2", "frozen", "role_batch_norm"])
def test_text_round_trip_keeps_every_byte(graph, ranks, plans, references, tmp_path):
    plan = plans(graph, ranks)
    copy = plan_of(text_of(plan, tmp_path), tmp_path)
    assert copy.read_bytes() == plan.read_bytes()
    assert run(copy, graph, ranks, references(graph, ranks)).returncode == 0


# The mistake that equal batches on all ranks would hide: each rank keeps its own gradient.
@pytest.mark.parametrize("ranks", [2, 3])
def test_reduction_without_sum_is_noticed(ranks, plans, references, tmp_path):
    text = text_of(plans("gpt2", ranks), tmp_path)
    source, target, unit = re.search(REDUCE, text).groups()
    shard = re.search(rf"{target} = plan\.buffer gradient .* : (tensor<\d+xf32>)", text)[1]
    # The plan is the same on all ranks, so all of them take the slice of rank 0.
    text = substitute(r"( *)plan\.program @step", rf"\1%slice = plan.view {source} at 0 : {shard}\n\g<0>", text)
    text = substitute(REDUCE, rf"plan.copy %slice to {target} <backward> on reduce", text)
    mutant = plan_of(text, tmp_path)
    check_fails(mutant, "gpt2", ranks, references("gpt2", ranks), rf"grad\.{re.escape(unit)}\.\S+: expected values within")


# A gradient twice as large trains, only worse: nobody would see it without a comparison.
@pytest.mark.parametrize("ranks", [2, 3])
def test_wrong_divisor_is_noticed(ranks, plans, references, tmp_path):
    text = text_of(plans("gpt2", ranks), tmp_path)
    unit = re.search(REDUCE, text)[3]
    mutant = plan_of(substitute(r"(plan\.reduce_scatter @shard divide <pre = )2,", r"\g<1>1,", text), tmp_path)
    check_fails(mutant, "gpt2", ranks, references("gpt2", ranks), rf"grad\.{re.escape(unit)}\.\S+: expected values within")


# AdamW decays weights without any gradient: a frozen parameter inside an interval moves.
def test_update_of_frozen_parameters_is_noticed(plans, tmp_path):
    text = text_of(plans("frozen", 2), tmp_path)
    mutant = plan_of(substitute(r"(plan\.adamw @m\.transformer\.h\.1) \[0, 64, 4288, 12704\]", r"\1 [0, 12704]", text), tmp_path)
    check_fails(mutant, "frozen", 2, FIXTURES / "frozen_train2x5.safetensors",
                r"param\.m\.transformer\.h\.1\.attn\.c_attn\.weight: expected values within")


# Pads go into norms and checkpoints: they must be 0 although no parameter shows them.
def test_dirty_padding_of_gradients_is_noticed(plans, references, tmp_path):
    text = text_of(plans("gpt2", 3), tmp_path)
    mutant = plan_of(substitute(r"plan\.zero (%\d+)( <backward>.*\n.*\n.*\n.*@m\.transformer\.h\.1 )",
                                r'plan.launch "fill_.Scalar"(1.0) -> \1\2', text), tmp_path)
    check_fails(mutant, "gpt2", 3, references("gpt2", 3),
                r"unit m\.transformer\.h\.1: expected 0 in element 12704 of its reduced gradient, which is padding, "
                r"found 1 on rank 2$")


# What the same mistake leaves behind after updates.
def test_dirty_padding_of_parameters_is_noticed(plans, tmp_path):
    text = text_of(plans("role_batch_norm", 2), tmp_path)
    mutant = plan_of(substitute(r"plan\.zero (%\d+) <backward>", r'plan.launch "fill_.Scalar"(1.0) -> \1 <backward>', text),
                     tmp_path)
    check_fails(mutant, "role_batch_norm", 2, FIXTURES / "role_batch_norm_train2x5.safetensors",
                r"unit root: expected 0 in element 213 of its flat parameter, which is padding, found \S+ on rank 1$")
