"""Operators that capture writes in others: each against eager PyTorch, and none is left in the graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Fn(nn.Module):
    """The loss is a function of the module's weight and the input; `parts` are submodules and further parameters."""

    def __init__(self, loss, shape=(4, 4), **parts):
        super().__init__()
        self.loss, self.weight = loss, nn.Parameter(torch.randn(shape))
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, *inputs):
        return self.loss(self, *inputs)


def rotary(self, x):
    angles = torch.outer(torch.arange(3.0), torch.arange(1.0, 3.0))
    turned = torch.view_as_complex((x @ self.weight).unflatten(-1, (2, 2))) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).pow(3).sum()


def bags(mode, **options):
    def loss(self, indices, offsets, weights):
        weights = weights if mode == "sum" else None
        return (F.embedding_bag(indices, self.weight, offsets, mode=mode, per_sample_weights=weights, **options) ** 3).sum()

    # The second bag is empty, the third holds only an index that may be padding; the last begins where the indices end.
    return Fn(loss, (9, 3)), (torch.tensor([1, 4, 4, 2, 2, 8, 7]), torch.tensor([0, 3, 3, 5, 7]), torch.rand(7))


def norm(self, x):
    return self.layer(x).pow(2).sum()


def grouped(self, x, ends):
    torch.ops.transformers.grouped_mm_fallback  # the model's library has registered it
    return torch.ops.transformers.grouped_mm_fallback(x, self.weight, ends).pow(2).sum()


def distances(**options):
    return Fn(lambda self, x: torch.cdist(x @ self.weight, x, **options).pow(2).sum().sqrt())


def labelled(**options):
    return Fn(lambda self, x, labels: F.multilabel_margin_loss(x @ self.weight, labels, **options))


