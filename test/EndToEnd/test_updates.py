"""What updates take besides states: hyper-parameters, and gradients that are scaled by what the step finds.

No pass scales gradients: a step that clips their norm is made from one that does not, by hand.
"""

import re

import pytest
import torch
from conftest import FIXTURES, succeed, tool
from safetensors import safe_open
from safetensors.torch import save_file

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
    lines, total = [], None
    for i, update in enumerate(updates):
        _, _, unit, intervals, _, gradient, _, shard, _ = update.groups()
        lines.append(f"%sq{i} = fsdp.squared_norm @{unit} {intervals} {gradient} : {shard}")
        if total is not None:
            lines.append(f'%sum{i} = aten.call "add.Tensor"({total}, %sq{i}) : (tensor<f32>, tensor<f32>) -> tensor<f32>')
        total = f"%sum{i}" if i else "%sq0"
    lines += [
        f'%sums = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f32 {total} : tensor<f32> -> tensor<f32>',
        '%norm = aten.call "sqrt"(%sums) : (tensor<f32>) -> tensor<f32>',
        '%more = aten.call "add.Scalar"(%norm, 1.0e-06) : (tensor<f32>) -> tensor<f32>',
        '%inverse = aten.call "reciprocal"(%more) : (tensor<f32>) -> tensor<f32>',
        f'%ratio = aten.call "mul.Scalar"(%inverse, {max_norm:e}) : (tensor<f32>) -> tensor<f32>',
        '%factor = aten.call "clamp_max"(%ratio, 1) : (tensor<f32>) -> tensor<f32>',
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
