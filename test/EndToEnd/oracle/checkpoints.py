"""FSDP2 goes on from a checkpoint: python checkpoints.py CHECKPOINT FOLDER WORLD, which trained the model of ranks.py.

Writes to FOLDER: end.safetensors, the whole parameters after the steps that were left; and hub, the same as each rank of
`torch.distributed.checkpoint` writes its own part.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import warnings
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def main(rank: int, world: int, checkpoint: Path, folder: Path) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    module = ranks.build()
    for block in module.blocks:
        fully_shard(block)
    fully_shard(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=ranks.LR)
    state, optimizer_state = get_model_state_dict(module), get_optimizer_state_dict(module, optimizer)
    # Hyper-parameters are no tensors: the optimizer has them.
    dcp.load(both := state | {"optim": {"state": optimizer_state["state"]}}, storage_reader=HuggingFaceStorageReader(str(checkpoint)),
             planner=DefaultLoadPlanner(allow_partial_load=True))
    set_model_state_dict(module, {name: both[name] for name in state})
    set_optimizer_state_dict(module, optimizer, optimizer_state | {"state": both["optim"]["state"]})
    for step in range(json.loads((checkpoint / "manifest.json").read_text())["step"], ranks.STEPS):
        optimizer.zero_grad()
        module(*ranks.rows()[(step * world + rank) % (ranks.STEPS * ranks.WORLD)]).backward()
        optimizer.step()
    whole = {name: value.full_tensor() for name, value in module.named_parameters()}
    if rank == 0:
        save_file(whole, folder / "end.safetensors")
    dcp.save(get_model_state_dict(module), storage_writer=HuggingFaceStorageWriter(str(folder / "hub"), save_distributed=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forked: all share what is imported here.
    checkpoint, folder, world = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    processes = [multiprocessing.get_context("fork").Process(target=main, args=(rank, world, checkpoint, folder)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
