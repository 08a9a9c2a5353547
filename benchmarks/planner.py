"""How fast searched plans are, how far from the best they can be, and what the search takes.

    python benchmarks/planner.py                             # all below, some minutes
    python benchmarks/planner.py 7b --budgets 6 --evaluations 20000
    python benchmarks/planner.py fixtures                    # those of test/fixtures, on each GPU of hardware/

Each row is one `fsdp-plan --auto`: the whole way to a plan that is proved. Budgets go from the smallest that is known to work to that
of the step that holds most. Times of steps are predictions by the hardware file; "policy" is the fastest of the known policies that keeps
to the budget. "alone" is what decisions for the prediction alone would change: as predicted, and where the network has 20 % less bandwidth.
"elsewhere" is by how much the plan is faster than the fastest policy where the network has 20 % less bandwidth, 20 % more, and a contention of 0.05
and 0.40. CPU time is that of the command, in all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "test" / "fixtures"
PLAN = Path(os.environ.get("FSDP_BUILD", ROOT / "build" / "gcc")) / "bin" / "fsdp-plan"
CASES = {  # the archive, ranks, the hardware, and options
    "gpt2": ("gpt2.pt2", 8, "h100", ()),
    "7b": ("llama_7b.pt2.zst", 64, "h100", ("--device", "cuda")),
    "7b-a100": ("llama_7b.pt2.zst", 64, "a100-40", ("--device", "cuda")),
    "7b-matrices": ("llama_7b.pt2.zst", 64, "h100", ("--device", "cuda", "--wrap", "size:10000000")),
    "7b-slow": ("llama_7b.pt2.zst", 64, "h100", ("--device", "cuda", "--reshard-after-forward", "8", "--what-if", "link.network.gbytes=0.125x")),
    "405b": ("llama_405b.pt2.zst", 10000, "h100", ("--device", "cuda")),
}
FIXTURE_CASES = {
    f"{model.stem}, {hardware.stem}": (model.name, 4, hardware.stem, ("--bind", "hint"))
    for model in sorted(FIXTURES.glob("*.pt2")) for hardware in sorted((ROOT / "hardware").glob("*.toml")) if hardware.stem != "cpu"
}
DEVIATIONS = ("link.gbytes=0.8x", "link.gbytes=1.2x", "contention=0.263158x", "contention=2.105264x")  # 0.19 is 0.05, and 0.40


def unpack(name: str, folder: Path) -> Path:
    path = FIXTURES / name
    if path.suffix != ".zst":
        return path
    unpacked = folder / path.stem
    if not unpacked.exists():
        subprocess.run(["zstd", "-qd", path, "-o", unpacked], check=True)
    return unpacked


def compile_plan(model: Path, ranks: int, hardware: str, options: tuple, budget: int | None, evaluations: int, folder: Path, deviation: str = "") -> dict:
    """The report, with the seconds of the command; or {"smallest": bytes} where the budget is too small. On a machine that deviates, of the
    decisions that were found before."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    decisions = folder / "decisions.toml"
    command = [PLAN, model, "--ranks", ranks, "--hardware", hardware, "--decisions", decisions, "--report", report, *options]
    if "--what-if" in command and deviation:  # once, of all numbers
        command[-1] += f",{deviation}"
    elif deviation:
        command += ["--what-if", deviation]
    command += [] if deviation else ["--auto", "--evaluations", evaluations]
    if budget is not None:
        command += ["--budget", budget]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime
    if ran.returncode:
        smallest = re.search(r"(?:known to work is|needs an arena of) (\d+) bytes", ran.stderr)
        if not smallest:
            raise SystemExit(ran.stderr)
        return {"smallest": int(smallest[1])}
    return json.loads(report.read_text()) | {"seconds": seconds}


def find_budgets(least: int, most: int, count: int) -> list[int]:
    """From the one to the other, each the same number of times the one before."""
    return [round(least * (most / least) ** (i / (count - 1))) for i in range(count)] if count > 1 else [most]


