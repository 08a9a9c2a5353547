"""What updates take besides states: hyper-parameters, and gradients that are scaled by what the step finds.

A step that scales gradients is made from one that does not, by hand. It does not say that it clips their norm, as the step of
`--clip-grad-norm` does (test_clipping.py).
"""

import re

import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors import safe_open
from safetensors.torch import save_file
from test_mutations import substitute

HYPER = {"lr": 0.5, "weight_decay": 0.0}


def logical(graph, ranks, folder):
    """The logical level with SGD at its end."""
    succeed("fsdp-translate", "--import-pt2", FIXTURES / f"{graph}.pt2", "-o", folder / "aten.mlir")
    return succeed("fsdp-opt", folder / "aten.mlir", "--fsdp-assign-units", f"--fsdp-shard=ranks={ranks}",
                   "--fsdp-insert-optimizer=optimizer=sgd").stdout


UPDATE = re.compile(r"( *)(%\S+) = fsdp\.sgd @(\S+) (\[.*?\]) (%\S+), (%\S+), (%\S+) : (!fsdp\.shard<.*?>), (.*)\n")


def clip(text, max_norm, scales):
    """Clips the norm of all gradients ahead of the first update, which take the factor; or `scales` each gradient by it."""
    updates = list(UPDATE.finditer(text))
    lines, total = [], ""
    for i, update in enumerate(updates):
        _, _, unit, intervals, _, gradient, _, shard, _ = update.groups()
        lines.append(f"%norm{i} = fsdp.measure squared_norm @{unit} {intervals} {gradient}{total} : {shard}")
        total = f" initial %norm{i}"
    lines += [
        f'%norm = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 %norm{len(updates) - 1} : tensor<f64> -> tensor<f64>',
        f"%factor = fsdp.clip_factor squared_norm max_norm {max_norm:e} (%norm)",
    ]
    if scales:
        lines += [f"%clipped{i} = fsdp.scale @{update[3]} {update[6]} by %factor : {update[8]}" for i, update in enumerate(updates)]
    first, number = updates[0].start(), iter(range(len(updates)))

    def take(update):
        space, name, unit, intervals, parameter, gradient, hyper, shard, rest = update.groups()
        gradient, operand = (f"%clipped{next(number)}", "") if scales else (gradient, " clip %factor")
        return f"{space}{name} = fsdp.sgd @{unit} {intervals} {parameter}, {gradient}, {hyper}{operand} : {shard}, {rest}\n"

    return text[:first] + "".join(f"    {line}\n" for line in lines) + UPDATE.sub(take, text[first:])


def lower(text, folder):
    """The plan file, without the proof."""
    (folder / "logical.mlir").write_text(text)
    succeed("fsdp-opt", folder / "logical.mlir", "--fsdp-verify-logical", "--fsdp-verify-equivalence", "--fsdp-hoist-constants",
            "--fsdp-async", "--fsdp-prefetch", "--fsdp-apply-schedule", "--fsdp-verify-scheduled", "--fsdp-verify-futures", "--fsdp-verify-order",
            "--fsdp-verify-equivalence", "--lower-to-plan", "-o", folder / "plan.mlir")
    succeed("fsdp-translate", "--export-plan", folder / "plan.mlir", "-o", folder / "step.plan")
    return folder / "step.plan"


def reference(graph, ranks, source, max_norm, path):
    """One step of SGD as PyTorch does it: its loss and the parameters after it."""
    program = torch.export.load(FIXTURES / f"{graph}.pt2")
    with safe_open(source, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}
    parameters = {name: torch.nn.Parameter(program.state_dict[name].clone()) for name in program.graph_signature.parameters}
    for name, parameter in parameters.items():
        if f"grad.{name}" in found: # others are frozen
            parameter.grad = torch.empty_like(parameter).copy_(found[f"grad.{name}"])
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm)
    torch.optim.SGD(parameters.values(), **HYPER).step()
    inputs = {name: value if ranks > 1 else value[None] for name, value in found.items() if name.startswith("in_")}
    save_file({**inputs, "losses": found["loss"].reshape(1),
               **{f"param.{name}": parameter.detach().contiguous() for name, parameter in parameters.items()}},
              path, {key: str(value) for key, value in HYPER.items()})
    return norm.item()


# The norm is over all units and ranks; whether it is above the bound or below.
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("graph, ranks", [("gpt2", 1), ("gpt2", 2), ("gpt2", 3), ("frozen", 2), ("llama", 2)])
def test_a_clipped_step_is_that_of_pytorch(graph, ranks, scales, references, tmp_path):
    text = logical(graph, ranks, tmp_path)
    for max_norm in (0.125, 1000.0):
        norm = reference(graph, ranks, references(graph, ranks), max_norm, tmp_path / "reference.safetensors")
        assert 0.125 < norm < 1000
        plan = lower(clip(text, max_norm, scales), tmp_path)
        for extra in ([], ["--overlap", "--chaos", "5"]):
            succeed("fsdp-run", plan, "--weights", FIXTURES / f"{graph}.pt2", "--reference", tmp_path / "reference.safetensors", *extra)


