"""One rank of trainings with fsdp_mlir.Trainer over gloo: trainer_ranks.py FOLDER JSON, under torchrun or with its variables.

The JSON has the options of tasks, by the names of functions; what each returns on rank R is written to FOLDER/R.json.
With $WITHOUT_ATTENTION, models are so.
"""

import hashlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python-bindings"), str(ROOT / "scripts")]

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import fixture_models
from safetensors.torch import load_file

from fsdp_mlir import FSDPError, Trainer, fully_sharded

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def role(name: str) -> fixture_models.Case:
    case = fixture_models.role(name)
    return fixture_models.without_attention(case) if "WITHOUT_ATTENTION" in os.environ else case


def digests(state: dict) -> dict[str, str]:
    return {name: hashlib.sha256(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest() for name, value in state.items()}


def batches(data: str) -> list[tuple]:
    """This rank's, as fsdp-run takes them."""
    tensors = load_file(data)
    rows = list(zip(*(tensors[f"in_{i}"] for i in range(len(tensors)))))
    return rows[RANK::SIZE]


def numbers(losses: list[torch.Tensor]) -> list[float]:
    return [float(f"{loss.item():.9g}") for loss in losses]


def train(plan, name, data, steps, overlap=False, own_group=False, lr=0.01):
    """Losses, and a hash of all parameters and buffers, of a training from the values of the module."""
    group = dist.new_group(backend="gloo") if own_group else None
    with Trainer(plan, role(name).module, group=group, overlap=overlap, lr=lr, weight_decay=0.1) as trainer:
        losses = [trainer.step(batch) for batch in batches(data)[:steps]]
        state = trainer.full_state_dict(rank0_only=True)
        assert bool(state) == (RANK == 0)
    return [numbers(losses), digests(state)]


def loop(name, data, steps, lr, **options):
    """As `train`, in a loop of PyTorch's."""
    rows = batches(data)
    model = role(name).module
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    model, losses = fully_sharded(model, rows[0], optimizer=optimizer, verify_first_step=False, **options), []
    for batch in rows[:steps]:
        losses.append(model(*batch))
        losses[-1].backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
    return numbers(losses)


def accumulate(plan, data):
    """The same batches given by each rank, and split from those of all."""
    tensors = load_file(data)
    found = []
    for splits in False, True:
        with Trainer(plan, role("tied").module, lr=0.01) as trainer:
            whole = tuple(tensors[f"in_{i}"][: 2 * SIZE].flatten(0, 1) for i in range(2))
            mine = [tuple(t[k * SIZE + RANK] for t in (tensors["in_0"], tensors["in_1"])) for k in range(2)]
            found.append(numbers([trainer.step(trainer.split(whole) if splits else mine)]) + [digests(trainer.full_state_dict())])
    return found


def checkpoints(plan, data, folder):
    """Saves after two steps, and says what two more do; another training goes on from there."""
    rows = batches(data)
    with Trainer(plan, role("tied").module, lr=0.01) as trainer:
        for batch in rows[:2]:
            trainer.step(batch)
        path = trainer.save(folder)
        saved = digests(trainer.full_state_dict())
        expected = numbers([trainer.step(batch) for batch in rows[2:4]])
        later = trainer.load(folder), digests(trainer.full_state_dict()) == saved
        assert later == (2, True) and numbers([trainer.step(batch) for batch in rows[2:4]]) == expected
    with Trainer(plan, role("tied").module, lr=0.01) as other:
        # The folder is locked by rank 0 alone, and all hear of it.
        with Trainer(plan, role("tied").module) as holder:
            holder.load(path)
            holder.save(folder)
            other.load(path)
            assert "save: expected " in _error(lambda: other.save(folder)), _error(lambda: other.save(folder))
        return [numbers([other.step(batch) for batch in rows[2:4]]) == expected, saved]


def load(plan, folder):
    with Trainer(plan, role("tied").module, lr=0.01) as trainer:
        trainer.load(folder)
        return digests(trainer.full_state_dict())


def _fsdp2(steps_of: list) -> tuple:
    """FSDP2 after steps on these batches: model, optimizer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = role("frozen").module, init_device_mesh("cpu", (SIZE,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, fused=True)
    losses = _train_fsdp2(model, optimizer, steps_of)
    return model, optimizer, losses


def _train_fsdp2(model, optimizer, rows) -> list[float]:
    losses = []
    for batch in rows:
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / SIZE)
    return losses


def cross_load(plan, data, folder):
    """torch.distributed.checkpoint from FSDP2 to a Trainer and back; how far trainings that go on are from one that did not stop."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict

    rows = batches(data)
    model, optimizer, _ = _fsdp2(rows[:2])
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=f"{folder}/theirs")
    expected = _train_fsdp2(model, optimizer, rows[2:4])
    end = {name: value.full_tensor() for name, value in get_model_state_dict(model).items()}

    trainer = Trainer(plan, role("frozen").module, lr=1.0)
    state = {"model": trainer.state_dict(), "optim": trainer.optimizer.state_dict()}
    dcp.load(state, checkpoint_id=f"{folder}/theirs")
    trainer.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optim"])
    assert trainer.lr == 0.01 and trainer.optimizer.state_dict()["state"]["norm.weight"]["step"] == 2
    state = {"model": trainer.state_dict(), "optim": trainer.optimizer.state_dict()}
    saving = dcp.async_save(state, checkpoint_id=f"{folder}/mine")  # which has what there was before these steps
    mine = [trainer.step(batch).item() for batch in rows[2:4]]
    saving.result()
    apart = max((value - end[name]).abs().max().item() for name, value in trainer.full_state_dict().items())

    other, other_optimizer, _ = _fsdp2(rows[4:5])
    state = {"model": get_model_state_dict(other), "optim": get_optimizer_state_dict(other, other_optimizer)}
    dcp.load(state, checkpoint_id=f"{folder}/mine")
    set_model_state_dict(other, state["model"])
    set_optimizer_state_dict(other, other_optimizer, state["optim"])
    return [expected, mine, apart, _train_fsdp2(other, other_optimizer, rows[2:4])]


