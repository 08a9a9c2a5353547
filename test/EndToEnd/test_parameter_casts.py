"""Models that cast parameters themselves, as under torch.autocast, are proved and trained like any other."""

import pytest
import torch
from conftest import succeed
from torch.distributed.fsdp import MixedPrecision

import fsdp_mlir


class Casts(torch.nn.Module):
    """A parameter that goes through other types; `tied` is used once more, without a cast."""

    def __init__(self, types, tied=False, frozen=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.types, self.tied = types, tied
        self.first.weight.requires_grad_(not frozen)

    def forward(self, x):
        weight = self.first.weight
        for dtype in self.types:
            weight = weight.to(dtype)
        y = torch.tanh(x @ weight.float() + self.first.bias)
        return (self.second(y) + (y @ self.first.weight if self.tied else 0)).square().mean()


class Autocast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()) for _ in range(3))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return x.float().square().mean()


MODELS = {
    "bf16": lambda: Casts([torch.bfloat16]),
    "f16": lambda: Casts([torch.float16]),
    "f64": lambda: Casts([torch.float64]),
    "bf16-f32-f16": lambda: Casts([torch.bfloat16, torch.float32, torch.float16]),
    "tied": lambda: Casts([torch.bfloat16], tied=True),
    "frozen": lambda: Casts([torch.bfloat16], frozen=True),
    "autocast": Autocast,
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The archive of each model, captured once; verify compares it with eager PyTorch."""
    folder, found = tmp_path_factory.mktemp("casts"), {}

    def archive(name, **options):
        key = (name, *options)
        if key not in found:
            torch.manual_seed(0)
            found[key] = folder / f"{'-'.join(key)}.pt2"
            fsdp_mlir.save(fsdp_mlir.capture(MODELS[name](), (torch.randn(4, 8),), **options), found[key])
        return found[key]

    return archive


@pytest.mark.parametrize("options", [["--ranks", 2], ["--mesh", "2x2"], ["--ranks", 2, "--strategy", "no_shard"], ["--ranks", 2, "--storage-dtype", "bf16"],
                                     ["--ranks", 2, "--accumulate", 2, "--clip-grad-norm", 1]], ids=lambda options: "".join(map(str, options)))
@pytest.mark.parametrize("model", MODELS)
def test_models_that_cast_parameters_are_proved(model, options, archives, tmp_path):
    succeed("fsdp-plan", archives(model), *options, "-o", tmp_path / "step.plan")


def test_recomputed_casts_are_proved(archives, tmp_path):
    succeed("fsdp-plan", archives("autocast"), "--ranks", 2, "--remat", r"scope:blocks\.\d+", "-o", tmp_path / "step.plan")


def test_casts_under_mixed_precision_are_proved(archives, tmp_path):
    archive = archives("autocast", mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    succeed("fsdp-plan", archive, "--ranks", 2, "-o", tmp_path / "step.plan")
