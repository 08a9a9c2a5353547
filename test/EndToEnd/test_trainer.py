"""fsdp_mlir.Trainer beside eager PyTorch and fsdp-run: a process for each rank, a different batch on every rank and step."""

import copy
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import types
import warnings

import pytest
import torch
from conftest import BUILD, FIXTURES, ROOT, free_port, needs_trainer, succeed
from fixture_models import role
from safetensors.torch import save_file

import fsdp_mlir
from fsdp_mlir import FSDPError, Trainer

pytestmark = needs_trainer


@pytest.fixture(autouse=True)
def one_thread():
    """As a rank has: more of them add in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rolled(inputs, count: int) -> list[tuple]:
    """Batches that are all different."""
    return [tuple(value.roll(k, 0).roll(k, -1).detach() for value in inputs) for k in range(count)]


def spelled(loss: torch.Tensor) -> float:
    """With the nine digits that fsdp-run --json has: enough to tell all numbers of f32 apart."""
    return float(f"{loss.item():.9g}")


def assert_same(expected: dict, found: dict) -> None:
    assert list(expected) == list(found)
    for name, value in expected.items():
        assert value.dtype == found[name].dtype and torch.equal(value, found[name]), name


# Every bit of losses, parameters, buffers and states; frozen, unused and tied parameters, batch norm, dropout, bf16.
@pytest.mark.parametrize("name", ["tied", "frozen", "unused", "batch_norm", "dropout", "channels_last", "bf16"])
def test_a_rank_alone_trains_as_eager_does(name, plans):
    case, eager = role(name), role(name).module
    optimizer = torch.optim.AdamW([p for p in eager.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1, fused=True)
    trainer = Trainer(plans(f"role_{name}", 1), case.module, lr=1e-2, weight_decay=0.1, seed=5)
    torch.manual_seed(5)
    for batch in rolled(case.inputs, 4):
        optimizer.zero_grad()
        expected = eager(*batch)
        expected.backward()
        optimizer.step()
        loss = trainer.step(batch)
        assert loss.dtype == expected.dtype and loss.item() == expected.item()
    assert trainer.steps == 4
    assert_same(dict(eager.state_dict()), trainer.full_state_dict())
    names = {p: n for n, p in eager.named_parameters()}
    state = trainer.optimizer.state_dict()["state"]
    for parameter, values in optimizer.state.items():
        mine = state[names[parameter]]
        assert mine["step"] == values["step"]
        for kind in "exp_avg", "exp_avg_sq":
            ((offsets, view),) = mine[kind].pieces
            assert not any(offsets) and torch.equal(view, values[kind])


def test_sgd_with_momentum(plans):
    case, eager = role("frozen"), role("frozen").module
    optimizer = torch.optim.SGD([p for p in eager.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=1e-2, fused=True)
    trainer = Trainer(plans("role_frozen", 1, "--optimizer", "sgd", "--momentum"), case.module, lr=0.1, momentum=0.9)
    for batch in rolled(case.inputs, 3):
        optimizer.zero_grad()
        eager(*batch).backward()
        optimizer.step()
        trainer.step(batch)
    assert_same(dict(eager.state_dict()), trainer.full_state_dict())
    assert set(next(iter(trainer.optimizer.state_dict()["state"].values()))) == {"momentum_buffer"}


# A scheduler of PyTorch sees an optimizer; the rate of a step is what it says then.
def test_learning_rates_come_from_outside(plans):
    case, eager = role("tied"), role("tied").module
    mine = Trainer(plans("role_tied", 1), case.module, lr=1e-2)
    optimizers = [torch.optim.AdamW(eager.parameters(), lr=1e-2, fused=True), mine.optimizer]
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 5) for each in optimizers]
    for step, batch in enumerate(rolled(case.inputs, 5)):
        if step == 3:
            mine.lr = optimizers[0].param_groups[0]["lr"] = 3e-3
        optimizers[0].zero_grad()
        eager(*batch).backward()
        optimizers[0].step()
        mine.step(batch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as of calls in another order
            for scheduler in schedulers:
                scheduler.step()
        assert mine.lr == optimizers[0].param_groups[0]["lr"]
    assert_same(dict(eager.state_dict()), mine.full_state_dict())
    with pytest.raises(FSDPError, match="expected a call of Trainer.step"):
        mine.optimizer.step()
    mine.optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(FSDPError, match="expected amsgrad=False as the plan has it, found True"):
        mine.step(batch)


# What the plan clips by, which its own memory does not keep.
@pytest.mark.parametrize("clip, order", [("0.5", 2.0), ("1e6", 2.0), ("0.01:inf", torch.inf), ("0.5:1", 1.0)])
def test_the_norm_of_the_gradients(clip, order, plans):
    case, eager = role("tied"), role("tied").module
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-2, fused=True)
    trainer = Trainer(plans("role_tied", 1, "--clip-grad-norm", clip), case.module, lr=1e-2)
    for batch in rolled(case.inputs, 2):
        optimizer.zero_grad()
        eager(*batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(eager.parameters(), float(clip.split(":")[0]), order)
        optimizer.step()
        trainer.step(batch)
        assert trainer.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    with pytest.raises(FSDPError, match="expected a plan that clips gradients, found one that does not"):
        Trainer(plans("role_tied", 1), case.module, weights=FIXTURES / "role_tied.pt2").grad_norm  # noqa: B018


# A step is a call between two of the caller's own lines, whatever these are about.
def test_the_caller_is_left_as_it_was(plans):
    case = role("tied")
    trainer = Trainer(plans("role_tied", 1), case.module)
    weight = torch.ones((), requires_grad=True)
    torch.set_num_threads(2)
    (trainer.step(case.inputs) * weight).backward()
    assert weight.grad > 0 and torch.get_num_threads() == 2 and torch.is_grad_enabled()
    with torch.inference_mode():
        loss = trainer.step(case.inputs)
        assert torch.is_inference_mode_enabled()
    with torch.no_grad():
        trainer.step(case.inputs)
        assert not torch.is_grad_enabled()
    assert not loss.is_inference() and loss.device.type == "cpu" and loss.shape == ()
    assert torch.ones(2, requires_grad=True).sum().requires_grad and torch.get_default_dtype() == torch.float32


# Another thread of Python works while a step runs: it sees time pass that the step takes.
def test_a_step_holds_no_gil(plans):
    trainer = Trainer(plans("gpt2", 1), weights=FIXTURES / "gpt2.pt2")
    batch, turns, isOver = tuple(torch.zeros(2, 16, dtype=torch.int64) for _ in range(2)), [], threading.Event()

    def count():
        while not isOver.is_set():
            turns.append(time.perf_counter())

    thread = threading.Thread(target=count)
    thread.start()
    inside = 0
    for _ in range(50):
        begin = time.perf_counter()
        trainer._session.step([list(batch)])
        end = time.perf_counter()
        inside += sum(begin + 1e-5 < turn < end - 1e-5 for turn in turns[-100000:])
    isOver.set()
    thread.join()
    assert inside > 0


# No second copy: the module keeps names, shapes and dtypes. What the plan does not have stays.
def test_the_plan_takes_the_modules_memory_over(plans):
    module = role("tied").module
    before = {name: (t.shape, t.dtype) for name, t in module.state_dict().items()}
    original = copy.deepcopy(module)
    trainer = Trainer(plans("role_tied", 1), module)
    assert all(p.is_meta for p in module.parameters()) and module.head.weight is module.embed.weight
    assert {name: (t.shape, t.dtype) for name, t in module.state_dict().items()} == before
    with trainer.summon_full_params() as whole:
        assert whole is module and module.head.weight is module.embed.weight
        assert_same(dict(original.state_dict()), dict(module.state_dict()))
        with torch.no_grad():
            module.embed.weight.mul_(2)
    with trainer.summon_full_params(writeback=False):
        assert torch.equal(module.embed.weight, 2 * original.embed.weight)
        with torch.no_grad():
            module.embed.weight.zero_()
    assert module.embed.weight.is_meta
    assert torch.equal(trainer.full_state_dict()["head.weight"], 2 * original.embed.weight)
    kept = Trainer(plans("role_tied", 1), original, keep_module=True, lr=0.1)
    batch = role("tied").inputs
    first = original.embed.weight.detach().clone()
    kept.step(batch)
    assert torch.equal(original.embed.weight, first)
    with kept.summon_full_params():
        assert_same(kept.full_state_dict(), dict(original.state_dict()))
    assert not torch.equal(original.embed.weight, first)


class Scaled(torch.nn.Module):
    """Has a buffer that no checkpoint has, and one that the step does not use."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]), persistent=False)
        self.register_buffer("unused", torch.ones(2))

    def forward(self, x):
        return (self.inner(x) * self.scale).square().mean()


