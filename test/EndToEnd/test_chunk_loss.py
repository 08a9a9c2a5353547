"""The loss in chunks of rows: losses, gradients and trainings of PyTorch, in less memory."""

import json
import re

import make_rank_reference
import pytest
import torch
import torch.nn.functional as F
from conftest import FIXTURES, succeed, tool
from test_decay_groups import BIAS

import fsdp_mlir

# Three chunks are not of equal size in any: 30 and 28 rows. A gradient in bf16 is rounded once for each chunk.
GRAPHS = {"gpt2": 1e-5, "llama": 1e-5, "role_tied": 1e-5, "llama_bf16": 2**-7}
OPTIONS = [(), ("--wrap", "size:2000"), ("--strategy", "shard_grad_op"), ("--remat", "scope:.*"), ("--schedule", "fsdp2")]


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("graph", GRAPHS)
def test_loss_and_gradients_are_those_of_pytorch(graph, chunks, plans, references):
    plan = plans(graph, 3, "--chunk-loss", str(chunks))
    succeed("fsdp-run", plan, "--verify", "--weights", FIXTURES / f"{graph}.pt2", "--reference", references(graph, 3), "--tolerance", GRAPHS[graph])


# A head of its own unit is gathered for both phases while the chunks run.
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_chunks_go_with_other_options(options, plans, references):
    plan = plans("llama", 3, "--chunk-loss", "4", *options)
    succeed("fsdp-run", plan, "--verify", "--weights", FIXTURES / "llama.pt2", "--reference", references("llama", 3), "--tolerance", 1e-5)


@pytest.mark.parametrize("options", [("--auto", "--hardware", "h100"), ("--device", "cuda")], ids=" ".join)
def test_plans_with_chunks_are_proved(options, plans):
    plans("llama", 2, "--chunk-loss", "4", *options)


def test_training_is_that_of_pytorch(plans, trainings):
    succeed("fsdp-run", plans("llama", 3, "--no-decay", BIAS, "--chunk-loss", "3"), "--weights", FIXTURES / "llama.pt2",
            "--reference", trainings("llama", 3, 20, BIAS), "--tolerance", 1e-5)


class Head(torch.nn.Module):
    """Rows of which the first `ignored` do not count, and a loss that is a mean, or a sum that is divided afterwards."""

    def __init__(self, ignored, reduction, bias):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11, bias=bias)
        self.ignored, self.reduction = ignored, reduction

    def forward(self, ids):
        target = ids.masked_fill(torch.arange(len(ids)) < self.ignored, -1)
        loss = F.cross_entropy(self.head(self.embed(ids)), target, ignore_index=-1, reduction=self.reduction)
        return loss if self.reduction == "mean" else loss / 7


@pytest.mark.parametrize("ignored", [0, 9])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_chunks_may_be_ignored_as_a_whole(ignored, reduction, bias, tmp_path):
    torch.manual_seed(0)
    archive, plan, reference = (tmp_path / name for name in ("head.pt2", "step.plan", "reference.safetensors"))
    fsdp_mlir.save(fsdp_mlir.capture(Head(ignored, reduction, bias), (torch.randint(11, (14,)),)), archive)
    shown = succeed("fsdp-plan", archive, "--ranks", 2, "--chunk-loss", 4, "--remarks-filter", "aten-chunk-loss", "-o", plan)
    assert "chunks" in shown.stderr and "whole" not in shown.stderr, shown.stderr
    assert make_rank_reference.main(["2", str(archive), "--output", str(reference)]) == 0
    succeed("fsdp-run", plan, "--weights", archive, "--reference", reference, "--tolerance", 1e-5)


@pytest.mark.parametrize("options", [("--accumulate", "2:mean"), ("--grad-scaler", "default")], ids=" ".join)
def test_chunks_have_the_gradient_that_the_loss_gets(options, tmp_path):
    archive = tmp_path / "head.pt2"
    fsdp_mlir.save(fsdp_mlir.capture(Head(3, "mean", bias=True), (torch.randint(11, (14,)),)), archive)
    succeed("fsdp-plan", archive, "--ranks", 2, "--chunk-loss", 4, *options, "-o", tmp_path / "step.plan")


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(500, 4), torch.nn.Linear(4, 500, bias=False)

    def forward(self, ids):
        return F.cross_entropy(self.head(self.embed(ids)), ids)


def test_the_logits_of_one_chunk_are_there_at_a_time(tmp_path):
    archive, rows = tmp_path / "wide.pt2", 256
    fsdp_mlir.save(fsdp_mlir.capture(Wide(), (torch.arange(rows),)), archive)

    def peak(chunks):
        report = tmp_path / "report.json"
        succeed("fsdp-plan", archive, "--ranks", 2, "--chunk-loss", chunks, "-o", tmp_path / "step.plan", "--report", report)
        return json.loads(report.read_text())["memory"]["scheduled_bytes"]

    whole, logits, small = peak(1), 4 * rows * 500, 100_000
    for chunks in 2, 4, 8:
        # The log-softmax and two gradients, of the whole or of a chunk; the rest is parameters, their gradients and rows of 4.
        assert abs(whole - peak(chunks) - (1 - 1 / chunks) * 3 * logits) < small


# The number of chunks is a decision, too: the fastest that keeps to the budget, and the plan is that of the number. Who does not ask is told which would do.
def test_the_number_of_chunks_is_decided(tmp_path):
    archive, rows = tmp_path / "wide.pt2", 256
    fsdp_mlir.save(fsdp_mlir.capture(Wide(), (torch.arange(rows),)), archive)
    options = ["--ranks", 2, "--auto", "--hardware", "h100", "--evaluations", 300, "--report", tmp_path / "r.json"]

    def step(*own):
        succeed("fsdp-plan", archive, *options, *own, "-o", tmp_path / "s.plan")
        return json.loads((tmp_path / "r.json").read_text()), (tmp_path / "s.plan").read_bytes()

    whole = step()[0]["memory"]["arena_bytes"]
    for budget in 2 * whole, 3 * whole // 4, whole // 2:
        report, plan = step("--budget", budget, "--chunk-loss", "auto")
        search = report["search"]
        tried = {int(row["name"]): row.get("mean_nanoseconds", 0) for row in search["chunks"]}
        chosen = int(search["chunk_loss"])
        assert list(tried) == [1, 2, 4, 8, 16] and tried[chosen] == min(filter(None, tried.values()))
        assert (chosen == 1) == (budget > whole) == bool(tried[1])
        assert step("--budget", budget, "--chunk-loss", chosen)[1] == plan
    result = tool("fsdp-plan", archive, *options, "--budget", whole // 2)
    assert result.returncode == 1 and re.search(r"or allow more, or give --chunk-loss [248], with which it fits\n", result.stderr), result.stderr
    result = tool("fsdp-plan", archive, *options, "--budget", 1000, "--chunk-loss", "auto")
    assert result.returncode == 1 and re.fullmatch(r"fsdp-plan: error: no number of chunks of the loss holds at most 1000 B: the smallest budget that is known to work is \d+ bytes; "
                                                   r"allow more, or more ranks\n", result.stderr), result.stderr
    # With the mesh: that is decided first.
    options[:2] = []
    report, plan = step("--ranks", 4, "--mesh", "auto", "--budget", whole // 2, "--chunk-loss", "auto")
    assert step("--mesh", report["search"]["mesh"], "--budget", whole // 2, "--chunk-loss", report["search"]["chunk_loss"])[1] == plan
