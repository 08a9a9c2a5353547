"""What a rank has for itself, against PyTorch on two ranks: parameters that FSDP1 ignores, buffers, and DDP's broadcast of these."""

import re
import sys

import pytest
import torch
from conftest import FIXTURES, ORACLE, succeed, tool
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(ORACLE))

import fsdp_mlir  # noqa: E402
import ranks  # noqa: E402

IGNORE = ["--ignore", r"^(blocks\.1\.outer\.weight|stem\.bias)$"]


def train(plan, archive, data, output, *options, steps=ranks.STEPS):
    """What rank 0 ends with."""
    succeed("fsdp-run", plan, "--verify", "--weights", archive, "--data", data, "--steps", steps, "--lr", ranks.LR, "--weight-decay", 0,
            "--summon", output, *options)
    return load_file(output)


def ends(plan, archive, folder, tmp_path, *options):
    """What each rank ends with: rank 1 of two is rank 0 where the data are swapped."""
    batches = load_file(folder / "all.safetensors")
    save_file({name: value.view(-1, 2, *value.shape[1:]).flip(1).reshape(value.shape).contiguous() for name, value in batches.items()},
              tmp_path / "swapped.safetensors")
    return [train(plan, archive, data, tmp_path / "end.safetensors", *options) for data in (folder / "all.safetensors", tmp_path / "swapped.safetensors")]


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")


@pytest.fixture
def make(small_archive, tmp_path):
    """make(*options): a plan of the model of oracle/ranks.py."""

    def plan(*options):
        ways = [] if "--mesh" in options else ["--ranks", ranks.WORLD]
        succeed("fsdp-plan", small_archive, *ways, "--wrap", r"scope:blocks\.\d", "--optimizer", "sgd", *options, "-o", tmp_path / "step.plan")
        return tmp_path / "step.plan"

    return plan


@pytest.mark.covers("ignored arguments")
@pytest.mark.parametrize("options", [
    [], ["--strategy", "shard_grad_op"], ["--strategy", "no_shard"], ["--mesh", "2x1"], ["--schedule", "fsdp2"], ["--bucket", "merge:units:2"],
    ["--remat", r"scope:blocks\.\d"], ["--reshard-after-forward", "2"], ["--schedule", "list"], ["--offload", "all"]], ids=" ".join)
def test_ignored_parameters_are_those_of_fsdp1(options, make, small_archive, on_two_ranks, tmp_path):
    found = ends(make(*IGNORE, *options), small_archive, on_two_ranks, tmp_path)
    for rank, values in enumerate(found):
        assert_close(values, load_file(on_two_ranks / "ignored" / f"rank{rank}.safetensors"))
    differ = {name for name in found[0] if not torch.equal(found[0][name], found[1][name])}
    assert differ == {*ranks.IGNORED, "norm.running_mean", "norm.running_var"}


# What is ignored stays whole, whatever the groups of the rest.
def test_ignored_parameters_beside_small_groups(small_archive, on_two_ranks, tmp_path):
    succeed("fsdp-plan", small_archive, "--ranks", 4, "--optimizer", "sgd", *IGNORE, "--reshard-after-forward", 2, "-o", tmp_path / "step.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "step.plan").stdout
    assert '"local" = 2' in text and re.search(r"plan\.all_gather .* over \[1\]|\[2\]", text)
    succeed("fsdp-plan", small_archive, "--ranks", 4, "--optimizer", "sgd", *IGNORE, "-o", tmp_path / "whole.plan")
    batches = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in load_file(on_two_ranks / "all.safetensors").items()}
    save_file(batches, tmp_path / "data.safetensors")
    groups, whole = (train(tmp_path / name, small_archive, tmp_path / "data.safetensors", tmp_path / "end.safetensors", steps=2) for name in ("step.plan", "whole.plan"))
    assert_close(groups, whole)


# Nothing of them is communicated, and a plan without the option is another one.
def test_nothing_of_an_ignored_parameter_is_sent(make):
    text = succeed("fsdp-translate", "--import-plan", make(*IGNORE)).stdout
    own = {name for name in re.findall(r"plan\.unit @(\S+)", text) if "ignored" in name}
    assert own == {'"blocks.1.ignored"', '"root.ignored"'} or own == {"blocks.1.ignored", "root.ignored"}
    assert not re.search(r"plan\.(all_gather|reduce_scatter|all_reduce) .*of @\S*ignored", text)
    assert len(re.findall(r"plan\.sgd @\S*ignored", text)) == 2


