"""One tiny graph per role that a graph can play: each runs with parity, or is rejected by one sentence."""

import pytest
from conftest import FIXTURES, succeed

PARITY = {
    "role_batch_norm": 1e-5, "role_user_output": 1e-5, "role_input_grad": 1e-5, "role_channels_last": 1e-5,
    "role_tied": 1e-5, "role_frozen": 1e-5, "role_unused": 1e-5, "role_bf16": 3e-2, "role_tiny": 1e-5,
    "role_encoder_decoder": 1e-5, "role_gpt2_renamed": 1e-5, "role_chain": 1e-5,
}


@pytest.mark.covers(
    "_register_pre_backward_hooks", "_register_hook", "_register_post_backward_hook", "_post_backward_hook",
    "a unit used twice", "tied parameters", "torch.autograd", "post-backward of a first layer without input gradient")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("graph", PARITY)
def test_role_runs_with_parity(graph, ranks, plans, references):
    succeed("fsdp-run", plans(graph, ranks), "--ranks", ranks, "--weights", FIXTURES / f"{graph}.pt2",
            "--reference", references(graph, ranks), "--tolerance", PARITY[graph])


# An output that is kept is what every rank returns for its own batch; one that is not is named by the report.
@pytest.mark.covers("_register_hook")
def test_outputs_beside_the_loss_are_kept_or_named(tmp_path, references):
    archive, plan = FIXTURES / "role_user_output.pt2", tmp_path / "step.plan"
    assert "note: output 0 ('detach_3') is not kept; --keep-output keeps it" in succeed("fsdp-plan", archive, "--ranks", 3, "-o", plan).stdout
    reference = references("role_user_output", 3)
    dropped = succeed("fsdp-run", plan, "--ranks", 3, "--weights", archive, "--reference", reference).stdout
    assert "not kept" not in succeed("fsdp-plan", archive, "--ranks", 3, "--keep-output", "-o", plan).stdout
    kept = succeed("fsdp-run", plan, "--ranks", 3, "--weights", archive, "--reference", reference).stdout
    assert "compared 33 tensors" in dropped and "compared 36 tensors" in kept


# Sizes left open are bound on the command line; the example's sizes are those of the reference.
@pytest.mark.parametrize("ranks", [1, 3])
def test_dynamic_shape_runs_when_bound(ranks, plans, references):
    plan = plans("role_dynamic", ranks, "--bind", "hint")
    succeed("fsdp-run", plan, "--ranks", ranks, "--weights", FIXTURES / "role_dynamic.pt2",
            "--reference", references("role_dynamic", ranks))


# An operator that no torch library knows runs if the user's library registers it.
def test_custom_operator_runs_when_loaded(plans, references, operators):
    succeed("fsdp-run", plans("role_custom_op", 3), "--ranks", 3, "--weights", FIXTURES / "role_custom_op.pt2",
            "--load", operators, "--reference", references("role_custom_op", 3))
