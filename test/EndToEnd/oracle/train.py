"""Trains cases with PyTorch's FSDP1 and FSDP2 on gloo: python train.py CASES.json FOLDER STEPS.

For each case with key "name", FOLDER/NAME.step.safetensors is a reference of the first step (loss and gradients) and
FOLDER/NAME.training.safetensors one of the training (losses and final parameters), as `fsdp-run --reference` reads them;
or FOLDER/NAME.error says why there is none. One process group for each world size trains all of its cases.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import multiprocessing
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import Case, has_inner_axis, has_mesh, is_fsdp2, is_low, micro_batches
from models import BLOCKS, batches, build, first_block, precision, units
from safetensors.torch import save_file
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffloadPolicy, OffloadPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy, size_based_auto_wrap_policy
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

SEED = 3
TIMEOUT = datetime.timedelta(minutes=5)  # a busy machine may start the last rank a minute after the first
HYPER = {"lr": 1e-3, "weight_decay": 0.1}
BETAS = {"beta1": 0.9, "beta2": 0.999}
# By whether something is in bf16: AdamW must not scale up what is rounding error to a gradient that cancels among the ranks. Of gradients of
# 0.4 that are summed in bf16 over micro-batches and ranks, up to 3e-3 is that.
EPS = {False: 1e-8, True: 1e-2}
STRATEGIES = {name: ("_" if name.endswith("zero2") else "") + name.upper()
              for name in ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")}
PAIRS = [(ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP), (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)]
OTHER = dict(PAIRS) | {b: a for a, b in PAIRS}  # the strategy that reshards otherwise
MOMENTUM = {"sgd": 0.0, "momentum": 0.9}


def matching(module: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    return [(path, part) for path, part in module.named_modules() if re.fullmatch(pattern, path)]


def checkpoint(module: nn.Module, pattern: str) -> None:
    """Puts activation checkpointing around modules, which become part of a wrapper."""
    for path, part in matching(module, pattern):
        parent, _, attribute = path.rpartition(".")
        setattr(module.get_submodule(parent), attribute, checkpoint_wrapper(part, CheckpointImpl.NO_REENTRANT))


@functools.cache  # its process groups serve all cases
def mesh_of(*sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes):])


def shard(case: Case, module: nn.Module) -> nn.Module:
    """The module as FSDP1 or FSDP2 shards it."""
    parts = dict(matching(module, units(case)))
    first = {part for path, part in parts.items() if re.match(first_block(case), path)}
    if case["remat"] == "blocks":
        checkpoint(module, BLOCKS[case["model"]])
    mesh = mesh_of(*(2, 2) if has_mesh(case) else (case["world"],))
    return (shard_2 if is_fsdp2(case) else shard_1)(case, module, list(parts.values()), first, mesh)


def shard_1(case: Case, module: nn.Module, parts: list[nn.Module], first: set[nn.Module], mesh: DeviceMesh) -> nn.Module:
    schedule, strategy = case["schedule"], ShardingStrategy[STRATEGIES[case["sharding"]]]
    chosen = set(parts)

    def policy(part: nn.Module) -> bool | dict[str, Any]:
        if part not in first:
            return part in chosen
        own: dict[str, Any] = {"sharding_strategy": OTHER[strategy]} if case["first_block"] == "reshard" else {}
        return own | {"mixed_precision": precision(case, is_first_block=True)}

    by_size = lambda **arguments: size_based_auto_wrap_policy(**arguments, min_num_params=5000)  # noqa: E731
    return FSDP(
        module,
        device_mesh=mesh,
        sharding_strategy=strategy,
        auto_wrap_policy=by_size if case["wrap"] == "size" else CustomPolicy(policy),
        mixed_precision=precision(case),
        backward_prefetch={"backward_post": BackwardPrefetch.BACKWARD_POST, "no_prefetch": None}.get(schedule, BackwardPrefetch.BACKWARD_PRE),
        forward_prefetch=schedule == "forward_prefetch",
        limit_all_gathers=schedule != "no_limit",
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


def shard_2(case: Case, module: nn.Module, parts: list[nn.Module], first: set[nn.Module], mesh: DeviceMesh) -> nn.Module:
    reshard = {"true": True, "false": False, "2": 2}[case["sharding"].split()[1]]

    def arguments(part: nn.Module) -> dict[str, Any]:
        # All of it, or nothing. What is not pinned needs no accelerator; FSDP1 cannot offload without one, and trains the same.
        offload = CPUOffloadPolicy(pin_memory=False) if case["offload"] == "all" else OffloadPolicy()
        own = mesh_of(2, 2) if part in first and has_inner_axis(case) else mesh
        return {"mesh": own, "offload_policy": offload, "mp_policy": precision(case, is_first_block=part in first),
                "reshard_after_forward": not reshard if part in first and case["first_block"] == "reshard" else reshard}

    for part in parts:
        fully_shard(part, **arguments(part))
    if case["schedule"] == "forward_prefetch":
        for part, following in zip(parts, parts[1:]):
            part.set_modules_to_forward_prefetch([following])
    return fully_shard(module, **arguments(module))


def has_no_decay(case: Case, name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() < 2 if case["no_decay"] == "dims<2" else re.search(case["no_decay"], name) is not None


def plain(name: str) -> str:
    """The name of a parameter in the module before wrapping."""
    return name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")


def full(case: Case, module: nn.Module, gradients: bool) -> dict[str, torch.Tensor]:
    """All parameters, or all gradients that there are, unsharded, by the names of the unwrapped module."""
    def read() -> dict[str, torch.Tensor]:
        values = {}
        for name, parameter in module.named_parameters():
            value = parameter.grad if gradients else parameter
            if value is not None:
                values[plain(name)] = (value.full_tensor() if is_fsdp2(case) else value).detach().clone()
        return values

    if is_fsdp2(case):
        return read()
    with FSDP.summon_full_params(module, with_grads=gradients):
        return read()


@contextlib.contextmanager
def synchronized(case: Case, module: nn.Module, is_last: bool) -> Iterator[None]:
    """Forward and backward of a micro-batch, which reduces gradients or, as the case says, only sums this rank's, or its shards'."""
    value = is_last or "no_" not in case["accumulate"]
    if case["accumulate"].endswith("no_all_reduce"):
        module.set_requires_all_reduce(value)
    elif is_fsdp2(case):
        module.set_requires_gradient_sync(value)
    if is_fsdp2(case):
        module.set_reshard_after_backward(case["reshard_after_backward"] or is_last)
    with contextlib.nullcontext() if value or is_fsdp2(case) else module.no_sync():
        yield


def clip(case: Case, module: nn.Module) -> None:
    most, _, p = case["clip"].partition(":")
    if is_fsdp2(case):
        torch.nn.utils.clip_grad_norm_(module.parameters(), float(most), float(p or 2))
    else:
        module.clip_grad_norm_(float(most), float(p or 2))


def train(case: Case, steps: int, folder: Path) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    module = build(case)
    undecayed = {name for name, p in module.named_parameters() if has_no_decay(case, name, p)}
    module = shard(case, module)
    groups = [{"params": [p for name, p in module.named_parameters() if p.requires_grad and (plain(name) in undecayed) == own],
               **({"weight_decay": 0.0} if own else {})} for own in (False, True)]
    if case["optimizer"] == "adamw":
        hyper = HYPER | BETAS | {"eps": EPS[is_low(case)]}
        optimizer = torch.optim.AdamW(groups, betas=tuple(BETAS.values()), eps=hyper["eps"], **HYPER)
    else:
        hyper = HYPER | {"lr": 0.03, "momentum": MOMENTUM[case["optimizer"]]}
        optimizer = torch.optim.SGD(groups, **hyper)
    count = micro_batches(case)
    divisor = count if "mean" in case["accumulate"] else 1
    rows, losses, first = batches(steps * count * world), [], {}
    torch.manual_seed(SEED + rank)
    for step in range(steps):
        mean = torch.zeros((), dtype=torch.double)
        for micro_batch in range(step * count, (step + 1) * count):
            with synchronized(case, module, (micro_batch + 1) % count == 0):
                loss = module(*rows[micro_batch * world + rank])
                (loss / divisor).backward()
            mean += loss.detach() / count / world
        if step == 0:
            first = {f"grad.{name}": value for name, value in full(case, module, gradients=True).items()}
        if case["clip"] != "none":
            clip(case, module)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        losses.append(mean.float())
    final = {f"param.{name}": value for name, value in full(case, module, gradients=False).items()}
    if rank == 0:
        inputs = {f"in_{i}": torch.stack([row[i] for row in rows]) for i in range(2)}
        start = {key: value[: count * world].unflatten(0, (count, world) if count > 1 else (world,)).contiguous() for key, value in inputs.items()}
        metadata = {key: repr(value) for key, value in (hyper | {"seed": SEED}).items()}
        save_file({**start, "loss": losses[0], **first}, folder / f"{case['name']}.step.safetensors", metadata=metadata)
        save_file({**inputs, "losses": torch.stack(losses), **final}, folder / f"{case['name']}.training.safetensors", metadata=metadata)


def train_all(cases: list[Case], steps: int, folder: Path) -> None:
    """One rank: its cases, one after the other, in one process group."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    for case in cases:
        try:
            train(case, steps, folder)
        except Exception:  # the same on all ranks, or the others run into the time-out
            (folder / f"{case['name']}.error").write_text(traceback.format_exc())
    dist.destroy_process_group()


def launch(world: int, cases: list[Case], steps: int, folder: Path) -> None:
    """torchrun, forked: its processes share what is imported here, and talk over the loopback interface."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=world, rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
                          run_id=f"world-{world}", max_restarts=0, start_method="fork")
    elastic_launch(config, train_all)(cases, steps, folder)


def main() -> int:
    cases, folder, steps = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), int(sys.argv[3])
    for case in cases:
        build(case)  # imports what the ranks need
    failed = False
    for world in sorted({case["world"] for case in cases}):
        process = multiprocessing.get_context("fork").Process(
            target=launch, args=(world, [case for case in cases if case["world"] == world], steps, folder))
        process.start()
        process.join()
        failed |= process.exitcode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