def find_policy(report: dict, budget: int) -> dict | None:
    """The fastest policy that keeps to a budget."""
    return min((point for point in report["points"] if point["bytes"] <= budget), key=lambda point: point["nanoseconds"], default=None)


def measure(name: str, count: int, evaluations: int, folder: Path) -> list[dict]:
    archive, ranks, hardware, options = (CASES | FIXTURE_CASES)[name]
    model = unpack(archive, folder)
    find = lambda budget, deviation="": compile_plan(model, ranks, hardware, options, budget, evaluations, folder, deviation)  # noqa: E731
    most = find(None)["memory"]["arena_bytes"]
    least = round(1.03 * find(1)["smallest"])  # and what alignment and gaps take
    rows = []
    for budget in find_budgets(least, most, count):
        report = find(budget)
        if "smallest" in report:
            rows.append({"budget": budget, "smallest": report["smallest"]})
            continue
        search = report["search"]
        best = find_policy(report, search["budget_bytes"])
        assert report["memory"]["arena_bytes"] <= budget and search["bound_ns"] <= search["step_ns"] == report["predicted"]["step_ns"]
        assert best is None or search["step_ns"] <= best["nanoseconds"], (name, budget, best)
        elsewhere = []
        for deviation in DEVIATIONS if best else ():
            other = find(budget, deviation)
            elsewhere.append(100 * (1 - other["predicted"]["step_ns"] / find_policy(other, search["budget_bytes"])["nanoseconds"]))
        alone = [100 * (point["nanoseconds"] / time - 1)
                 for point, time in zip(search["nominal"], (search["step_ns"], search["scenarios"][0]["nanoseconds"]))]
        rows.append({"alone": alone, "elsewhere": elsewhere, "budget": budget, "step": search["step_ns"], "bound": search["bound_ns"], "gap": search["gap"], "by": search["bound_by"],
                     "policy": best and (best["name"], best["nanoseconds"]), "recomputed": report["recomputed"], "seconds": report["seconds"]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}, all by default; or fixtures")
    parser.add_argument("--budgets", type=int, default=6, metavar="N")
    parser.add_argument("--evaluations", type=int, default=20000, metavar="N")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES) - {"fixtures"}:
        parser.error(f"expected cases of {', '.join(CASES)}, or fixtures; found {', '.join(sorted(unknown))}")
    cases = [case for name in arguments.cases or CASES for case in (FIXTURE_CASES if name == "fixtures" else [name])]
    print("| step | budget, MiB | best policy, ms | searched, ms | bound, ms | gap, % | alone, % | elsewhere, % | CPU, s |\n" + "|---" * 9 + "|")
    gaps, elsewhere = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in cases:
            for row in measure(name, arguments.budgets, arguments.evaluations, Path(folder)):
                budget = f"| {name} | {row['budget'] / 2**20:,.1f} "
                if "smallest" in row:
                    print(f"{budget}| | none: {row['smallest'] / 2**20:,.1f} MiB are needed | | | | | |", flush=True)
                    continue
                gaps.append(row["gap"])
                elsewhere += row["elsewhere"]
                spell = lambda changes: " / ".join(f"{change:+.1f}" for change in changes)  # noqa: E731
                policy = f"{row['policy'][0]}: {row['policy'][1] / 1e6:,.3f}" if row["policy"] else "none"
                print(f"{budget}| {policy} | {row['step'] / 1e6:,.3f} | {row['bound'] / 1e6:,.3f} ({row['by']}) "
                      f"| {100 * row['gap']:.2f} | {spell(row['alone'])} | {spell(row['elsewhere'])} | {row['seconds']:.1f} |", flush=True)
    gaps.sort()
    if gaps:
        print(f"{len(gaps)} plans: median gap {100 * gaps[len(gaps) // 2]:.2f} %, {sum(gap <= 0.02 for gap in gaps)} of at most 2 %; "
              f"elsewhere {sum(change < 0 for change in elsewhere)} of {len(elsewhere)} times slower than the best policy, by at most "
              f"{max([0.0, *(-change for change in elsewhere)]):.2f} %", file=sys.stderr)


if __name__ == "__main__":
    main()
