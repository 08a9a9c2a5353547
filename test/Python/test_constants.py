"""Branches, numbers and sizes that depend on constants only are resolved; those that depend on data are rejected."""

import warnings

import pytest
import torch
from torch import nn

import fsdp_mlir


class Model(nn.Module):
    def __init__(self, body, buffer=None):
        super().__init__()
        self.inner, self.body = nn.Linear(4, 4), body
        self.register_buffer("mask", torch.tensor([1.0, 1, 0, 1]) if buffer is None else buffer)

    def forward(self, x):
        return self.body(self, self.inner(x)).square().sum()


def branch_on_ones(model, y):
    mask = torch.ones(y.shape[:1], dtype=torch.long)
    return y * 2 if mask.all() else y


def branch_on_written(model, y):
    mask = torch.ones_like(y)
    mask[0, 1] = 0
    view = mask[1:]
    view.zero_()
    return y * 2 if mask.sum() == 3 else y


def extended_mask(model, y):
    mask = (1.0 - torch.ones(2, 1, 1, 4).to(y.dtype)) * torch.finfo(y.dtype).min
    return y if (mask == 0).all() else y + mask[:, 0, 0]


def size_of_mask(model, y):
    keep = torch.tensor([True, False, True, True])
    return torch.cat([y[:, keep].flatten(), y[0].masked_select(keep), y.flatten()[keep.nonzero().flatten()]])


def lengths(model, y):
    return torch.cat([part.cumsum(0) for part in y.t().split(torch.arange(3).clamp_min(1).tolist())])


def buffer(model, y):
    return y[:, : int(model.mask.sum())] * (2 if model.mask.any() else 3)


def sizes(model, y):
    n = torch.ones(4).sum().long()
    for k in torch.ones(2, 3).sum(1).long():
        y = y + y[:, :k].sum()
    picture = nn.functional.interpolate(y[None, None], size=(n // 2, n))
    return picture.new_zeros(2, n) + y.repeat(1, n - 3)


def layerdrop(model, y):
    return y if torch.rand([]) < 0.0 else y * 2


@pytest.mark.parametrize(
    "body", [branch_on_ones, branch_on_written, extended_mask, size_of_mask, lengths, sizes, buffer, layerdrop], ids=lambda f: f.__name__
)
def test_constants_are_known(body, agrees):
    program = agrees(Model(body), (torch.randn(2, 4),), data=(torch.randn(2, 4),))
    draws = sum("rand" in str(n.target) for n in program.graph.nodes)
    assert draws == (body is layerdrop)  # what is compared is known, but the draw moves the generator on


def branch_on_data_in_mask(model, y):
    mask = torch.ones(4)
    mask[0] = y[0, 0]
    return y * 2 if mask.all() else y


def branch_on_data_through_a_view(model, y):
    mask = torch.ones(4)
    mask[1:].copy_(y[0, 1:])
    return y * 2 if mask.all() else y


def branch_on_random(model, y):
    return y * 2 if torch.rand([]) < 0.5 else y


@pytest.mark.parametrize("body", [branch_on_data_in_mask, branch_on_data_through_a_view, branch_on_random])
def test_data_is_not_known(body):
    with pytest.raises(fsdp_mlir.CaptureError, match="the branch depends on a tensor's value, and a plan is one fixed graph"):
        fsdp_mlir.capture(Model(body), (torch.randn(2, 4),))


def test_a_buffer_that_changes_is_no_constant():
    def body(model, y):
        y = y * 2 if model.mask.sum() < 5 else y
        model.mask += 1
        return y

    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(Model(body), (torch.randn(2, 4),))
    assert str(caught.value) == (
        "a branch or a size depends on buffer `mask`, which the forward changes; a plan computes the same in every step: "
        "move the test out of the step"
    )


class Checked(nn.Module):
    """`body` sees an input of integers, too."""

    def __init__(self, body):
        super().__init__()
        self.inner, self.body = nn.Linear(4, 4), body

    def forward(self, x, ids):
        return self.body(self.inner(x), ids).square().sum()


def asserts(y, ids):
    assert (ids >= 0).all(), "negative"
    assert torch.all(ids.sum(0) < 100).item()
    return y + ids


def raises(y, ids):
    if ids is not None and ids.max() >= 50:
        raise ValueError("too large")
    return y + ids


def warns(y, ids):
    if (ids == 0).any():
        warnings.warn("padding")
    return y + ids


def asserts_of_results(y, ids):
    torch._assert(ids.min() >= 0, "negative")
    assert not y.isnan().any()
    if not (y.abs() < 1e3).all():
        raise ValueError("too large")
    return torch.distributions.Normal(y, y.exp()).log_prob(ids.float())


def checks(y, ids):
    torch._check_tensor_all(ids >= 0)
    torch._check_tensor_all(y.abs() < 1e6, lambda: "too large")
    return y + ids


@pytest.mark.parametrize("body", [asserts, raises, warns, asserts_of_results, checks], ids=lambda f: f.__name__)
def test_tests_of_data_that_only_raise_or_warn_are_left_out(body, agrees):
    inputs = (torch.randn(2, 4), torch.arange(8).view(2, 4))
    agrees(Checked(body), inputs, data=(torch.randn(2, 4), torch.arange(1, 9).view(2, 4)))


def warns_or_doubles(y, ids):
    if (ids == 0).any():
        warnings.warn("padding")
    else:
        y = y * 2
    return y + ids


def doubles(y, ids):
    if ids.max() > 3:
        y = y * 2
    return y + ids


@pytest.mark.parametrize("body", [warns_or_doubles, doubles], ids=lambda f: f.__name__)
def test_branches_on_data_that_compute_are_not(body):
    with pytest.raises(fsdp_mlir.CaptureError, match="the branch depends on a tensor's value, and a plan is one fixed graph"):
        fsdp_mlir.capture(Checked(body), (torch.randn(2, 4), torch.arange(8).view(2, 4)))


def test_sizes_by_data_are_rejected_where_they_are_made():
    with pytest.raises(fsdp_mlir.CaptureError, match=r"the size of the result of `x\[mask\]` depends on a tensor's value"):
        fsdp_mlir.capture(Checked(lambda y, ids: y + ids.masked_select(ids > 3).max()), (torch.randn(2, 4), torch.arange(8).view(2, 4)))
