"""What draws random numbers does so from its rank's own generator: as eager PyTorch does, and the same with every schedule."""

import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from conftest import FIXTURES, succeed, tool
from safetensors.torch import load_file, save_file
from test_mutations import plan_of, substitute, text_of
from torch import nn
from torch.utils.checkpoint import checkpoint

RANKS, STEPS = 3, 4
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 1e-2}


class Draws(nn.Module):
    """One of every kind of draw: factories, in place, of probabilities, dropout of all layouts, and a draw that nobody uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.3)

    def block(self, x):
        x = self.drop(torch.tanh(self.first(x))).transpose(1, 2)
        return self.second(F.dropout(x.transpose(1, 2), 0.2, inplace=True))

    def forward(self, x):
        torch.rand(3)
        y = checkpoint(self.block, x, use_reentrant=False)
        y = y + F.scaled_dot_product_attention(y, y, y, dropout_p=0.2, is_causal=True)
        y = y + torch.rand_like(y) + torch.randn(8) + torch.rand(6, 1, dtype=torch.float64).float() + torch.empty(8).uniform_(-1, 1)
        y = y + torch.randint(3, (8,)) + torch.randint(-3, 5, (6, 8)) + torch.randperm(8) * 0.1
        p = torch.sigmoid(y.detach())
        y = y + torch.bernoulli(p) + torch.normal(p, 0.5) + torch.normal(0.0, p) + torch.normal(p, p) + torch.zeros(8).normal_(1, 2)
        y = y + torch.empty_like(y).exponential_(2) + torch.empty_like(y).geometric_(0.5) + torch.empty(8).log_normal_(0, 0.1)
        y = y * torch.empty_like(y).cauchy_().clamp(-1, 1) + torch.poisson(p) + torch.empty(8).random_(3) + torch.empty(8).bernoulli_(p[0, 0])
        y = y + torch.empty(4, 8, 6).transpose(1, 2).bernoulli_(0.3) + torch.empty(8, 6).t().uniform_(0, 2).t().sum()
        y = F.alpha_dropout(y, 0.2, True)
        y = F.dropout2d(y[:, None], 0.4)[:, 0]
        y = F.rrelu(y, training=True) * F.gumbel_softmax(y, dim=-1)
        return (y[:, :, torch.multinomial(p[0, 0], 3)].square() + F.dropout(y, 1.0).sum()).mean()


class Evaluation(nn.Module):
    """The same parameters, and a draw of another size."""

    def __init__(self, model):
        super().__init__()
        self.first, self.second = model.first, model.second

    def forward(self, x):
        return self.second(self.first(x) + torch.rand(5, 1, 1, 16)).square().mean()


def make():
    torch.manual_seed(0)
    return Draws().train()


def batches(count, seed=1):
    return torch.randn(count, 4, 6, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    import fsdp_mlir

    folder, model = tmp_path_factory.mktemp("draws"), make()
    with pytest.warns(fsdp_mlir.CaptureWarning, match="checkpointing"):
        fsdp_mlir.save(fsdp_mlir.capture(model, (batches(1)[0],)), folder / "step.pt2")
    fsdp_mlir.save(fsdp_mlir.capture(Evaluation(model), (batches(1)[0],), gradients=False), folder / "eval.pt2")
    save_file({"in_0": batches(RANKS * STEPS)}, folder / "data.safetensors")
    save_file({"in_0": batches(1, seed=2)}, folder / "eval.safetensors")
    return folder / "step.pt2"


def losses(plan, archive, *options):
    ran = succeed("fsdp-run", plan, "--weights", archive, "--data", archive.with_name("data.safetensors"), "--steps", STEPS,
                  "--eps", ADAMW["eps"], "--json", "--verify", *options)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return [line["loss"] for line in found if "loss" in line], [line["eval_loss"] for line in found if "eval_loss" in line]


def train_eagerly(ranks, seeds, evaluate=lambda model: None):
    """The mean loss of each step, and what `evaluate` returns after it on the last rank, with its generator."""
    replicas = [make() for _ in range(ranks)]
    optimizers = [torch.optim.AdamW(replica.parameters(), fused=True, **ADAMW) for replica in replicas]
    states = [torch.Generator().manual_seed(seed).get_state() for seed in seeds]
    found, evaluations = [], []
    for step in range(STEPS):
        here = []
        for rank, replica in enumerate(replicas):
            torch.set_rng_state(states[rank])
            here.append(replica(batches(ranks * STEPS)[step * ranks + rank]))
            here[-1].backward()
            states[rank] = torch.get_rng_state()
        for shared in zip(*(replica.parameters() for replica in replicas)):
            mean = torch.stack([p.grad for p in shared]).mean(0)
            for p in shared:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found.append(torch.stack([loss.detach() for loss in here]).mean().item())
        evaluations.append(evaluate(replicas[-1]))
        states[-1] = torch.get_rng_state()
    return found, evaluations


# The draws are those of PyTorch: one that is another, or at another place, changes the loss by far more.
@pytest.mark.parametrize("ranks, seeds, option", [
    (1, [0], []), (2, [7, 8], ["--seed", 7]), (3, [7, 7, 7], ["--seed", "7:shared"]), (3, [2**63 - 1, 2**63, 2**63 + 1], ["--seed", 2**63 - 1]),
])
def test_draws_are_those_of_eager_pytorch(ranks, seeds, option, archive, tmp_path):
    torch.set_num_threads(1)
    save_file({"in_0": batches(ranks * STEPS)}, archive.with_name("data.safetensors"))
    succeed("fsdp-plan", archive, "--ranks", ranks, "-o", tmp_path / "plan")
    expected, _ = train_eagerly(ranks, seeds)
    assert losses(tmp_path / "plan", archive, *option)[0] == pytest.approx(expected, rel=1e-5)


# The same kernels have the same bits.
def test_a_step_has_the_bits_of_its_graph(archive, tmp_path):
    import make_rank_reference as maker

    reference = tmp_path / "reference.safetensors"
    maker.main(["1", str(archive), "--draws", "3:shared", "--output", str(reference)])
    succeed("fsdp-plan", archive, "--ranks", 1, "-o", tmp_path / "plan")
    ran = succeed("fsdp-run", tmp_path / "plan", "--weights", archive, "--reference", reference, "--json")
    assert json.loads(ran.stdout)["difference"] == 0


# Programs share the generator of their rank: an evaluation that draws moves it on.
def test_programs_share_the_generator(archive, tmp_path):
    torch.set_num_threads(1)
    save_file({"in_0": batches(STEPS)}, archive.with_name("data.safetensors"))
    succeed("fsdp-plan", archive, "--program", f"eval={archive.with_name('eval.pt2')}", "--ranks", 1, "-o", tmp_path / "plan")
    expected = train_eagerly(1, [0], lambda model: Evaluation(model)(batches(1, seed=2)[0]).item())
    found = losses(tmp_path / "plan", archive, "--eval-data", archive.with_name("eval.safetensors"), "--eval-every", 1)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1] == pytest.approx(expected[1], rel=1e-5)


SCHEDULES = ["", "--strategy no_shard --forward-prefetch 2", "--schedule list", "--bucket copy:units:2", r"--remat scope:blocks\.\d+", r"--remat scope:.*feed_forward --reshard-after-forward false"]


# No schedule moves a draw, and recomputation takes what was drawn.
def test_schedules_keep_the_draws(plans, references, tmp_path):
    batches = load_file(references("role_dropout", 3))
    save_file({name: torch.cat([batches[name]] * STEPS) for name in ("in_0", "in_1")}, tmp_path / "data.safetensors")

    def train(schedule, *options, seed=3):
        ran = succeed("fsdp-run", plans("role_dropout", 3, *schedule.split()), "--weights", FIXTURES / "role_dropout.pt2",
                      "--data", tmp_path / "data.safetensors", "--steps", STEPS, "--json", "--seed", seed, *options)
        *steps, last = map(json.loads, ran.stdout.splitlines())
        return [step["loss"] for step in steps], last["summary"]["parameters"]

    plain = train(SCHEDULES[0])
    assert train(SCHEDULES[0]) == plain != train(SCHEDULES[0], seed=4)
    for schedule, options in itertools.product(SCHEDULES, [[], ["--overlap", "--chaos", 5]]):
        assert train(schedule, *options) == plain, (schedule, options)


# A draw is what it is by its place among all.
@pytest.mark.parametrize("pattern, replacement", [
    (r'("bernoulli_\.float"\()0\.8', r"\g<1>0.7"), (r'(\n *plan\.launch "bernoulli_\.float".*)', r"\1\1"),
])
def test_the_proof_knows_draws(pattern, replacement, plans, tmp_path):
    text = text_of(plans("role_dropout", 2), tmp_path)
    mutant = plan_of(substitute(pattern, replacement, text), tmp_path)
    ran = tool("fsdp-run", mutant, "--weights", FIXTURES / "role_dropout.pt2", "--reference", FIXTURES / "role_dropout_ref.safetensors", "--verify")
    assert ran.returncode == 2
    assert "the loss of the model" in ran.stderr, ran.stderr


@pytest.mark.parametrize("seed", ["-1", "x", "1.5", 2**63, "7:", "7:mean", ":shared"])
def test_what_is_no_seed(seed, archive, tmp_path):
    succeed("fsdp-plan", archive, "--ranks", 1, "-o", tmp_path / "plan")
    ran = tool("fsdp-run", tmp_path / "plan", "--weights", archive, "--data", archive.with_name("data.safetensors"), "--steps", 1, f"--seed={seed}")
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr == f"error: --seed: expected a seed from 0 to {2**63 - 1}, or one and :shared, found {seed}\n"


def test_reference_with_no_seed(archive, tmp_path):
    import make_rank_reference as maker

    program = maker.load(archive)
    save_file(maker.one_step(program, 1, seed=3), tmp_path / "reference.safetensors", {"seed": "first"})
    succeed("fsdp-plan", archive, "--ranks", 1, "-o", tmp_path / "plan")
    ran = tool("fsdp-run", tmp_path / "plan", "--weights", archive, "--reference", tmp_path / "reference.safetensors")
    assert ran.returncode == 1 and ran.stdout == ""
    assert "reference.safetensors: seed: expected a seed from 0 to " in ran.stderr
