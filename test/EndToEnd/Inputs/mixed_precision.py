"""Trains modules with a mixed-precision policy in PyTorch's FSDP on two ranks: python mixed_precision.py FOLDER.

For each case FOLDER/NAME.step.safetensors is a reference of the first step (loss and gradients), and
FOLDER/NAME.training.safetensors one of the training (losses, final parameters), as `fsdp-run --reference` reads them.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import CustomPolicy

WORLD, STEPS = 2, 5
HYPER = {"lr": 1e-3, "weight_decay": 0.1}
ADAMW = HYPER | {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class Loss(nn.Module):
    """(input_ids: i64 [batch, length]) -> the cross entropy of a transformers model with logits."""

    def __init__(self, m: nn.Module) -> None:
        super().__init__()
        self.m = m

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.m(input_ids=input_ids).logits.float().flatten(0, 1), input_ids.flatten())


def gpt2() -> nn.Module:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel

    return Loss(GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16, resid_pdrop=0, embd_pdrop=0,
                                           attn_pdrop=0, use_cache=False)))


def llama() -> nn.Module:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    return Loss(LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                             num_key_value_heads=4, max_position_embeddings=16, use_cache=False)))


def bert() -> nn.Module:
    from transformers.models.bert.modeling_bert import BertConfig, BertForMaskedLM

    return Loss(BertForMaskedLM(BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                           max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0)))


class Images(nn.Module):
    """Batch norm, and buffers of floats and integers that the forward reads or changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(images))).mean((2, 3))
        self.steps.add_(1)
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return F.cross_entropy(self.head((x - self.average) * self.scale).float(), classes)


class Block(nn.Module):
    """Takes floats and integers in nested containers, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.embed = nn.Linear(8, 8), nn.LayerNorm(8), nn.Embedding(4, 8)

    def forward(self, parts: tuple[torch.Tensor, dict[str, torch.Tensor]], *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        x, more = parts
        return {"x": self.norm(x + F.gelu(self.inner(x) + self.embed(more["kind"]) + bias))}


class Nested(nn.Module):
    """(batch, target: f32 [batch, 8]) -> loss; modules `first` and `second`, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(8, 8)

    def forward(self, batch: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
        x, kind = batch["x"], batch["kinds"][0]
        for block in (self.first, self.second):
            x = block((x, {"kind": kind}), bias=target)["x"]
        return (self.head(x) - target).float().square().mean()


def tokens(generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.randint(0, 64, (2, 12), generator=generator),)


def images(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(4, 3, 6, 6, generator=generator), torch.randint(0, 4, (4,), generator=generator)


def nested(generator: torch.Generator) -> tuple[Any, ...]:
    x, target = torch.randn(2, 5, 8, generator=generator)
    return {"x": x, "kinds": [torch.randint(0, 4, (5,), generator=generator)]}, target


@dataclasses.dataclass
class Case:
    model: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], tuple[Any, ...]]
    precision: Any  # for capture: a policy, or a dict of policies
    units: str = "$."  # modules that are units besides those with a policy of their own
    tolerance: float = 1e-5

    def build(self) -> nn.Module:
        torch.manual_seed(1234)
        return self.model().train()

    def batches(self) -> list[tuple[Any, ...]]:
        """No two alike; batch t * WORLD + r is rank r's at step t."""
        generator = torch.Generator().manual_seed(5)
        return [self.inputs(generator) for _ in range(STEPS * WORLD)]


