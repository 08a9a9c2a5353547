"""One process of a group of gloo's: worker.py FOLDER JSON. It hands over a group for each task, and prints a line of JSON when all are done, or one has failed.

The JSON is a list of names of tasks, each with its options.
"""

import hashlib
import itertools
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

sys.path.insert(0, sys.argv[1])
import fsdp_test_c10d as c10d

CPU = torch.device("cpu")
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank has, which all ranks can work out."""
    drawn = torch.randint(-1000, 1000, (count,), generator=torch.Generator().manual_seed(1000 * rank + count))
    return drawn if dtype == torch.int64 else (drawn * 0.01).to(dtype)


def reduced(sources: list[torch.Tensor], target: torch.dtype, via: torch.dtype, pre: float, post: float, reduce: str) -> torch.Tensor:
    """In the order of the ranks, in f32 or f64, rounded at the end."""
    if reduce == "first":
        return sources[0]
    wide = torch.float64 if via == torch.float64 else torch.float32
    total = None
    for source in sources:
        part = source.to(wide) / torch.tensor(pre, dtype=wide)
        total = part if total is None else torch.maximum(total, part) if reduce == "max" else total + part
    return (total / torch.tensor(post, dtype=wide)).to(via).to(target)


def check(group, members: list[int], counts: tuple[int, ...], limits: dict) -> int:
    """Runs all kinds of collectives of sizes that divide into nothing, and compares bits."""
    own, n, checked = members.index(RANK), len(members), 0
    f32, f64, bf16, f16, i64 = torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64
    kinds = [(f32, f32, f32), (f32, f32, bf16), (bf16, f32, f32), (bf16, bf16, bf16), (f16, f16, f16), (f64, f64, f64)]
    comm = c10d.Communicator(group._get_backend(CPU), members, **limits)

    def compare(kind, source, target, expected, via, **options):
        nonlocal checked
        comm.run(kind, source, target, torch.empty(0, dtype=via), **options)
        assert torch.equal(target.view(torch.uint8), expected.view(torch.uint8)), (kind, source.dtype, target.dtype, via, expected.numel(), limits, options)
        checked += 1

    for count in counts:
        for dtype, in_place in itertools.product((f32, bf16, i64), (False, True)):
            target = torch.zeros(n * count, dtype=dtype)
            source = target[own * count:(own + 1) * count] if in_place else torch.empty(count, dtype=dtype)
            source.copy_(values(RANK, count, dtype))
            compare("all_gather", source, target, torch.cat([values(rank, count, dtype) for rank in members]), dtype)
        for (dtype, target, via), (pre, post, reduce) in itertools.product(kinds, [(1, 1, "sum"), (3, 1.7, "sum"), (1, 1, "max")]):
            options = {"pre": pre, "post": post, "reduce": reduce}
            everything = [values(rank, n * count, dtype) for rank in members]
            expected = reduced([source[own * count:(own + 1) * count] for source in everything], target, via, **options)
            compare("reduce_scatter", everything[own], torch.zeros(count, dtype=target), expected, via, **options)
            everything = [source[:count].clone() for source in everything]
            expected = reduced(everything, target, via, **options)
            compare("all_reduce", everything[own], torch.zeros(count, dtype=target), expected, via, **options)
            if dtype == target:
                compare("all_reduce", everything[own], everything[own], expected, via, **options)
        everything = [values(rank, count, i64) for rank in members]
        compare("all_reduce", everything[own], torch.zeros_like(everything[own]), everything[0], i64, reduce="first")
        assert comm.workspace <= max(limits.get("workspace_bytes", 4 << 20), 2 * 8 * n)
    return checked


def collectives(group):
    everyone = list(range(SIZE))
    checked = check(group, everyone, (0, 1, 65, 3001), {})
    # Cut into pieces: each element, or a few.
    checked += check(group, everyone, (1, 9), {"message_bytes": 3, "workspace_bytes": 1})
    checked += check(group, everyone, (3001,), {"message_bytes": 1000, "workspace_bytes": 5000})
    # Groups that share no rank, of ranks that are not consecutive.
    for step in range(2, SIZE + 1):
        checked += check(group, list(range(RANK % step, SIZE, step)), (700,), {"communicator": step, "workspace_bytes": 1000})
    return checked


def crossed(group):
    """Two communicators, which each rank starts in another order, from two threads."""
    comms = [c10d.Communicator(group._get_backend(CPU), list(range(SIZE)), communicator=number) for number in range(2)]
    totals = [torch.zeros(1000) for _ in comms]

    def run(number):
        for step in range(20):
            if RANK % 2 != (number + step) % 2:
                time.sleep(0.002)
            comms[number].run("all_reduce", torch.full((1000,), float(number + step)), totals[number], torch.empty(0))
            assert torch.equal(totals[number], torch.full((1000,), float(SIZE * (number + step))))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [total[0].item() for total in totals]


def counts(group, ranks, count):
    """What one of many ranks sends for a collective of each kind: messages, bytes sent and received; and the workspace."""
    said = {}
    shard, everything = torch.zeros(count), torch.zeros(ranks * count)
    for kind, source, target in [("all_gather", shard, everything), ("reduce_scatter", everything, shard), ("all_reduce", everything, everything)]:
        counted = c10d.CountedGroup(ranks // 3, ranks)
        comm = c10d.Communicator(counted, list(range(ranks)))
        comm.run(kind, source, target, torch.empty(0))
        said[kind] = [counted.count, counted.sent, counted.received, comm.workspace]
    return said


def barrier(group):
    """When each has come and left, for every rank that comes last; the clock is the machine's."""
    comm, times = c10d.Communicator(group._get_backend(CPU), list(range(SIZE))), []
    for late in range(SIZE):
        time.sleep(0.05 if RANK == late else 0)
        came = time.monotonic()
        comm.barrier()
        times.append((came, time.monotonic()))
    return times


