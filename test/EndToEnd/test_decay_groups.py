"""Decay groups against torch.optim.AdamW with two parameter groups: what `--no-decay` names has no weight decay."""

import dataclasses
import re

import pytest
import torch
from conftest import FIXTURES, succeed, tool

STEPS = 20


@dataclasses.dataclass(frozen=True)
class Grouped:
    """torch.optim.AdamW with what a pattern of the option matches in a group without decay."""

    dims: int
    regex: str
    hyper = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.5}

    def __call__(self, parameters):
        groups = {True: [], False: []}
        for name, parameter in parameters.items():
            groups[parameter.dim() < self.dims or bool(self.regex and re.search(self.regex, name))].append(parameter)
        assert groups[True] and groups[False]
        return torch.optim.AdamW([{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.999),
                                 eps=1e-8, weight_decay=0.5, fused=True)

    def __str__(self):
        return "|".join(filter(None, [f"dims<{self.dims}" if self.dims else "", self.regex]))


BIAS = Grouped(0, "bias|norm|ln_")


# Groups of a unit lie between one another and between frozen parameters, and end anywhere in a rank's shard.
@pytest.mark.parametrize("graph, ranks, groups", [
    ("gpt2", 1, BIAS), ("gpt2", 2, BIAS), ("gpt2", 3, Grouped(2, "")), ("llama", 2, Grouped(2, "embed")), ("llama", 3, BIAS),
    ("bert", 2, Grouped(0, r"LayerNorm|layer\.\d+\..*bias")), ("frozen", 2, BIAS), ("frozen", 3, Grouped(2, "c_fc"))], ids=str)
def test_groups_are_those_of_pytorch(graph, ranks, groups, plans, trainings):
    plan = plans(graph, ranks, "--no-decay", groups)
    # The true gradient of GPT-2's key biases is zero: AdamW makes large steps of what rounding leaves.
    succeed("fsdp-run", plan, "--verify", "--weights", FIXTURES / f"{graph}.pt2", "--reference", trainings(graph, ranks, STEPS, groups),
            "--tolerance", 5e-4 if graph == "gpt2" else 1e-5)


# The comparison above can tell: another group is another training.
def test_other_groups_are_another_training(plans, trainings):
    for options in [], ["--no-decay", "dims<2"]:
        result = tool("fsdp-run", plans("llama", 2, *options), "--weights", FIXTURES / "llama.pt2",
                      "--reference", trainings("llama", 2, STEPS, Grouped(2, "embed")))
        assert result.returncode == 2, result.stdout + result.stderr


# Both groups in a plan of several units: one buffer of numbers each, and at most two updates for a unit.
def test_updates_by_group(plans, tmp_path):
    text = succeed("fsdp-translate", "--import-plan", plans("gpt2", 2, "--no-decay", "bias")).stdout
    assert 'plan.buffer hyper "no_decay" number 1 in host' in text
    units = len(re.findall(r"plan\.unit ", text))
    assert units < len(re.findall(r"plan\.adamw ", text)) <= 2 * units
    everything = succeed("fsdp-translate", "--import-plan", plans("gpt2", 2, "--no-decay", ".")).stdout
    assert len(re.findall(r"plan\.adamw ", everything)) == units and "hyper number 0" not in everything
