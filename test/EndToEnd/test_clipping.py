"""Clipping the norm of all gradients (`--clip-grad-norm`), beside torch.nn.utils.clip_grad_norm_; and its proof."""

import dataclasses
import re

import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors.torch import save_file
from test_mutations import substitute

STEPS = 20


@dataclasses.dataclass
class Clipped:
    """torch.optim.AdamW of gradients whose norm is clipped."""

    max_norm: float
    order: float = 2.0
    hyper = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}

    def __call__(self, parameters):
        self.parameters = list(parameters.values())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
        return self

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm, self.order)
        self.optimizer.step()

    def __str__(self):
        return f"{self.max_norm}:{self.order:g}"


# AdamW hardly minds by what all gradients are scaled: SGD shows it in the parameters.
@dataclasses.dataclass
class ClippedSGD(Clipped):
    hyper = {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.0}

    def __call__(self, parameters):
        self.parameters = list(parameters.values())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        return self


CASES = [
    ("llama", ["--ranks", 1], ClippedSGD(0.5)),
    ("llama", ["--ranks", 2], Clipped(0.5)),
    ("gpt2", ["--ranks", 2], ClippedSGD(0.25)),
    ("gpt2", ["--ranks", 3, "--schedule", "fsdp2"], ClippedSGD(2.0, 1.0)),
    ("gpt2", ["--ranks", 2, "--schedule", "fsdp1"], ClippedSGD(0.01, float("inf"))),
    ("frozen", ["--ranks", 3, "--schedule", "list", "--hardware", "h100"], ClippedSGD(0.05)),
    ("bert", ["--ranks", 2, "--bucket", "merge:units:2", "--no-decay", "bias"], ClippedSGD(0.5)),
    # Ranks that have the same gradient count it once.
    ("gpt2", ["--mesh", "2x2"], ClippedSGD(0.25)),
    ("gpt2", ["--mesh", "2x2", "--unit", "root: strategy=no_shard; transformer.h.0: strategy=full_shard"], ClippedSGD(1.0, 1.0)),
    ("gpt2", ["--mesh", "shard=2,local=2", "--unit", "root: shard=local; transformer.h.0: shard=shard"], ClippedSGD(1.0, 1.0)),
    ("llama", ["--ranks", 2, "--unit", "root: strategy=no_shard"], ClippedSGD(0.01, float("inf"))),
    ("frozen", ["--ranks", 2, "--strategy", "no_shard"], ClippedSGD(0.05)),
]


def clipped(plans, graph, options, clip, *more):
    optimizer = [] if type(clip) is Clipped else ["--optimizer", "sgd"]
    ranks = dict(zip(options[::2], options[1::2])).get("--ranks", 4)
    return plans(graph, ranks, *options, *optimizer, "--clip-grad-norm", clip, *more), ranks


@pytest.mark.covers("clip_grad_norm_")
@pytest.mark.parametrize("graph, options, clip", CASES, ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value))
def test_a_clipped_training_is_that_of_pytorch(graph, options, clip, plans, trainings):
    plan, ranks = clipped(plans, graph, options, clip)
    for extra in ["--verify"], ["--overlap", "--chaos", "5"]:
        succeed("fsdp-run", plan, *extra, "--weights", FIXTURES / f"{graph}.pt2", "--reference", trainings(graph, ranks, STEPS, clip),
                "--tolerance", 1e-5)


# Units of several dtypes: each gradient counts as it is stored.
@pytest.mark.covers("a norm over gradients of several dtypes")
def test_a_norm_over_dtypes(tmp_path, references):
    norms = {}
    for name, rule in ("one", []), ("several", ["--unit", "model.layers.1: storage=f32 reduce=f32"]):
        plan = tmp_path / f"{name}.plan"
        succeed("fsdp-plan", FIXTURES / "llama_bf16.pt2", "--ranks", 3, *rule, "--clip-grad-norm", "0.5", "-o", plan)
        succeed("fsdp-run", plan, "--verify", "--weights", FIXTURES / "llama_bf16.pt2", "--reference", references("llama_bf16", 3),
                "--tolerance", 3e-2)
        norms[name] = succeed("fsdp-translate", "--import-plan", plan).stdout.count("plan.measure squared_norm")
    assert norms["one"] == norms["several"] >= 3


