"""Compares what fsdp-plan predicts with what Trainer takes on one GPU: step times and memory of a Llama in bfloat16 with AdamW, under several
schedules, beside eager PyTorch and torch.compile.

With several hardware files there is a prediction for each; decisions are made by the first. Times are medians of steps whose losses are waited for.
Of two plans that differ beyond noise (5 %), the faster one must not be predicted to be slower. Exit status 1 if an order is wrong or memory is not
to the byte what was said.
Example: python -m fsdp_mlir calibrate --device cuda -o mine.toml && python benchmarks/gpu.py 134m 1b --hardware h200 mine.toml
"""

import argparse
import dataclasses
import gc
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from fsdp_mlir import Trainer, _options, capture, save
from fsdp_mlir._demo import Llama
from rich.console import Console
from rich.table import Table

WARMUP = 4


@dataclasses.dataclass
class Size:
    width: int
    hidden: int
    heads: int
    layers: int
    batch: tuple[int, int]  # sequences, tokens
    vocabulary: int = 32000

    def make(self) -> Llama:
        torch.manual_seed(0)
        return Llama(self.width, self.hidden, self.heads, self.layers, self.vocabulary, self.batch[1]).bfloat16()

    def tokens(self) -> torch.Tensor:
        return torch.randint(self.vocabulary, self.batch)


SIZES = {"tiny": Size(128, 384, 4, 4, (2, 128), 256), "134m": Size(768, 2048, 12, 12, (8, 1024)), "1b": Size(2048, 5632, 32, 22, (4, 2048)), "1b-128": Size(2048, 5632, 16, 22, (4, 2048))}
BLOCKS = r"blocks\.\d+"
PLANS = {
    "as it is": [],
    "all recomputed": ["--remat", rf"scope:{BLOCKS}"],
    "every other recomputed": ["--remat", r"scope:blocks\.\d*[02468]"],
    "loss in 4 chunks": ["--chunk-loss", "4"],
    "loss in 16 chunks": ["--chunk-loss", "16"],
    "both": ["--remat", rf"scope:{BLOCKS}", "--chunk-loss", "4"],
}
BUDGETS = (0.25, 0.5, 0.75)  # of --auto, between all recomputed and as it is


def measure(step: Callable[[], object], steps: int) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(WARMUP + steps):
        start = time.perf_counter()
        step().item()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARMUP:])


def run_plan(plan: pathlib.Path, model: torch.nn.Module, ids: torch.Tensor, steps: int) -> tuple[float, int]:
    """Median seconds of a step, and the bytes that the plan takes from the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    with Trainer(plan, model, keep_module=True) as trainer:
        taken = before - torch.cuda.mem_get_info()[0]
        return measure(lambda: trainer.step({"ids": ids}), steps), taken


def run_eager(model: torch.nn.Module, ids: torch.Tensor, steps: int, compiled: bool) -> tuple[float, int]:
    """Median seconds of a step of PyTorch, and the bytes that it reserves."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = model.cuda()
    call = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = call(ids)
        loss.backward()
        optimizer.step()
        return loss

    return measure(step, steps), torch.cuda.max_memory_reserved()


def compare(name: str, arguments: argparse.Namespace, console: Console, folder: pathlib.Path) -> tuple[list[float], int]:
    """Prints the table of one model. Returns the errors of the first file's predictions, and how many orders are wrong."""
    size = SIZES[name]
    model, ids = size.make(), size.tokens()
    archive = folder / f"{name}.pt2"
    save(capture(model, (), {"ids": ids}, device="cuda"), archive, verify=False)
    ids = ids.cuda()

    def make(options: list[str], hardware: str) -> tuple[pathlib.Path, dict]:
        plan, report = folder / "p.plan", folder / "p.json"
        _options.run(archive, "--ranks", "1", "--device", "cuda", "--hardware", hardware, *options, "--report", report, "-o", plan)
        return plan, json.loads(report.read_text())

    arenas = [make(PLANS[key], arguments.hardware[0])[1]["memory"]["arena_bytes"] for key in ("all recomputed", "as it is")]
    budgets = [round(arenas[0] + part * (arenas[1] - arenas[0])) for part in BUDGETS]
    plans = PLANS | {f"--auto, {budget / 2**30:.2f} GiB": ["--auto", "--budget", str(budget)] for budget in budgets}
    table = Table(title=f"Llama {name}, {size.batch[0]} x {size.batch[1]} tokens, {torch.cuda.get_device_name()}: medians of {arguments.steps} steps")
    for heading in ("plan", "measured, ms", *(f"by {pathlib.Path(file).name}, ms" for file in arguments.hardware), "arena, GiB", "beside it, MiB"):
        table.add_column(heading, justify="left" if heading == "plan" else "right")
    measured, predicted = {}, {}
    for key, options in plans.items():
        plan, report = make(options, arguments.hardware[0])
        measured[key], taken = run_plan(plan, model, ids, arguments.steps)
        times = [report["predicted"]["step_ns"]]
        for file in arguments.hardware[1:]:  # decisions stay those of the first file
            decided = []
            if "--auto" in options:
                _options.run(archive, "--ranks", "1", "--device", "cuda", "--hardware", arguments.hardware[0], *options, "--decisions", folder / "d.toml")
                decided = ["--decisions", str(folder / "d.toml")]
            times.append(make(decided or options, file)[1]["predicted"]["step_ns"])
        predicted[key] = times[0] / 1e9
        arena = report["memory"]["arena_bytes"]
        table.add_row(key, f"{1e3 * measured[key]:.1f}", *(f"{time / 1e6:.1f} ({100 * (time / 1e9 / measured[key] - 1):+.1f} %)" for time in times),
                      f"{arena / 2**30:.2f}", f"{(taken - arena) / 2**20:.0f}")
    for kind in ("eager PyTorch", "torch.compile"):
        seconds, reserved = run_eager(size.make(), ids, arguments.steps, kind != "eager PyTorch")
        table.add_row(kind, f"{1e3 * seconds:.1f}", *("" for _ in arguments.hardware), f"{reserved / 2**30:.2f}", "")
    console.print(table)
    wrong = [(fast, slow) for fast, slow in itertools.permutations(measured, 2) if measured[fast] < 0.95 * measured[slow] and predicted[fast] > 1.01 * predicted[slow]]
    for fast, slow in wrong:
        console.print(f"wrong order: {fast} is faster than {slow}, and predicted to be slower")
    return [predicted[key] / measured[key] - 1 for key in measured], len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=SIZES)
    parser.add_argument("--hardware", nargs="+", default=["h200"], help="hardware files, or names that are built in")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each run")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"expected a GPU that PyTorch can use, found none ({torch.__version__})")
    torch.backends.cuda.matmul.allow_tf32 = False
    console, errors, wrong = Console(width=150), [], 0
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            own, orders = compare(name, arguments, console, pathlib.Path(folder))
        errors, wrong = errors + own, wrong + orders
    sizes = sorted(map(abs, errors))
    console.print(f"{len(sizes)} plans: median error {100 * statistics.median(sizes):.1f} %, {sum(size <= 0.1 for size in sizes)} within 10 %, {wrong} wrong orders")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