# The module that comes back computes what the plan does, under another name in front of all, too.
def test_buffers_that_no_checkpoint_has(tmp_path):
    model, x = Scaled(), torch.randn(4, 3)
    fsdp_mlir.save(fsdp_mlir.capture(model, (x,)), tmp_path / "m.pt2")
    succeed("fsdp-plan", tmp_path / "m.pt2", "--ranks", 1, "-o", tmp_path / "m.plan")
    wrapped = torch.nn.Sequential(copy.deepcopy(model))
    expected = model(x).item()
    for module, prefix in (model, ""), (wrapped, "0."):
        trainer = Trainer(tmp_path / "m.plan", module)
        assert list(trainer.full_state_dict()) == [prefix + name for name in ("unused", "inner.weight", "inner.bias")]
        with trainer.summon_full_params():
            assert module(x).item() == expected
        assert trainer.step(x).item() == expected
        with pytest.raises(FSDPError, match=r"unused: expected \[2\] as in .*, found \[3\]; take the state dict of the same model"):
            trainer.load_state_dict(trainer.full_state_dict() | {f"{prefix}unused": torch.zeros(3)})
        trainer.load_state_dict({name: torch.zeros_like(value) for name, value in trainer.full_state_dict().items()})
        assert trainer.step({"x": x}) == 0


