#!/usr/bin/env python3
"""What checkpoints cost: saving and loading against `cp` and `sync` of the same bytes, in turn; and of one training, 20 steps with a save against the
next 20 without."""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from compare import ROOT, archive_of, prepare
from tqdm import tqdm


def timed(*command) -> tuple[float, str]:
    """Seconds that a command takes, and its output."""
    begin = time.perf_counter()
    result = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, result.stdout


def compare_steps(rounds: int, *command) -> list[float]:
    """For each round, the time from the end of a step until its checkpoint is written and 20 steps are done, in parts of that of the next 20 steps."""
    command = [*command, "--steps", 40 * (rounds + 1), "--every", 40, "--keep", 1]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as training:
        ends = [time.perf_counter() for _ in tqdm(training.stdout, total=40 * (rounds + 1) + 1, unit="step")]
    # Step 40 is reported after its values have been copied, or before: its end is not in the second part.
    return [(ends[first + 20] - ends[first]) / (ends[first + 40] - ends[first + 20]) for first in range(38, 40 * rounds, 40)]


def summary(output: str) -> dict:
    return json.loads(output.splitlines()[-1])["summary"]


def report(name: str, ratios: list[float]) -> None:
    print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["llama-tiny", "llama-25m"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    args = parser.parse_args()

    folder = ROOT / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, args.model, args.ranks, args.build)
    command = [args.build / "bin" / "fsdp-run", folder / f"{args.model}-{args.ranks}.plan", "--data", folder / f"{args.model}.tokens.bin", "--token-bits", 32, "--json"]
    weights = ["--weights", archive_of(folder, args.model)]
    saving, loading = [], []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for _ in range(args.rounds):
            run = pathlib.Path(scratch) / "run"
            shutil.rmtree(run, ignore_errors=True)
            _, saved = timed(*command, *weights, "--steps", 1, "--checkpoint", run)
            checkpoint = run / "step-00000001"
            copied, _ = timed("sh", "-c", f"cp -r {checkpoint} {scratch}/copy && sync -f {scratch}/copy")
            shutil.rmtree(f"{scratch}/copy")
            _, loaded = timed(*command, "--steps", 1, "--resume", checkpoint)
            saving.append(summary(saved)["save_seconds"] / copied)
            loading.append(summary(loaded)["load_seconds"] / copied)
        training = compare_steps(args.rounds, *command, *weights, "--checkpoint", pathlib.Path(scratch) / "long")
    report(f"{args.model}, saving, in copies", saving)
    report(f"{args.model}, loading, in copies", loading)
    report(f"{args.model}, 20 steps with one save", training)
    return 0


if __name__ == "__main__":
    sys.exit(main())
