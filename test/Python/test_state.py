"""A forward that computes something else in each step is rejected; one that only looks like it is captured right."""

import random
import time

import numpy
import pytest
import torch
from torch import nn

import fsdp_mlir

CALLS = [0]


class Model(nn.Module):
    def __init__(self, body, **attributes):
        super().__init__()
        self.inner, self.body = nn.Linear(4, 4), body
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.body(self, self.inner(x)).square().sum()


def count(model, y):
    model.calls += 1
    return y * model.calls


def count_for_later(model, y):
    model.calls += 1
    return y * 2 if model.calls > 100 else y


def count_deep(model, y):
    model.statistics["a"][0] += 1
    return y * model.statistics["a"][0]


def count_globally(model, y):
    CALLS[0] += 1
    return y * CALLS[0]


def moving_average(model, y):
    model.mean = 0.9 * model.mean + y.detach().mean(0)
    return y - model.mean


def moving_average_in_place(model, y):
    model.mean.mul_(0.9)
    return y - model.mean


def first_batch(model, y):
    if model.mean is None:
        model.mean = y.detach().mean(0)
    return y - model.mean


def history(model, y):
    model.history.append(y.detach())
    return y * len(model.history)


def rejection(model):
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(model, (torch.randn(2, 4),))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "attribute", "value"),
    [
        (count, "calls", 0),
        (count_for_later, "calls", 0),
        (count_deep, "statistics", {"a": [0]}),
        (moving_average, "mean", torch.zeros(4)),
        (first_batch, "mean", None),
        (history, "history", []),
    ],
)
def test_attributes_that_change(body, attribute, value):
    model = Model(body, **{attribute: value})
    path = {"statistics": "statistics.a.0", "history": "history.0"}.get(attribute, attribute)
    assert rejection(model) == (
        f"the model itself changes its attribute `{path}` in its forward, and a plan computes the same in every step; "
        "keep it in a buffer (register_buffer), or change it outside of the forward"
    )
    assert getattr(model, attribute) is value and str(value) in ("0", "{'a': [0]}", "None", "[]", "tensor([0., 0., 0., 0.])")


def test_tensors_that_are_written_to():
    assert rejection(Model(moving_average_in_place, mean=torch.ones(4))) == (
        "the forward writes to attribute `mean` of the model itself; make that a buffer (register_buffer)"
    )


@pytest.mark.parametrize("body", [lambda m, y: y * random.random(), lambda m, y: y * time.time(), count_globally])
def test_what_python_computes_anew(body):
    assert ": the forward computes something else each time it is called (a random number" in rejection(Model(body))


def draws_after_installing(model, y):
    model.installed = True
    mask = torch.tensor(numpy.random.rand(64, 4) < 0.5).float().mean(0)
    return y * mask


# A flag that only the first call sets is not to blame.
def test_what_is_drawn_anew_is_named_and_not_a_flag():
    place = f"`test_state.py:{Model.forward.__code__.co_firstlineno + 1}` (the model itself)"
    assert rejection(Model(draws_after_installing, installed=False)) == (
        f"{place}: the forward computes something else each time it is called (a random number of Python or NumPy, the time, or a "
        "variable outside of the module), and a plan computes the same in every step; make it an input, or turn it off"
    )


def table(model, y):
    if model.table is None:
        model.table = torch.arange(4.0).cos()
    return y * model.table


def size(model, y):
    model.width = y.shape[-1]
    return y / model.width


def remember(model, y):
    model.last = y
    return y


def buffer(model, y):
    model.steps += 1
    return y * model.steps


@pytest.mark.parametrize(
    ("body", "attributes"),
    [(table, {"table": None}), (size, {"width": None}), (remember, {"last": None}), (buffer, {})],
    ids=["a table of constants", "a size", "a tensor that nobody reads", "a buffer"],
)
def test_what_looks_like_state_is_captured_right(body, attributes, agrees):
    model = Model(body, **attributes)
    model.register_buffer("steps", torch.tensor(0))
    program = agrees(model, (torch.randn(2, 4),), data=(torch.randn(2, 4),))
    for name in attributes:  # eager has been called once, and capture has left nothing behind
        setattr(model, name, None)
    fsdp_mlir.verify(model, program, (torch.randn(2, 4),))


def through_data():
    model = Model(lambda m, y: m.other(y), other=nn.Linear(4, 4))
    model.other.weight.data = model.inner.weight.data
    return model


def view_in_buffer():
    model = Model(lambda m, y: y * m.row)
    model.register_buffer("row", model.inner.weight.data[1])
    return model


def view_in_attribute():
    return (lambda m: (setattr(m, "row", m.inner.weight.data[1]), m)[1])(Model(lambda m, y: y * m.row))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (through_data, "parameter `inner.weight` and parameter `other.weight`"),
        (view_in_buffer, "parameter `inner.weight` and buffer `row`"),
        (view_in_attribute, "parameter `inner.weight` and attribute `row` of the model itself"),
    ],
)
def test_memory_that_tensors_share(make, names):
    found = rejection(make())
    assert set(names.split(" and ")) <= set(found.split(" share memory")[0].split(" and "))
    assert found.endswith(
        "share memory, which a graph cannot keep; tie them by assigning one to the other (b.weight = a.weight, not .data), "
        "or clone() one"
    )


def test_memory_that_only_lies_side_by_side(agrees):
    both = torch.randn(2, 4)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(both[0]), nn.Parameter(both[1])

        def forward(self, x):
            return (x * self.a + self.b).square().sum()

    agrees(Pair(), (torch.randn(3, 4),))


class Frozen(dict):
    """As diffusers keeps a configuration."""

    def _reject(self, *args, **kwargs):
        raise TypeError("frozen")

    update = __setitem__ = __delitem__ = _reject


# What has not changed is not written again: it may not let itself be written.
def test_attributes_that_cannot_be_changed_are_left_alone():
    model = torch.nn.Linear(4, 4)
    model.config = Frozen(rate=0.5)
    model.forward = lambda x: (torch.nn.functional.linear(x, model.weight, model.bias) * model.config["rate"]).square().sum()
    fsdp_mlir.capture(model, (torch.ones(2, 4),))
    assert model.config == {"rate": 0.5}
