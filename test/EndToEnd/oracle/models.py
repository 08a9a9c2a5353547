"""Tiny GPT-2, Llama and BERT with random weights, whose training PyTorch and a plan agree on."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from cases import Case, is_fsdp2
from torch import nn
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

VOCABULARY, BATCH, LENGTH = 64, 2, 12
COMMON = {"vocab_size": VOCABULARY, "use_cache": False, "bos_token_id": None, "eos_token_id": None}

# Regular expressions on the names of modules: repeated blocks, and what they consist of.
BLOCKS = {"gpt2": r"m\.transformer\.h\.\d+", "llama": r"m\.model\.layers\.\d+", "bert": r"m\.bert\.encoder\.layer\.\d+"}
PARTS = {"gpt2": r"\.(attn|mlp)", "llama": r"\.(self_attn|mlp)", "bert": r"\.(attention|output)"}
FROZEN_PARTS = {"gpt2": r"\.attn", "llama": r"\.self_attn", "bert": r"\.attention"}
# Parameters whose true gradient is zero: a softmax does not see what is added to all keys. AdamW scales the
# rounding errors in their stead up to the learning rate, so that they are compared by gradient.
ZERO_GRADIENT = {"gpt2": r"attn\.c_attn\.bias", "llama": r"(?!)", "bert": r"self\.key\.bias"}


class Scale(nn.Module):
    """One parameter of three elements: with four ranks, one of them has none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.mean()


class Loss(nn.Module):
    """(input_ids, labels: i64 [batch, length]) -> the cross entropy of a transformers model `m` with logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.m, self.scale = model, Scale()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.scale(self.m(input_ids=input_ids).logits.float())
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def units(case: Case) -> str:
    """A regular expression on the names of the modules that are wrapped, beside the root."""
    blocks = BLOCKS[case["model"]]
    return f"{blocks}{PARTS[case['model']]}|scale" if case["wrap"] == "parts" else blocks


def first_block(case: Case) -> str:
    """A regular expression that the names of units in the first block begin with."""
    return BLOCKS[case["model"]].replace(r"\d+", "0")


def precision(case: Case, is_first_block: bool = False) -> MixedPrecision | MixedPrecisionPolicy:
    """The policy of a unit."""
    low = case["reduce_dtype"] == "bf16" or (is_first_block and case["reduce_dtype"] != "f32")
    param_dtype = torch.bfloat16 if case["param_dtype"] == "bf16" else None
    reduce_dtype = torch.bfloat16 if low else torch.float32 if param_dtype else None
    return (MixedPrecisionPolicy if is_fsdp2(case) else MixedPrecision)(param_dtype=param_dtype, reduce_dtype=reduce_dtype)


def build(case: Case) -> nn.Module:
    """The module in train mode, the same at every call."""
    tied, p = {"tie_word_embeddings": case["tied"]}, case["dropout"]
    torch.manual_seed(1234)
    if case["model"] == "gpt2":
        from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=16, resid_pdrop=p, embd_pdrop=p, attn_pdrop=p, **COMMON, **tied)
        model = GPT2LMHeadModel(config)
    elif case["model"] == "llama":
        from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                             max_position_embeddings=32, attention_dropout=p, **COMMON, **tied)
        model = LlamaForCausalLM(config)
    else:
        from transformers.models.bert.modeling_bert import BertConfig, BertForMaskedLM

        config = BertConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=16,
                            hidden_dropout_prob=p, attention_probs_dropout_prob=p, **COMMON, **tied)
        model = BertForMaskedLM(config)
    module = Loss(model).train()
    for path, part in module.named_modules():
        is_first = re.fullmatch(first_block(case), path)
        is_part = re.fullmatch(BLOCKS[case["model"]] + FROZEN_PARTS[case["model"]], path)
        if {"none": False, "unit": is_first, "part": is_part}[case["frozen"]]:
            part.requires_grad_(False)
    return module


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels, no two batches alike; batch t * world + r is rank r's at step t."""
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randint(1, VOCABULARY, (2, BATCH, LENGTH), generator=generator)) for _ in range(count)]
