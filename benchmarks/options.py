#!/usr/bin/env python3
"""What an option of fsdp-plan costs: steps of a plan with it and of one without it, in turn, and their ratio.

For example: benchmarks/options.py llama-25m --options=--clip-grad-norm=1 --rounds 7
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile

from compare import ROOT, archive_of, compiled, prepare, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["llama-tiny", "llama-25m"])
    parser.add_argument("--options", required=True, help="options of fsdp-plan, as one string")
    parser.add_argument("--than", default="", help="options of the plan that it is compared with")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each run")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = ROOT / "build" / "benchmarks"
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, args.model, args.ranks, args.build)
        # `compiled` finds a plan by the name of its folder.
        folders = {}
        for name, options in ("with", args.options), ("without", args.than):
            own = folders[name] = pathlib.Path(scratch) / name
            own.mkdir()
            for file in archive_of(folder, args.model), folder / f"{args.model}.tokens.bin":
                (own / file.name).symlink_to(file.resolve())
            run([str(args.build / "bin" / "fsdp-plan"), str(archive_of(folder, args.model)), "--ranks", str(args.ranks),
                 "-o", str(own / f"{args.model}-{args.ranks}.plan"), *options.split()])
        ratios = []
        for number in range(args.rounds):
            seconds = {name: compiled(own, args.model, args.ranks, args.steps, args.build, "local", []) for name, own in folders.items()}
            ratios.append(seconds["with"] / seconds["without"])
            print(f"round {number + 1}: {seconds['with'] * 1e3:.2f} ms, {seconds['without'] * 1e3:.2f} ms without: {ratios[-1]:.4f}", flush=True)
    print(f"{args.model}, {args.options}: {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
