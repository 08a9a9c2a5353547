"""The models behind the fixtures: one tiny model per role a graph can play, and Llama in four sizes.

A role is made by a function of no arguments that returns a Case; sizes are chosen so that every archive stays small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

WIDTH, VOCABULARY, BATCH, LENGTH = 16, 48, 4, 8


@dataclasses.dataclass
class Case:
    """A module in train mode, its example inputs, and how to capture it."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    dynamic_shapes: Any = None
    outputs: tuple[str, ...] = ()


class Attention(nn.Module):
    """Two heads; [batch, length, width] -> the same. Attends to `memory` where given, else causally to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key_value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None, causal: bool = True) -> torch.Tensor:
        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)

        key, value = self.key_value(x if memory is None else memory).chunk(2, dim=-1)
        causal = causal and memory is None
        y = F.scaled_dot_product_attention(heads(self.query(x)), heads(key), heads(value), is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer layer; `dropout` and `feed_forward` let roles change it."""

    def __init__(self, dropout: float = 0.0, feed_forward: nn.Module | None = None, causal: bool = True) -> None:
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.feed_forward = feed_forward or nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.dropout, self.causal = nn.Dropout(dropout), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x), causal=self.causal)
        return x + self.dropout(self.feed_forward(self.norm_2(x)))


class LanguageModel(nn.Module):
    """(input_ids, labels: i64 [batch, length]) -> loss; labels are shifted here."""

    def __init__(self, blocks: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(blocks or [Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.loss(self.logits(input_ids), labels)


def tokens(batch: int = BATCH, length: int = LENGTH, vocabulary: int = VOCABULARY) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(vocabulary, (batch, length))
    return ids, ids.clone()


class BatchNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(images))).mean((2, 3))
        return F.cross_entropy(self.head(x), classes)


class ChannelsLastNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_1, self.conv_2, self.head = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv_1(images.contiguous(memory_format=torch.channels_last)))
        return F.cross_entropy(self.head(F.relu(self.conv_2(x)).mean((2, 3))), classes)


class UserOutput(LanguageModel):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.logits(input_ids)
        return {"logits": logits, "loss": self.loss(logits, labels)}


class InputGrad(nn.Module):
    """(x: f32 [batch, width], y: f32 [batch]) -> loss; x requires grad too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers(x).squeeze(-1), y)


class Tiny(nn.Module):
    """(x: f32 [batch, 3], y: f32 [batch]) -> loss; its one parameter has three elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss((x * self.weight).sum(-1), y)


class Chain(nn.Module):
    """(x: f32 [batch, width]) -> loss; u.0, u.1, ... in a row, between parameters of the root's own where it has some."""

    def __init__(self, units: int, width: int, scale: bool = True, head: bool = True, frozen: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.w0 = nn.Parameter(torch.ones(width)) if scale else None
        self.u = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(units))
        self.head = nn.Linear(width, width) if head else nn.Identity()
        for index in frozen:
            self.u[index].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.w0 is None else x * self.w0
        for unit in self.u:
            x = unit(x)
        return self.head(x).square().mean()


@torch.library.custom_op("fsdp_test::scaled_square", mutates_args=())
def scaled_square(x: torch.Tensor, scale: float) -> torch.Tensor:
    """scale * x * x, elementwise; an operation that no torch library knows."""
    return scale * x * x


@torch.library.custom_op("fsdp_test::scaled_square_backward", mutates_args=())
def scaled_square_backward(grad: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
    return 2 * scale * grad * x


scaled_square.register_fake(lambda x, scale: torch.empty_like(x))
scaled_square_backward.register_fake(lambda grad, x, scale: torch.empty_like(x))


def _scaled_square_setup(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


scaled_square.register_autograd(
    lambda context, grad: (scaled_square_backward(grad, *context.saved_tensors, context.scale), None),
    setup_context=_scaled_square_setup,
)


class ScaledSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(scaled_square(self.up(x), 0.5))


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm_2, self.cross = nn.LayerNorm(WIDTH), Attention()
        self.norm_3 = nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, WIDTH))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        x = x + self.cross(self.norm_2(x), memory)
        return x + self.feed_forward(self.norm_3(x))


