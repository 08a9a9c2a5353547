"""Scaling the loss (`--grad-scaler`), beside torch.amp.GradScaler; and its proof."""

import dataclasses
import re

import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors.torch import load_file, save_file
from test_clipping import verdict
from test_fsdp_training import cases, models
from test_mutations import substitute

import fsdp_mlir

STEPS = 20
FIELDS = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


@dataclasses.dataclass
class Scaled:
    """An optimizer of gradients that torch.amp.GradScaler scales; perhaps their norm is clipped."""

    optimizer: str
    scaler: dict
    max_norm: float = 0

    @property
    def hyper(self):
        return {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01} if self.optimizer == "adamw" else \
            {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.0}

    def __call__(self, parameters):
        self.parameters = list(parameters.values())
        self.steps = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.01, fused=True) if self.optimizer == "adamw" else \
            torch.optim.SGD(self.parameters, lr=0.1)
        self.amp = torch.amp.GradScaler("cpu", **self.scaler)
        return self

    def step(self):
        scale = self.amp.scale(torch.ones(()))
        for parameter in self.parameters:
            parameter.grad.mul_(scale)
        if self.max_norm:
            self.amp.unscale_(self.steps)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.amp.step(self.steps)
        self.amp.update()


def spell(scaler):
    return ",".join(f"{name}={value}" for name, value in scaler.items()) or "default"


GROWS = {"init_scale": 3.0, "growth_factor": 1.5, "growth_interval": 3}
CASES = [
    ("role_tied", ["--ranks", 2], Scaled("adamw", {})),
    ("role_encoder_decoder", ["--ranks", 3, "--schedule", "fsdp2"], Scaled("sgd", GROWS)),
    ("role_unused", ["--mesh", "2x2", "--unit", "root: strategy=no_shard"], Scaled("sgd", GROWS)),
    ("role_tied", ["--ranks", 2, "--clip-grad-norm", 0.25], Scaled("sgd", GROWS, 0.25)),
]


@pytest.fixture(scope="module")
def gpt2(once):
    """The path of a captured GPT-2."""
    def make(path):
        case = {name: values[0] for name, values in cases.FEATURES.items()}
        fsdp_mlir.save(fsdp_mlir.capture(models.build(case), models.batches(1)[0]), path, verify=False)

    return once("scaled-gpt2.pt2", make)


def plan_of(weights, path, *options):
    succeed("fsdp-plan", weights, "-o", path, *options)
    return path


@pytest.mark.covers("misuse of the grad scaler")
@pytest.mark.parametrize("graph, options, scaled", CASES, ids=str)
def test_a_scaled_training_is_that_of_pytorch(graph, options, scaled, plans, trainings):
    ranks = dict(zip(options[::2], options[1::2])).get("--ranks", 4)
    plan = plans(graph, ranks, *options, "--optimizer", scaled.optimizer, "--grad-scaler", spell(scaled.scaler))
    for extra in ["--verify"], ["--overlap", "--chaos", "5"]:
        succeed("fsdp-run", plan, *extra, "--weights", FIXTURES / f"{graph}.pt2", "--reference", trainings(graph, ranks, STEPS, scaled),
                "--tolerance", 1e-5)


# By powers of two, the scaled training rounds as the other one does: it leaves the same bits, whatever else is asked for.
@pytest.mark.parametrize("options", [
    ["--ranks", 1], ["--ranks", 3, "--schedule", "fsdp1"], ["--ranks", 3, "--schedule", "fsdp2", "--no-decay", "bias"], ["--ranks", 2, "--clip-grad-norm", 0.5],
    ["--ranks", 2, "--clip-grad-norm", "0.1:1", "--accumulate", 2, "--no-sync"], ["--mesh", "2x2", "--accumulate", 3],
    ["--ranks", 1, "--offload", "all"], ["--ranks", 2, "--offload", "optimizer", "--clip-grad-norm", 0.5], ["--mesh", "2x2", "--offload", "all", "--accumulate", 2],
    ["--ranks", 2, "--bucket", "copy:units:2", "--remat", r"scope:transformer\.h\.\d+"], ["--ranks", 2, "--strategy", "no_shard", "--optimizer", "sgd"],
    ["--ranks", 2, "--unit", "root: strategy=no_shard", "--optimizer", "sgd", "--momentum"]], ids=str)
