"""One training loop in PyTorch, timed step by step: what fsdp-run is compared with.

Runs alone (eager, compile) or under torchrun (ddp, fsdp1, fsdp2; gloo). Rank 0 prints one JSON object:
{"kind": ..., "seconds": [seconds of each timed step], "losses": [mean over ranks]}. One thread per rank.
"""

import argparse
import json
import logging
import os
import pathlib
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
from fixture_models import LLAMAS, llama


def wrap(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """The model under the data parallel wrapper `kind`, one unit per decoder layer."""
    layers = model.m.model.layers
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if kind == "fsdp1":
        import functools

        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(layers[0])})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
        )
    return torch.compile(model) if kind == "compile" else model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["llama-tiny", "llama-25m"])
    parser.add_argument("kind", choices=["eager", "compile", "ddp", "fsdp1", "fsdp2"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=8)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    distributed = arguments.kind in ("ddp", "fsdp1", "fsdp2")
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    model = wrap(llama(arguments.model).module, arguments.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    (batch, sequence), vocabulary = LLAMAS[arguments.model].batch, LLAMAS[arguments.model].vocabulary
    generator = torch.Generator().manual_seed(rank)
    seconds, losses = [], []
    for step in range(arguments.warmup + arguments.steps):
        ids = torch.randint(0, vocabulary, (batch, sequence), generator=generator)
        if distributed:
            dist.barrier()
        start = time.perf_counter()
        loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.detach()
        if distributed:
            dist.all_reduce(value, op=dist.ReduceOp.SUM)
            value /= dist.get_world_size()
        if step >= arguments.warmup:
            seconds.append(time.perf_counter() - start)
            losses.append(float(value))
    if rank == 0:
        print(json.dumps({"kind": arguments.kind, "seconds": seconds, "losses": losses}), flush=True)
    if distributed:
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # one run in ten ends in std::terminate while the interpreter takes gloo's threads down
    return 0


if __name__ == "__main__":
    sys.exit(main())
