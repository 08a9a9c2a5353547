"""How much of the communication of `fsdp-run --overlap` runs while the rank computes, by its own trace.

llama-25m on 2 ranks, mean of the steps but the first, over all ranks. `hidden` is the part of the collectives' time in which the
compute stream of the same rank ran an operator. Where a stream waits for an event, it does not communicate.
Example: python benchmarks/overlap.py
"""

import argparse
import bisect
import collections
import json
import os
import pathlib
import sys

from rich.console import Console
from rich.table import Table

from compare import ROOT, archive_of, prepare, run

FOLDER = ROOT / "build" / "benchmarks"
MODEL, RANKS = "llama-25m", 2


def measure(events: list[dict]) -> tuple[dict[str, list[float]], int]:
    """For each stream that communicates: calls, microseconds, and microseconds hidden, of all ranks; and steps times ranks."""
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X" and not e["name"].startswith(("wait", "drain"))]
    first = min(e["args"]["step"] for e in slices)
    slices = [e for e in slices if e["args"]["step"] != first]
    computing = collections.defaultdict(list)  # by rank, in order: nothing overlaps on one stream
    for event in sorted(slices, key=lambda e: e["ts"]):
        if rows[event["pid"], event["tid"]] == "compute":
            computing[event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
    total: dict[str, list[float]] = {}
    for event in slices:
        stream = rows[event["pid"], event["tid"]]
        if stream == "compute":
            continue
        begin, end, work = event["ts"], event["ts"] + event["dur"], computing[event["pid"]]
        row = total.setdefault(stream, [0, 0, 0])
        row[0] += 1
        row[1] += end - begin
        for start, stop in work[max(bisect.bisect_left(work, (begin,)) - 1, 0):]:
            if start >= end:
                break
            row[2] += max(min(stop, end) - max(start, begin), 0)
    return total, len({(e["pid"], e["args"]["step"]) for e in slices})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    parser.add_argument("--steps", type=int, default=10, help="steps to run (default: 10)")
    arguments = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"
    FOLDER.mkdir(parents=True, exist_ok=True)
    prepare(FOLDER, MODEL, RANKS, arguments.build)
    trace = FOLDER / "overlap.json"
    run([str(arguments.build / "bin" / "fsdp-run"), str(FOLDER / f"{MODEL}-{RANKS}.plan"), "--weights", str(archive_of(FOLDER, MODEL)),
         "--data", str(FOLDER / f"{MODEL}.tokens.bin"), "--token-bits", "32", "--ranks", str(RANKS), "--steps", str(arguments.steps),
         "--overlap", "--trace", str(trace)])
    total, steps = measure(json.loads(trace.read_text())["traceEvents"])
    table = Table(title=f"{MODEL}, {RANKS} ranks, --overlap: a step of a rank")
    for heading in ("stream", "calls", "ms", "hidden ms", "hidden"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    for stream, (calls, time, hidden) in sorted(total.items()):
        table.add_row(stream, f"{calls / steps:.0f}", f"{time / steps / 1e3:.1f}", f"{hidden / steps / 1e3:.1f}", f"{100 * hidden / time:.0f} %")
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
