"""fsdp_mlir.verify with a plan: two updates and a resume, and that it can tell."""

import os
import re
import stat
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import BUILD, succeed
from test_mutations import substitute
from torch import nn
from torch.distributed.fsdp import MixedPrecision

import fsdp_mlir

torch.set_num_threads(1)


class Model(nn.Module):
    """Buffers of each rank's own, random numbers, a tied parameter, one that is frozen and one that is not used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.head.weight = self.embed.weight
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1)) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(16), requires_grad=False)
        self.unused = nn.Linear(2, 2)

    def forward(self, ids, labels):
        x = self.embed(ids) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x), labels)


INPUTS = (torch.arange(24) % 11, torch.arange(24) % 7)


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.setenv("PATH", f"{BUILD / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """captured(policy): the module, its program, and the archive."""
    made = {}

    def find(policy=None):
        if id(policy) not in made:
            model, path = Model(), tmp_path_factory.mktemp("captured") / "model.pt2"
            program = fsdp_mlir.capture(model, INPUTS, mixed_precision=policy)
            fsdp_mlir.save(program, path, verify=False)
            made[id(policy)] = model, program, path
        return made[id(policy)]

    return find


def adamw(model, **hyper):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **hyper)


def grouped(model):
    """As --no-decay bias."""
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["bias" in name].append(parameter)
    return torch.optim.AdamW([{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0}], lr=3e-4, betas=(0.8, 0.95))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)


BF16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
CASES = {
    "one rank": ("--ranks 1", None, {}, None),
    "adamw": ("--ranks 3", adamw, {}, None),
    "groups, clipped": ("--ranks 2 --no-decay bias --clip-grad-norm 0.1", grouped, {"max_norm": 0.1}, None),
    "sgd": ("--ranks 2 --optimizer sgd --momentum --clip-grad-norm 0.01:inf --strategy no_shard", sgd, {"max_norm": 0.01, "norm_type": float("inf")}, None),
    "hybrid, offload": ("--mesh 2x2 --strategy hybrid_shard --offload all --wrap scope:blocks", None, {}, None),
    "bf16": ("--ranks 2", adamw, {}, BF16),
}


def planned(path, options, folder):
    succeed("fsdp-plan", path, *options.split(), "-o", folder / "step.plan")
    return folder / "step.plan"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_plan_trains_as_pytorch_does(case, captured, tmp_path):
    options, make, more, policy = CASES[case]
    model, program, path = captured(policy)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fsdp_mlir.verify(model, program, INPUTS, plan=planned(path, options, tmp_path), optimizer=make and make(model), **more)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


OPTIONS = "--ranks 2 --no-decay bias --clip-grad-norm 0.1"


def rejected(captured, plan, optimizer=grouped, **more):
    model, program, _ = captured()
    with pytest.raises(fsdp_mlir.CaptureError) as error:
        fsdp_mlir.verify(model, program, INPUTS, plan=plan, optimizer=optimizer and optimizer(model), **{"max_norm": 0.1, **more})
    return str(error.value)


def exchanged(text):
    """Each update takes the hyper-parameters of the other decay group."""
    one, other = (re.search(rf"(%\d+) = plan\.buffer hyper {name}", text)[1] for name in ("number 0", '"no_decay" number 1'))
    return re.sub(rf"(plan\.adamw .*)({one}|{other})\b", lambda m: m[1] + (other if m[2] == one else one), text)


# What a plan does otherwise, and what shows it.
MUTANTS = {
    "groups exchanged": (exchanged, "parameter `.*` is .* after update 1 of AdamW"),
    "not clipped": (lambda text: re.sub(r"( plan\.adamw .*) clip %\S+", r"\1", text), "exp_avg of `.*` is .* after update 1|parameter `"),
    "a sum for a mean": (lambda text: substitute(r"(reduce_scatter .*?<pre =) 2", r"\1 1", text), "in update 1, the gradient of `"),
    "an update left out": (lambda text: re.sub(r"\n *plan\.adamw .*", "", text, count=1), "after update 1 of AdamW"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_plan_that_trains_otherwise_is_found(mutant, captured, tmp_path):
    change, sentence = MUTANTS[mutant]
    plan = planned(captured()[2], OPTIONS, tmp_path)
    text = succeed("fsdp-translate", "--import-plan", plan).stdout
    changed = change(text)
    assert changed != text
    (tmp_path / "changed.mlir").write_text(changed)
    succeed("fsdp-translate", "--export-plan", tmp_path / "changed.mlir", "-o", tmp_path / "changed.plan")
    said = rejected(captured, tmp_path / "changed.plan")
    assert re.search(f"changed.plan does not train as PyTorch does: .*({sentence})", said), said


def wrapper(folder, monkeypatch, python):
    """A fsdp-run of its own on the PATH: the real one, with `arguments` and `checkpoint` (the folder, if it writes one) at hand."""
    path = folder / "bin" / "fsdp-run"
    path.parent.mkdir()
    path.write_text(f"""#!{sys.executable}