def wait(group, timeout, meanwhile):
    """The last rank does not come to the second collective. How long the others wait, and why no longer."""
    comm = c10d.Communicator(group._get_backend(CPU), list(range(SIZE)), timeout=timeout)
    value = torch.ones(100_000)
    comm.run("all_reduce", value, value, torch.empty(0))
    if RANK == SIZE - 1:
        time.sleep(2)
        return [0, ""]
    began = time.monotonic()
    meanwhile(comm)
    try:
        comm.run("all_reduce", value, value, torch.empty(0))
    except c10d.Error as error:
        return [time.monotonic() - began, str(error)]


def wait_for_the_last(group, timeout):
    return wait(group, timeout, lambda comm: None)


def wait_until_aborted(group):
    return wait(group, 60, lambda comm: threading.Timer(0.1, comm.abort).start())


def trainings(group, trainings, steps):
    """Losses, and a hash of all parameters."""
    outcomes = []
    for arguments in trainings:
        trainer = c10d.Trainer(group, *arguments["files"], overlap=arguments["overlap"])
        losses = [trainer.step() for _ in range(steps)]
        outcomes.append([losses, {name: hashlib.sha256(value).hexdigest() for name, value in trainer.parameters().items()}])
    return outcomes


def train(group, files, timeout, absent=None):
    """Trains until something goes wrong. `absent`: (a rank, after which step it does nothing any more)."""
    rank, last = absent or (None, None)
    if RANK == rank and last < 0:
        time.sleep(2 * timeout)
    trainer = c10d.Trainer(group, *(files[RANK] if isinstance(files[0], list) else files), timeout=timeout)
    for step in itertools.count():
        if RANK == rank and step == last:
            time.sleep(4 * timeout)
        trainer.step()
        if RANK == 0 and step == 2:
            print("trains", flush=True)


def of_gpus(group, files):
    """A group that has no backend for tensors of the CPU."""
    c10d.Trainer(dist.new_group(backend="cuda:gloo"), *files)


def main():
    dist.init_process_group("gloo")
    try:
        said = [globals()[task](dist.new_group(backend="gloo"), **options) for task, options in json.loads(sys.argv[2])]
        print(json.dumps(said), flush=True)
    except c10d.Error as error:
        print(json.dumps(str(error)), flush=True)
        os._exit(3)
    # The store of the groups is in rank 0.
    dist.barrier()


if __name__ == "__main__":
    main()
