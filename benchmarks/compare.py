"""Compares a compiled plan with PyTorch's own data parallel wrappers, as ratios of paired runs.

Each round runs fsdp-run, with each backend, and then every baseline on the same cores, one thread per rank; a run's figure is the
median of its steps, a ratio is ours / theirs within one round. Prints the median ratio and its range.
Example: python benchmarks/compare.py llama-tiny llama-25m --backends local mpi --rounds 5
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "scripts"))
BASELINES = ["fsdp2", "fsdp1", "ddp", "eager", "compile"]
# As root, and with more processes than cores.
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def run(command: list[str]) -> str:
    """Standard output of `command`, one thread per process; its errors are shown if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **OPEN_MPI, "OMP_NUM_THREADS": "1"})
    if result.returncode:
        sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stderr}")
    return result.stdout


def archive_of(folder: pathlib.Path, model: str) -> pathlib.Path:
    return folder / f"{model.replace('-', '_')}.pt2"


def baseline(model: str, kind: str, ranks: int, steps: int) -> float:
    """Median seconds of a step of PyTorch's `kind`."""
    script = [str(HERE / "torch_baseline.py"), model, kind, "--steps", str(steps)]
    launcher = [sys.executable]
    if kind in ("ddp", "fsdp1", "fsdp2"):
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    lines = [line for line in run(launcher + script).splitlines() if line.startswith("{")]
    return statistics.median(json.loads(lines[-1])["seconds"])


def compiled(folder: pathlib.Path, model: str, ranks: int, steps: int, build: pathlib.Path, backend: str, extra: list[str]) -> float:
    """Median seconds of a step of the compiled plan, the first eight left out as for the baselines."""
    command = ["mpirun", "-n", str(ranks)] if backend == "mpi" else []
    command += [str(build / "bin" / "fsdp-run"), str(folder / f"{model}-{ranks}.plan"), "--ranks", str(ranks)]
    command += ["--weights", str(archive_of(folder, model)), "--data", str(folder / f"{model}.tokens.bin")]
    command += ["--token-bits", "32", "--steps", str(steps + 8), "--lr", "1e-3", "--json", "--backend", backend, *extra]
    records = [json.loads(line) for line in run(command).splitlines()]
    return statistics.median([record["seconds"] for record in records if "step" in record][8:])


def prepare(folder: pathlib.Path, model: str, ranks: int, build: pathlib.Path) -> None:
    """Captures `model` once, plans it with default flags, and makes tokens for it."""
    from fixture_models import LLAMAS

    archive = archive_of(folder, model)
    if not archive.exists():
        run([sys.executable, str(ROOT / "scripts" / "make_fixtures.py"), str(folder), f"--{model}"])
    plan = folder / f"{model}-{ranks}.plan"
    run([str(build / "bin" / "fsdp-plan"), str(archive), "--ranks", str(ranks), "-o", str(plan)])
    (batch, sequence), vocabulary = LLAMAS[model].batch, LLAMAS[model].vocabulary
    tokens = numpy.random.default_rng(0).integers(0, vocabulary, batch * sequence * 64, dtype=numpy.uint32)
    tokens.astype("<u4").tofile(folder / f"{model}.tokens.bin")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=["llama-tiny", "llama-25m"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="paired rounds")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each run")
    parser.add_argument("--backends", nargs="+", default=["local"], choices=["local", "mpi"], help="of fsdp-run")
    parser.add_argument("--baselines", nargs="+", default=["fsdp2", "fsdp1", "ddp"], choices=BASELINES)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    parser.add_argument("--run-options", default="", help="further options of fsdp-run, as one string")
    arguments = parser.parse_args()

    folder = ROOT / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    for model in arguments.models:
        prepare(folder, model, arguments.ranks, arguments.build)
        ours, theirs = {backend: [] for backend in arguments.backends}, {kind: [] for kind in arguments.baselines}
        for _ in tqdm(range(arguments.rounds), desc=model, unit="round"):
            extra = arguments.run_options.split()
            for backend in arguments.backends:
                ours[backend].append(compiled(folder, model, arguments.ranks, arguments.steps, arguments.build, backend, extra))
            for kind in arguments.baselines:
                theirs[kind].append(baseline(model, kind, arguments.ranks, arguments.steps))
        figures[model] = ours | theirs

    table = Table(title=f"{arguments.ranks} ranks, {arguments.rounds} paired rounds of {arguments.steps} steps")
    words = ("model", "backend", "against")
    for heading in (*words, "ours ms", "theirs ms", "ratio", "range"):
        table.add_column(heading, justify="left" if heading in words else "right")
    for model, times in figures.items():
        for backend, kind in itertools.product(arguments.backends, arguments.baselines):
            ratios = [mine / other for mine, other in zip(times[backend], times[kind])]
            table.add_row(
                model, backend, kind,
                f"{1e3 * statistics.median(times[backend]):.3f}", f"{1e3 * statistics.median(times[kind]):.3f}",
                f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}",
            )
    Console(width=100).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
