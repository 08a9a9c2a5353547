"""What fsdp-plan costs and how good its memory plans are, process start and all verifiers included.

One row per graph: median wall and CPU seconds over the runs, the largest resident memory, and by how much the planned
memory exceeds the lower bound (most bytes alive at once). Then the time to import alone, and how the time grows with
depth: 126 layers of Llama 405B against 63 of them (captured into build/benchmarks the first time, about a minute).
Example: python benchmarks/compiler.py --runs 5
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "test" / "fixtures"
FOLDER = ROOT / "build" / "benchmarks"
DEEP, HALF = "llama_405b", "llama_405b_half"
GRAPHS = {"gpt2": 2, "llama": 2, "bert": 2, "frozen": 2, "llama_bf16": 2, "llama_7b": 64, HALF: 10000, DEEP: 10000}


def measure(command: list[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and largest resident bytes of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)}: ended with status {status}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def archive_of(graph: str) -> pathlib.Path:
    """The graph's archive: a fixture, or unpacked or captured once into build/benchmarks."""
    if (FIXTURES / f"{graph}.pt2").exists():
        return FIXTURES / f"{graph}.pt2"
    archive, packed = FOLDER / f"{graph}.pt2", FIXTURES / f"{graph}.pt2.zst"
    if packed.exists():
        subprocess.run(["zstd", "-q", "-d", "-f", packed, "-o", archive], check=True)
    elif not archive.exists():
        script = str(ROOT / "scripts" / "make_fixtures.py")
        subprocess.run([sys.executable, script, str(FOLDER), f"--{graph.replace('_', '-')}"], check=True)
    return archive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each graph")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()

    FOLDER.mkdir(parents=True, exist_ok=True)
    bin = arguments.build / "bin"
    table = Table(title=f"fsdp-plan, .pt2 to plan file, median of {arguments.runs}")
    for heading in ("graph", "ranks", "import s", "wall s", "CPU s", "peak MB", "planned over bound"):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    cpus = {}
    for graph, ranks in tqdm(GRAPHS.items(), unit="graph"):
        archive, report = archive_of(graph), FOLDER / "report.json"
        imports = [str(bin / "fsdp-translate"), "--import-pt2", str(archive), "-o", os.devnull]
        plans = [str(bin / "fsdp-plan"), str(archive), "--ranks", str(ranks)]
        plans += ["-o", str(FOLDER / "step.plan"), "--report", str(report)]
        imported = statistics.median(measure(imports)[0] for _ in range(arguments.runs))
        wall, cpu, resident = map(statistics.median, zip(*(measure(plans) for _ in range(arguments.runs))))
        cpus[graph] = cpu
        memory = json.loads(report.read_text())["memory"]
        over = memory["arena_bytes"] / memory["lower_bound_bytes"] - 1
        table.add_row(
            graph, str(ranks), f"{imported:.3f}", f"{wall:.3f}", f"{cpu:.3f}", f"{resident / 1e6:.0f}", f"{100 * over:.2f} %"
        )
    console = Console(width=100)
    console.print(table)
    console.print(f"growth, 126 layers over 63, CPU: {cpus[DEEP] / cpus[HALF]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
