"""Compares what fsdp-plan predicts of the five presets with what fsdp-run takes, in paired rounds on the same cores.

The model is the chain of docs/schedules.md: units of WIDTH x WIDTH, two ranks. A preset is faster than another beyond noise if its slowest round is 5 %
faster than the other's fastest. Then it must not be predicted to be slower, and from 15 % on it must be predicted to be faster: caches, which nothing
predicts, make less than that. Exit status 1 if it is otherwise. Example: python benchmarks/presets.py --rounds 5
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from preset_chain import PRESETS, write_chain  # noqa: E402

WARMUP = 10


def run(*command: object) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {result.returncode}\n{result.stderr}")
    return result.stdout


def predict(bin: pathlib.Path, folder: pathlib.Path, chain: list[object], preset: str) -> float:
    """Seconds of a step as planned; the plan becomes PRESET.plan."""
    run(bin / "fsdp-plan", *chain, "--schedule", preset, "--trace", folder / "t.json", "-o", folder / f"{preset}.plan")
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    return max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") / 1e6


def measure(bin: pathlib.Path, folder: pathlib.Path, preset: str, steps: int) -> float:
    """Median seconds of a step."""
    lines = run(bin / "fsdp-run", folder / f"{preset}.plan", "--weights", folder / "chain.pt2", "--data", folder / "data.safetensors",
                "--steps", steps + WARMUP, "--json").splitlines()
    return statistics.median([row["seconds"] for row in map(json.loads, lines) if "step" in row][WARMUP:])


def disagreements(predicted: dict[str, float], measured: dict[str, list[float]]) -> list[tuple[str, str]]:
    """Pairs (faster, slower) as measured, beyond noise, whose prediction says otherwise."""
    wrong = []
    for fast, slow in itertools.permutations(predicted, 2):
        gap = min(measured[slow]) / max(measured[fast])
        if (gap > 1.05 and predicted[fast] > 1.01 * predicted[slow]) or (gap > 1.15 and predicted[fast] >= predicted[slow]):
            wrong.append((fast, slow))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds")
    parser.add_argument("--steps", type=int, default=50, help="timed steps of each run")
    parser.add_argument("--width", type=int, default=1024, help="of a unit")
    parser.add_argument("--batch", type=int, default=32, help="rows of a rank's input")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()
    bin = arguments.build / "bin"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        chain = write_chain(folder, arguments.width, arguments.batch)
        predicted = {preset: predict(bin, folder, chain, preset) for preset in PRESETS}
        measured: dict[str, list[float]] = {preset: [] for preset in PRESETS}
        for round in tqdm(range(arguments.rounds), unit="round"):
            for preset in PRESETS if round % 2 else reversed(PRESETS):
                measured[preset].append(measure(bin, folder, preset, arguments.steps))

    table = Table(title=f"ms of a step, and its ratio to fsdp1; {arguments.rounds} paired rounds of {arguments.steps} steps")
    for heading in ("preset", "predicted", "ratio", "measured", "ratio", "range of ratios"):
        table.add_column(heading, justify="left" if heading == "preset" else "right")
    for preset in PRESETS:
        ratios = [mine / first for mine, first in zip(measured[preset], measured["fsdp1"])]
        table.add_row(preset, f"{1e3 * predicted[preset]:.2f}", f"{predicted[preset] / predicted['fsdp1']:.3f}",
                      f"{1e3 * statistics.median(measured[preset]):.2f}", f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}")
    Console(width=100).print(table)
    wrong = disagreements(predicted, measured)
    for fast, slow in wrong:
        print(f"measured: {fast} is faster than {slow}; predicted: otherwise", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
