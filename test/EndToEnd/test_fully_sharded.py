"""fsdp_mlir.fully_sharded: a loop of PyTorch trains the same with a plan, or hears in one sentence why it cannot."""

import contextlib
import copy

import pytest
import torch
from conftest import ROOT, needs_trainer
from torch.nn import functional as F

import fsdp_mlir
from fsdp_mlir import FSDPError

pytestmark = [needs_trainer, pytest.mark.usefixtures("surroundings")]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(2)])
        self.norm = torch.nn.BatchNorm1d(16)

    def forward(self, x, target, scale=1.0):
        return F.mse_loss(self.norm(self.blocks(x)), target) * scale


def make_model():
    torch.manual_seed(0)
    return Model()


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [{key: torch.randn(8, 16, generator=generator) for key in ("x", "target")} for _ in range(count)]


def adamw(model):
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decays, "lr": 1e-2}, {"params": others, "weight_decay": 0.0}], lr=3e-2, weight_decay=0.1, betas=(0.8, 0.99))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


def train(model, optimizer, rows, count=1, clip=None):
    """A loop as people write it, which does not know what it trains: losses and learning rates."""
    torch.manual_seed(5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    said = []
    for begin in range(0, len(rows), count):
        for row in rows[begin : begin + count]:
            loss = model(**row)
            said.append(loss.item())
            if row is rows[begin]:
                optimizer.zero_grad()
            (loss / count).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        said.append(scheduler.get_last_lr())
    return said


@contextlib.contextmanager
def sharded(make=adamw, example=None, **options):
    model = make_model()
    module = fsdp_mlir.fully_sharded(model, example or batches(1)[0], optimizer=make(model) if make else None, seed=5, **options)
    yield module
    module.plan_trainer.close()


def assert_close(expected, found):
    assert list(expected) == list(found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7, msg=name)


# Losses, learning rates of groups, parameters and buffers.
@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize("count, options", [(1, {}), (3, {"accumulate": "3:mean"}), (2, {"accumulate": "2:mean", "clip_grad_norm": 0.05})])
def test_a_loop_trains_as_before(make, count, options):
    eager, rows = make_model(), batches(4 * count)
    expected = train(eager, make(eager), rows, count, options.get("clip_grad_norm"))
    with sharded(make, **options) as module:
        assert isinstance(module, Model) and list(module.state_dict()) == list(eager.state_dict())
        found = train(module, module.optimizer, rows, count)
        assert_close(dict(eager.state_dict()), module.state_dict())
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-6)


# What PyTorch takes for granted: a forward that is only looked at, losses that are added, gradients that are dropped, closures.
def test_other_orders_of_calls():
    eager, rows = make_model(), batches(6)
    optimizer = sgd(eager)
    with sharded(sgd, accumulate="2:mean") as module:
        for model, own in (eager, optimizer), (module, module.optimizer):
            torch.manual_seed(5)
            loss = sum(model(**row) for row in rows[:2]) / 2
            own.zero_grad()
            loss.backward()
            own.step()
            model.zero_grad()
            (model(**rows[2]) / 2).backward()
            own.zero_grad(set_to_none=True)

            def closure():
                own.zero_grad()
                losses = [model(**row) / 2 for row in rows[3:5]]
                torch.autograd.backward(losses)
                return losses[0] + losses[1]

            assert own.step(closure).item() > 0
            with torch.no_grad():
                assert not model(**rows[5]).requires_grad
        assert_close(dict(eager.state_dict()), module.state_dict())


def test_a_loss_that_is_only_looked_at_is_dropped():
    rows = batches(3)
    eager = make_model()
    optimizer = sgd(eager)
    with sharded(sgd) as module:
        for model, own in (eager, optimizer), (module, module.optimizer):
            torch.manual_seed(5)
            model(**rows[0]).item()
            model(rows[1]["x"], target=rows[1]["target"]).backward()
            own.step()
        assert_close(dict(eager.state_dict()), module.state_dict())


def test_evaluation_has_the_loss_of_eval_mode():
    eager, rows = make_model(), batches(3)
    optimizer = adamw(eager)
    with sharded(evaluation=True, example={**batches(1)[0], "scale": 2.0}) as module:
        for model, own in (eager, optimizer), (module, module.optimizer):
            torch.manual_seed(5)
            model(**rows[0], scale=2.0).backward()
            own.step()
        for model in eager, module:
            model.eval()
        with torch.no_grad():
            assert module(**rows[1]).item() == pytest.approx(eager(**rows[1], scale=2.0).item(), rel=1e-6)
        assert module.train().training and module(**rows[2]).requires_grad


def test_values_go_out_and_in():
    row = batches(1)[0]
    with sharded() as module:
        before = module.state_dict()
        module(**row).backward()
        module.optimizer.step()
        after = module.state_dict()
        other = make_model()
        other.load_state_dict(after)
        wrapper = torch.nn.ModuleDict({"inner": module})
        assert list(wrapper.state_dict()) == [f"inner.{name}" for name in after]
        assert not torch.equal(before["norm.running_mean"], after["norm.running_mean"])
        module.load_state_dict(before)
        assert_close(before, module.state_dict())
        wrapper.load_state_dict({f"inner.{name}": value for name, value in after.items()})
        assert_close(after, module.state_dict())
        with module.summon_full_params() as whole, torch.no_grad():
            whole.eval()
            assert torch.equal(whole(**row), other.eval()(**row))
            whole.norm.bias.fill_(2)
        assert torch.equal(module.state_dict()["norm.bias"], torch.full((16,), 2.0))
        assert module.to("cpu", torch.float32) is module


