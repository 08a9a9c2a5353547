"""verify() says whether a graph computes what its module does, and save() asks it."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.distributed.fsdp import MixedPrecision
from torch.export.graph_signature import OutputKind

import fsdp_mlir


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, ids, x, labels=None):
        logits = self.head(self.norm(self.table(ids) + x).relu())
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def example():
    return (torch.randint(5, (6,)), torch.randn(6, 3)), {"labels": torch.randint(2, (6,))}


def replace(program, old, new):
    node = next(n for n in program.graph.nodes if n.target == old)
    node.target = new
    program.graph_module.recompile()


def test_a_right_graph_agrees_and_the_module_stays_as_it_was(tmp_path):
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    args, kwargs = example()
    program = fsdp_mlir.capture(model, args, kwargs)
    program.module(check_guards=False)(*args, *kwargs.values())
    fsdp_mlir.save(program, tmp_path / "model.pt2")
    args, kwargs = example()
    state = torch.get_rng_state()
    fsdp_mlir.verify(model, program, (*args, kwargs["labels"]))
    assert torch.equal(state, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) and value.grad is None, name


def test_a_wrong_graph_is_not_written(tmp_path):
    program = fsdp_mlir.capture(Model(), *example())
    replace(program, torch.ops.aten.relu.default, torch.ops.aten.sigmoid.default)
    with pytest.raises(fsdp_mlir.CaptureError, match="^the graph does not compute what the model does: the loss is .* in eager"):
        fsdp_mlir.save(program, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
    fsdp_mlir.save(program, tmp_path / "model.pt2", verify=False)


def test_a_wrong_backward_is_found():
    model = Model()
    program = fsdp_mlir.capture(model, *example())
    replace(program, torch.ops.aten.threshold_backward.default, torch.ops.aten.leaky_relu_backward.default)
    node = next(n for n in program.graph.nodes if n.target == torch.ops.aten.leaky_relu_backward.default)
    node.args = (*node.args[:2], 0.5, True)
    program.graph_module.recompile()
    with pytest.raises(fsdp_mlir.CaptureError, match="the gradient of `table.weight` is"):
        fsdp_mlir.verify(model, program, *example())


class Autocast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2))
        self.dtype = dtype

    def forward(self, ids):
        with torch.autocast("cpu", self.dtype):
            return self.model(input_ids=ids, labels=ids).loss


def scale_gradient(program, name, factor):
    """In the graph alone."""
    place = next(i for i, s in enumerate(program.graph_signature.output_specs) if s.target == name)
    output = program.graph.output_node()
    results = list(output.args[0])
    with program.graph.inserting_before(output):
        results[place] = program.graph.call_function(torch.ops.aten.mul.Tensor, (results[place], factor))
    output.args = (tuple(results),)
    program.graph_module.recompile()


def without_term(program):
    """The gradient of the rotated keys without one of its two terms."""
    sums = program.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    node = next(n for n in sums if n.meta["custom"]["phase"] == "bw" and all(isinstance(a, torch.fx.Node) for a in n.args))
    node.replace_all_uses_with(node.args[0])
    program.graph_module.recompile()


def without_mask(program):
    """Attention that sees what comes later, in the forward and the backward."""
    nodes = [n for n in program.graph.nodes if "_scaled_dot_product_flash_attention_for_cpu" in str(n.target)]
    assert len(nodes) == 4 and all(n.args[-1] is True for n in nodes)
    for node in nodes:
        node.args = (*node.args[:-1], False)
    program.graph_module.recompile()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_autocast_rounds_is_allowed_for_and_no_more(dtype):
    model = Autocast(dtype)
    ids = torch.randint(128, (2, 32), generator=torch.Generator().manual_seed(1))
    program = fsdp_mlir.capture(model, (ids,))
    differs = "the graph does not compute what the model does: "
    fsdp_mlir.verify(model, program, (ids,))
    trained = [s.target for s in program.graph_signature.output_specs if s.kind == OutputKind.GRADIENT_TO_PARAMETER]
    for name in trained:
        wrong = copy.deepcopy(program)
        scale_gradient(wrong, name, 1.02)
        with pytest.raises(fsdp_mlir.CaptureError, match=f"^{differs}the gradient of `{name}` is .* eager PyTorch"):
            fsdp_mlir.verify(model, wrong, (ids,))
    for mutate in (without_term, without_mask):
        wrong = copy.deepcopy(program)
        mutate(wrong)
        with pytest.raises(fsdp_mlir.CaptureError, match=f"^{differs}the .* is .* in eager PyTorch"):
            fsdp_mlir.verify(model, wrong, (ids,))


class BiasAheadOfBatchNorm(nn.Module):
    """Its weight norm is what the graph computes in another order than eager PyTorch does."""

    def __init__(self, dtype):
        super().__init__()
        self.inner, self.norm, self.dtype = nn.Linear(16, 32), nn.BatchNorm1d(32), dtype

    def forward(self, x, y):
        with torch.autocast("cpu", self.dtype):
            z = self.norm(self.inner(x)).float()
        return (torch._weight_norm(z, y.norm(dim=1, keepdim=True), 0) - y).square().mean()


# The gradient of the bias is zero, as a sum of terms that are not: what is found is how they were rounded, and no two ways agree.
def test_a_gradient_that_is_all_rounding_is_allowed_for_and_no_more():
    apart = 0.0
    for seed in range(6):
        torch.manual_seed(seed)
        model, inputs = BiasAheadOfBatchNorm(torch.float16), (torch.randn(512, 16), torch.randn(512, 32))
        program = fsdp_mlir.capture(model, inputs)
        fsdp_mlir.verify(model, program, inputs)
        loss, *gradients = program.module(check_guards=False)(*inputs)
        model(*inputs).backward()
        apart = max(apart, ((model.inner.bias.grad - gradients[1]).abs().max() / model.inner.bias.grad.abs().max()).item())
        model.zero_grad()
    assert apart > 0.05  # they do not agree, or the test says nothing
    for name, parameter in model.named_parameters():
        wrong = copy.deepcopy(program)
        scale_gradient(wrong, name, 20.0 if name == "inner.bias" else 1.02)
        with pytest.raises(fsdp_mlir.CaptureError, match=f"the gradient of `{name}` is "):
            fsdp_mlir.verify(model, wrong, inputs)


# The steps of an LSTM make the same error again: gradients in bfloat16 are up to 0.7 % too large or too small as a whole.
def test_errors_of_steps_add_up():
    for seed in range(8):
        torch.manual_seed(seed)
        model, x = nn.LSTM(8, 8, 2), torch.randn(3, 2, 8)

        class Loss(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x)[0].square().mean()

        module = Loss(model)
        program = fsdp_mlir.capture(module, (x,), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
        fsdp_mlir.verify(module, program, (torch.randn_like(x),))


# Both draw the same: a mask of another probability shows.
def test_draws_are_compared():
    class Dropout(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return F.dropout(self.inner(x)).sum()

    model, x = Dropout(), torch.randn(2, 4)
    program = fsdp_mlir.capture(model, (x,))
    fsdp_mlir.verify(model, program, (x,))
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.native_dropout.default)
    node.args = (node.args[0], 0.9, True)
    program.graph_module.recompile()
    with pytest.raises(fsdp_mlir.CaptureError, match="the loss is"):
        fsdp_mlir.verify(model, program, (x,))


def test_data_that_shuffling_spoils_is_taken_as_it_is(tmp_path):
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 3)

        def forward(self, indices, offsets):
            return self.bag(indices, offsets).square().sum()

    program = fsdp_mlir.capture(Bags(), (torch.tensor([1, 8, 3, 2]), torch.tensor([0, 1, 3])))
    fsdp_mlir.save(program, tmp_path / "model.pt2")


def test_a_missing_argument_is_named():
    model, (args, kwargs) = Model(), example()
    program = fsdp_mlir.capture(model, args, kwargs)

    class Other(Model):
        def forward(self, ids, y, labels=None):
            return super().forward(ids, y, labels)

    other = Other()
    with pytest.raises(fsdp_mlir.CaptureError, match="the program has the input `x`, which the inputs leave out; they are ids, y"):
        fsdp_mlir.verify(other, program, args, kwargs)


# Eager PyTorch has a sparse gradient, which the graph has in full.
def test_sparse_gradients_are_compared():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4, sparse=True)

        def forward(self, ids):
            return self.table(ids).square().sum()

    model, ids = Sparse(), torch.tensor([1, 1, 3])
    program = fsdp_mlir.capture(model, (ids,))
    fsdp_mlir.verify(model, program, (ids,))
    scale_gradient(program, "table.weight", 1.02)
    with pytest.raises(fsdp_mlir.CaptureError, match="the gradient of `table.weight` is"):
        fsdp_mlir.verify(model, program, (ids,))