def test_scales_that_are_powers_of_two_do_not_show(options, gpt2, tmp_path):
    save_file({f"in_{i}": torch.stack(values) for i, values in enumerate(zip(*models.batches(5 * 3 * 4)))}, tmp_path / "data.safetensors")
    found = []
    for scaler in [], ["--grad-scaler", "init_scale=1024,growth_interval=2"]:
        found.append(tmp_path / f"{len(found)}.safetensors")
        plan = plan_of(gpt2, tmp_path / "scaled.plan", *options, *scaler)
        succeed("fsdp-run", plan, "--verify", "--weights", gpt2, "--data", tmp_path / "data.safetensors", "--steps", 5, "--summon", found[-1])
    plain, scaled = map(load_file, found)
    assert scaled.pop("grad_scaler.scale") == 4096 and scaled.pop("grad_scaler.growth_tracker") == 1 and scaled.pop("grad_scaler.skipped") == 0
    assert all(torch.equal(value, scaled[name]) for name, value in plain.items()) and len(plain) == len(scaled)


class Linear(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


# Recorded of FSDP1: what overflows on one rank skips the update of all, and the scale backs off.
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("element", [0, 3])
def test_an_overflow_on_one_rank_skips_the_update_of_all(optimizer, element, tmp_path):
    fsdp_mlir.save(fsdp_mlir.capture(Linear(), (torch.ones(4),)), tmp_path / "linear.pt2", verify=False)
    scaler = {"init_scale": 4.0, "growth_interval": 2}
    succeed("fsdp-plan", tmp_path / "linear.pt2", "--ranks", 2, "--optimizer", optimizer, "--grad-scaler", spell(scaler), "-o", tmp_path / "linear.plan")
    gradients = torch.rand(6, 2, 4, generator=torch.Generator().manual_seed(0)) - 0.5
    gradients[2, 1, element] = 1e38 # eight times this is infinite
    save_file({"gradient": gradients.flatten(0, 1)}, tmp_path / "data.safetensors")

    parameter = torch.nn.Parameter(torch.zeros(4))
    expected = Scaled(optimizer, scaler)({"weight": parameter})
    states = [(4, 1, 0), (8, 0, 0), (4, 0, 1), (4, 1, 1), (8, 0, 1), (8, 1, 1)]
    for step, (scale, tracker, skipped) in enumerate(states):
        parameter.grad = gradients[step].mean(0)
        expected.step()
        assert expected.amp.get_scale() == scale
        succeed("fsdp-run", tmp_path / "linear.plan", "--verify", "--weights", tmp_path / "linear.pt2", "--data", tmp_path / "data.safetensors",
                "--steps", step + 1, "--summon", tmp_path / "state.safetensors", *(f"--{name.replace('_', '-')}={value}" for name, value in expected.hyper.items()))
        found = load_file(tmp_path / "state.safetensors")
        assert [found[f"grad_scaler.{name}"].item() for name in ("scale", "growth_tracker", "skipped")] == [scale, tracker, skipped]
        torch.testing.assert_close(found["weight"], parameter.detach(), rtol=1e-5, atol=1e-7)


# A training goes on with the scale that it ended with. (AdamW's states would begin anew.)
def test_what_is_summoned_goes_on(gpt2, tmp_path):
    rows = [torch.stack(values) for values in zip(*models.batches(8))]
    for name, part in ("all", slice(8)), ("first", slice(3)), ("second", slice(3, 8)):
        save_file({f"in_{i}": row[part].contiguous() for i, row in enumerate(rows)}, tmp_path / f"{name}.safetensors")
    plan = plan_of(gpt2, tmp_path / "x.plan", "--ranks", 1, "--optimizer", "sgd", "--grad-scaler", "growth_interval=2")
    for data, steps, weights in ("all", 8, gpt2), ("first", 3, gpt2), ("second", 5, tmp_path / "first.out.safetensors"):
        succeed("fsdp-run", plan, "--weights", weights, "--data", tmp_path / f"{data}.safetensors", "--steps", steps,
                "--summon", tmp_path / f"{data}.out.safetensors")
    whole, halves = load_file(tmp_path / "all.out.safetensors"), load_file(tmp_path / "second.out.safetensors")
    assert whole["grad_scaler.scale"] == 65536 * 2**4 and all(torch.equal(value, halves[name]) for name, value in whole.items())


@pytest.fixture(scope="module")
def text(gpt2, once):
    """The plan of a scaled training, as text."""
    plan = once("scaled.plan", lambda path: plan_of(gpt2, path, "--ranks", 2, "--grad-scaler", "default", "--clip-grad-norm", "0.5"))
    return succeed("fsdp-translate", "--import-plan", plan).stdout


MUTANTS = {
    "no scale for one unit": (r"( clip %\S+) scale %\S+", r"\1"),
    "one unit is updated in any case": (r" found_inf %\S+", ""),
    "the number of one unit counts all updates": (r" skipped %\S+", ""),
    "a unit left out": (r"(plan\.measure found_inf) (@\S+ \[.*?\] %\S+) (.*\n.*plan\.measure found_inf) @\S+ \[.*?\] %\S+", r"\1 \2 \3 \2"),
    "what one rank finds": (r"plan\.all_reduce @shard_all_reduce divide <pre = 1, post = 1> via f64 max (%\S+ to %\S+) for norm <update> on all_reduce",
                            r"plan.copy \1 <update> on all_reduce"),
    "another factor": (r'("_amp_update_scale\S*"\(.*?), 2\.0+(\S*),', r"\1, 4.0,"),
    "another interval": (r'("_amp_update_scale.*), 2000', r"\1, 2001"),
    "another loss": (r'"mul\.\w+"\((%\S+), %\S+\)(.*) <backward>', r'"mul.out"(\1, \1)\2 <backward>'),
}


def test_a_scaled_plan_is_proved(text, tmp_path):
    assert verdict(text, tmp_path) == "proved"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_plan_that_scales_otherwise_is_not_proved(mutant, text, tmp_path):
    answer = verdict(substitute(*MUTANTS[mutant], text), tmp_path)
    assert re.search("the end of .*program step: expected the ", answer), answer


def test_a_plan_that_does_not_scale_is_no_command_longer(plans):
    assert not re.search("found_inf|grad_scaler|_amp_", succeed("fsdp-translate", "--import-plan", plans("gpt2", 2)).stdout)


@pytest.mark.parametrize("given", ["init_scale=0", "growth_factor=1", "backoff_factor=1", "growth_interval=0", "growth_interval=3000000000",
                                   "init_scale=1e39", "scale=2", "init_scale", ""])
def test_a_scaler_that_is_none_is_rejected(given, tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--grad-scaler", given, "-o", tmp_path / "x.plan")
    assert result.returncode == 1 and "expected default, or some of init_scale=S above 0, growth_factor=G above 1" in result.stderr, result.stderr


def test_there_is_nothing_to_scale_without_an_optimizer(tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--grad-scaler", "default", "--optimizer", "none", "-o", tmp_path / "x.plan")
    assert result.returncode == 1 and "--grad-scaler: expected --optimizer adamw or sgd" in result.stderr


class Taken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
        self.grad_scaler = torch.nn.Module()
        self.grad_scaler.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return (self.weight * x * self.grad_scaler.scale).sum()


def test_the_names_of_its_state_are_its_own(tmp_path):
    fsdp_mlir.save(fsdp_mlir.capture(Taken(), (torch.ones(4),)), tmp_path / "taken.pt2", verify=False)
    result = tool("fsdp-plan", tmp_path / "taken.pt2", "--ranks", 2, "--grad-scaler", "default", "-o", tmp_path / "x.plan")
    assert result.returncode == 1 and 'expected no buffer that is called "grad_scaler.scale"' in result.stderr, result.stderr
