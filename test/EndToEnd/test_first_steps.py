"""Trainer(verify_first_step=True): a plan that computes something else than the module is not trained, and no right one is stopped."""

import json
import linecache
import os
import re
import subprocess
import sys
import types
import warnings

import pytest
import torch
from conftest import ROOT, free_port, needs_trainer, succeed
from test_mutations import substitute
from torch.distributed.fsdp import MixedPrecision

import fsdp_mlir
from fsdp_mlir import FSDPError, Trainer, _plan

sys.path.insert(0, str(ROOT / "test" / "EndToEnd" / "Inputs"))
from first_steps_rank import Model, batch, replaced, train  # noqa: E402

pytestmark = [needs_trainer, pytest.mark.usefixtures("surroundings")]
WORKER = ROOT / "test" / "EndToEnd" / "Inputs" / "first_steps_rank.py"
ON = {"verify_first_step": True}


class Autocast(Model):
    def forward(self, ids, labels):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(ids, labels)


HONEST = {
    "adamw": (Model, {}, {}),
    "clipped": (Model, {"clip_grad_norm": "0.1:inf", "no_decay": "bias"}, {"keep_module": True}),
    "sgd": (Model, {"optimizer": "sgd", "momentum": True}, {"momentum": 0.9}),
    "offload": (Model, {"offload": "all"}, {"overlap": True}),
    "bf16": (Model, {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}, {}),
    "autocast": (Autocast, {"remat": "scope:blocks.*"}, {}),
}