import glob, json, subprocess, sys
arguments = sys.argv[1:]
def run():
    code = subprocess.run([{str(BUILD / "bin" / "fsdp-run")!r}, *arguments]).returncode
    if code:
        sys.exit(code)
sys.path[:0] = {[str(p) for p in (os.path.dirname(__file__), *sys.path)]!r}
{python}
""")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


# What no first loss shows: the number of the update, and the states.
COUNTED = """
run()
if "--resume" not in arguments:
    from test_checkpoints import sign
    for folder in glob.glob(arguments[arguments.index("--checkpoint") + 1] + "/step-00000001"):
        import pathlib
        sign(pathlib.Path(folder), updates={updates})
"""
RUNTIMES = {
    "an update too many": (COUNTED.format(updates=2), "after update 2|after a resume, updates"),
    "an update too few": (COUNTED.format(updates=0), "after update 2|after a resume, updates"),
    "another beta": ("arguments[arguments.index('--beta2') + 1] = '0.94'; run()", "exp_avg_sq of `.*` is .* after update 1"),
    "the data from the start after a resume": ("""
if "--resume" in arguments:
    import pathlib
    from test_checkpoints import sign
    sign(pathlib.Path(arguments[arguments.index("--resume") + 1]), position=0)
run()""", "in update 2"),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_that_trains_otherwise_is_found(runtime, captured, tmp_path, monkeypatch):
    plan = planned(captured()[2], OPTIONS, tmp_path)
    python, sentence = RUNTIMES[runtime]
    wrapper(tmp_path, monkeypatch, python)
    said = rejected(captured, plan)
    assert re.search(f"step.plan does not train as PyTorch does: .*({sentence})", said), said


# Another optimizer than the plan was made for.
@pytest.mark.parametrize("optimizer, more, sentence", [
    (adamw, {}, "parameter `.*bias` is "),
    (grouped, {"max_norm": None}, "parameter `|exp_avg of `"),
    (grouped, {"norm_type": 1.0}, "parameter `|exp_avg of `"),
], ids=["no groups", "no bound", "another norm"])
def test_another_training_is_found(optimizer, more, sentence, captured, tmp_path):
    said = rejected(captured, planned(captured()[2], OPTIONS, tmp_path), optimizer, **more)
    assert re.search(f"does not train as PyTorch does: ({sentence})", said), said


@pytest.mark.parametrize("options, optimizer, sentence", [
    ("--optimizer none", None, "makes no update, which is not compared with PyTorch; plan with --optimizer adamw or sgd"),
    ("--accumulate 2", None, "accumulates gradients over micro-batches, which is not compared with PyTorch; plan without --accumulate"),
    ("--grad-scaler default", None, "scales the loss, which is not compared with PyTorch; plan without --grad-scaler"),
    ("--sync-buffers mean", None, "makes the buffers of all ranks alike, which is not compared with PyTorch; plan without --sync-buffers"),
    ("--ignore blocks.0", None, "leaves parameters to each rank, which is not compared with PyTorch; plan without --ignore"),
    ("--lr-groups head", None, "has groups of parameters with learning rates of their own, which is not compared with PyTorch; plan without --lr-groups"),
    ("", sgd, "updates with AdamW, the optimizer is SGD"),
    ("--optimizer sgd", sgd, "has no momentum, the optimizer has 0.9; plan with --momentum"),
    ("", lambda model: torch.optim.Adam(model.parameters()), "updates with AdamW, the optimizer is Adam"),
    ("", lambda model: torch.optim.AdamW(model.parameters(), amsgrad=True), "amsgrad=True of the optimizer is none of a plan's: leave it at False"),
    ("", lambda model: torch.optim.AdamW([{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters()), "lr": 0.1}]),
     r"the groups of the optimizer differ in lr \(0.001, 0.1\), and those of a plan do not"),
    ("", lambda model: torch.optim.AdamW(model.blocks.parameters()), "the optimizer lacks `embed.weight`, which the plan trains"),
], ids=lambda value: value if isinstance(value, str) and value.startswith("--") else "")  # fmt: skip
def test_what_is_not_compared_is_said(options, optimizer, sentence, captured, tmp_path):
    plan = planned(captured()[2], f"--ranks 2 {options}", tmp_path)
    assert re.search(sentence, said := rejected(captured, plan, optimizer)), said


def test_the_tools_must_be_there(captured, tmp_path, monkeypatch):
    plan = planned(captured()[2], "--ranks 2", tmp_path)
    monkeypatch.setenv("FSDP_BIN", str(tmp_path))
    said = rejected(captured, plan)
    assert said.startswith(f"fsdp-translate: expected it in {tmp_path}, the folder of FSDP_BIN, found none") and said.endswith("; or leave out plan=")