# As fsdp-run: tuples by order, mappings and dataclasses by the names of the capture.
def test_batches_of_all_kinds(plans):
    import dataclasses

    @dataclasses.dataclass
    class Tokens:
        input_ids: torch.Tensor
        labels: torch.Tensor

    case = role("tied")
    trainer = Trainer(plans("role_tied", 1), case.module, lr=0.0, weight_decay=0.0)
    ids, labels = case.inputs[0], case.inputs[1].roll(1, 0)  # flipped, the pairs of sequences would be the same
    plan = types.SimpleNamespace(path=str(plans("role_tied", 1)), model_path=str(FIXTURES / "role_tied.pt2"))  # as compile() returns one
    assert Trainer(plan).step((ids, labels)) == Trainer(plan, role("tied").module).step((ids, labels))
    expected = trainer.step((ids, labels))
    assert trainer.step((labels, ids)) != expected
    for batch in {"labels": labels, "input_ids": ids}, Tokens(ids, labels), [(ids, labels)], [ids, labels], (ids.t().contiguous().t(), labels):
        assert trainer.step(batch) == expected


# Gradients of micro-batches are summed or averaged by the plan; a batch of all is split as fsdp-run --data splits it.
def test_micro_batches_and_evaluation(plans, tmp_path):
    case, eager = role("tied"), role("tied").module
    plan = tmp_path / "step.plan"
    archive = FIXTURES / "role_tied.pt2"
    succeed("fsdp-plan", archive, "--ranks", 1, "--accumulate", "2:mean", "--program", f"eval={archive}", "-o", plan)
    trainer = Trainer(plan, case.module, lr=1e-2)
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-2, fused=True)
    first, second, other = rolled(case.inputs, 3)
    for pair in (first, second), (second, other), (other, first):
        optimizer.zero_grad()
        losses = [eager(*batch) for batch in pair]
        (sum(losses) / 2).backward()
        optimizer.step()
        whole = tuple(torch.cat(each) for each in zip(*pair))
        assert trainer.step(trainer.split(whole)).item() == pytest.approx(sum(losses).item() / 2, rel=1e-6)
    before = trainer.full_state_dict()
    assert trainer.evaluate(other).item() == pytest.approx(eager(*other).item(), rel=1e-5)
    assert_same(before, trainer.full_state_dict())
    for given in first, [first], [first, second, other]:
        with pytest.raises(FSDPError, match="expected 2 micro-batches for a step, found"):
            trainer.step(given)
    with pytest.raises(FSDPError, match="expected 8 entries along the first axis, for 1 ranks and 2 micro-batches, found"):
        trainer.split(first)