# The comparison above can tell: another bound or order is another training, and so is none.
def test_another_bound_is_another_training(plans, trainings):
    for other in [], ["--clip-grad-norm", "0.2"], ["--clip-grad-norm", "0.25:1"]:
        plan = plans("gpt2", 2, "--optimizer", "sgd", *other)
        result = tool("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--reference", trainings("gpt2", 2, STEPS, ClippedSGD(0.25)))
        assert result.returncode == 2, result.stdout + result.stderr


class Linear(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sharded, self.replicated = Linear(4), Linear(1)

    def forward(self, sharded, replicated):
        return self.sharded(sharded) + self.replicated(replicated)


# Recorded from FSDP1 on two ranks: gradients (3, 4) and (0, 12), and 84 that both ranks have; 6.5 is the largest norm.
@pytest.mark.parametrize("order, replicated, total", [("1", 0.0, 19.0), ("2", 0.0, 13.0), ("inf", 0.0, 12.0),
                                                      ("1", 84.0, 103.0), ("2", 84.0, 85.0), ("inf", 84.0, 84.0)])
def test_norms_are_those_of_fsdp(order, replicated, total, tmp_path):
    import fsdp_mlir

    gradients = {"sharded": torch.tensor([3.0, 4.0, 0.0, 12.0]), "replicated": torch.tensor([replicated])}
    fsdp_mlir.save(fsdp_mlir.capture(Two(), tuple(gradients.values())), tmp_path / "two.pt2", verify=False)
    succeed("fsdp-plan", tmp_path / "two.pt2", "--ranks", 2, "--wrap", "scope:(sharded|replicated)", "--unit", "replicated: strategy=no_shard",
            "--optimizer", "sgd", "--clip-grad-norm", f"6.5:{order}", "-o", tmp_path / "two.plan")
    factor = 6.5 / (total + 1e-6)
    save_file({**{f"in_{i}": torch.stack([value, value]) for i, value in enumerate(gradients.values())}, "losses": torch.zeros(1),
               **{f"param.{name}.weight": -factor * value for name, value in gradients.items()}},
              tmp_path / "reference.safetensors", {"lr": "1.0", "weight_decay": "0.0", "momentum": "0.0"})
    succeed("fsdp-run", tmp_path / "two.plan", "--weights", tmp_path / "two.pt2", "--reference", tmp_path / "reference.safetensors", "--tolerance", 1e-6)


@pytest.fixture(scope="module")
def texts(plans):
    """texts(options, clip): a clipped plan of GPT-2 as text."""
    return lambda options, clip: succeed("fsdp-translate", "--import-plan", clipped(plans, "gpt2", options, clip)[0]).stdout


def verdict(text, folder):
    (folder / "mutant.mlir").write_text(text)
    result = tool("fsdp-opt", folder / "mutant.mlir", "--plan-verify", "-o", folder / "proved.mlir")
    return "proved" if result.returncode == 0 else result.stderr


MEASURE = r"( *plan\.measure \w+ @[\w.]+ \[.*?\] %\S+ initial )(%\S+)( to )(%\S+)( <update>)\n"


def without_a_unit(text):
    tables, commands = text.split("plan.program @step", 1)
    found = list(re.finditer(MEASURE, commands))[-1]
    return f"{tables}plan.program @step" + re.sub(rf"{found[4]}(?!\w)", found[2], commands.replace(found[0], ""))


CLIP, LARGEST, FLAT, HYBRID = ClippedSGD(0.375), ClippedSGD(0.375, float("inf")), ["--ranks", 2], ["--mesh", "2x2"]
NORM = r"(plan\.all_reduce) @\w+( divide <pre = 1, post = )1(> via )f64( max)?( %\S+ to %\S+) for norm <update> on all_reduce"
MUTANTS = {
    "a unit left out": (FLAT, CLIP, without_a_unit),
    "a unit in the place of another": (FLAT, CLIP, lambda text: substitute(
        r"(plan\.measure squared_norm) (@\S+ \[.*?\] %\S+) (.*\n.*plan\.measure squared_norm) @\S+ \[.*?\] %\S+", r"\1 \2 \3 \2", text)),
    "a sum over copies": (HYBRID, CLIP, lambda text: substitute(
        NORM, r"\1 @replicate_shard_all_reduce\g<2>1\3f64\5 for norm <update> on all_reduce", text)),
    "divided": (FLAT, CLIP, lambda text: substitute(NORM, r"\1 @shard_all_reduce\g<2>2\3f64\5 for norm <update> on all_reduce", text)),
    "a sum of the largest": (FLAT, LARGEST, lambda text: substitute(NORM, r"\1 @shard_all_reduce\g<2>1\3f64\5 for norm <update> on all_reduce", text)),
    "no factor for one unit": (FLAT, CLIP, lambda text: substitute(r" clip %\S+", "", text)),
    "another bound": (FLAT, CLIP, lambda text: substitute(r'("mul\.\w+"\(%\S+,) 0\.375', r"\1 0.25", text)),
    "another order": (FLAT, CLIP, lambda text: text.replace("squared_norm", "abs_sum")),
    "fewer elements": (FLAT, CLIP, lambda text: substitute(r"(plan\.measure squared_norm @\S+ \[0,) \d+", r"\1 64", text)),
}


@pytest.mark.parametrize("options, clip", [(["--ranks", 1], Clipped(0.5)), (["--ranks", 2], Clipped(0.5)), (["--mesh", "2x2"], Clipped(0.5)),
                                           (["--ranks", 2], Clipped(0.5, float("inf")))], ids=str)
def test_a_clipped_plan_is_proved(options, clip, texts, tmp_path):
    assert verdict(texts(options, clip), tmp_path) == "proved"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_plan_that_clips_otherwise_is_refuted(mutant, texts, tmp_path):
    options, clip, change = MUTANTS[mutant]
    answer = verdict(change(texts(options, clip)), tmp_path)
    assert "the end of program step: expected the parameter " in answer and "cannot prove" not in answer, answer


# Where each rank has a factor of its own, its shard is not followed to the whole: that is an error as well.
def test_a_norm_of_one_rank_is_not_proved(texts, tmp_path):
    text = substitute(r"plan\.all_reduce @shard_all_reduce divide <pre = 1, post = 1> via f64 (%\S+ to %\S+) for norm <update> on all_reduce",
                      r"plan.copy \1 <update> on all_reduce", texts(FLAT, CLIP))
    assert "cannot prove the plan: the end of program step: expected the parameter " in verdict(text, tmp_path)


def test_a_plan_that_does_not_clip_is_no_command_longer(plans):
    # The text of the plan is the same but for the rest of this option.
    text = succeed("fsdp-translate", "--import-plan", plans("gpt2", 2)).stdout
    assert not re.search(r"plan\.measure|for norm|clip", text)


# One reduction for each set of axes along which units are sharded.
@pytest.mark.parametrize("options, count", [
    (["--ranks", 1], 0), (["--ranks", 3], 1), (["--ranks", 2, "--strategy", "no_shard"], 0), (["--mesh", "2x2"], 1),
    (["--mesh", "2x2", "--unit", "root: strategy=full_shard; transformer.h.0: strategy=no_shard"], 2)], ids=str)
def test_reductions(options, count, texts):
    assert len(re.findall(r"plan\.all_reduce .* for norm <update>", texts(options, Clipped(0.5)))) == count
