"""What fsdp-plan costs and how good its memory plans are, process start and all verifiers included.

One row per graph: median wall and CPU seconds over the runs, the largest resident memory, and by how much the planned
memory exceeds the lower bound (most bytes alive at once).
Example: python benchmarks/compiler.py --runs 5
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "test" / "fixtures"
GRAPHS = {"gpt2": 2, "llama": 2, "bert": 2, "frozen": 2, "llama_bf16": 2, "llama_7b": 64, "llama_405b": 10000}


def measure(command: list[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and largest resident bytes of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)}: ended with status {status}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each graph")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()

    table = Table(title="fsdp-plan, .pt2 to plan file")
    for heading in ("graph", "ranks", "wall s", "CPU s", "peak MB", "planned over bound"):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for graph, ranks in tqdm(GRAPHS.items(), unit="graph"):
            archive = FIXTURES / f"{graph}.pt2"
            if not archive.exists():
                archive = pathlib.Path(folder) / f"{graph}.pt2"
                subprocess.run(["zstd", "-q", "-d", FIXTURES / f"{graph}.pt2.zst", "-o", archive], check=True)
            report = pathlib.Path(folder) / "report.json"
            command = [str(arguments.build / "bin" / "fsdp-plan"), str(archive), "--ranks", str(ranks)]
            command += ["-o", f"{folder}/step.plan", "--report", str(report)]
            runs = [measure(command) for _ in range(arguments.runs)]
            memory = json.loads(report.read_text())["memory"]
            wall, cpu, resident = (statistics.median(column) for column in zip(*runs))
            over = memory["arena_bytes"] / memory["lower_bound_bytes"] - 1
            table.add_row(graph, str(ranks), f"{wall:.3f}", f"{cpu:.3f}", f"{resident / 1e6:.0f}", f"{100 * over:.2f} %")
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
