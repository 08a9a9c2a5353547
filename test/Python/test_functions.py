"""Custom autograd.Functions keep their own backward."""

import pytest
import torch
from torch import nn

import fsdp_mlir


class TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.factor * gradient, None


class Several(torch.autograd.Function):
    """With setup_context; a result without gradient, one that is no tensor, and a gradient of one argument only."""

    @staticmethod
    def forward(x, w):
        return x * w, (x > 0).sum(), None, 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, *_):
        x, w = ctx.saved_tensors
        return 2 * gradient * w, (gradient * x).sum(0) if ctx.needs_input_grad[1] else None


class Reversed(torch.autograd.Function):
    """A view of its argument."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w.mT, 2 * x.mT @ gradient


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.first, self.second, self.body = nn.Linear(4, 4), nn.Linear(4, 4), body

    def forward(self, x):
        return self.body(self, self.first(x)).float().square().sum() + self.second.weight.sum() + self.second.bias.sum()


def several(model, y):
    out, count, nothing, number = Several.apply(y, model.second.weight[0])
    assert nothing is None
    return out * count * number


def in_autocast(model, y):
    with torch.autocast("cpu", torch.bfloat16):
        return Product.apply(y, model.second.weight)


def without_gradient(model, y):
    with torch.no_grad():
        z = TwiceTheGradient.apply(y, 2)
    return y + z


BODIES = {
    "numbers of each call": lambda model, y: TwiceTheGradient.apply(TwiceTheGradient.apply(y, 2.0), 3),
    "several results": several,
    "view": lambda model, y: Reversed.apply(model.second(y)).sin(),
    "not used": lambda model, y: (Reversed.apply(y), y)[1],
    "no_grad": without_gradient,
}




@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_backward_is_the_functions(body, agrees):
    agrees(Model(body), (torch.randn(3, 4),), data=(torch.randn(3, 4),))


def test_in_autocast(agrees):
    agrees(Model(in_autocast), (torch.randn(3, 4),), tolerance=0.02)


def test_sizes_may_be_dynamic(agrees):
    body = BODIES["numbers of each call"]
    agrees(Model(body), (torch.randn(3, 4),), data=(torch.randn(5, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_operations_of_a_function_are_their_modules():
    program = fsdp_mlir.capture(nn.Sequential(nn.Linear(4, 4), Model(BODIES["view"])), (torch.randn(3, 4),))
    (node,) = (n for n in program.graph.nodes if "neg" in n.name)
    assert next(reversed(node.meta["nn_module_stack"].values()))[0] == "1"
    assert node.meta["custom"]["phase"] == "bw"
    assert not any("fsdp_mlir" in str(n.target) for n in program.graph.nodes)


def test_a_number_that_changes_from_call_to_call_is_noticed():
    numbers = iter(range(100))
    with pytest.raises(fsdp_mlir.CaptureError, match="computes something else each time it is called"):
        fsdp_mlir.capture(Model(lambda model, y: TwiceTheGradient.apply(y, next(numbers))), (torch.randn(3, 4),))


class NumberOfGradient(Reversed):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.sum().item()


def test_a_backward_is_held_to_the_same_rules():
    with pytest.raises(fsdp_mlir.CaptureError, match="a Python number is taken from a tensor's value"):
        fsdp_mlir.capture(Model(lambda model, y: NumberOfGradient.apply(y)), (torch.randn(3, 4),))