CASES = {
    "weight_norm": lambda: (Fn(norm, layer=nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))), (torch.randn(2, 4),)),
    "weight_norm of all": lambda: (Fn(norm, layer=nn.utils.weight_norm(nn.Conv1d(4, 5, 3), dim=None)), (torch.randn(2, 4, 8),)),
    "weight_norm last": lambda: (Fn(norm, layer=nn.utils.weight_norm(nn.Conv1d(4, 5, 3), dim=2)), (torch.randn(2, 4, 8),)),
    "conj": lambda: (Fn(rotary), (torch.randn(2, 3, 4),)),
    "bags: sum": lambda: bags("sum"),
    "bags: mean": lambda: bags("mean"),
    "bags: max": lambda: bags("max"),
    "bags: mean with padding": lambda: bags("mean", padding_idx=2),
    "bags: max with padding": lambda: bags("max", padding_idx=-7),
    "bags: last offset": lambda: bags("mean", include_last_offset=True),
    "bags: rows": lambda: (Fn(lambda s, i: s.bag(i).pow(2).sum(), bag=nn.EmbeddingBag(9, 3)), (torch.randint(9, (3, 5)),)),
    "cdist": lambda: (distances(), (torch.randn(5, 4),)),
    "cdist large": lambda: (distances(), (torch.randn(30, 4),)),
    "cdist to itself": lambda: (Fn(lambda s, x: torch.cdist(x @ s.weight, x @ s.weight).sum()), (torch.randn(30, 4),)),
    "cdist p=1": lambda: (distances(p=1.0), (torch.randn(2, 5, 4),)),
    "cdist p=3": lambda: (distances(p=3.0), (torch.randn(5, 4),)),
    "cdist p=inf": lambda: (distances(p=float("inf")), (torch.randn(5, 4),)),
    "pdist": lambda: (Fn(lambda s, x: torch.pdist(x @ s.weight).sum()), (torch.randn(5, 4),)),
    "pdist p=1": lambda: (Fn(lambda s, x: torch.pdist(x @ s.weight, 1.0).sum()), (torch.randn(5, 4),)),
    "complex numbers": lambda: (Fn(lambda s, x: (torch.fft.fft(x @ s.weight) * 1j + (2 - 1j)).abs().sum()), (torch.randn(5, 4),)),
    "solve": lambda: (Fn(lambda s, b: torch.linalg.solve(s.weight + 4 * torch.eye(4), b).pow(2).sum()), (torch.randn(4, 3),)),
    "solve vector": lambda: (Fn(lambda s, b: torch.linalg.solve(s.weight + 4 * torch.eye(4), b).pow(2).sum()), (torch.randn(4),)),
    "solve right": lambda: (
        Fn(lambda s, b: torch.linalg.solve(s.weight + 4 * torch.eye(4), b, left=False).pow(2).sum()),
        (torch.randn(2, 3, 4),),
    ),
    "solve batch": lambda: (
        Fn(lambda s, b: torch.linalg.solve(s.weight + 4 * torch.eye(4), b @ s.weight).pow(2).sum(), (2, 4, 4)),
        (torch.randn(4, 4),),
    ),
    "pool channels last": lambda: (
        Fn(lambda s, x: F.adaptive_avg_pool2d(s.conv(x), 1).pow(2).sum(), conv=nn.Conv2d(3, 4, 3)),
        (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
    "pool in 3 dimensions": lambda: (
        Fn(lambda s, x: F.adaptive_avg_pool3d(s.conv(x), 1).pow(2).sum(), conv=nn.Conv3d(3, 4, 3)),
        (torch.randn(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d),),
    ),
    "several labels": lambda: (labelled(), (torch.randn(3, 4), torch.tensor([[1, 0, -1, 2], [-1, 3, 1, 1], [3, 2, 0, 1]]))),
    "several labels of one": lambda: (labelled(reduction="sum"), (torch.randn(4), torch.tensor([2, -1, 1, 0]))),
    "quantiles": lambda: (
        Fn(lambda s, x: torch.quantile(x @ s.weight, 0.9, dim=-1).sum() + (x @ s.weight).quantile(0.3) + torch.quantile(x @ s.weight, q=1, dim=0, keepdim=True).sum()),
        (torch.randn(5, 4),),
    ),
    "variances": lambda: (Fn(lambda s, x, v: F.gaussian_nll_loss(x @ s.weight, x, (v @ s.weight).abs())), (torch.randn(3, 4), torch.randn(3, 4))),
    "few variances": lambda: (
        Fn(lambda s, x, v: F.gaussian_nll_loss(x @ s.weight, x, v, full=True, eps=0.5, reduction="sum")),
        (torch.randn(3, 4), torch.rand(3)),
    ),
    "as_strided": lambda: (Fn(lambda s, x: (x @ s.weight).as_strided((3, 2), (2, 3), 1).pow(2).sum()), (torch.randn(4, 4),)),
    "as_strided, overlapping": lambda: (
        Fn(lambda s, x: (x @ s.weight).as_strided((3, 3), (2, 1), 1).pow(2).sum()),
        (torch.randn(4, 4),),
    ),
    "as_strided of a transpose": lambda: (
        Fn(lambda s, x: (x @ s.weight).t().as_strided((2, 3), (4, 1), 2).pow(2).sum()),
        (torch.randn(4, 4),),
    ),
    "as_strided written to": lambda: (
        Fn(lambda s, x: write_through(x @ s.weight)),
        (torch.randn(4, 4),),
    ),
}


def write_through(y):
    y = y.clone()
    y.as_strided((3,), (5,), 1).mul_(2)
    return y.pow(2).sum()


GONE = {
    f"aten.{name}.default"
    for name in (
        "_weight_norm_interface _conj _embedding_bag _cdist_forward _linalg_solve_ex _ctc_loss as_strided as_strided_scatter"
    ).split()
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_eager_pytorch(name, agrees):
    torch.manual_seed(5)
    program = agrees(*CASES[name]())
    assert not GONE & {str(n.target) for n in program.graph.nodes}


@pytest.mark.parametrize("ends", [[2, 2, 6], [0, 3, 7]], ids=["an expert without rows", "all rows"])
def test_grouped_products_of_transformers(ends, agrees):
    pytest.importorskip("transformers.integrations.moe")
    program = agrees(Fn(grouped, (3, 4, 5)), (torch.randn(7, 4), torch.tensor(ends, dtype=torch.int32)))
    assert not any("transformers" in str(n.target) for n in program.graph.nodes)


# What autocast computes in f32, however it is written.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operators_that_autocast_computes_in_f32(dtype, agrees):
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x, labels):
            with torch.autocast("cpu", dtype):
                y = self.inner(x)
                scores = y.view(10, 4, 8).log_softmax(-1)
                lengths = torch.full((4,), 10), torch.full((4,), 3)
                pooled = F.adaptive_avg_pool3d(y.view(10, 1, 4, 2, 4), 1)
                solved = torch.linalg.solve(y[:8] + 4 * torch.eye(8, dtype=dtype), y[8:16])
                return torch.cdist(y, x).mean() + F.ctc_loss(scores, labels, *lengths) + (pooled * 1.01).square().mean() + solved.square().mean()

    agrees(Distances(), (torch.randn(40, 8), torch.randint(1, 8, (4, 3))), tolerance=2e-2)


# Autocast does not know the operator of transformers: it keeps the dtype of its inputs.
def test_grouped_products_inside_autocast(agrees):
    pytest.importorskip("transformers.integrations.moe")

    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.Parameter(torch.randn(3, 4, 5))

        def forward(self, x, ends):
            with torch.autocast("cpu", torch.bfloat16):
                return torch.ops.transformers.grouped_mm_fallback(x, self.experts, ends).pow(2).sum()

    agrees(Inside(), (torch.randn(6, 4), torch.tensor([2, 2, 6], dtype=torch.int32)))
