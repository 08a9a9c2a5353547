"""Compares what fsdp-plan predicts with what fsdp-run takes on this machine: step times and memory of presets, recomputation and searched plans.

For each number of ranks and way to run, computations and collectives are measured once, on the plan of fsdp1 (`fsdp-run --profile`); all predictions
are from these. Then rounds: every plan runs once in each, so that what disturbs the machine disturbs all. Printed are the median step, the error of
the prediction, and whether the order is right: of two plans that differ beyond noise (the slowest round of one is 5 % faster than the fastest of the
other), the faster one must not be predicted to be slower. Exit status 1 if an order is wrong or memory is not to the byte what was said.
Example: python benchmarks/predictions.py llama-25m --ranks 1 2 --ways local mpi overlap
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import sys

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from compare import ROOT, archive_of, prepare, run
from smallest_budget import smallest_budget  # compare finds scripts

RECOMPUTED = ["--schedule", "fsdp1", "--remat", r"scope:.*layers\.\d+"]
PLANS = {name: ["--schedule", name] for name in ("fsdp1", "fsdp2", "manual-block", "inductor", "list")} | {"fsdp1, recomputed": RECOMPUTED, "auto": ["--auto"]}
BUDGETS = (0.6, 0.3)  # between the least memory that works and what `auto` takes without a budget
WAYS = {"local": [], "overlap": ["--overlap"], "mpi": ["--backend", "mpi"]}
WARMUP = 5
HYPER = 64  # bytes on the host beside the arena: the hyper-parameters of one decay group, aligned


class Bench:
    """One model, ranks, and a way to run them."""

    def __init__(self, model: str, ranks: int, way: str, arguments: argparse.Namespace) -> None:
        self.folder, self.bin, self.steps = ROOT / "build" / "benchmarks", arguments.build / "bin", arguments.steps
        self.model, self.ranks, self.way = model, ranks, way
        prepare(self.folder, model, ranks, arguments.build)

    def run(self, plan: pathlib.Path, *options: object) -> list[dict]:
        """The records of a run, without the first steps."""
        command = ["mpirun", "-n", self.ranks] if self.way == "mpi" else []
        command += [self.bin / "fsdp-run", plan, "--weights", archive_of(self.folder, self.model), "--data", self.folder / f"{self.model}.tokens.bin",
                    "--token-bits", 32, "--steps", self.steps + WARMUP, "--json", *WAYS[self.way], *options]
        return [json.loads(line) for line in run([str(word) for word in command]).splitlines()]

    def command(self, *options: object) -> list[str]:
        return [str(word) for word in (self.bin / "fsdp-plan", archive_of(self.folder, self.model), "--ranks", self.ranks, *options)]

    def plan(self, name: str, *options: object) -> dict:
        """The report; the plan becomes NAME.plan."""
        report = self.folder / "report.json"
        run(self.command(*options, "--report", report, "-o", self.place(name)))
        return json.loads(report.read_text())

    def place(self, name: str) -> pathlib.Path:
        return self.folder / f"{name.replace(', ', '-')}.plan"

    def measure_costs(self) -> list[object]:
        """Options of fsdp-plan by which it knows this machine."""
        profile, machine = self.folder / "profile.json", self.folder / "machine.toml"
        self.plan("fsdp1", "--schedule", "fsdp1")
        self.run(self.place("fsdp1"), "--profile", profile)
        base = self.folder / "base.toml"
        text = (ROOT / "hardware" / "cpu.toml").read_text()
        # Where each rank has one core, what computes has half of it while something is sent.
        beside = f"shared_core = false\ncontention = {float(self.ranks >= len(os.sched_getaffinity(0)))} "
        base.write_text(text.replace("shared_core = true ", beside) if self.way == "overlap" else text)
        if self.ranks == 1:  # which sends nothing
            return ["--hardware", base, "--profile", profile]
        run([str(self.bin / "fsdp-plan"), "calibrate", "--hardware", str(base), "--profile", str(profile), "-o", str(machine)])
        return ["--hardware", machine, "--profile", profile]


def compare(bench: Bench, rounds: int, console: Console) -> tuple[list[float], int, int]:
    """Prints the table of one bench. Returns the errors of its predictions, the wrong orders, and the plans whose memory is not as predicted."""
    costs = bench.measure_costs()
    reports = {name: bench.plan(name, *options, *costs) for name, options in PLANS.items()}
    least, most = smallest_budget(bench.command("--auto", *costs)), reports["auto"]["memory"]["arena_bytes"]
    for part in BUDGETS:
        budget = round(least + part * (most - least))
        reports[f"auto, {budget / 2**20:.1f} MiB"] = bench.plan(f"auto, {budget / 2**20:.1f} MiB", "--auto", "--budget", budget, *costs)
    predicted = {name: report["predicted"]["step_ns"] / 1e6 for name, report in reports.items()}
    measured: dict[str, list[float]] = {name: [] for name in reports}
    arenas = {}
    for _ in tqdm(range(rounds), desc=f"{bench.model}, {bench.ranks} ranks, {bench.way}", unit="round", leave=False):
        for name in reports:
            records = bench.run(bench.place(name))
            measured[name].append(1e3 * statistics.median([record["seconds"] for record in records if "step" in record][WARMUP:]))
            own = 1 if bench.way == "mpi" else bench.ranks  # of one process
            arenas[name] = records[-1]["summary"]["planned_bytes"] // own - HYPER
    table = Table(title=f"{bench.model}, {bench.ranks} ranks, {bench.way}: {rounds} rounds of {bench.steps} steps")
    for heading in ("plan", "predicted, ms", "measured, ms", "range", "error", "arena, MiB"):
        table.add_column(heading, justify="left" if heading == "plan" else "right")
    errors = []
    for name, times in measured.items():
        errors.append(predicted[name] / statistics.median(times) - 1)
        table.add_row(name, f"{predicted[name]:.2f}", f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}", f"{100 * errors[-1]:+.1f} %",
                      f"{arenas[name] / 2**20:.1f}")
    console.print(table)
    wrong = [(fast, slow) for fast, slow in itertools.permutations(measured, 2)
             if max(measured[fast]) < 0.95 * min(measured[slow]) and predicted[fast] > 1.01 * predicted[slow]]
    other = [name for name, report in reports.items() if report["memory"]["arena_bytes"] != arenas[name]]
    for fast, slow in wrong:
        console.print(f"wrong order: {fast} is faster than {slow}, and predicted to be slower")
    for name in other:
        console.print(f"wrong memory: {name} has {arenas[name]} bytes, and was to have {reports[name]['memory']['arena_bytes']}")
    return errors, len(wrong), len(other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=["llama-tiny", "llama-25m", "llama-110m"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--ways", nargs="+", default=["local"], choices=WAYS, help="threads, threads that send beside, or processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each run")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()
    console = Console(width=120)
    errors, wrong, other = [], 0, 0
    for model, ranks, way in itertools.product(arguments.models, arguments.ranks, arguments.ways):
        if ranks == 1 and way != "local":
            continue
        own, orders, memory = compare(Bench(model, ranks, way, arguments), arguments.rounds, console)
        errors, wrong, other = errors + own, wrong + orders, other + memory
    sizes = sorted(map(abs, errors))
    console.print(f"{len(sizes)} plans: median error {100 * statistics.median(sizes):.1f} %, {sum(size <= 0.1 for size in sizes)} within 10 %, "
                  f"{wrong} wrong orders, {other} wrong memories")
    return bool(wrong or other)


if __name__ == "__main__":
    sys.exit(main())
