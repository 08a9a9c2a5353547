"""FSDP1 and FSDP2 save what they train, as pickles, and go on: python pickles.py FOLDER WORLD...

For each number of ranks, FOLDER/WORLD gets: of FSDP1, full.pt, sharded-RANK.pt (ShardedTensor) and mesh-RANK.pt (DTensor, of
four ranks two times two); of FSDP2, the folders dcp and dcp-flat of torch.distributed.checkpoint; losses.safetensors with the
losses of the steps after that, and end.safetensors with the whole parameters at the end. All train the model of ranks.py.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

SAVED = ranks.STEPS // 2  # steps


def steps(module: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> torch.Tensor:
    """The mean losses of all ranks."""
    losses = torch.zeros(last - first)
    for step in range(first, last):
        optimizer.zero_grad()
        loss = module(*ranks.rows()[(step * dist.get_world_size() + dist.get_rank()) % (ranks.STEPS * ranks.WORLD)])
        loss.backward()
        optimizer.step()
        losses[step - first] = loss.detach() / dist.get_world_size()
    dist.all_reduce(losses)
    return losses


def main(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    mesh = {"device_mesh": init_device_mesh("cpu", (2, 2) if world == 4 else (world,))}
    meshes = {"sharded": {}, "mesh": mesh | ({"sharding_strategy": ShardingStrategy.HYBRID_SHARD} if world == 4 else {})}
    for form, options in meshes.items():
        module = ranks.wrap(ranks.build(), **options)
        optimizer = torch.optim.AdamW(module.parameters(), lr=ranks.LR)
        steps(module, optimizer, 0, SAVED)
        with FSDP.state_dict_type(module, StateDictType.SHARDED_STATE_DICT):
            torch.save({"model": module.state_dict(), "optim": FSDP.optim_state_dict(module, optimizer)}, folder / f"{form}-{rank}.pt")
        if form == "sharded":
            # With offload_to_cpu on a CPU, both moments are the same memory.
            whole = FullStateDictConfig(offload_to_cpu=False), FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=True)
            with FSDP.state_dict_type(module, StateDictType.FULL_STATE_DICT, *whole):
                state = {"model": module.state_dict(), "optim": FSDP.optim_state_dict(module, optimizer), "epoch": 1}
            if rank == 0:
                torch.save(state, folder / "full.pt")
            losses = steps(module, optimizer, SAVED, ranks.STEPS)
            end = ranks.full(module)
            if rank == 0:
                save_file({"losses": losses}, folder / "losses.safetensors")
                save_file(end, folder / "end.safetensors")
    module = ranks.build()
    for block in module.blocks:
        fully_shard(block)
    fully_shard(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=ranks.LR)
    steps(module, optimizer, 0, SAVED)
    for name, options in ("dcp", StateDictOptions()), ("dcp-flat", StateDictOptions(flatten_optimizer_state_dict=True)):
        model, states = get_state_dict(module, optimizer, options=options)
        dcp.save({"app": {"model": model, "optim": states}}, checkpoint_id=folder / name)
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forked: all share what is imported here.
    context, failed = multiprocessing.get_context("fork"), False
    for world in map(int, sys.argv[2:]):
        folder = Path(sys.argv[1]) / str(world)
        folder.mkdir(parents=True)
        processes = [context.Process(target=main, args=(rank, world, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        failed |= any(process.exitcode for process in processes)
    sys.exit(failed)
