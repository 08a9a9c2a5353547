"""The loss in chunks of rows: losses, gradients and trainings of PyTorch, in less memory."""

import json

import make_rank_reference
import pytest
import torch
import torch.nn.functional as F
from conftest import FIXTURES, succeed
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
