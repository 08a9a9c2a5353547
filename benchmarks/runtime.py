"""What a step of fsdp-run takes beside its time: memory of the process, allocations, and whether its seconds add up.

One row per graph, 2 ranks as threads of one process. Resident memory is the process's largest. Allocations are those for
tensors in the last step, all ranks together. `seconds off` compares the sum of `seconds` in --json with the time between
the first and the last line, taken by the reader.
Example: python benchmarks/runtime.py
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from compare import ROOT, archive_of, prepare, run

FIXTURES = ROOT / "test" / "fixtures"
FOLDER = ROOT / "build" / "benchmarks"
RANKS = 2


def commands(build: pathlib.Path) -> dict[str, list[str]]:
    """For each graph, its plan made, the fsdp-run command without --steps."""
    result = {}
    for graph in ("gpt2", "llama", "bert"):
        plan, archive = str(FOLDER / f"{graph}.plan"), str(FIXTURES / f"{graph}.pt2")
        run([str(build / "bin" / "fsdp-plan"), archive, "--ranks", str(RANKS), "-o", plan])
        result[graph] = [plan, "--weights", archive, "--data", str(FIXTURES / f"{graph}_ref4.safetensors")]
    for model in ("llama-tiny", "llama-25m"):
        prepare(FOLDER, model, RANKS, build)
        result[model] = [str(FOLDER / f"{model}-{RANKS}.plan"), "--weights", str(archive_of(FOLDER, model))]
        result[model] += ["--data", str(FOLDER / f"{model}.tokens.bin"), "--token-bits", "32"]
    return {name: [str(build / "bin" / "fsdp-run"), *rest, "--ranks", str(RANKS)] for name, rest in result.items()}


def watch(command: list[str]) -> tuple[float, int]:
    """Relative difference between the sum of `seconds` and a clock outside, over all steps but the first; resident bytes.

    Resident memory is VmHWM, not getrusage's: that starts with what this process held when it forked.
    """
    times, seconds, resident = [], [], 0
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            times.append(time.perf_counter())
            seconds.append(json.loads(line).get("seconds"))
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                resident = int(found[1]) * 1024
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}")
    steps = [i for i, value in enumerate(seconds) if value is not None]
    return abs(sum(seconds[i] for i in steps[1:]) / (times[steps[-1]] - times[steps[0]]) - 1), resident


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"
    FOLDER.mkdir(parents=True, exist_ok=True)
    table = Table(title=f"fsdp-run, {RANKS} ranks")
    for heading in ("graph", "resident MB", "in planned places", "on the heap", "copied results", "seconds off"):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    for graph, command in tqdm(commands(arguments.build).items(), unit="graph"):
        command = [*command, "--steps", "20" if graph == "llama-25m" else "400"]
        found = re.search(r"(\d+) in planned places, (\d+ on the heap \(.*\)); (\d+) results copied", run(command))
        planned, heap, copied = found.groups()
        off, resident = watch(command)
        heap = heap.replace(" on the heap", "")
        table.add_row(graph, f"{resident / 1e6:.0f}", planned, heap, copied, f"{100 * off:.2f} %")
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
