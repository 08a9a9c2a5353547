"""Tiny modules with something that is not in every model, from capture to a step, against eager PyTorch with a batch per rank."""

import copy

import pytest
import torch
from conftest import succeed
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import fsdp_mlir

HALF = torch.bfloat16


class Module(nn.Module):
    """A module whose forward is `function`, with these parameters, buffers and modules."""

    def __init__(self, function, **members):
        super().__init__()
        self.function = function
        for name, member in members.items():
            if isinstance(member, torch.Tensor) and not isinstance(member, nn.Parameter):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, x):
        return self.function(self, x)


def weight(*sizes, **options):
    return nn.Parameter(torch.randn(*sizes, generator=torch.Generator().manual_seed(1)), **options)


def square(x):
    return x.float().pow(2).mean()


def copied(model, x):
    y = torch.zeros(3, 8)
    y.copy_(model.bias)
    return square(x @ model.w + y)


def upper(model, x):
    row, column = torch.triu_indices(8, 8, 1)
    return square(x @ model.w) + square(model.w[row, column])


def interleave(m, x):
    """Written by twos and read by threes: more pieces than the proof follows one by one."""
    y, halves = torch.zeros(160_000), ((x @ m.w).sum() * torch.linspace(0, 1, 80_000)).chunk(2)
    y[:80_000:2], y[80_000::2] = halves
    return square(y[::3])


def swapped(model, x):
    old = model.a.clone()
    model.a.copy_(model.b)
    model.b.copy_(old)
    return square((x @ model.w) * model.a + model.b)


def conjugated(model, x):
    z = torch.view_as_complex((x @ model.w).reshape(3, 4, 2))
    turned = z * torch.polar(torch.ones(4), torch.arange(4.0)).conj()
    return square(torch.view_as_real(turned))


class Sources(nn.Module):
    """Its units are called like functions of the compiler."""

    def __init__(self):
        super().__init__()
        self.step = nn.Module()
        self.step.source, self.step.meta = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return square(self.step.meta(self.step.source(x)))


def named(name):
    return lambda: Module(lambda model, x: square(getattr(model, name)(x)), **{name: nn.Linear(8, 8)})


def stack(last=torch.float32):
    layers = [nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8).to(last)]
    return lambda: Module(lambda model, x: square(model.layers[2](model.layers[1](model.layers[0](x)).to(last))), layers=nn.ModuleList(layers))