FULL_SUMS = MixedPrecision(param_dtype=BF16, reduce_dtype=F32)
PER_MODULE = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32)
CASES = {
    "gpt2": Case(gpt2, tokens, FULL_SUMS, r"m\.transformer\.h\.\d+"),
    "gpt2-bf16-sums": Case(gpt2, tokens, MixedPrecision(param_dtype=BF16), r"m\.transformer\.h\.\d+", tolerance=1.6e-2),
    "gpt2-only-sums": Case(gpt2, tokens, MixedPrecision(reduce_dtype=BF16), r"m\.transformer\.h\.\d+", tolerance=1.6e-2),
    "llama": Case(llama, tokens, {"": PER_MODULE, r"m\.model\.layers\.\d+": PER_MODULE}),
    "llama-f16": Case(llama, tokens, MixedPrecision(param_dtype=F16, reduce_dtype=F32, buffer_dtype=F16), r"m\.model\.layers\.\d+", tolerance=1e-4),
    "bert": Case(bert, tokens, FULL_SUMS, r"m\.bert\.encoder\.layer\.\d+"),
    "bert-layers": Case(bert, tokens, {r"m\.bert\.encoder\.layer\.1": MixedPrecisionPolicy(BF16, F32, output_dtype=F32)}, r"m\.bert\.encoder\.layer\.0"),
    "images": Case(Images, images, MixedPrecision(param_dtype=BF16, reduce_dtype=F32, buffer_dtype=BF16)),
    "images-policies": Case(Images, images, {"conv": MixedPrecisionPolicy(F16, F32, output_dtype=F32), "head": PER_MODULE}),
    "nested": Case(Nested, nested, FULL_SUMS, "first|second"),
    "nested-integers": Case(Nested, nested, {"": MixedPrecision(param_dtype=F16, cast_root_forward_inputs=False), "first|second": MixedPrecision(param_dtype=F16, cast_forward_inputs=True)}, tolerance=1e-2),
    "nested-policies": Case(Nested, nested, {
        "first": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32, output_dtype=F32),
        "second": MixedPrecisionPolicy(param_dtype=F16, reduce_dtype=F32, output_dtype=F32)}),
}


def policies(case: Case, module: nn.Module) -> dict[nn.Module, Any]:
    """The policy of each unit, innermost first; that of the module itself is last."""
    patterns = case.precision if isinstance(case.precision, dict) else {"": case.precision}
    kind = type(next(iter(patterns.values())))
    found: dict[str, Any] = {}
    result = []
    for path, part in module.named_modules():
        own = next((policy for pattern, policy in patterns.items() if re.fullmatch(pattern, path)), None)
        found[path] = own or (found[path.rpartition(".")[0]] if path else kind())
        if own or not path or re.fullmatch(case.units, path):
            result.append((part, found[path]))
    return dict(reversed(result))


def shard(case: Case, module: nn.Module) -> nn.Module:
    """The module as FSDP1 or FSDP2 shards it, which the kind of its policies says."""
    units = policies(case, module)
    if isinstance(units[module], MixedPrecisionPolicy):
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        for part, policy in units.items():
            fully_shard(part, mesh=mesh, mp_policy=policy)
        return module
    policy = CustomPolicy(lambda part: {"mixed_precision": units[part]} if part in units else False)
    return FSDP(module, auto_wrap_policy=policy, mixed_precision=units[module], use_orig_params=True, device_id=torch.device("cpu"))


def full(module: nn.Module, gradients: bool) -> dict[str, torch.Tensor]:
    """All parameters, or all gradients, unsharded, by the names of the unwrapped module."""
    def read() -> dict[str, torch.Tensor]:
        values = {}
        for name, parameter in module.named_parameters():
            value = parameter.grad if gradients else parameter
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            values[name.replace("_fsdp_wrapped_module.", "")] = value.detach().clone()
        return values

    if not isinstance(module, FSDP):
        return read()
    with FSDP.summon_full_params(module, with_grads=gradients):
        return read()


def train(name: str, case: Case, folder: Path) -> None:
    module = shard(case, case.build())
    optimizer = torch.optim.AdamW(module.parameters(), betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], **HYPER)
    rows, losses, first = case.batches(), [], {}
    for step in range(STEPS):
        loss = module(*rows[step * WORLD + dist.get_rank()])
        loss.backward()
        if step == 0:
            first = {f"grad.{name}": value for name, value in full(module, gradients=True).items()}
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append((mean / WORLD).float())
    final = {f"param.{name}": value for name, value in full(module, gradients=False).items()}
    if dist.get_rank() == 0:
        leaves = [torch.utils._pytree.tree_leaves(row) for row in rows]
        inputs = {f"in_{i}": torch.stack([row[i] for row in leaves]) for i in range(len(leaves[0]))}
        start = {key: value[:WORLD].contiguous() for key, value in inputs.items()}
        save_file({**start, "loss": losses[0], **first}, folder / f"{name}.step.safetensors")
        metadata = {key: repr(value) for key, value in ADAMW.items()}
        save_file({**inputs, "losses": torch.stack(losses), **final}, folder / f"{name}.training.safetensors", metadata=metadata)


def train_all(rank: int, store: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    for name, case in CASES.items():
        train(name, case, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    for case in CASES.values():
        case.build()  # imports what the ranks need
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(train_all, (f"{place}/store", Path(sys.argv[1])), WORLD, start_method="fork")
