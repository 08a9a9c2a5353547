"""What hand-written modules of the zoo share: a registry, and a base class with the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from case import Case, Inputs, features
from torch import nn

WIDTH = 16
CASES: list[Case] = []


def plain(batch: Callable[[], Inputs], **case: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Makes a case of the module below it."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        CASES.append(Case(kind.__name__, "plain", kind, batch, **case))
        return kind

    return register


class Predictor(nn.Module):
    """(x, labels) -> the loss of `predict(x)`: a regression for labels of floating point, else a classification."""

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = self.predict(x)
        return F.mse_loss(y, labels) if labels.is_floating_point() else F.cross_entropy(y, labels)


def regression(*sizes: int, out: tuple[int, ...] | None = None) -> Callable[[], Inputs]:
    """Batches of x: f32 sizes, with labels of the same sizes or `out`."""
    return features(*sizes, target=lambda: torch.randn(out or sizes))