LARGE = torch.randn(20, 8, generator=torch.Generator().manual_seed(2))
UNITS = ("--wrap", "size:10")
MODELS = {
    "conjugate": (lambda: Module(conjugated, w=weight(8, 8)), ()),
    "copy_that_broadcasts": (lambda: Module(copied, w=weight(8, 8), bias=weight(8)), ()),
    "indices_of_the_default_type": (lambda: Module(upper, w=weight(8, 8)), ()),
    "parameter_that_is_a_view": (lambda: Module(lambda m, x: square(x @ m.w.t()[:, 1:]), w=nn.Parameter(LARGE[4:12])), ()),
    "parameter_that_is_a_transposed_view": (lambda: Module(lambda m, x: square(x @ m.w[1:].t()), w=nn.Parameter(LARGE.t()[:, 4:12])), ()),
    "buffer_that_is_a_view": (lambda: Module(lambda m, x: square((x @ m.w) * m.b[1] + m.b.t()[:, 2]), w=weight(8, 8), b=LARGE[4:12]), ()),
    "integer_parameter": (
        lambda: Module(lambda m, x: square((x @ m.w)[:, m.order]), w=weight(8, 8), order=nn.Parameter(torch.tensor([5, 1, 3]), requires_grad=False)),
        (),
    ),
    "empty_parameter": (lambda: Module(lambda m, x: square(torch.cat([x @ m.w, m.b])), w=weight(8, 8), b=weight(0, 8)), ()),
    "empty_parameter_of_another_dtype": (
        lambda: Module(lambda m, x: square(torch.cat([x @ m.w, m.b.float()])), w=weight(8, 8), b=nn.Parameter(torch.zeros(0, 8, dtype=HALF))),
        (),
    ),
    "unit_without_elements": (
        lambda: Module(lambda m, x: square(torch.cat([m.a(x), m.b(x)], 1)), a=nn.Linear(8, 8), b=Module(lambda m, x: x @ m.w, w=weight(8, 0))),
        ("--wrap", "scope:[ab]"),
    ),
    "empty_buffer": (lambda: Module(lambda m, x: square(torch.cat([x @ m.w, m.b])), w=weight(8, 8), b=torch.zeros(0, 8)), ()),
    "empty_parameter": (lambda: Module(lambda m, x: square(torch.cat([x @ m.w, m.b])), w=weight(8, 8), b=weight(0, 8)), ()),
    "empty_constant": (lambda: Module(lambda m, x: square(torch.cat([x @ m.w, torch.tensor([]).reshape(0, 8)])), w=weight(8, 8)), ()),
    "two_types_in_a_unit": (stack(HALF), ("--wrap", "scope:layers")),
    "buffer_like_a_parameter_without_its_prefix": (
        lambda: Module(lambda m, x: square(m.q(x) + m.bias), q=nn.Linear(8, 8), bias=torch.arange(8.0)),
        (),
    ),
    "buffers_that_swap": (lambda: Module(swapped, w=weight(8, 8), a=torch.arange(8.0), b=torch.ones(8)), ()),
    "unit_called_shard": (named("shard"), UNITS),
    "unit_called_init": (named("init"), UNITS),
    "unit_called_step_source": (Sources, UNITS),
    "merged_units_with_a_budget": (stack(), ("--wrap", r"scope:layers\.\d", "--bucket", "merge:units:2", "--remat", "budget:1MiB")),
    "slices_of_steps_without_a_common_factor": (lambda: Module(interleave, w=weight(8, 8)), ()),
    "outputs_that_are_parameters": (
        lambda: Module(lambda m, x: (square(x @ m.w), m.w, m.w.t(), m.w[0].expand(3, 8), m.w[:, 2], x), w=weight(8, 8)),
        ("--keep-output",),
    ),
    "buffer_that_becomes_a_parameter": (
        lambda: Module(lambda m, x: (square(x @ m.w + m.last.copy_(m.w.detach())[0])), w=weight(8, 8), last=torch.zeros(8, 8)), ()),
    "channels_last_mean": (
        lambda: Module(
            lambda m, x: square(m.head(F.adaptive_avg_pool2d(m.conv(x.view(3, 2, 2, 2).to(memory_format=torch.channels_last)), 1).flatten(1))),
            conv=nn.Conv2d(2, 4, 1).to(memory_format=torch.channels_last), head=nn.Linear(4, 2),
        ),
        (),
    ),
}


def step(model, x):
    """The loss of a batch, the gradients, and the other outputs."""
    model = copy.deepcopy(model)
    results = model(x)
    loss, *outputs = results if isinstance(results, tuple) else (results,)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, [o.detach() for o in outputs]


@pytest.mark.parametrize("name", MODELS)
def test_step_agrees_with_eager(name, tmp_path):
    make, options = MODELS[name]
    torch.manual_seed(0)
    model, archive = make(), tmp_path / "model.pt2"
    batches = torch.randn(2, 3, 8)
    results = copy.deepcopy(model)(batches[0])
    others = {"loss_index": 0, "outputs": range(1, len(results))} if isinstance(results, tuple) else {}
    fsdp_mlir.save(fsdp_mlir.capture(model, (batches[0],), **others), archive)
    for ranks in (1, 2):
        steps = [step(model, x) for x in batches[:ranks]]
        reference = {"in_0": batches[:ranks].clone(), "loss": torch.stack([loss for loss, *_ in steps]).mean()}
        for key, first in steps[0][1].items():
            reference[f"grad.{key}"] = torch.stack([grads[key].float() for _, grads, _ in steps]).mean(0).to(first.dtype).contiguous()
        if "--keep-output" in options:
            for i, outputs in enumerate(zip(*(outputs for *_, outputs in steps)), start=1):
                reference[f"output.{i}"] = torch.stack(outputs)
        save_file(reference, tmp_path / "reference.safetensors")
        plan = tmp_path / f"{ranks}.plan"
        succeed("fsdp-plan", archive, "--ranks", ranks, "-o", plan, *options)
        succeed("fsdp-run", plan, "--weights", archive, "--reference", tmp_path / "reference.safetensors", "--tolerance", 3e-2 if "type" in name else 1e-5)
