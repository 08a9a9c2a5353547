"""What capture must not get wrong in silence: each rejection, its whole sentence."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import fsdp_mlir


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Inner(torch.autograd.Function):
    """Gives its module no gradient."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        return module(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(ctx.module(x), x, grad)[0], None


class InnerBackward(Inner):
    """Gives its module its gradient, as re-entrant checkpointing does."""

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.module(x).backward(grad)
        return x.grad, None


class Block(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.inner, self.body = nn.Linear(4, 4), body

    def forward(self, x):
        return self.body(self, self.inner(x))


class Model(nn.Module):
    """Linear, then whatever `body` does, then linear; `end` makes the outputs."""

    def __init__(self, body=lambda self, y: y, end=lambda y: y.sum()):
        super().__init__()
        self.block, self.last, self.end = Block(body), nn.Linear(4, 4), end

    def forward(self, x):
        return self.end(self.last(self.block(x)))


def rejection(model, *, x=None, **options):
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(model, (torch.randn(2, 4) if x is None else x,), **options)
    return str(caught.value)


def line_of(function):
    """The only line of the function's body, as `file:line`."""
    return f"`test_capture_rejections.py:{function.__code__.co_firstlineno + 1}`"


def branch(block, y):
    if y.sum() > 0:
        return y * 2
    return y


def take_int(block, y):
    return y[: int(y.abs().sum()) + 1]


def take_float(block, y):
    return y * float(y.detach().sum())


def to_numpy(block, y):
    return y + torch.from_numpy(y.detach().numpy()).sum()


def flex(block, y):
    return flex_attention(*[y.reshape(1, 1, 2, 4)] * 3).reshape(2, 4)


def wrong_shape(block, y):
    return y @ torch.ones(3, 3)


NUMBER = (
    "a Python number is taken from a tensor's value (int(), float() or .item()), and a plan is one fixed graph; "
    "keep it a tensor, or pad to a fixed size and mask"
)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            branch,
            "the branch depends on a tensor's value, and a plan is one fixed graph; "
            "use torch.where, or move the test out of the step",
        ),
        (take_int, NUMBER),
        (take_float, NUMBER),
        (to_numpy, "`.numpy()` leaves PyTorch; keep it out of the training step"),
        (flex, 'flex attention has no backward on CPU; load the model with attn_implementation="sdpa"'),
        (wrong_shape, "torch.export cannot trace this: a and b must have same reduction dim, but got [2, 4] X [3, 3]"),
    ],
)
def test_what_torch_export_rejects_names_line_and_module(body, sentence, capfd):
    assert rejection(Model(body)) == f"{line_of(body)} (module `block`): {sentence}"
    assert "def forward" not in capfd.readouterr().err


def mask_by_data(block, y):
    return y + y[y > 0].sum()


def test_item_and_mask_sizes_are_rejected_though_torch_export_takes_them():
    here = f"`test_capture_rejections.py:{Block.forward.__code__.co_firstlineno + 1}` (module `block`)"
    assert rejection(Model(lambda block, y: y * y.detach().sum().item())) == f"{here}: {NUMBER}"
    assert rejection(Model(mask_by_data)) == (
        f"{line_of(mask_by_data)} (module `block`): the size of the result of `x[mask]` depends on a tensor's value, and a plan is "
        "for one shape; pad to a fixed size and mask"
    )


def gradient_penalty(block, y):
    x = y.detach().requires_grad_()
    return torch.autograd.grad((block.inner(x) ** 2).sum(), x, create_graph=True)[0] ** 2


def tensor_hook(block, y):
    y.register_hook(lambda grad: grad * 2)
    return y


def seeded(block, y):
    torch.manual_seed(3)
    return y + torch.rand_like(y)


def either(block, y):
    return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))