# One format: fsdp-run goes on from what a Trainer saved, and the other way round, with the bits of one that never stopped.
def test_checkpoints_are_those_of_fsdp_run(plans, tmp_path):
    plan, archive = plans("role_dropout", 1), FIXTURES / "role_dropout.pt2"
    batches = rolled(role("dropout").inputs, 6)
    data = tmp_path / "data.safetensors"
    save_file({f"in_{i}": torch.stack(row).contiguous() for i, row in enumerate(zip(*batches))}, data)
    train = ["fsdp-run", plan, "--weights", archive, "--data", data, "--lr", 0.01]
    lines = succeed(*train, "--steps", 6, "--json", "--checkpoint", tmp_path / "whole", "--every", 2).stdout.splitlines()
    losses = [json.loads(line)["loss"] for line in lines[:6]]
    trainer = Trainer(plan, weights=archive, lr=0.01)
    assert [spelled(trainer.step(batch)) for batch in batches[:4]] == losses[:4]
    assert trainer.save(tmp_path / "mine") == str(tmp_path / "mine" / "step-00000004") == trainer.save(tmp_path / "mine")
    for folder in tmp_path / "mine", tmp_path / "whole" / "step-00000004":
        other = Trainer(plan, weights=archive, lr=0.01)
        assert other.load(folder) == other.steps == 4
        assert [spelled(other.step(batch)) for batch in batches[4:]] == losses[4:]
    trainer.close()  # and gives the folder's lock back
    text = succeed("fsdp-run", plan, "--weights", archive, "--data", data, "--steps", 6, "--json", "--checkpoint", tmp_path / "mine", "--resume", "auto").stdout
    assert [json.loads(line)["loss"] for line in text.splitlines()[:2]] == losses[4:]
    other.load(tmp_path / "mine")
    assert other.save(tmp_path / "mine").endswith("step-00000006")
    # Nothing of another training is written over, or mixed with this one.
    for call, folder, message in [(other.load, "nothing", r"load: expected a checkpoint \(a folder with manifest.json\), a folder of them or "),
                                  (other.save, "whole", r"save: expected a load\(\) to go on with the training, or a folder without checkpoints; found "),
                                  (Trainer(plans("role_batch_norm", 1), role("batch_norm").module).load, "mine", "load: .* expected a checkpoint of the model of ")]:
        with pytest.raises(FSDPError, match=message):
            call(tmp_path / folder)


# Each is one sentence with what was expected, and the training goes on after it.
def test_wrong_batches_are_rejected(plans):
    case = role("tied")
    trainer = Trainer(plans("role_tied", 1), case.module)
    ids, labels = case.inputs
    before = trainer.full_state_dict()
    for batch, message in [
        ((ids,), "expected the 2 inputs of program step, found 1"),
        (ids, "expected the 2 inputs of program step, found 1"),
        ((ids, labels.float()), r"input labels of program step: expected torch.int64 \[4, 8\], found torch.float32 \[4, 8\]"),
        ((ids[:2], labels), r"input input_ids of program step: expected torch.int64 \[4, 8\], found torch.int64 \[2, 8\]"),
        ((ids, None), r"input labels of program step: expected torch.int64 \[4, 8\], found NoneType"),
        ({"input_ids": ids, "targets": labels}, "expected the inputs input_ids, labels of program step, found input_ids, targets"),
        ({"input_ids": ids, "labels": labels, "mask": ids}, "found input_ids, labels, mask; give exactly these"),
        (7, "expected a batch as a tuple, a mapping or a dataclass, found int"),
        ((ids, labels.to("meta")), "expected a dense tensor with values, found one on the device meta"),
        ([case.inputs, case.inputs], "expected 1 batch for a step, found 2"),
    ]:
        with pytest.raises(FSDPError, match=message):
            trainer.step(batch)
    with pytest.raises(FSDPError, match="expected a program eval, found step"):
        trainer.evaluate(case.inputs)
    assert_same(before, trainer.full_state_dict())
    trainer.step(case.inputs)


