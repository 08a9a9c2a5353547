"""What a captured graph says of element types is what the kernels return, for every node."""

import pytest
import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

import fsdp_mlir

HALF = torch.bfloat16


class Mixed(nn.Module):
    """A product in f32, and a norm of it in bf16."""

    def __init__(self, norm, dtype=torch.float32, shape=(4, 8)):
        super().__init__()
        self.linear, self.norm, self.shape = nn.Linear(8, 8), norm.to(dtype), shape

    def forward(self, x):
        return self.norm(self.linear(x).to(HALF).view(self.shape)).float().pow(2).mean()


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))

    def forward(self, x):
        with torch.autocast("cpu", HALF):
            return self.layers(x).float().pow(2).mean()


class Attention(nn.Module):
    """Two heads in bf16: their logarithms of sums are in f32."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8).to(HALF)

    def forward(self, x):
        q = self.linear(x.to(HALF)).view(1, 4, 2, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).float().pow(2).mean()


class Checker(torch.fx.Interpreter):
    """Runs the graph on tensors, and compares the type of each with what its node says."""

    def run_node(self, node):
        result = super().run_node(node)
        if node.op != "output" and "val" in node.meta:
            for found, said in zip(tree_leaves(result), tree_leaves(node.meta["val"]), strict=True):
                assert not isinstance(found, torch.Tensor) or found.dtype == said.dtype, node.format_node()
        return result


MODELS = {
    "layer_norm": lambda: Mixed(nn.LayerNorm(8)),
    "group_norm": lambda: Mixed(nn.GroupNorm(2, 8)),
    "batch_norm": lambda: Mixed(nn.BatchNorm1d(8)),
    "batch_norm_2d": lambda: Mixed(nn.BatchNorm2d(2), shape=(1, 2, 4, 4)),
    "batch_norm_in_bf16": lambda: Mixed(nn.BatchNorm1d(8), HALF),
    "autocast": Autocast,
    "attention": Attention,
}


@pytest.mark.parametrize("model", MODELS)
def test_types_are_those_of_the_kernels(model):
    program = fsdp_mlir.capture(MODELS[model](), (torch.randn(4, 8),))
    values = {**program.constants, **program.state_dict}
    inputs = iter(program.example_inputs[0])
    specs = program.graph_signature.input_specs
    with torch.no_grad():
        Checker(program.graph_module).run(*(next(inputs) if s.kind == InputKind.USER_INPUT else values[s.target] for s in specs))


# PyTorch's shapes have a gradient of the input for batch norm, whatever the mask says; the kernel has none.
@pytest.mark.parametrize("first, shape", [(torch.nn.BatchNorm1d(4), (3, 4)), (torch.nn.InstanceNorm1d(4, affine=True), (3, 4, 2)),
                                          (torch.nn.LayerNorm(4), (3, 4)), (torch.nn.Conv1d(4, 4, 1), (3, 4, 2))])
def test_what_a_mask_leaves_out_is_no_result(first, shape, agrees):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = first

        def forward(self, x):
            return self.first(x).square().sum()

    program = agrees(Model(), (torch.randn(shape),))
    masked = [node for node in program.graph.nodes if "norm_backward" in str(node.target) or "convolution_backward" in str(node.target)]
    assert len(masked) == 1 and [value is None for value in masked[0].meta["val"]] == [True, False, False]