@pytest.mark.covers("gradients of gradients")
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            lambda block, y: Doubled.apply(y * 1),
            "`Doubled`, a custom autograd.Function in module `block`, writes to its arguments, which capture cannot keep; "
            "write to a clone",
        ),
        (
            lambda block, y: Inner.apply(y, block.inner),
            "a custom autograd.Function uses `block.inner.weight`, which it is not called with; pass the tensor to apply(), "
            "not the module",
        ),
        (
            lambda block, y: InnerBackward.apply(y, block.inner),
            "a custom autograd.Function calls backward() in its backward, whose gradients capture would lose; return them all "
            "from the Function's backward (torch.autograd.grad)",
        ),
        (
            gradient_penalty,
            "module `block` differentiates inside its forward (torch.autograd.grad or backward), which capture cannot keep; "
            "return the loss and leave its gradients to capture",
        ),
        (
            tensor_hook,
            "module `block` puts a gradient hook on a tensor (register_hook), which capture cannot keep; "
            "write its effect into the loss",
        ),
        (
            seeded,
            "module `block` seeds random numbers in its forward (torch.manual_seed), which capture cannot keep; "
            "seed before the first step: fsdp-run --seed",
        ),
        (
            either,
            f"{line_of(either)} (module `block`) uses a torch operation that holds a graph of its own (such as "
            "torch.cond), which a plan cannot run; write it with plain operations, such as torch.where",
        ),
    ],
)
def test_gradients_that_torch_export_would_lose(body, sentence):
    assert rejection(Model(body)) == sentence


def test_the_patches_are_gone_after_a_rejection():
    before = torch.autograd.grad, torch.Tensor.register_hook, torch.autograd.Function.__dict__["apply"]
    rejection(Model(lambda block, y: Doubled.apply(y)))
    assert (torch.autograd.grad, torch.Tensor.register_hook, torch.autograd.Function.__dict__["apply"]) == before
    x = torch.ones(1, requires_grad=True)
    Inner.apply(x, torch.sin).backward()
    assert x.grad == x.cos()


def test_hooks_on_modules_and_parameters():
    model = Model()
    model.block.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    assert rejection(model) == "module `block` has a backward hook, which capture cannot keep; remove the hook before capture"
    model = Model()
    model.last.weight.register_hook(lambda grad: grad)
    assert rejection(model) == (
        "parameter `last.weight` has a gradient hook, which capture cannot keep; remove the hook before capture"
    )
    model = Model()
    model.last.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    assert rejection(model) == (
        "parameter `last.bias` has a gradient hook, which capture cannot keep; remove the hook before capture"
    )


@pytest.mark.parametrize(
    ("end", "options", "sentence"),
    [
        (lambda y: y, {}, "the loss has shape [2, 4]; reduce it to one number, for example with mean()"),
        (lambda y: y.sum()[None], {}, "the loss has shape [1]; reduce it to one number, for example with mean()"),
        (
            lambda y: (y.sum(), y),
            {},
            "the model returns 2 outputs and none is named `loss`; return the loss alone, or name it with loss_index=0 to 1",
        ),
        (lambda y: (y.sum(), y), {"loss_index": 1}, "the loss has shape [2, 4]; reduce it to one number, for example with mean()"),
        (lambda y: (y.sum(), y), {"loss_index": 2}, "loss_index is 2, but the model returns 2 outputs"),
        (lambda y: (y.sum(), 1.5), {"loss_index": 1}, "output 1 is not a tensor but 1.5; the loss must be a tensor"),
        (lambda y: y.argmax(), {}, "the loss has dtype int64; it must be a floating-point number"),
        (
            lambda y: y.sum().detach(),
            {},
            "the loss does not depend on any parameter that requires grad; there is nothing to train",
        ),
    ],
)
def test_losses(end, options, sentence):
    assert rejection(Model(end=end), **options) == sentence


def test_a_used_parameter_without_gradient():
    assert rejection(Model(lambda block, y: y.detach())) == (
        "parameter `block.inner.weight` requires grad and is used, but the loss has no gradient for it "
        "(detach(), torch.no_grad(), or an output other than the loss); call requires_grad_(False) on it to keep it fixed"
    )


def test_writes_to_parameters_and_inputs():
    def decay(block, y):
        with torch.no_grad():
            block.inner.weight.mul_(0.9)
        return y

    assert rejection(Model(decay)) == (
        "the model writes to its parameter `block.inner.weight` in its forward; only the optimizer may: "
        "keep what changes in a buffer"
    )

    class Writes(Model):
        def forward(self, x):
            return super().forward(x.add_(1))

    assert rejection(Writes()) == "the model writes to one of its inputs in its forward; clone the input first"