def test_what_cannot_begin_is_rejected(plans, tmp_path):
    tied = plans("role_tied", 1)
    meta = role("tied").module.to("meta")
    untied = role("tied").module
    untied.head.weight = torch.nn.Parameter(torch.randn_like(untied.head.weight))
    wide = role("tied").module
    wide.norm = torch.nn.LayerNorm(17)
    for arguments, options, message in [
        ((plans("role_tied", 2), role("tied").module), {}, "expected a process group of the plan's 2 ranks, found none; start 2 processes"),
        ((tied,), {}, "expected values to begin with, found none"),
        ((tied, role("batch_norm").module), {}, "expected the parameters of the plan in the model, found that it lacks blocks.0"),
        ((plans("role_batch_norm", 1), role("tied").module), {}, "found that it lacks conv.weight"),
        ((tied, meta), {}, "expected a tensor with values, found one on the device meta; give weights="),
        ((tied, untied), {}, "head.weight: expected the values of embed.weight, to which the plan ties it, found others"),
        ((tied, wide), {}, r"parameter norm.weight: expected \[16\] as in the plan, found \[17\] in the model"),
        ((tmp_path / "no.plan", wide), {}, "no.plan: cannot open"),
        ((FIXTURES / "gpt2.pt2", wide), {}, "gpt2.pt2: "),
        ((tied, role("tied").module), {"timeout": 0}, "timeout: expected from 0.001 to 1e9 seconds, found 0"),
        ((tied,), {"weights": FIXTURES / "gpt2.pt2"}, "gpt2.pt2: "),
    ]:
        with pytest.raises(FSDPError, match=message):
            Trainer(*arguments, **options)
    trainer = Trainer(tied, meta, weights=FIXTURES / "role_tied.pt2")
    for state, message in [({}, "found that what was given lacks embed.weight, "),
                           ({**trainer.full_state_dict(), "other": torch.ones(1)}, "found that the plan has no use for other"),
                           ({**trainer.full_state_dict(), "norm.weight": torch.ones(1)}, r"norm.weight: expected \[16\]")]:
        with pytest.raises(FSDPError, match=message):
            trainer.load_state_dict(state)
    with pytest.raises(FSDPError, match="expected a learning rate of at least 0, found -1"):
        trainer.lr = -1
        trainer.step(role("tied").inputs)
    state = trainer.state_dict()
    trainer.close()
    trainer.close()
    for call in trainer.full_state_dict, trainer.state_dict, lambda: trainer.steps, lambda: trainer.save(tmp_path):
        with pytest.raises(FSDPError, match=r"expected a Trainer that is open, found one after close\(\)"):
            call()
    assert state["norm.weight"].pieces[0][1].isfinite().all()  # its memory stays as long as it does


# The page's own first example, word for word.
def test_the_example_of_the_page(tmp_path):
    code = (ROOT / "docs" / "python.md").read_text().split("```python\n")[1].split("```")[0]
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={
        **os.environ, "OMP_NUM_THREADS": "1", "FSDP_BUILD": str(BUILD.resolve()), "PYTHONPATH": str(ROOT / "python-bindings"), "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"})
    assert result.returncode == 0, result.stderr
    loss, lr = map(float, result.stdout.splitlines()[-1].split())
    assert loss < 1 and lr == pytest.approx(0, abs=1e-9)
    assert list(torch.load(tmp_path / "trained.pt")) == [f"blocks.{i}.0.{name}" for i in range(2) for name in ("weight", "bias")]


RANKS = pathlib.Path(__file__).parent / "Inputs" / "trainer_ranks.py"