# Compared by itself, with the losses of a training that is not. Nothing is left of it afterwards.
@pytest.mark.parametrize("case", HONEST)
def test_a_right_plan_trains_as_without(case):
    make, options, training = HONEST[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error", fsdp_mlir.CaptureWarning)
        plan = fsdp_mlir.compile(model := make(), batch(0), ranks=1, **options)
        trainer = Trainer(plan, model, **training)
        assert trainer._first_steps is not None
        draws = torch.get_rng_state()
        for step in range(3):
            trainer.step(batch(step))
        assert trainer._first_steps is None and torch.equal(torch.get_rng_state(), draws)
    assert train(plan, make(), **training) == train(plan, make(), verify_first_step=False, **training)


MUTANTS = {
    "another constant": (lambda text: substitute(r"0?\.?375(0*E-1|0*e-01)?\b|3\.75\d*[eE]-0?1", "0.5", text), "step 1 .*the (loss|gradient of `.*`) is [-0-9.e]+ .*, where 0.001 "),
    "no mean": (lambda text: substitute(r"(reduce_scatter .*?<pre =) 2", r"\1 1", text), r"step 1 .*the gradient of `.*` is "),
    "an update left out": (lambda text: substitute(r"\n *plan\.adamw .*", "", text), "step 1 .*the plan never updates parameter `.*`, which has a gradient"),
    "not clipped": (lambda text: substitute(r"( plan\.adamw .*) clip %\S+", r"\1", text), r"step 1 .*(parameter|exp_avg of) `.*` is .*, where 0.0001 of the change is allowed"),
}


def tampered(plan, mutant, folder):
    (folder / "changed.mlir").write_text(MUTANTS[mutant][0](succeed("fsdp-translate", "--import-plan", plan.path, "--mlir-print-debuginfo").stdout))
    succeed("fsdp-translate", "--export-plan", folder / "changed.mlir", "-o", folder / "changed.plan")
    return str(folder / "changed.plan")


@pytest.mark.parametrize("mutant", ["another constant", "an update left out", "not clipped"])
def test_a_wrong_plan_is_not_trained(mutant, tmp_path):
    plan = fsdp_mlir.compile(model := Model(), batch(0), ranks=1, clip_grad_norm=0.1)
    with pytest.raises(FSDPError) as error:
        train(replaced(plan, tampered(plan, mutant, tmp_path)), model)
    assert re.search(f"changed.plan: expected {MUTANTS[mutant][1]}", str(error.value)), error.value
    assert "fsdp_mlir.compare() finds" in str(error.value)


# A loop of PyTorch hears of it in the forward, ahead of any update.
def test_fully_sharded_compares_its_first_steps(tmp_path, monkeypatch):
    plan = fsdp_mlir.compile(Model(), batch(0), ranks=1)
    for path in "", tampered(plan, "another constant", tmp_path):
        if path:
            monkeypatch.setattr("fsdp_mlir._fully_sharded.compile", lambda model, *_, **__: replaced(fsdp_mlir.compile(model, batch(0), ranks=1), path))
        model = fsdp_mlir.fully_sharded(Model(), batch(0), ranks=1, lr=1e-2)
        for step in range(3):
            if path:
                with pytest.raises(FSDPError, match="expected step 1 to be that of eager PyTorch"):
                    model(**batch(step))
                break
            model(**batch(step)).backward()
            model.optimizer.step()
            model.zero_grad()
        assert model.optimizer._session.updates == (0 if path else 3)


# Each rank says the same, whichever sees it; means are over all of them.
def test_ranks(tmp_path):
    plan = fsdp_mlir.compile(Model(), batch(0), ranks=2)
    plans = {"compared": "", "plain": "", "wrong": tampered(plan, "no mean", tmp_path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port(), WORKER, tmp_path, json.dumps(plans)]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300,
                            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert result.returncode == 0, result.stdout + result.stderr
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other and one["compared"] == one["plain"] and len(one["plain"]) == 3
    assert re.search(f"changed.plan: expected {MUTANTS['no mean'][1]}", one["wrong"]), one["wrong"]


# A training goes on from wherever it is: with its states, counters and generators.
def test_it_begins_after_a_checkpoint(tmp_path):
    plan = fsdp_mlir.compile(Model(), batch(0), ranks=1)
    first = Trainer(plan, Model(), verify_first_step=False)
    first.step(batch(0))
    first.save(tmp_path)
    second = Trainer(plan, Model(), **ON)
    second.load(tmp_path)
    assert [second.step(batch(k)).item() for k in (1, 2)] == [first.step(batch(k)).item() for k in (1, 2)]


def test_what_is_not_compared_is_said(tmp_path):
    plan = fsdp_mlir.compile(model := Model(), batch(0), ranks=1)
    for given, module, sentence in ((plan.path, model, "the plan is not what compile"), (plan, None, "the Trainer has no module"),
                                    (plan, torch.nn.Sequential(Model()), "the module calls .* otherwise"),
                                    (fsdp_mlir.compile(Model(), batch(0), ranks=1, accumulate=2), Model(), "accumulates gradients")):  # fmt: skip
        with pytest.raises(FSDPError, match=f"expected a training to compare with eager PyTorch, found that .*{sentence}.*; leave out verify_first_step=True"):
            Trainer(given, module, weights=plan.model_path, **ON)
        Trainer(given, module, weights=plan.model_path).close()


# Above the limit it is left to the caller, who may ask.
def test_large_modules_are_compared_when_asked(monkeypatch):
    monkeypatch.setattr("fsdp_mlir._first_steps.LARGEST", 100)
    plan = fsdp_mlir.compile(Model(), batch(0), ranks=1)
    assert Trainer(plan, Model())._first_steps is None and Trainer(plan, Model(), **ON)._first_steps is not None


# The first operator that is wrong, not those after it; the module that calls it, and both values.
def test_compare_names_the_first_operator_that_differs(tmp_path):
    plan = fsdp_mlir.compile(model := Model(), batch(0), ranks=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    right = fsdp_mlir.compare(model, plan, batch(1))
    assert right and right.compared > 40 and str(right) == f"{right.compared} operators compared, none differs"
    wrong = replaced(plan, tampered(plan, "another constant", tmp_path))
    wrong.summary = plan.summary
    found = fsdp_mlir.compare(model, wrong, batch(1))
    assert not found and not found.graph and found.step
    first = next(n for n in plan._reference.program.graph.nodes if str(n.target) == "aten.mul.Tensor" and 0.375 in n.args)
    assert (found.node, found.operator, found.unit, found.rank) == (first.name, "aten.mul.Tensor", "root", 0)
    assert re.search(rf"`{first.name}` is .* in eager PyTorch, .* in the plan", str(found)), str(found)
    file, line, text = re.fullmatch(r"(.+):(\d+): (.+)", found.source).groups()
    assert file == "first_steps_rank.py" and "0.375" in text
    assert linecache.getline(sys.modules[Model.__module__].__file__, int(line)).strip() == text
    assert f"\n  {found.source}\n" in str(found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# Operators that run again, and roundings of 16 bits, are no differences.
@pytest.mark.parametrize("make", [Autocast, Model])
def test_compare_with_16_bits_and_recomputation(make):
    plan = fsdp_mlir.compile(model := make(), batch(0), ranks=1, remat="scope:blocks.*", mixed_precision=HONEST["bf16"][1]["mixed_precision"] if make is Model else None)
    found = fsdp_mlir.compare(model, plan, batch(1))
    assert found, str(found)


# The graph that PyTorch runs is compared with the module, too.
def test_compare_tells_a_wrong_graph_from_a_wrong_plan():
    plan = fsdp_mlir.compile(model := Model(), batch(0), ranks=1)
    for node in plan._reference.program.graph.nodes:
        if 0.375 in node.args:
            node.args = (node.args[0], 0.5)
    plan._reference.program.graph_module.recompile()
    found = fsdp_mlir.compare(model, plan, batch(1))
    assert found.graph and "the captured graph: " in str(found)


# The options without any one of which a plan is right, whatever else it has.
def test_compare_finds_the_options_of_a_difference(tmp_path, monkeypatch):
    guilty, make = {"--limit-all-gathers=2", "--optimizer=sgd"}, _plan.make
    tried = []

    def make_wrong(folder, models, arguments, **options):
        make(folder, models, arguments, **options)
        tried.append(arguments)
        if guilty <= {*arguments}:
            wrong = tampered(types.SimpleNamespace(path=folder / "step.plan"), "another constant", tmp_path)
            os.replace(wrong, folder / "step.plan")

    monkeypatch.setattr("fsdp_mlir._plan.make", make_wrong)
    plan = fsdp_mlir.compile(model := Model(), batch(0), ranks=1, optimizer="sgd", momentum=True, limit_all_gathers=2, forward_prefetch=1, clip_grad_norm=0.1)
    assert guilty <= {*plan._arguments}
    found = fsdp_mlir.compare(model, plan, batch(1), bisect=True)
    assert {*found.options} == guilty and found.node and str(found).splitlines()[-2].endswith(", and with fewer options does not")
    assert len(tried) <= 1 + len(plan._arguments) ** 2 and all("--ranks=1" in arguments for arguments in tried)
    guilty.clear()  # it is wrong in any case
    assert fsdp_mlir.compare(model, plan, batch(1), bisect=True).options == ()
    guilty.add("--no-such-option")  # what is in the file is not what the options make
    with pytest.raises(FSDPError, match="expected a plan that its options make, found that the same options make one that does not differ; compile it again"):
        fsdp_mlir.compare(model, plan, batch(1), bisect=True)


def test_nothing_is_bisected_where_nothing_differs(monkeypatch):
    plan = fsdp_mlir.compile(model := Model(), batch(0), ranks=1)
    monkeypatch.setattr("fsdp_mlir._plan.make", None)
    assert fsdp_mlir.compare(model, plan, batch(1), bisect=True).options is None


class Permuted(torch.nn.Module):
    """A parameter of integers, which is a buffer of the plan, and one without elements, which nobody updates."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.nn.Parameter(torch.randperm(8), requires_grad=False)
        self.linear, self.none = torch.nn.Linear(8, 8), torch.nn.Linear(8, 0, bias=False)
        for i in range(8):
            self.register_buffer(f"scale_{i}", torch.tensor(float(i)))

    def forward(self, x):
        return torch.cat([self.linear(x[:, self.order]), self.none(x)], -1).square().mean() * sum(self.get_buffer(f"scale_{i}") for i in range(8))


def test_parameters_of_integers_and_without_elements():
    model, x = Permuted(), torch.randn(4, 8)
    plan = fsdp_mlir.compile(model, x, ranks=1)
    expected = model(x).item()
    with fsdp_mlir.Trainer(plan, model, verify_first_step=True) as trainer:
        assert float(trainer.step(x)) == pytest.approx(expected, rel=1e-5)
        trainer.step(x)
        assert list(trainer.full_state_dict()) == list(Permuted().state_dict())
        # All ranks read and write them in one order, whatever the order of a set is in each.
        assert [name for name in trainer._tensor_of if name.startswith(("order", "scale"))] == ["order", *(f"scale_{i}" for i in range(8))]