@pytest.mark.covers("TypeError", "StopIteration")
def test_nothing_to_train_and_wrong_arguments():
    assert rejection(Model().requires_grad_(False)) == "no parameter requires grad; there is nothing to train"
    assert rejection(lambda x: x) == "capture takes a torch.nn.Module, not a function"
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(Model(), torch.randn(2, 4))
    assert str(caught.value) == "example_inputs must be a tuple of the positional arguments, not a Tensor"
    wrapped = nn.Module()
    wrapped.net = nn.DataParallel(Model())
    assert rejection(wrapped) == "module `net` is wrapped in DataParallel; capture the plain module: sharding is the plan's"


# Of both kinds, as a program for torchrun has them: on one rank here.
@pytest.mark.covers("a policy that meets a wrapped module", "modules that are wrapped already")
def test_modules_that_fsdp_has_wrapped(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        first, second = Model(), Model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one rank has nothing to shard
            first.block = FullyShardedDataParallel(first.block, device_id=torch.device("cpu"))
        fully_shard(second.block, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        for model, kind in (first, "FullyShardedDataParallel"), (second, "FSDPModule"):
            assert rejection(model) == f"module `block` is wrapped in {kind}; capture the plain module: sharding is the plan's"
    finally:
        dist.destroy_process_group()


def test_warnings():
    with pytest.warns(fsdp_mlir.CaptureWarning) as caught:
        fsdp_mlir.capture(Model().eval(), (torch.randn(2, 4),))
    assert [str(w.message) for w in caught] == [
        "the model is in eval mode: dropout and batch norm are captured as in inference; call train() first"
    ]
    model = Model()
    model.spare = nn.Linear(2, 2)
    with pytest.warns(fsdp_mlir.CaptureWarning) as caught:
        program = fsdp_mlir.capture(model, (torch.randn(2, 4),))
    assert [str(w.message) for w in caught] == [
        "2 of the model's parameters are not used and will not be trained: `spare.weight`, `spare.bias`"
    ]
    assert program.graph_module.meta["custom"]["unused"] == ["spare.weight", "spare.bias"]


def test_a_plain_capture_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fsdp_mlir.capture(Model(), (torch.randn(2, 4),))


def test_save_rejects_what_it_cannot_write(tmp_path):
    program = fsdp_mlir.capture(Model(), (torch.randn(2, 4),))
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.save(program, tmp_path / "model.bin")
    assert str(caught.value) == "`model.bin` should end in .pt2, the archive format of torch.export"
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.save(torch.export.export(Model(), (torch.randn(2, 4),)), tmp_path / "model.pt2")
    assert str(caught.value) == "the program has no loss output: save takes what fsdp_mlir.capture returned"
    with pytest.raises(OSError):
        fsdp_mlir.save(program, tmp_path / "missing" / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def part_without_gradient(block, y):
    with torch.no_grad():
        z = block.inner(y)
    return y * z


@pytest.mark.parametrize(
    "body",
    [
        lambda block, y: checkpoint(lambda z: block.inner(z).sin(), y, use_reentrant=False),
        lambda block, y: checkpoint(lambda z: block.inner(z).sin(), y, use_reentrant=True),
        lambda block, y: checkpoint(lambda z: block.inner(z).sin(), y.detach(), use_reentrant=True) + y,
        part_without_gradient,
        lambda block, y: torch.where(y.sum() > 0, y * 2, y),
        lambda block, y: y.mul_(2),
    ],
    ids=[
        "non-reentrant checkpoint",
        "re-entrant checkpoint",
        "re-entrant checkpoint without gradient",
        "no_grad in part",
        "where",
        "in place",
    ],
)
def test_what_looks_like_a_rejection_is_captured_right(body):
    model, x = Model(body), torch.randn(2, 4)
    loss, *grads = fsdp_mlir.capture(model, (x,)).module(check_guards=False)(x)
    expected = model(x)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for mine, parameter in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
