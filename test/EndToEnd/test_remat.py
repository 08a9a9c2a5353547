"""Recomputation: gradients as PyTorch's own, with different data on each rank, in less memory."""

import json

import pytest
from conftest import FIXTURES, succeed

# All blocks, parts of them, and what has state (batch norm) or is frozen.
CASES = {"gpt2": r"transformer\.h\.\d+", "llama": r".*\.(self_attn|mlp)", "bert": r".*layer\.\d+", "frozen": r"transformer\.h\.\d+",
         "role_batch_norm": ".*", "role_chain": r"u\.\d+"}


def arena(plans, tmp_path, graph, *options):
    report = tmp_path / "report.json"
    plans(graph, 2, "--report", str(report), *options)
    return json.loads(report.read_text())["memory"]["arena_bytes"]


@pytest.mark.covers("AC", "_pre_forward")
@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op"])
@pytest.mark.parametrize("graph", CASES)
def test_recomputed_step_equals_pytorch(graph, strategy, plans, references):
    plan = plans(graph, 2, "--strategy", strategy, "--remat", f"scope:{CASES[graph]}")
    succeed("fsdp-run", plan, "--ranks", 2, "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, 2))


@pytest.mark.parametrize("graph", ["gpt2", "llama", "bert"])
def test_recomputation_takes_less_memory(graph, plans, tmp_path):
    plain = arena(plans, tmp_path, graph)
    assert arena(plans, tmp_path, graph, "--remat", f"scope:{CASES[graph]}") < 0.9 * plain
