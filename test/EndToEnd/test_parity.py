"""Loss and every gradient of a sharded step against PyTorch's own, with a different batch on every rank."""

import json
import re

import pytest
from conftest import FIXTURES, make_reference, succeed, tool

GRAPHS = {"gpt2": 1e-5, "llama": 1e-5, "bert": 1e-5, "frozen": 1e-5, "newer_schema/gpt2": 1e-5, "llama_bf16": 3e-2}
STRATEGIES = ["full_shard", "shard_grad_op", "no_shard"]


# The line that the product stands or falls with: every strategy, also more ranks than the machine has cores.
@pytest.mark.covers("_unshard_grads", "summon_full_params: with_grads", "DistributedDataParallel", "_reduce_grad_no_shard", "torch")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_step_equals_pytorch(graph, strategy, ranks, plans, references):
    reference = references(graph, ranks)
    plan = plans(graph, ranks, "--strategy", strategy)
    weights = FIXTURES / f"{graph}.pt2"
    succeed("fsdp-run", plan, "--ranks", ranks, "--weights", weights, "--reference", reference, "--tolerance", GRAPHS[graph])


# FSDP2's reshard_after_forward=N: the backward gathers what N neighbours have kept.
@pytest.mark.covers("reshard_after_forward=N")
@pytest.mark.parametrize("ranks, group", [(4, 2), (8, 4)])
@pytest.mark.parametrize("graph", ["gpt2", "llama", "llama_bf16", "frozen"])
def test_reshard_to_small_groups(graph, ranks, group, plans, references):
    plan = plans(graph, ranks, "--reshard-after-forward", group)
    succeed("fsdp-run", plan, "--verify", "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, ranks),
            "--tolerance", GRAPHS[graph])


# Each module that has parameters of its own is a unit.
@pytest.mark.covers("always_wrap_policy")
def test_every_module_is_a_unit(tmp_path, references):
    report = tmp_path / "r.json"
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 3, "--wrap", "scope:.*", "-o", tmp_path / "p.plan", "--report", report)
    names = {unit["name"] for unit in json.loads(report.read_text())["units"]}
    assert {"m.transformer.h.0.attn.c_attn", "m.transformer.h.1.mlp.c_proj", "m.transformer.ln_f"} < names
    succeed("fsdp-run", tmp_path / "p.plan", "--weights", FIXTURES / "gpt2.pt2", "--reference", references("gpt2", 3))