def run_ranks(ranks: int, folder: pathlib.Path, tasks: dict, **variables) -> list[dict]:
    """What each rank says of the tasks, under torchrun."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", free_port(), RANKS, folder, json.dumps(tasks)]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300,
                            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables})
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def write_data(name: str, count: int, path: pathlib.Path) -> pathlib.Path:
    save_file({f"in_{i}": torch.stack(row).contiguous() for i, row in enumerate(zip(*rolled(role(name).inputs, count)))}, path)
    return path


def run_threads(plan: pathlib.Path, name: str, data: pathlib.Path, steps: int, folder: pathlib.Path, lr: float = 0.01, archive: pathlib.Path | None = None) -> list:
    """Losses and hashes that fsdp-run has, of ranks that are threads."""
    from safetensors import safe_open

    summoned = folder / "whole.safetensors"
    text = succeed("fsdp-run", plan, "--weights", archive or FIXTURES / f"role_{name}.pt2", "--data", data, "--steps", steps, "--json", "--lr", lr,
                   "--weight-decay", 0.1, "--summon", summoned).stdout
    with safe_open(summoned, "pt") as file:
        hashes = {key: hashlib.sha256(file.get_tensor(key).contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest() for key in file.keys()}
    return [[json.loads(line)["loss"] for line in text.splitlines()[:steps]], hashes]


# The bits of fsdp-run, of any group; checkpoints of both kinds; what goes wrong between ranks is said by each of them.
def test_ranks_of_a_process_group(plans, tmp_path):
    archive = FIXTURES / "role_tied.pt2"
    data = {name: write_data(name, 12, tmp_path / f"{name}.safetensors") for name in ("tied", "batch_norm", "dropout", "frozen")}
    trainings = [("tied", 2, {}), ("batch_norm", 2, {"overlap": True}), ("dropout", 2, {"own_group": True})]
    two = {
        "train": [{"plan": str(plans(f"role_{name}", ranks)), "name": name, "data": str(data[name]), "steps": 3, **options} for name, ranks, options in trainings],
        "accumulate": [{"plan": str(plans("role_tied", 2, "--accumulate", "2:mean")), "data": str(data["tied"])}],
        "checkpoints": [{"plan": str(plans("role_tied", 2)), "data": str(data["tied"]), "folder": str(tmp_path / "run")}],
        "cross_load": [{"plan": str(plans("role_frozen", 2)), "data": str(data["frozen"]), "folder": str(tmp_path)}],
        "rejected": [{"plans": {str(n): str(plans("role_tied", n)) for n in (2, 3)}, "other_plan": str(plans("role_tied", 2, "--forward-prefetch", 1))}],
    }
    first, second = run_ranks(2, tmp_path / "two", two)
    for (name, ranks, _), mine, other in zip(trainings, first["train"], second["train"], strict=True):
        losses, hashes = run_threads(plans(f"role_{name}", ranks), name, data[name], 3, tmp_path)
        assert mine[0] == other[0] == losses and other[1] == {}
        assert {key: mine[1][key] for key in hashes} == hashes
    assert first["accumulate"] == second["accumulate"]
    ((by_rank, split),) = first["accumulate"]
    assert by_rank == split
    assert first["checkpoints"][0][0] and second["checkpoints"][0] == first["checkpoints"][0]

    expected, mine, apart, theirs = first["cross_load"][0]
    assert mine == pytest.approx(expected, rel=1e-5) and theirs == pytest.approx(expected, rel=1e-5) and apart < 1e-2

    for said, rank in (first, 0), (second, 1):
        size, plan, late, seconds = said["rejected"][0]
        assert size.endswith("expected a process group of the plan's 3 ranks, found one of 2; make the plan for as many ranks as there are processes")
        assert "rank 1: expected a plan with digest " in plan and plan.count("as on rank 0") == 1
        if rank == 0:
            assert "waited 0.5 s for rank 1 to" in late and 0.4 < seconds < 5, said

    # Other ranks go on: more, and one.
    four = run_ranks(4, tmp_path / "four", {
        "train": [{"plan": str(plans("role_tied", 4, "--mesh", "2x2")), "name": "tied", "data": str(data["tied"]), "steps": 3}],
        "load": [{"plan": str(plans("role_tied", 4)), "folder": str(tmp_path / "run")}],
        "dcp_load": [{"plan": str(plans("role_frozen", 4)), "folder": str(tmp_path / "mine")}]}, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    losses, hashes = run_threads(plans("role_tied", 4, "--mesh", "2x2"), "tied", data["tied"], 3, tmp_path)
    assert all(said["train"][0][0] == losses for said in four)
    assert {key: four[0]["train"][0][1][key] for key in hashes} == hashes
    assert all(said["load"][0] == first["checkpoints"][0][1] for said in four)
    assert all(said["dcp_load"][0][0] == said["dcp_load"][0][1] for said in four)
    alone = Trainer(plans("role_tied", 1), weights=archive)
    assert alone.load(tmp_path / "run") == 2
    whole = {name: hashlib.sha256(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest() for name, value in alone.full_state_dict().items()}
    assert whole == first["checkpoints"][0][1]


# Nobody waits for the time-out.
def test_a_rank_that_dies_is_an_error_of_the_others(plans, tmp_path):
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, RANKS, tmp_path, json.dumps({"lost": [{"plan": str(plans("role_tied", 2)), "steps": 3}]})]
    processes = [subprocess.Popen(list(map(str, command)), env={**variables, "RANK": str(rank)}) for rank in range(2)]
    assert [process.wait(60) for process in processes] == [0, -signal.SIGKILL]
    said, seconds, is_same = json.loads((tmp_path / "0.json").read_text())
    assert re.match("rank 0, step 4, program step, .*: cannot reach rank 1: ", said), said
    assert seconds < 10 and is_same