@pytest.mark.covers("ignored arguments")
@pytest.mark.parametrize("options, sentence", [
    (["--ignore", "zz"], "ignore: expected 'zz' to match a parameter, found none; there are "),
    (["--ignore", "("], "ignore: expected a regular expression, found '(': "),
    (["--ignore", "bias", "--clip-grad-norm", "1"], "clip-grad-norm: expected gradients that are means over all ranks, found those of unit '"),
    (["--sync-buffers", "max"], "--sync-buffers: expected one of none, broadcast, mean; found 'max'"),
])
def test_what_means_nothing_is_rejected(options, sentence):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, *options, "-o", "/dev/null")
    assert result.returncode == 1 and sentence in result.stderr, result.stderr


def test_a_model_without_buffers_that_change_is_rejected():
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--sync-buffers", "mean", "-o", "/dev/null")
    assert result.returncode == 1
    assert "sync-buffers: expected a program that changes a buffer, such as the statistics of batch norm, found none; leave out 'mean'" in result.stderr


def test_buffers_are_each_rank_s_own(make, small_archive, on_two_ranks, tmp_path):
    found = ends(make(), small_archive, on_two_ranks, tmp_path)
    for rank, values in enumerate(found):
        assert_close(values, load_file(on_two_ranks / "own" / f"rank{rank}.safetensors"))
    assert not torch.equal(found[0]["norm.running_mean"], found[1]["norm.running_mean"])


@pytest.mark.covers("Synchronize")
@pytest.mark.parametrize("options", [[], ["--strategy", "no_shard"], ["--mesh", "2x1"], ["--remat", r"scope:blocks\.\d"]], ids=" ".join)
@pytest.mark.parametrize("what", ["broadcast", "mean"])
def test_buffers_are_synchronised(what, options, make, small_archive, on_two_ranks, tmp_path):
    plan = make("--sync-buffers", what, *options)
    data, expected = on_two_ranks / "all.safetensors", load_file(on_two_ranks / what / "rank0.safetensors")
    for more in [], ["--overlap", "--chaos", "1"]:
        assert_close(train(plan, small_archive, data, tmp_path / "end.safetensors", *more), expected)
    if what == "mean":  # of the ranks in any order
        assert_close(ends(plan, small_archive, on_two_ranks, tmp_path)[1], expected)


class Remembers(torch.nn.Module):
    """Keeps its loss, and one mean twice: values that the step reduces more than once."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("again", torch.zeros(8))

    def forward(self, x):
        y = self.linear(x)
        loss = y.square().mean()
        self.last.copy_(loss.detach())
        self.mean.copy_(y.detach().mean(0))
        self.again.copy_(y.detach().mean(0))
        return loss


@pytest.mark.parametrize("what", ["broadcast", "mean"])
def test_equal_buffers_are_each_synchronised(what, tmp_path):
    torch.manual_seed(0)
    model, x = Remembers(), torch.randn(2, 4, 8)
    fsdp_mlir.save(fsdp_mlir.capture(model, (x[0],)), tmp_path / "model.pt2")
    save_file({"x": x}, tmp_path / "data.safetensors")
    succeed("fsdp-plan", tmp_path / "model.pt2", "--ranks", 2, "--sync-buffers", what, "-o", tmp_path / "step.plan")
    found = train(tmp_path / "step.plan", tmp_path / "model.pt2", tmp_path / "data.safetensors", tmp_path / "end.safetensors", steps=1)
    with torch.no_grad():
        outputs = [model.linear(each) for each in x]
    means, losses = torch.stack([y.mean(0) for y in outputs]), torch.stack([y.square().mean() for y in outputs])
    for name, values in ("last", losses), ("mean", means), ("again", means):
        torch.testing.assert_close(found[name], values[0] if what == "broadcast" else values.mean(0))


# A broadcast takes integers, too, and with one rank there is nobody to ask.
def test_synchronisation_is_a_reduction_of_buffers(make):
    text = succeed("fsdp-translate", "--import-plan", make("--sync-buffers", "broadcast")).stdout
    assert len(re.findall(r"plan\.all_reduce .* via \S+ first .* for buffer", text)) == 3
    assert re.search(r"via i64 first", text)
    text = succeed("fsdp-translate", "--import-plan", make("--sync-buffers", "mean")).stdout
    assert len(re.findall(r"plan\.all_reduce .*post = 2> via f32 .* for buffer", text)) == 2