# What a plan cannot do is said when it is tried, and the training goes on.
def test_what_a_loop_cannot_do_is_said():
    row = batches(1)[0]
    with sharded() as module:
        optimizer, loss = module.optimizer, module(**row)

        def twice():
            loss = module(**row)
            loss.backward(retain_graph=True)
            loss.backward()

        def dropped():
            first = module(**row)
            module(**row)
            first.backward()

        def waiting():
            module(**row).backward()
            with torch.no_grad():
                module(**row)

        def again():
            module(**row).backward()
            optimizer.step()
            module(**row).backward()

        def evaluated():
            module.eval()
            module(**row)

        for call, message in [
            (lambda: next(module.parameters()).grad, "expected a loop that leaves .grad to the plan"),
            (lambda: setattr(next(module.parameters()), "grad", None), "expected a loop that leaves .grad to the plan"),
            (lambda: torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0), "clip with clip_grad_norm= of compile"),
            (lambda: torch.optim.Adam(module.parameters()).step(), "found a use of it; step the optimizer of the plan"),
            (lambda: (loss * 3).backward(), "expected a backward.. of 1 times the loss of each of 1 micro-batches, found 3 times"),
            (lambda: (module(**row) ** 2).backward(), "found .* times; compile with accumulate="),
            (lambda: module(**row).backward(create_graph=True), "expected a backward without create_graph"),
            (twice, "expected one backward.. of each loss"),
            (dropped, "expected one backward.. of each loss, ahead of the next forward"),
            (waiting, "expected an evaluation after optimizer.step.. or zero_grad"),
            (lambda: [module(**row).backward() for _ in range(2)], "expected optimizer.step.. or zero_grad.. after 1 of 1 micro-batches"),
            (lambda: optimizer.step(), "expected backward.. of 1 losses ahead of optimizer.step.., found 0 of 0 forwards"),
            (again, "expected zero_grad.. between optimizer.step.. and backward"),
            (lambda: module.half(), "expected a module to stay where its plan has it, found a move to cpu and torch.float16"),
            (lambda: module(**row, scale=3.0), "expected the inputs x, target of program step, found x, target, scale"),
            (evaluated, "expected a call in train mode, which the plan was made in"),
        ]:
            with pytest.raises(FSDPError, match=message):
                call()
            optimizer.zero_grad()
            module.train()
        module(**row).backward()
        optimizer.step()
    with sharded(accumulate=2) as module:
        module(**row).backward()
        module(**row)
        with pytest.raises(FSDPError, match="expected zero_grad.. ahead of a forward or after its backward"):
            module.zero_grad()
        with pytest.raises(FSDPError, match="of 2 losses ahead of optimizer.step.., found 1 of 2 forwards; drop an incomplete last step"):
            module.optimizer.step()


def test_optimizers_that_no_plan_has_are_rejected():
    def used(model):
        optimizer = sgd(model)
        model(**batches(1)[0]).backward()
        optimizer.step()
        return optimizer

    def scheduled(model):
        optimizer = sgd(model)
        torch.optim.lr_scheduler.ConstantLR(optimizer)
        return optimizer

    for make, message in [
        (lambda m: torch.optim.Adam(m.parameters()), "expected a torch.optim.AdamW or SGD, found Adam;"),
        (lambda m: torch.optim.AdamW(m.blocks.parameters()), "found that it lacks norm.weight"),
        (lambda m: torch.optim.AdamW([{"params": m.parameters()}, {"params": [torch.nn.Parameter(torch.ones(1))]}]), "found none in group 1"),
        (lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True), "expected amsgrad=False, found True; a plan takes lr, betas, eps, weight_decay"),
        (lambda m: torch.optim.SGD(m.parameters(), momentum=0.9, nesterov=True), "expected nesterov=False, found True; a plan takes lr, momentum, weight_decay"),
        (used, "expected one ahead of its first step"),
        (scheduled, "expected one without a scheduler"),
    ]:
        model = make_model()
        before = copy.deepcopy(model)
        optimizer = make(model)
        with pytest.raises(FSDPError, match=message):
            fsdp_mlir.fully_sharded(model, batches(1)[0], optimizer=optimizer)
        assert type(model) is type(before) and all(torch.isfinite(p).all() for p in model.parameters())  # it is as it was
    model = make_model()
    optimizer = sgd(model)
    fsdp_mlir.fully_sharded(model, batches(1)[0], optimizer=optimizer)
    with pytest.raises(FSDPError, match="expected a step of module.optimizer"):
        optimizer.step()


# The page's own example of a loop, word for word, with the model of the one before.
def test_the_example_of_the_page():
    blocks = [block.split("```")[0] for block in (ROOT / "docs" / "python.md").read_text().split("```python\n")]
    (code,) = [block for block in blocks if "fully_sharded(" in block]
    scope = {}
    exec(blocks[1].split("model, example")[0], scope)
    exec(code.replace("range(100)", "range(3)"), scope)
    assert scope["model"].plan_trainer.steps == 3 and scope["loss"].item() > 0