# Without the clipping, the comparison above would fail.
def test_an_unclipped_step_is_another(references, tmp_path):
    reference("gpt2", 2, references("gpt2", 2), 0.125, tmp_path / "reference.safetensors")
    plan = lower(logical("gpt2", 2, tmp_path), tmp_path)
    result = tool("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--reference", tmp_path / "reference.safetensors")
    assert result.returncode == 2, result.stdout + result.stderr


def verdict(text, folder):
    """What the proof says about a plan's text."""
    (folder / "verified.mlir").write_text(text)
    result = tool("fsdp-opt", folder / "verified.mlir", "--plan-verify", "-o", folder / "proved.mlir")
    return "proved" if result.returncode == 0 else result.stderr


def grouped(text):
    """The last unit's update in a decay group of its own."""
    text = substitute(r"(%\S+: tensor<7xf64> \{fsdp.hyper = 0 : i64\})", r"\1, %other: tensor<7xf64> {fsdp.hyper = 1 : i64}", text)
    last = list(UPDATE.finditer(text))[-1]
    return text[:last.start()] + last[0].replace(f", {last[7]} :", ", %other :") + text[last.end():]


def test_decay_groups_are_proved(tmp_path):
    text = logical("gpt2", 2, tmp_path)
    lower(text, tmp_path)
    assert verdict((tmp_path / "plan.mlir").read_text(), tmp_path) == "proved"
    lower(grouped(text), tmp_path)
    plan = (tmp_path / "plan.mlir").read_text()
    assert "hyper number 1 in host" in plan and verdict(plan, tmp_path) == "proved"


# The numbers of another group: the two buffers are exchanged.
def test_another_groups_numbers_are_refuted(tmp_path):
    lower(grouped(logical("gpt2", 2, tmp_path)), tmp_path)
    plan = (tmp_path / "plan.mlir").read_text()
    changed = re.sub(r"hyper number ([01])", lambda found: f"hyper number {1 - int(found[1])}", plan)
    answer = verdict(changed, tmp_path)
    assert "expected the parameter " in answer and "hyper-parameters of decay group " in answer and "cannot prove" not in answer, answer


# No model scales its gradients: what does is another value, in any of the three places.
@pytest.mark.parametrize("operand", ["clip", "scale", "found_inf"])
def test_scales_that_the_model_does_not_have_are_refuted(operand, tmp_path):
    lower(logical("frozen", 2, tmp_path), tmp_path)
    plan = (tmp_path / "plan.mlir").read_text()
    loss = re.search(r"(%\S+) = plan\.buffer loss .*tensor<f32>", plan)[1]
    there = re.search(r"(%\S+) = plan\.record <forward> on all_reduce", plan)[1]
    answer = verdict(substitute(r"(plan\.sgd .*?)( <update>)", rf"plan.wait {there} <update>\n\1 {operand} {loss}\2", plan), tmp_path)
    assert "expected the parameter " in answer and "cannot prove" not in answer, answer


# Where the step scales them, what is updated cannot be proved: neither as it is, nor without a part of it.
@pytest.mark.parametrize("scales", [False, True])
def test_what_is_clipped_cannot_be_proved(scales, tmp_path):
    lower(clip(logical("gpt2", 2, tmp_path), 0.125, scales), tmp_path)
    plan = (tmp_path / "plan.mlir").read_text()
    part = r'.*plan\.launch "mul\.out"\((%\S+), %\S+\) -> \1 <update>.*\n' if scales else r" clip %\S+"
    for count in (None, 1, 0): # how many are taken away, 0: all
        text = plan if count is None else re.sub(part, "", plan, count=count)
        answer = verdict(text, tmp_path)
        assert "cannot prove the plan: the end of program step: expected the parameter " in answer, answer
        # A scaled piece is not followed to the whole.
        isfollowed = not scales or count == 0
        reason = "in the model, nothing says by what gradients are scaled" if isfollowed else "needs a gather of what all ranks know"
        assert reason in answer, answer


# The loss and the gradients of such a step are proved like those of any other.
def test_gradients_of_a_clipped_step_are_proved(tmp_path):
    lower(clip(logical("gpt2", 2, tmp_path), 0.125, False), tmp_path)
    changed = substitute(r"(reduce_scatter .*?<pre =) 2", r"\1 1", (tmp_path / "plan.mlir").read_text())
    answer = verdict(changed, tmp_path)
    assert "expected the gradient " in answer and "cannot prove" not in answer, answer