def dcp_load(plan, folder):
    """A checkpoint of another number of ranks, into one Trainer; and full_state_dict of that into a second one."""
    with Trainer(plan, role("frozen").module) as trainer, Trainer(plan, role("frozen").module) as second:
        state = {"model": trainer.state_dict(), "optim": trainer.optimizer.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        trainer.load_state_dict(state["model"])
        second.load_state_dict(trainer.full_state_dict())
        with trainer.summon_full_params() as module:
            whole = digests(module.state_dict())
        assert digests(second.full_state_dict()) == whole
        state = {"model": role("frozen").module.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        return [whole, digests(state["model"])]


def _error(make) -> str:
    try:
        make()
    except FSDPError as error:
        return str(error)
    return "none"


def rejected(plans, other_plan):
    """Another number of ranks than the plan's, plans that differ, a rank that does not come."""
    found = [_error(lambda: Trainer(plans[str(SIZE + 1)], role("tied").module, timeout=20))]
    dist.barrier()
    found.append(_error(lambda: Trainer(other_plan if RANK else plans[str(SIZE)], role("tied").module, timeout=20)))
    dist.barrier()
    trainer = Trainer(plans[str(SIZE)], role("tied").module, timeout=0.5)
    batch = role("tied").inputs
    trainer.step(batch)
    dist.barrier()
    began = time.monotonic()
    found.append(_error(lambda: trainer.step(batch)) if RANK == 0 else "")
    found.append(time.monotonic() - began)
    dist.barrier()
    return found


def lost(plan, steps):
    """The last rank dies after some steps: what the first one says, after how many seconds, and whether it says so again."""
    trainer, batch = Trainer(plan, role("tied").module), role("tied").inputs
    for _ in range(steps):
        trainer.step(batch)
    dist.barrier()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    first = _error(lambda: [trainer.step(batch) for _ in range(1000)])
    Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps([first, time.monotonic() - began, _error(lambda: trainer.step(batch)) == first]))
    os._exit(0)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    said = {task: [globals()[task](**options) for options in calls] for task, calls in json.loads(sys.argv[2]).items()}
    Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(said))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads end in std::terminate now and then while the interpreter takes them down


if __name__ == "__main__":
    main()
