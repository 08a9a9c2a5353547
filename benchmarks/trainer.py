"""A step of fsdp_mlir.Trainer beside one of fsdp-run, and beside one of FSDP2 over gloo, as ratios of paired runs.

Each round runs both sides on the same cores, one thread per rank; a run's figure is the median of its steps, a ratio is ours / theirs
within one round. `python` is what Trainer.step adds to the call of the extension module: both alternate in one process.
Example: python benchmarks/trainer.py llama-tiny llama-25m --rounds 3
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "python-bindings")]
FOLDER = ROOT / "build" / "benchmarks"


def work(model: str, plan: str, steps: int, warmup: int) -> None:
    """One rank. Rank 0 prints the seconds of each timed step: of Trainer.step with the loss read, and of the extension alone."""
    import torch
    import torch.distributed as dist
    from fixture_models import LLAMAS
    from compare import archive_of

    from fsdp_mlir import Trainer

    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    trainer = Trainer(plan, weights=archive_of(FOLDER, model))
    size, generator = LLAMAS[model], torch.Generator().manual_seed(trainer.rank)
    seconds, inner = [], []
    for step in range(2 * (warmup + steps)):
        ids = torch.randint(0, size.vocabulary, size.batch, generator=generator)
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        loss = trainer.step((ids, ids)) if step % 2 == 0 else trainer._session.step([[ids, ids]])
        float(loss)
        if step >= 2 * warmup:
            (inner if step % 2 else seconds).append(time.perf_counter() - start)
    if trainer.rank == 0:
        print(json.dumps({"seconds": seconds, "inner": inner}), flush=True)
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads end in std::terminate now and then while the interpreter takes them down


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=["llama-tiny", "llama-25m"])
    parser.add_argument("--rounds", type=int, default=3, help="paired rounds")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each run")
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    parser.add_argument("--plan", help=argparse.SUPPRESS)  # of a rank
    arguments = parser.parse_args()
    if arguments.plan:
        work(arguments.models[0], arguments.plan, arguments.steps, arguments.warmup)

    from compare import baseline, compiled, prepare, run
    from rich.console import Console
    from rich.table import Table
    from tqdm import tqdm

    def trainer(model: str, ranks: int) -> dict[str, float]:
        launcher = [sys.executable] + ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] * (ranks > 1)
        command = [*launcher, str(HERE / "trainer.py"), model, "--plan", str(FOLDER / f"{model}-{ranks}.plan"), "--steps", str(arguments.steps)]
        line = next(line for line in run(command).splitlines() if line.startswith("{"))
        return {key: statistics.median(values) for key, values in json.loads(line).items()}

    FOLDER.mkdir(parents=True, exist_ok=True)
    os.environ["FSDP_BUILD"] = str(arguments.build)
    table = Table(title=f"{arguments.rounds} paired rounds of {arguments.steps} steps")
    for heading in ("model", "ranks", "against", "ours ms", "theirs ms", "ratio", "range", "python us"):
        table.add_column(heading, justify="left" if heading in ("model", "against") else "right")
    for model in arguments.models:
        for ranks, kind in (1, "fsdp-run"), (2, "fsdp2"):
            prepare(FOLDER, model, ranks, arguments.build)
            ours, theirs = [], []
            for _ in tqdm(range(arguments.rounds), desc=f"{model}, {kind}", unit="round"):
                ours.append(trainer(model, ranks))
                theirs.append(compiled(FOLDER, model, ranks, arguments.steps, arguments.build, "local", []) if ranks == 1
                              else baseline(model, kind, ranks, arguments.steps))  # fmt: skip
            ratios = [mine["seconds"] / other for mine, other in zip(ours, theirs, strict=True)]
            added = statistics.median(1e6 * (mine["seconds"] - mine["inner"]) for mine in ours)
            table.add_row(model, str(ranks), kind, f"{1e3 * statistics.median(m['seconds'] for m in ours):.3f}", f"{1e3 * statistics.median(theirs):.3f}",
                          f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}", f"{added:.0f}")  # fmt: skip
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