# One flat parameter for both blocks: gathered together, reduced together.
@pytest.mark.covers("fully_shard of a list of modules")
@pytest.mark.parametrize("graph", ["gpt2", "frozen"])
def test_merged_units(graph, plans, references):
    plan = plans(graph, 2, "--bucket", "merge:units:2")
    succeed("fsdp-run", plan, "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, 2))


# Several collectives as one over a buffer that is copied into and out of, also where each unit is alone in it.
@pytest.mark.covers("copies into and out of the all-gather")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("graph", ["gpt2", "frozen", "llama", "llama_bf16"])
def test_copied_buckets(graph, strategy, plans, references):
    for ranks, bucket in (3, "copy:units:1"), (4, "copy:units:2"), (2, "copy:bytes:100000"):
        plan = plans(graph, ranks, "--strategy", strategy, "--bucket", bucket)
        succeed("fsdp-run", plan, "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, ranks),
                "--tolerance", GRAPHS[graph])


# Parameters kept wider or narrower than the archive has them; rounding is said.
@pytest.mark.parametrize("storage, tolerance", [("f64", 1e-5), ("bf16", 3e-2)])
def test_storage_of_another_dtype(storage, tolerance, plans, references):
    plan, weights = plans("llama", 3, "--storage-dtype", storage), FIXTURES / "llama.pt2"
    result = succeed("fsdp-run", plan, "--weights", weights, "--reference", references("llama", 3), "--tolerance", tolerance)
    note = f"note: {weights}: rounded from f32 to bf16, as the plan stores them: " if storage == "bf16" else ""
    assert result.stderr.startswith(note) and result.stderr.count("\n") == (storage == "bf16"), result.stderr


# A check that accepts everything is worth nothing: another batch must be noticed, as failed check, not as rejection.
def test_reference_of_another_batch_is_noticed(plans, references, tmp_path):
    from safetensors.torch import load_file, save_file

    wrong = load_file(references("gpt2", 3))
    wrong["in_0"] = wrong["in_0"].roll(1, 0).contiguous()
    save_file(wrong, tmp_path / "wrong.safetensors")
    result = tool("fsdp-run", plans("gpt2", 3), "--ranks", 3, "--weights", FIXTURES / "gpt2.pt2",
                  "--reference", tmp_path / "wrong.safetensors")
    assert result.returncode == 2, result.stderr


# Five AdamW updates with weight decay on different data per rank: losses and every parameter, frozen ones included.
@pytest.mark.covers("_root_pre_forward", "summon_full_params")
@pytest.mark.parametrize("graph", ["gpt2", "frozen", "role_batch_norm"])
def test_training_equals_pytorch(graph, plans):
    from safetensors import safe_open

    reference = FIXTURES / f"{graph}_train2x5.safetensors"
    result = succeed("fsdp-run", plans(graph, 2), "--weights", FIXTURES / f"{graph}.pt2", "--reference", reference)
    with safe_open(reference, "pt") as file:
        assert file.metadata()["weight_decay"] == "0.1"
        tensors = sum(name == "losses" or name.startswith("param.") for name in file.keys())
    assert result.stdout.startswith(f"compared {tensors} tensors, "), result.stdout


# The decay is large enough to be seen: another one must be noticed.
def test_training_with_another_weight_decay_is_noticed(plans, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    reference = FIXTURES / "frozen_train2x5.safetensors"
    with safe_open(reference, "pt") as file:
        save_file(load_file(reference), tmp_path / "wrong.safetensors", metadata={**file.metadata(), "weight_decay": "0.05"})
    result = tool("fsdp-run", plans("frozen", 2), "--weights", FIXTURES / "frozen.pt2", "--reference", tmp_path / "wrong.safetensors")
    assert result.returncode == 2, result.stdout + result.stderr


# Momentum starts as the first gradient, not as a share of it: only a second step tells. Frozen parameters stay.
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_pytorch(momentum, tmp_path):
    reference, plan = tmp_path / "reference.safetensors", tmp_path / "step.plan"
    make_reference(reference, "frozen", 2, "--steps", 4, "--optimizer", "sgd", "--lr", 0.1, "--momentum", momentum)
    flag = ["--momentum"] if momentum else []
    succeed("fsdp-plan", FIXTURES / "frozen.pt2", "--ranks", "2", "--optimizer", "sgd", *flag, "-o", plan)
    succeed("fsdp-run", plan, "--ranks", 2, "--weights", FIXTURES / "frozen.pt2", "--reference", reference)
    if momentum:  # a training is told by an option
        train = ["fsdp-run", plan, "--weights", FIXTURES / "frozen.pt2", "--data", FIXTURES / "frozen_train2x5.safetensors", "--steps", 3]
        losses = [[json.loads(line)["loss"] for line in succeed(*train, "--json", "--momentum", value).stdout.splitlines()[:3]] for value in (0, momentum)]
        assert losses[0][:2] == losses[1][:2] and losses[0][2] != losses[1][2]


# Nobody would notice before the training has ended otherwise than it should.
@pytest.mark.parametrize("plan_options, option, what", [
    (["--optimizer", "sgd"], "--momentum", "SGD and a momentum buffer"), ([], "--momentum", "SGD and a momentum buffer"),
    (["--optimizer", "sgd", "--momentum"], "--beta1", "AdamW"), (["--optimizer", "sgd"], "--eps", "AdamW")])
def test_hyper_parameters_that_no_update_reads_are_rejected(plan_options, option, what, plans):
    result = tool("fsdp-run", plans("frozen", 2, *plan_options), "--weights", FIXTURES / "frozen.pt2", "--data",
                  FIXTURES / "frozen_train2x5.safetensors", "--steps", 2, option, 0.5)
    assert result.returncode == 1 and f"expected a plan with {what} for {option}, found one without" in result.stderr, result.stderr
