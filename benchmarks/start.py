#!/usr/bin/env python3
"""From the command to the end of the first step: ranks as processes of MPI against as many threads, in turn."""

from __future__ import annotations

import argparse
import pathlib
import sys

from checkpoints import report, timed
from compare import ROOT, archive_of, prepare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["llama-tiny", "llama-25m"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10, help="paired rounds")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    args = parser.parse_args()

    folder = ROOT / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, args.model, args.ranks, args.build)
    command = [args.build / "bin" / "fsdp-run", folder / f"{args.model}-{args.ranks}.plan", "--data", folder / f"{args.model}.tokens.bin", "--token-bits", 32,
               "--weights", archive_of(folder, args.model), "--steps", 1]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", args.ranks]
    timed(*command)  # files are read once before
    report(f"{args.model}, {args.ranks} processes of MPI against threads, one step",
           [timed(*mpirun, *command, "--backend", "mpi")[0] / timed(*command)[0] for _ in range(args.rounds)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
