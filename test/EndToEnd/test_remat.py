"""Recomputation: gradients as PyTorch's own, with different data on each rank, in less memory."""

import json
import re

import pytest
from conftest import FIXTURES, succeed, tool

# All blocks, parts of them, and what has state (batch norm) or is frozen.
CASES = {"gpt2": r"transformer\.h\.\d+", "llama": r".*\.(self_attn|mlp)", "bert": r".*layer\.\d+", "frozen": r"transformer\.h\.\d+",
         "role_batch_norm": ".*", "role_chain": r"u\.\d+"}


def arena(plans, tmp_path, graph, *options):
    report = tmp_path / "report.json"
    plans(graph, 2, "--report", str(report), *options)
    return json.loads(report.read_text())["memory"]["arena_bytes"]


@pytest.mark.covers("AC", "_pre_forward")
@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op"])
@pytest.mark.parametrize("what", ["scope", "cheap"])
@pytest.mark.parametrize("graph", CASES)
def test_recomputed_step_equals_pytorch(graph, what, strategy, plans, references):
    plan = plans(graph, 2, "--strategy", strategy, "--remat", f"{what}:{CASES[graph]}")
    succeed("fsdp-run", plan, "--ranks", 2, "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, 2))


@pytest.mark.parametrize("graph", ["gpt2", "llama", "bert"])
def test_recomputation_takes_less_memory(graph, plans, tmp_path):
    plain = arena(plans, tmp_path, graph)
    cheap = arena(plans, tmp_path, graph, "--remat", f"cheap:{CASES[graph]}")
    assert arena(plans, tmp_path, graph, "--remat", f"scope:{CASES[graph]}") < cheap < 0.97 * plain


# Products, attention and what is random are kept.
@pytest.mark.parametrize("graph", ["gpt2", "llama", "bert", "frozen"])
def test_what_is_cheap_has_no_products(graph, tmp_path):
    succeed("fsdp-translate", "--import-pt2", FIXTURES / f"{graph}.pt2", "-o", tmp_path / "model.mlir")
    text = succeed("fsdp-opt", tmp_path / "model.mlir", "--fsdp-assign-units", "--fsdp-shard=ranks=2", f"--fsdp-remat=remat=cheap:{CASES[graph]}").stdout
    names = set(re.findall(r'"([\w.]+)"[^\n]*<phase recompute>', text))
    costly = "mm|addmm|bmm|baddbmm|convolution|.*attention.*|.*dropout.*|rand.*|bernoulli.*"
    assert names and not [name for name in names if re.fullmatch(costly, name.split(".")[0])], names


# What is computed again is a module, however its parameters are wrapped.
@pytest.mark.parametrize("wrap", ["auto", "size:3000", "size:20000", r"scope:transformer\.h\.\d\.mlp"])
def test_a_budget_recomputes_blocks_whatever_the_units(wrap, tmp_path):
    def plan(*options):
        return succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--wrap", wrap, *options, "-o", tmp_path / "step.plan").stdout

    def holds(*options):
        shown = plan(*options, "--report", tmp_path / "report.json")
        return json.loads((tmp_path / "report.json").read_text())["memory"]["scheduled_bytes"], shown

    full, _ = holds()
    least, _ = holds("--remat", r"scope:transformer\.h\.\d+")
    assert least < full
    # The schedule keeps to it, not only what is counted ahead of the schedule; and the least can be had.
    for budget in (full, (full + least) // 2, least):
        found, shown = holds("--remat", f"budget:{budget}")
        assert found <= budget and ("operators computed again" in shown) == (budget < full), shown
    rejected = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--wrap", wrap, "--remat", f"budget:{least - 1}", "-o", tmp_path / "none.plan")
    assert rejected.returncode == 1 and "2 of 2 scopes recomputed, which is all that helps" in rejected.stderr, rejected.stderr