class EncoderDecoder(nn.Module):
    """(source, target: i64 [batch, length]) -> loss; two kinds of repeated layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(Block(causal=False) for _ in range(2))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), target[:, 1:].flatten())


class HuggingFace(nn.Module):
    """(input_ids, labels: i64 [batch, length]) -> the loss of a transformers causal language model in `m`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.m = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.m(input_ids=input_ids, use_cache=False).logits[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


def _tied() -> LanguageModel:
    shared = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    model = LanguageModel([Block(feed_forward=shared), Block(feed_forward=shared)])
    model.head.weight = model.embed.weight
    return model


def _frozen() -> LanguageModel:
    """One whole layer and the embedding are frozen, the other layer in part."""
    model = LanguageModel([Block(), Block(), Block()])
    model.embed.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    model.blocks[1].attention.requires_grad_(False)
    return model


def _unused() -> LanguageModel:
    model = LanguageModel()
    model.spare = nn.Linear(WIDTH, 3)
    model.blocks[1].adapter = nn.Linear(WIDTH, 5, bias=False)
    return model


def _channels_last() -> Case:
    module = ChannelsLastNet().to(memory_format=torch.channels_last)
    return Case(module, (torch.randn(BATCH, 2, 6, 6), torch.arange(BATCH) % 5))


def _dynamic() -> Case:
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", min=3, max=128)
    return Case(LanguageModel(), tokens(), ({0: batch, 1: length}, {0: batch, 1: length}))


def _gpt2_renamed() -> Case:
    """GPT-2 whose blocks are called trunk.cells.N: nothing may depend on transformers' names."""
    import transformers

    class Trunk(transformers.GPT2Model):
        h = property(lambda self: self._modules["cells"])

    class Renamed(transformers.GPT2LMHeadModel):
        transformer = property(lambda self: self._modules["trunk"])

    config = transformers.GPT2Config(
        vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    module = transformers.GPT2LMHeadModel(config)
    trunk, parts = module.transformer, module._modules
    trunk._modules = {{"h": "cells", "wte": "wte"}.get(k, k): v for k, v in trunk._modules.items()}
    module._modules = {{"transformer": "trunk"}.get(k, k): v for k, v in parts.items()}
    trunk.__class__, module.__class__ = Trunk, Renamed
    return Case(HuggingFace(module), tokens(2, 16, 128))


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, 2, 6, 6), torch.arange(BATCH) % 5


ROLES: dict[str, Callable[[], Case]] = {
    "batch_norm": lambda: Case(BatchNormNet(), _images()),
    "user_output": lambda: Case(UserOutput(), tokens(), outputs=("logits",)),
    "dynamic": _dynamic,
    "dropout": lambda: Case(LanguageModel([Block(0.2), Block(0.2)]), tokens()),
    "custom_op": lambda: Case(LanguageModel([Block(feed_forward=ScaledSquare()) for _ in range(2)]), tokens()),
    "input_grad": lambda: Case(InputGrad(), (torch.randn(BATCH, WIDTH, requires_grad=True), torch.randn(BATCH))),
    "channels_last": _channels_last,
    "tied": lambda: Case(_tied(), tokens()),
    "frozen": lambda: Case(_frozen(), tokens()),
    "unused": lambda: Case(_unused(), tokens()),
    "bf16": lambda: Case(LanguageModel().to(torch.bfloat16), tokens()),
    "tiny": lambda: Case(Tiny(), (torch.randn(BATCH, 3), torch.randn(BATCH))),
    "encoder_decoder": lambda: Case(EncoderDecoder(), (tokens()[0], tokens()[0])),
    "gpt2_renamed": _gpt2_renamed,
    "chain": lambda: Case(Chain(4, 4), (torch.randn(BATCH, 4),)),
}


def role(name: str) -> Case:
    """The case of a role, always the same: weights and inputs are drawn from a fixed seed. The module is in train mode."""
    torch.manual_seed(1234)
    case = ROLES[name]()
    case.module.train()
    return case


class _Alone(nn.Module):
    def forward(self, x: torch.Tensor, causal: bool = True) -> torch.Tensor:
        return x


def without_attention(case: Case) -> Case:
    """The same, where no position sees another: its kernels are the same ones on every device."""
    for part in case.module.modules():
        if isinstance(getattr(part, "attention", None), Attention):
            part.attention = _Alone()
    return case


@dataclasses.dataclass(frozen=True)
class LlamaSize:
    width: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    batch: tuple[int, int]
    real: bool  # fp32 with weights; else bf16 without


LLAMAS = {
    "llama-tiny": LlamaSize(32, 64, 2, 4, 2, 128, (2, 16), True),
    "llama-25m": LlamaSize(384, 1536, 8, 6, 6, 4096, (2, 64), True),
    "llama-110m": LlamaSize(768, 2048, 12, 12, 12, 16384, (1, 32), True),
    "llama-7b": LlamaSize(4096, 11008, 32, 32, 32, 32000, (1, 4096), False),
    "llama-405b": LlamaSize(16384, 53248, 126, 128, 8, 128256, (1, 4096), False),
    "llama-405b-half": LlamaSize(16384, 53248, 63, 128, 8, 128256, (1, 4096), False),
}


def llama(name: str) -> Case:
    """A transformers Llama with untied embeddings. Sizes without weights are made of fake tensors, which hold no memory."""
    import transformers

    size = LLAMAS[name]
    config = transformers.LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=8192 if not size.real else 2 * size.batch[1],
    )
    torch.manual_seed(1234)
    if size.real:
        return Case(HuggingFace(transformers.LlamaForCausalLM(config)).train(), tokens(*size.batch, size.vocabulary))
    default = torch.get_default_dtype()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)
        try:
            module = HuggingFace(transformers.LlamaForCausalLM(config)).train()
        finally:
            torch.set_default_dtype(default)
        ids = torch.zeros(size.batch, dtype=torch.long)
    rotary = module.m.model.rotary_emb
    module.m.model.rotary_emb = type(rotary)(config)  # its buffer must be real: no checkpoint has it
    return Case(module, (ids, ids))
