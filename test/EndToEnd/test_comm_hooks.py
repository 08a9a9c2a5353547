"""Passes that replace reductions, against PyTorch's hooks."""

import json
import re

import pytest
import torch
from conftest import BUILD, FIXTURES, succeed, tool
from safetensors.torch import load_file
from test_hybrid import SCHEDULED, hybrid
from test_per_rank import assert_close, ranks, train

HOOK = ["--load-pass-plugin", BUILD / "lib" / "CompressReplicas.so", "--comm-hook", "compress-replicas"]


def plan(archive, tmp_path, *options):
    succeed("fsdp-plan", archive, "--mesh", "2x2", *options, "-o", tmp_path / "step.plan", "--report", tmp_path / "report.json")
    return tmp_path / "step.plan"


# FSDP2 sums between replicas by the hook alone; the plan sums by the operation that the pass wrote.
@pytest.mark.covers("set_all_reduce_hook", "torch.distributed.algorithms._comm_hooks")
def test_a_compressed_sum_is_that_of_pytorch(small_archive, on_two_ranks, tmp_path):
    found = {}
    for name, options in ("hook", HOOK), ("none", []):
        made = plan(small_archive, tmp_path, "--wrap", r"scope:blocks\.\d", "--optimizer", "sgd", *options)
        found[name] = train(made, small_archive, on_two_ranks / "all.safetensors", tmp_path / "end.safetensors", steps=ranks.STEPS // 2)
    expected = load_file(on_two_ranks / "all_reduce_hook" / "rank0.safetensors")
    assert_close(found["hook"], expected)
    # Two steps at this rate: bf16 shows, in the fourth digit of a gradient.
    off = max((found["none"][name] - value).abs().max().item() for name, value in expected.items() if value.is_floating_point())
    assert off > 1e-5


# Only what crosses replicas shrinks.
def test_half_the_bytes_are_sent_between_replicas(tmp_path):
    def sent(*options):
        plan(FIXTURES / "gpt2.pt2", tmp_path, *options)
        return {(each["kind"], each["communicator"]): each["bytes"] for each in json.loads((tmp_path / "report.json").read_text())["collectives"]}

    full, half = sent(), sent(*HOOK)
    assert half == {key: value / 2 if key == ("all_reduce", "replicate") else value for key, value in full.items()}


# The pass stands before accumulation in shards and clipping, buckets, and the loss's scale.
@pytest.mark.parametrize("options", [
    ["--accumulate", "2"], ["--accumulate", "2", "--no-sync"], ["--clip-grad-norm", "1"], ["--bucket", "copy:units:2"], ["--schedule", "list"],
    ["--grad-scaler", "default"], ["--offload", "all"], ["--reduce-dtype", "bf16"], ["--storage-dtype", "bf16"], ["--strategy", "hybrid_shard_zero2"]],
    ids=" ".join)
def test_hooks_are_proved_beside_other_options(options, small_archive, on_two_ranks, tmp_path):
    made = plan(small_archive, tmp_path, *HOOK, *options)
    succeed("fsdp-run", made, "--verify", "--weights", small_archive, "--data", on_two_ranks / "all.safetensors", "--steps", 1)


# A pass of a plugin runs at the level that the option names; what it changes there is checked.
def test_passes_run_at_their_level(small_archive, tmp_path):
    at = ["--mesh", "2x2", *HOOK[:2], "--passes-at"]
    plain = plan(small_archive, tmp_path).read_bytes()
    for level in "aten", "scheduled":  # where there are no logical reductions
        assert plan(small_archive, tmp_path, *at[2:], f"{level}=compress-replicas").read_bytes() == plain
    result = tool("fsdp-plan", small_archive, *at, "logical=compress-replicas", "-o", tmp_path / "other.plan")
    assert result.returncode == 1 and "expected a sum in 'f32', the reduce type of unit" in result.stderr
    result = tool("fsdp-plan", small_archive, *at, "plan=compress-replicas")  # it is one of builtin.module
    assert result.returncode == 1 and "--passes-at: expected passes of --load-pass-plugin, found 'compress-replicas'" in result.stderr


# A sum between machines of a rack, and then one between racks, each with its own divisor and rounding.
@pytest.mark.parametrize("via, divisors, tolerance", [("f32", "22", "1e-5"), ("f32", "14", "1e-5"), ("bf16", "22", "2e-2")])
def test_a_reduction_may_become_two(via, divisors, tolerance, tmp_path):
    text = hybrid("gpt2", tmp_path, 4, 1)
    text, count = re.subn(r'%(\S+) = (fsdp\.all_reduce @\S+ over) \["replicate"\] divide <pre = 2, post = 2> via f32 (%\S+) : (.*) -> (.*?)( loc.*)?\n',
                          rf'%sum\1 = \2 ["machine"] divide <pre = {divisors[0]}, post = 1> via f32 \3 : \4 -> \5\6\n'
                          rf'%\1 = \2 ["rack"] divide <pre = {divisors[1]}, post = 1> via {via} %sum\1 : \5 -> \5\6\n', text)
    assert count == 3
    text = text.replace('["replicate" = 4', '["rack" = 2, "machine" = 2').replace('"replicate"', '"rack", "machine"')
    (tmp_path / "logical.mlir").write_text(text)
    succeed("fsdp-opt", tmp_path / "logical.mlir", "--fsdp-name-reductions", "--fsdp-verify-logical", "--fsdp-verify-equivalence", "--fsdp-hoist-constants", *SCHEDULED,
            "--lower-to-plan", "--plan-verify", "-o", tmp_path / "plan.mlir")
    succeed("fsdp-translate", "--export-plan", tmp_path / "plan.mlir", "-o", tmp_path / "step.plan")
    succeed("fsdp-run", tmp_path / "step.plan", "--weights", FIXTURES / "gpt2.pt2", "--verify", "--reference", FIXTURES / "gpt2_ref4.safetensors",
            "--tolerance", tolerance)


# Sums over shards are kept for the last micro-batch: undivided, and then divided by all ranks, or the other way round.
@pytest.mark.parametrize("shards, replicas", [("<pre = 1, post = 1>", "<pre = 2, post = 2>"), ("<pre = 4, post = 1>", "<pre = 1, post = 1>")])
def test_the_divisor_may_move_where_replicas_are_summed_last(shards, replicas, tmp_path):
    succeed("fsdp-translate", "--import-pt2", FIXTURES / "gpt2.pt2", "-o", tmp_path / "aten.mlir")
    text = succeed("fsdp-opt", tmp_path / "aten.mlir", "--fsdp-assign-units", "--fsdp-shard=mesh=2x2 strategy=hybrid_shard",
                   "--fsdp-accumulate=accumulate=3 no-all-reduce=true", "--fsdp-insert-optimizer").stdout
    text, scattered = re.subn(r"(reduce_scatter @\S+ over .* divide) <pre = 2, post = 1>", rf"\1 {shards}", text)
    text, reduced = re.subn(r"(all_reduce @\S+ over .* divide) <pre = 1, post = 2>", rf"\1 {replicas}", text)
    assert (scattered, reduced) == (9, 3)
    (tmp_path / "hooked.mlir").write_text(text)
    succeed("fsdp-opt", tmp_path / "hooked.mlir", "--fsdp-name-reductions", "--fsdp-verify-logical", "--fsdp-verify-equivalence", "--fsdp-hoist-constants", *SCHEDULED,
            "--lower-to-plan", "--plan-verify", "-o", tmp_path / "plan.mlir")
    # Only if all programs do so.
    wrong, count = re.subn(re.escape(shards), "<pre = 2, post = 1>", text, count=1)
    (tmp_path / "wrong.mlir").write_text(wrong)
    result = tool("fsdp-opt", tmp_path / "wrong.mlir", "--fsdp-name-reductions", "--fsdp-verify-equivalence")
    assert count and result.returncode == 1 and re.search(r"expected the gradient of unit '\S+' to be divided by", result.stderr), result.stderr


# What follows a hook is held to what the hook has decided.
@pytest.mark.parametrize("pattern, replacement, sentence", [
    ("via bf16", "via f32", "expected #fsdp.reduction<over"),
    (r"(all_reduce @\S+ over .*) divide <pre = 1, post = 2>", r"\1 divide <pre = 2, post = 1>", "expected #fsdp.reduction<over"),
    (r', #fsdp\.reduction<over \["replicate"\] .*?f32>\]', "]", "expected 1 reductions of unit")],
    ids=["rounding", "divisors", "another"])
def test_other_reductions_than_those_of_the_hook_are_rejected(pattern, replacement, sentence, tmp_path):
    text = hybrid("gpt2", tmp_path, 2, 2)
    text = re.sub(r"(all_reduce @.* via) f32", r"\1 bf16", text)
    (tmp_path / "hooked.mlir").write_text(text)
    succeed("fsdp-opt", tmp_path / "hooked.mlir", "--fsdp-name-reductions", "--fsdp-verify-equivalence", "-o", tmp_path / "named.mlir")
    text, count = re.subn(pattern, replacement, (tmp_path / "named.mlir").read_text(), count=1)
    assert count
    (tmp_path / "wrong.mlir").write_text(text)
    result = tool("fsdp-opt", tmp_path / "wrong.mlir", "--fsdp-verify-equivalence")
    assert result.returncode == 1 and sentence in result.stderr


@pytest.mark.parametrize("options, sentence", [
    (["--comm-hook", "nothing"], "--comm-hook: expected passes of --load-pass-plugin, found 'nothing': 'nothing' does not refer to a registered pass"),
    (["--comm-hook", "a("], "--comm-hook: expected passes of --load-pass-plugin, found 'a(': "),
    (["--load-pass-plugin", "nosuch.so"], "--load-pass-plugin: Could not load library 'nosuch.so'")])
def test_unknown_hooks_are_rejected(options, sentence, tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--mesh", "2x2", *options, "-o", tmp_path / "step.plan")
    assert result.returncode == 1 and sentence in result.stderr and result.stderr.count("\n") == 1
