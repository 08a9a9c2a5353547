"""What a case of the zoo is: a module, its batches, and what should come of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, VOCABULARY, CLASSES, IMAGE = 2, 16, 96, 5, 32

Inputs = dict[str, Any]
"""Arguments of a module's forward, by name."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A module in train mode whose forward returns the loss, alone or as the output named `loss`.

    `make` and `batch` draw from torch's global generator; two batches are never alike.
    """

    name: str
    library: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Inputs]
    rejected: str = ""
    """A regular expression for the sentence, if the case cannot be planned; without it, it must agree with PyTorch."""
    tolerance: float = 1e-5
    """Of a gradient, relative to its largest element; of a loss, relative to the loss."""
    reason: str = ""
    """Why the tolerance is not 1e-5."""
    options: tuple[str, ...] | None = None
    """The one set of options for fsdp-plan instead of random ones."""


class Classifier(nn.Module):
    """A network of images or features with the loss of a classification, or of a regression to `labels` like its output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        return F.mse_loss(y, labels) if labels.is_floating_point() else F.cross_entropy(y, labels)


def tokens(*sizes: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Token numbers; the first three are left to padding and the like."""
    return torch.randint(3, vocabulary, sizes or (BATCH, LENGTH))


def text(**more: Callable[[], torch.Tensor]) -> Callable[[], Inputs]:
    """Batches of a language model whose labels are its inputs."""

    def batch() -> Inputs:
        ids = tokens()
        return {"input_ids": ids, "labels": ids.clone(), **{name: draw() for name, draw in more.items()}}

    return batch


def pair() -> Inputs:
    """A batch of a sequence-to-sequence model."""
    return {"input_ids": tokens(BATCH, LENGTH), "labels": tokens(BATCH, 12)}


def padding() -> torch.Tensor:
    """An attention mask: each row has its own length."""
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))
    return (torch.arange(LENGTH) < lengths).long()


def classes(count: int = CLASSES, *sizes: int) -> torch.Tensor:
    return torch.randint(count, sizes or (BATCH,))


def images(size: int = IMAGE, name: str = "pixel_values", labels: Callable[[], torch.Tensor] | None = classes) -> Callable[[], Inputs]:
    """Batches of an image classifier."""
    return lambda: {name: torch.randn(BATCH, 3, size, size)} | ({"labels": labels()} if labels else {})


def features(*sizes: int, target: Callable[[], torch.Tensor] | None = None) -> Callable[[], Inputs]:
    """Batches of x: f32 sizes and labels: a class for each row, or `target`."""
    return lambda: {"x": torch.randn(*sizes), "labels": target() if target else classes(CLASSES, sizes[0])}
