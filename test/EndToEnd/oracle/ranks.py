"""What PyTorch's FSDP1, FSDP2 and DDP do on two ranks, or four, over gloo: python ranks.py WHAT,... FOLDER.

Each function trains `Model` on `rows()` by SGD and writes safetensors files to FOLDER/WHAT.
"""

from __future__ import annotations

import datetime
import multiprocessing
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD, STEPS, BATCH, WIDTH = 2, 4, 6, 5
LR = 0.05


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(x).relu())


class Model(nn.Module):
    """(x, target: f32 [batch, width]) -> a loss; parameters of odd sizes, and a running mean and variance."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return F.mse_loss(self.head(x), target)


def build() -> Model:
    torch.manual_seed(11)
    return Model().train()


def rows() -> list[list[torch.Tensor]]:
    """No two batches alike; batch t * world + r is rank r's at step t."""
    generator = torch.Generator().manual_seed(6)
    return [list(torch.randn(2, BATCH, WIDTH, generator=generator) * (row % 3 + 1)) for row in range(STEPS * WORLD)]


def wrap(module: nn.Module, **options) -> FSDP:
    return FSDP(module, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu"), **options)


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        module(*rows()[step * dist.get_world_size() + dist.get_rank()]).backward()
        optimizer.step()


def copy(values) -> dict[str, torch.Tensor]:
    return {name.replace("_fsdp_wrapped_module.", ""): value.detach().clone() for name, value in values}


def summon(folder: Path) -> None:
    """half.safetensors: parameters and gradients after half of the steps; final.safetensors: parameters at the end, after
    `head.weight` has been doubled in between."""
    module = wrap(build())
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    steps(module, optimizer, 0, STEPS // 2)
    rank = dist.get_rank()
    with FSDP.summon_full_params(module, with_grads=True, writeback=False):
        half = copy(module.named_parameters()) | {f"grad.{name}": value for name, value in copy(
            (name, parameter.grad) for name, parameter in module.named_parameters()).items()}
    with FSDP.summon_full_params(module, rank0_only=True, writeback=False):  # offload_to_cpu frees what is on the CPU already
        on_rank_0 = copy(module.named_parameters())
    if rank == 0:
        assert all(torch.equal(half[name], value) for name, value in on_rank_0.items())
        save_file(half | copy(module.named_buffers()), folder / "half.safetensors")
    with FSDP.summon_full_params(module, writeback=True), torch.no_grad():
        module.head.weight.mul_(2)
    steps(module, optimizer, STEPS // 2, STEPS)
    with FSDP.summon_full_params(module, writeback=False):
        final = copy(module.named_parameters())
    if rank == 0:
        save_file(final, folder / "final.safetensors")


# What each rank has for itself: the second layer of a block, and a vector of the root.
IGNORED = ("blocks.1.outer.weight", "stem.bias")


def full(module: nn.Module) -> dict[str, torch.Tensor]:
    with FSDP.summon_full_params(module, writeback=False):
        return copy([*module.named_parameters(), *module.named_buffers()])


def ignored(folder: Path) -> None:
    """rank0.safetensors, rank1.safetensors: what each rank has at the end."""
    module = build()
    module = wrap(module, ignored_states=[module.get_parameter(name) for name in IGNORED])
    steps(module, torch.optim.SGD(module.parameters(), lr=LR), 0, STEPS)
    save_file(full(module), folder / f"rank{dist.get_rank()}.safetensors")


def broadcast(folder: Path) -> None:
    """DDP's buffers are those of rank 0 when a forward begins."""
    module = DDP(build(), broadcast_buffers=True)
    steps(module, torch.optim.SGD(module.parameters(), lr=LR), 0, STEPS)
    if dist.get_rank() == 0:
        save_file(copy(module.module.state_dict().items()), folder / "rank0.safetensors")


def mean(folder: Path) -> None:
    """Buffers of floats are averaged after each step."""
    module = DDP(build(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for step in range(STEPS):
        steps(module, optimizer, step, step + 1)
        for buffer in module.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= WORLD
    if dist.get_rank() == 0:
        save_file(copy(module.module.state_dict().items()), folder / "rank0.safetensors")


def own(folder: Path) -> None:
    """Each rank has buffers of its own, as in FSDP."""
    module = wrap(build())
    steps(module, torch.optim.SGD(module.parameters(), lr=LR), 0, STEPS)
    save_file(full(module), folder / f"rank{dist.get_rank()}.safetensors")


def all_reduce_hook(folder: Path) -> None:
    """rank0.safetensors: two replicas of two shards, and a hook that sums between replicas in bf16."""
    module, mesh = build(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def hook(gradient: torch.Tensor) -> None:
        low = gradient.bfloat16()
        dist.all_reduce(low, group=mesh["replicate"].get_group())
        gradient.copy_(low).div_(2)

    for part in [*module.blocks, module]:
        fully_shard(part, mesh=mesh["shard"]).set_all_reduce_hook(hook)
    steps(module, torch.optim.SGD(module.parameters(), lr=LR), 0, STEPS // 2)
    values = copy([(name, parameter.full_tensor()) for name, parameter in module.named_parameters()] + [*module.named_buffers()])
    if dist.get_rank() == 0:
        save_file(values, folder / "rank0.safetensors")


def on_rank(rank: int, world: int, what: list[str], folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    for each in what:
        (folder / each).mkdir(exist_ok=True)
        globals()[each](folder / each)
    dist.destroy_process_group()


def main() -> int:
    what, folder = sys.argv[1].split(","), Path(sys.argv[2])
    inputs = {f"in_{i}": torch.stack([row[i] for row in rows()]) for i in range(2)}
    half = len(rows()) // 2
    save_file({name: value[:half].contiguous() for name, value in inputs.items()}, folder / "first.safetensors")
    save_file({name: value[half:].contiguous() for name, value in inputs.items()}, folder / "second.safetensors")
    save_file(inputs, folder / "all.safetensors")
    context = multiprocessing.get_context("fork")
    processes = []
    for world, some in (WORLD, [each for each in what if each != "all_reduce_hook"]), (4, [each for each in what if each == "all_reduce_hook"]):
        group = [context.Process(target=on_rank, args=(rank, world, some, folder)) for rank in range(world if some else 0)]
        for process in group:
            process.start()
        for process in group:
            process.join()
        processes += group
    return max(abs(process.exitcode) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
