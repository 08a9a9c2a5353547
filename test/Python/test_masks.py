"""Constant masks of attention become `is_causal`, or no mask; all others stay. The oracle is eager PyTorch, with the mask."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import fsdp_mlir
from fsdp_mlir._masks import _ATTENTION, _BACKWARD


class Attention(nn.Module):
    """Attention over `length` queries and `keys` keys, with the mask that `mask(x)` returns."""

    def __init__(self, mask, length=6, keys=6):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.mask, self.length, self.keys = nn.Linear(8, 8), nn.Linear(8, 8), mask, length, keys

    def forward(self, x):
        q, k = (layer(x)[:, :size].unflatten(-1, (2, 4)).transpose(1, 2) for layer, size in ((self.query, self.length), (self.key, self.keys)))
        return F.scaled_dot_product_attention(q, k, k, attn_mask=self.mask(x)).square().mean()


def calls(program):
    """Of each attention: is_causal of the forward and of the backward, and whether there is a mask."""
    nodes = [n for n in program.graph.nodes if n.target in (_ATTENTION, _BACKWARD)]
    return [(n.args[-1] is True, n.kwargs.get("attn_mask") is not None) for n in nodes]


def lower(x):
    return torch.ones(6, 6, dtype=torch.bool).tril()


def of_least_numbers(x):
    return torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)[None, None]


def from_positions(x):
    rows = torch.arange(6).expand(x.shape[0], -1)
    return (rows[:, None, :, None] >= rows[:, None, None, :]).expand(-1, 1, -1, -1)


@pytest.mark.parametrize("mask", [lower, of_least_numbers, from_positions])
def test_a_constant_causal_mask_is_not_kept(mask):
    program = fsdp_mlir.capture(Attention(mask), (torch.randn(3, 6, 8),))
    assert calls(program) == [(True, False)] * 2
    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.tril.default)
    fsdp_mlir.verify(Attention(mask), program, (torch.randn(3, 6, 8),))


def test_a_mask_that_hides_nothing_is_not_kept():
    program = fsdp_mlir.capture(Attention(lambda x: torch.ones(6, 6, dtype=torch.bool)), (torch.randn(3, 6, 8),))
    assert calls(program) == [(False, False)] * 2


def window(x):
    return lower(x).triu(-2)


def bias(x):
    return torch.zeros(6, 6).masked_fill(~lower(x), -torch.inf) - torch.arange(6)


def of_the_input(x):
    return lower(x) & (x[:, None, :, 0] > -9)[:, :, None]


def drawn(x):
    return lower(x) & (torch.rand(6, 6) >= 0)


@pytest.mark.parametrize("mask", [window, bias, of_the_input, drawn])
def test_any_other_mask_is_kept(mask):
    program = fsdp_mlir.capture(Attention(mask), (torch.randn(3, 6, 8),))
    assert calls(program) == [(False, True)] * 2


# The triangle of is_causal begins in the first corner, that of a decoder that continues in the last.
def test_a_triangle_of_fewer_queries_than_keys_is_kept():
    program = fsdp_mlir.capture(Attention(lambda x: torch.ones(4, 6, dtype=torch.bool).tril(2), 4), (torch.randn(3, 6, 8),))
    assert calls(program) == [(False, True)] * 2


def test_a_mask_of_a_symbolic_size_is_kept():
    length = torch.export.Dim("length", min=2, max=64)

    class Growing(Attention):
        def forward(self, x):
            q = self.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()).square().mean()

    program = fsdp_mlir.capture(Growing(lower), (torch.randn(3, 6, 8),), dynamic_shapes=({1: length},))
    assert all(has_mask for _, has_mask in calls(program))


# Whose mask is made of positions, batches and packed sequences.
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2"])
def test_decoders_of_transformers_are_causal(name):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes)).train()
    ids = torch.randint(64, (2, 16))
    program = fsdp_mlir.capture(model, (), {"input_ids": ids, "labels": ids})
    assert calls(program) == [(True, False)] * 4
    fsdp_mlir.verify(model, program, (), {"input_ids": ids, "labels": ids})


# What an extension calls the kernel with, of booleans: nobody looks at it.
def test_a_mask_of_booleans_is_kept():
    class Direct(Attention):
        def forward(self, x):
            q = self.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, attn_mask=self.mask(x)[None, None])[0].square().mean()

    program = fsdp_mlir.capture(Direct(lower), (torch.randn(3, 6, 8),))
    assert all(has_mask for _, has_mask in calls(program))
