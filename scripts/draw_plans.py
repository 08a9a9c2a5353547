"""Plans of 7 billion parameters as pages and pictures: one page for each machine of hardware/, and what docs/ shows of them.

A page is what `fsdp-plan --html` writes of the plan that is searched for half of the machine's memory. With --pictures, docs/front.svg is time against
memory for one machine (searched plans, their bounds, and the policies that people know), and docs/page.png the top of its page, which needs a
`chromium` on the PATH. Needs the gcc build; takes a minute. Example: python scripts/draw_plans.py build/pages --pictures docs
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import matplotlib.pyplot as plt
from smallest_budget import smallest_budget
from tqdm import tqdm

ROOT = pathlib.Path(__file__).resolve().parents[1]
RANKS, SHOWN, POINTS, GREEDY = 64, "h100", 10, "torchtitan-memory"


class Planner:
    """Calls fsdp-plan for one model and one machine."""

    def __init__(self, tool: pathlib.Path, model: pathlib.Path, hardware: str, folder: pathlib.Path) -> None:
        self.command = [tool, model, "--ranks", RANKS, "--auto", "--hardware", hardware]
        self.command += [] if hardware == "cpu" else ["--device", "cuda"]
        self.report = folder / "report.json"

    def run(self, *options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(list(map(str, [*self.command, "--report", self.report, *options])), capture_output=True, text=True)

    def plan(self, *options: object) -> dict:
        """The report, with the plan in its `search`. Ends the script if there is none."""
        result = self.run(*options)
        if result.returncode:
            sys.exit(f"{' '.join(map(str, self.command))}: exit status {result.returncode}\n{result.stderr}")
        return json.loads(self.report.read_text())

    def plan_if_any(self, *options: object) -> list[dict]:
        """No report where alignment and gaps leave no plan."""
        return [json.loads(self.report.read_text())] if self.run(*options).returncode == 0 else []


def draw_front(planner: Planner, output: pathlib.Path) -> None:
    """Searched plans from the least memory to more than enough, with the policies that hold at most as much."""
    most = planner.plan()
    first, last = 1.15 * smallest_budget(planner.command), most["memory"]["arena_bytes"]
    budgets = [first * (last / first) ** (i / (POINTS - 1)) for i in range(POINTS)]
    plans = [plan for budget in tqdm(budgets, desc="budgets", leave=False) for plan in planner.plan_if_any("--budget", round(budget))]
    gib, ms = 2.0**30, 1e6
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    memory = [plan["memory"]["scheduled_bytes"] / gib for plan in plans]
    axes.plot(memory, [plan["search"]["step_ns"] / ms for plan in plans], "o-", color="#c21f2c", label="fsdp-plan --auto", zorder=3)
    axes.plot(memory, [plan["search"]["bound_ns"] / ms for plan in plans], "--", color="#c21f2c", alpha=0.5, label="no plan takes less")
    greedy = [point for plan in plans for point in plan["points"] if point["name"] == GREEDY]
    axes.plot([point["bytes"] / gib for point in greedy], [point["nanoseconds"] / ms for point in greedy], "s-", color="#4e79a7", markersize=4, label=f"{GREEDY}, for the same budgets")
    # Without what nobody does: nothing overlapped, or units kept and modules recomputed.
    shown = [point for point in most["points"] if point["bytes"] <= 1.02 * last and not re.match("no-overlap|(.*kept|deepcompile-p?s), .*recomputed", point["name"])]
    points = [(point["bytes"] / gib, point["nanoseconds"] / ms, point["name"]) for point in shown]
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "s", color="#666666", markersize=4, label="other policies")
    places: dict[tuple[int, int], list[tuple[float, float, str]]] = {}  # a label for what lies close together
    for x, y, name in points:
        places.setdefault((round(12 * x * gib / last), round(y / 20)), []).append((x, y, name))
    for close in places.values():
        x, y, name = close[0]
        text = name.replace(", ", "\n  ", 1) if len(close) == 1 else f"{name}\n  and {len(close) - 1} more"
        # To the right of its point, or above it where another point's label is to the right.
        above = any(0 < other[0][0] - x < 0.12 * last / gib and abs(other[0][1] - y) < 20 for other in places.values())
        axes.annotate(text, (x, y), xytext=(0, 6) if above else (7, 0), textcoords="offset points", va="bottom" if above else "center", fontsize=7, color="#444444")
    axes.set(xlabel="memory of a rank, GiB", ylabel="predicted step, ms", xlim=(0, 1.2 * max(memory)))
    axes.set_ylim(top=axes.get_ylim()[1] + 30)  # room for the legend
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper right")
    plt.rcParams["svg.hashsalt"] = "fsdp"  # the same file each time
    figure.savefig(output, metadata={"Date": None})


def photograph(page: pathlib.Path, output: pathlib.Path) -> None:
    """The facts, the timeline and the memory of a page."""
    browser = shutil.which("chromium") or sys.exit("expected a chromium on the PATH, found none: apt-get install chromium")
    subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,620", f"--screenshot={output.resolve()}",
                    page.resolve().as_uri()], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path, metavar="FOLDER", help="where the pages go")
    parser.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER", help="where front.svg and page.png go")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "llama_7b.pt2"
        subprocess.run(["zstd", "-qd", ROOT / "test" / "fixtures" / "llama_7b.pt2.zst", "-o", model], check=True)
        for file in tqdm(sorted((ROOT / "hardware").glob("*.toml")), desc="machines", leave=False):
            planner = Planner(arguments.build / "bin" / "fsdp-plan", model, file.stem, folder)
            gib = tomllib.loads(file.read_text())["memory"].get("gib", 64)
            planner.plan("--budget", f"{round(gib / 2)}GiB", "--html", arguments.output / f"{file.stem}.html")
        if arguments.pictures:
            planner = Planner(arguments.build / "bin" / "fsdp-plan", model, SHOWN, folder)
            draw_front(planner, arguments.pictures / "front.svg")
            planner.plan("--budget", "16GiB", "--html", folder / "page.html")
            photograph(folder / "page.html", arguments.pictures / "page.png")


if __name__ == "__main__":
    main()
