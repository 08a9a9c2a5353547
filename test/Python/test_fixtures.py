"""Every committed graph, run by torch, gives the loss and gradients that eager PyTorch recorded."""

import inspect
import json
import warnings
import zipfile

import pytest
import torch
from fixture_models import ROLES, role
from make_fixtures import SEED, eager, write
from make_rank_reference import examples
from safetensors.torch import load_file
from torch.export.graph_signature import InputKind, OutputKind

import fsdp_mlir

PLAIN = ["gpt2", "llama", "bert", "frozen", "llama_bf16"]


def load(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(path)


def close(mine, reference, what, half=False):
    """`half`: the step computes in a 16-bit type, whatever the type of this result."""
    tolerance = 2e-2 if half or reference.dtype == torch.bfloat16 else 2e-6
    scale = reference.float().abs().max()
    worst = (mine.detach().float() - reference.float()).abs().max()
    assert mine.dtype == reference.dtype and mine.shape == reference.shape, what
    assert worst <= tolerance * scale + 1e-7, f"{what}: {worst:.1e} of {scale:.1e}"


def outputs(program, inputs):
    """What the program's module returns, by what it is: the outputs after the buffer mutations."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        results = program.module(check_guards=False)(*inputs)
    specs = [s for s in program.graph_signature.output_specs if s.kind != OutputKind.BUFFER_MUTATION]
    assert len(results) == len(specs)
    return list(zip(specs, results))


@pytest.mark.parametrize("name", ROLES)
def test_role(name, fixtures):
    program = load(fixtures / f"role_{name}.pt2")
    reference = load_file(fixtures / f"role_{name}_ref.safetensors")
    inputs = [reference.pop(f"in_{i}") for i in range(len(program.example_inputs[0]))]
    for example, recorded in zip(examples(program), inputs):
        assert torch.equal(example, recorded)
    found = {}
    for spec, value in outputs(program, inputs):
        if spec.kind == OutputKind.LOSS_OUTPUT:
            found["loss"] = value
        elif spec.kind == OutputKind.GRADIENT_TO_PARAMETER:
            found[f"grad.{spec.target}"] = value
    assert found.keys() == reference.keys()
    for key, value in found.items():
        close(value, reference[key], key, half=name == "bf16")


@pytest.mark.covers("torch")
@pytest.mark.parametrize("name", PLAIN)
def test_plain_graph(name, fixtures):
    from make_rank_reference import run

    program, reference = load(fixtures / f"{name}.pt2"), load_file(fixtures / f"{name}_ref.safetensors")
    result = run(program, [reference["in_0"], reference["in_1"]])
    close(result.loss, reference["loss"], "loss", half=name.endswith("bf16"))
    assert {f"grad.{n}" for n in result.grads} == {k for k in reference if k.startswith("grad.")}
    for key, value in result.grads.items():
        close(value, reference[f"grad.{key}"], key)


@pytest.mark.covers("Sort")
@pytest.mark.parametrize("name", ["tiny", "input_grad", "batch_norm"])
def test_a_new_capture_gives_the_committed_bytes(name, fixtures, tmp_path):
    """The archive's; a reference's last bits are those of the machine that made it."""
    write(role(name), tmp_path, f"role_{name}", reference=False)
    (made,) = tmp_path.iterdir()
    assert made.read_bytes() == (fixtures / made.name).read_bytes()


def test_gradient_of_an_input(fixtures):
    case = role("input_grad")
    eager(case)
    program = load(fixtures / "role_input_grad.pt2")
    found = [(s.target, v) for s, v in outputs(program, examples(program)) if s.kind == OutputKind.GRADIENT_TO_USER_INPUT]
    assert [target for target, _ in found] == ["in_0"]
    close(found[0][1], case.inputs[0].grad, "in_0")


def test_buffers_change_as_in_eager_mode(fixtures):
    case = role("batch_norm")
    eager(case)
    program = load(fixtures / "role_batch_norm.pt2")
    module = program.module(check_guards=False)
    module(*examples(program))
    for name, value in case.module.named_buffers():
        close(module.get_buffer(name), value, name)


def test_user_output_gets_no_gradient_and_is_right(fixtures):
    case = role("user_output")
    program = load(fixtures / "role_user_output.pt2")
    found = outputs(program, examples(program))
    assert [s.kind for s, _ in found[:2]] == [OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT]
    close(found[0][1], case.module(*case.inputs)["logits"].detach(), "logits")


def test_dynamic_graph_at_other_sizes(fixtures):
    program = load(fixtures / "role_dynamic.pt2")
    for shape in [(1, 3), (5, 11)]:
        case, ids = role("dynamic"), torch.randint(48, shape)
        case.inputs = (ids, ids)
        loss, grads = eager(case)
        for spec, value in outputs(program, [ids, ids]):
            if spec.kind == OutputKind.LOSS_OUTPUT:
                close(value, loss, "loss")
            else:
                close(value, grads[spec.target], spec.target)


@pytest.mark.covers("parameters that are not contiguous")
def test_channels_last_weights_keep_their_layout(fixtures):
    program = load(fixtures / "role_channels_last.pt2")
    assert program.state_dict["conv_2.weight"].stride() == (72, 1, 24, 8)


@pytest.mark.parametrize("name", ROLES)
def test_archive_says_what_the_graph_cannot(name, fixtures):
    case = role(name)
    with zipfile.ZipFile(fixtures / f"role_{name}.pt2") as archive:
        text = archive.read(f"role_{name}/models/model.json").decode()
    model = json.loads(text)
    custom = json.loads(model["graph_module"]["metadata"]["custom"])
    every = list(case.module.named_parameters(remove_duplicate=False))
    assert custom["parameters"] == [n for n, _ in every]
    assert custom["requires_grad"] == [p.requires_grad for _, p in every]
    assert custom["inputs"] == list(inspect.signature(case.module.forward).parameters)[: len(case.inputs)]
    assert custom["symbols"] == ({"batch": "s72", "length": "s38"} if name == "dynamic" else {})
    seed = next(n for n in model["graph_module"]["graph"]["nodes"] if n["name"] == custom["gradient_seed"])
    assert seed["target"] == "torch.ops.aten.full.default"
    kept = [n for n, _ in case.module.named_parameters()]
    signature = model["graph_module"]["signature"]
    specs = [s["parameter"]["parameter_name"] for s in signature["input_specs"] if "parameter" in s]
    assert sorted(specs) == sorted(kept)
    assert set(custom["tied"]) == {n for n, _ in every} - set(kept)
    parameters = dict(every)
    assert all(parameters[other] is parameters[first] for other, first in custom["tied"].items())
    grads = {s["gradient_to_parameter"]["parameter_name"] for s in signature["output_specs"] if "gradient_to_parameter" in s}
    assert grads == {n for n in kept if parameters[n].requires_grad} - set(custom["unused"])
    for node in model["graph_module"]["graph"]["nodes"]:
        assert set(json.loads(node["metadata"]["custom"])) == {"phase", "seq"}
        assert "stack_trace" not in node["metadata"]
    assert "/site-packages/" not in text and "fixture_models.py" not in text


def test_phases_split_the_graph(fixtures):
    program = load(fixtures / "role_tied.pt2")
    phases = [n.meta["custom"]["phase"] for n in program.graph.nodes if n.op == "call_function" and "custom" in n.meta]
    loss = next(s.arg.name for s in program.graph_signature.output_specs if s.kind == OutputKind.LOSS_OUTPUT)
    assert set(phases) == {"fw", "bw"}
    forward, todo = set(), [n for n in program.graph.nodes if n.name == loss]
    while todo:
        node = todo.pop()
        forward.add(node)
        todo += [n for n in node.all_input_nodes if n not in forward]
    assert all(n.meta["custom"]["phase"] == "fw" for n in forward if n.op == "call_function" and "custom" in n.meta)


def test_arguments_that_are_no_tensors_are_folded_in():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x, square=False, *, bias=None, factor):
            y = x * self.weight * factor
            return (y * y if square else y).sum()

    x, factor = torch.arange(3.0), torch.tensor(2.0)
    program = fsdp_mlir.capture(Scaled(), (x, True), {"factor": factor, "bias": None})
    users = [s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    assert users == ["in_0", "in_1"]
    loss, grad = program.module(check_guards=False)(x, factor)
    assert loss.item() == 20 and torch.equal(grad, torch.tensor([0.0, 8.0, 32.0]))
