"""Modules that compute in 16 bits in places: under torch.autocast, or by casts of their own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import CLASSES, features
from plain import WIDTH, Predictor, plain, regression
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

COARSE = dict(tolerance=3e-2, reason="16 bits have 8 or 11 of mantissa, and sums over ranks round otherwise")
VECTORS = (4, WIDTH)


class Pair(Predictor):
    """Two linear layers, with autocast around the whole."""

    dtype = torch.bfloat16

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            return super().forward(x, labels)


@plain(regression(*VECTORS), **COARSE)
class AutocastNoGrad(Pair):
    """A part without gradients inside of autocast, and a part with gradients inside of that."""

    def predict(self, x):
        y = self.first(x)
        with torch.no_grad():
            z = self.first(y)
            with torch.enable_grad():
                z = z + self.second(y)
        return y * z


@plain(regression(*VECTORS), **COARSE)
class AutocastOff(Pair):
    """A norm in f32 inside of autocast."""

    dtype = torch.float16

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def predict(self, x):
        y = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = self.norm(y.float())
        return self.second(y)


@plain(regression(*VECTORS), **COARSE)
class AutocastSpectralNorm(Pair):
    """The power iteration writes to its buffers without gradients, in the dtype of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(self.first)

    def predict(self, x):
        return self.second(self.first(x).relu())


@plain(lambda: {"x": torch.randn(40, WIDTH), "labels": torch.randint(1, WIDTH, (4, 3))}, **COARSE)
class AutocastFullPrecision(Pair):
    """Operators that autocast computes in f32 and capture writes in others."""

    def forward(self, x, labels):
        with torch.autocast("cpu", torch.float16):
            y = self.second(self.first(x).tanh())
            scores = y.view(10, 4, WIDTH).log_softmax(-1)
            return torch.cdist(y, x).mean() + F.ctc_loss(scores, labels, torch.full((4,), 10), torch.full((4,), 3))


@plain(regression(*VECTORS), **COARSE)
class AutocastCheckpoint(Pair):
    def predict(self, x):
        return self.second(checkpoint(lambda y: self.first(y).relu(), x, use_reentrant=False))


class Cube(torch.autograd.Function):
    """In f32, whatever autocast says."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad


@plain(regression(*VECTORS), **COARSE)
class AutocastFunction(Pair):
    def predict(self, x):
        return self.second(Cube.apply(self.first(x)))


@plain(regression(2, 5, WIDTH), **COARSE)
class AutocastGRU(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def predict(self, x):
        return self.second(self.gru(self.first(x))[0])


@plain(regression(*VECTORS), **COARSE)
class AutocastAdapters(Pair):
    """Low-rank matrices beside a layer that is frozen."""

    dtype = torch.float16

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def predict(self, x):
        return self.second(self.first(x) + self.up(self.down(x)))


@plain(features(*VECTORS), **COARSE)
class CastParameter(nn.Module):
    """A parameter that is rounded before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x, labels):
        return (x * self.weight.bfloat16().float()).sum() + 0 * labels.sum()


@plain(regression(*VECTORS), **COARSE)
class CastTwice(Predictor):
    """One parameter in two dtypes, and a view of a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH * WIDTH) / 4)

    def predict(self, x):
        y = x.bfloat16() @ self.weight.bfloat16().view(WIDTH, WIDTH)
        return (y.half() @ self.weight.half().view(WIDTH, WIDTH).T).float()


@plain(lambda: {"x": torch.randn(3, WIDTH), "labels": torch.tensor([[1, 0, -1, 2, -1], [-1, 3, 1, 1, 0], [3, 2, 0, 1, -1]]).roll(1, 0)})
class PaddedLabels(nn.Module):
    """Several labels for each row, up to the first -1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, labels):
        y = self.net(x)
        return F.multilabel_margin_loss(y, labels) + F.gaussian_nll_loss(y, y.detach() + 1, y.exp())
