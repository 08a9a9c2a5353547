"""One page of a run: what `fsdp-run --json`, `--trace`, `--profile` and `--log` have written, as HTML and SVG without scripts."""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fsdp_mlir import _charts, _write
from fsdp_mlir.errors import FSDPError

_STYLE = """
  body { font: 14px/1.45 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 24px auto; padding: 0 16px; }
  h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 6px; } svg { display: block; width: 100%; height: auto; }
  .facts { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 10px 0; } .facts b { display: block; font-size: 17px; }
  table { border-collapse: collapse; } th, td { padding: 2px 14px 2px 0; text-align: left; } pre { white-space: pre-wrap; }
  th { border-bottom: 1px solid #bbb; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""
_MOST, _RANKS = 20, 4  # rows of a table and lines of a log; timelines


def write(output: Path, run: Path, trace: Path | None = None, profile: Path | None = None, log: Path | None = None) -> None:
    """`run`: what `fsdp-run --json` has printed; `log`: the folder of --log. Raises FSDPError for files that are none of these, OSError for those
    that cannot be read or written."""
    for path in (run, trace, profile):
        if path is not None and path.resolve() == output.resolve():
            raise FSDPError(f"{output}: expected a file of its own to write to, found one that is read; choose another name for -o")
    steps, evaluations, summary = _read_run(run)
    parts = [f"<h1>{escape(run.name)}</h1>"]
    with _expecting(run, "--json"):
        parts += [_facts(steps, summary), *_curves(steps, evaluations, summary), _memory(steps, summary)]
    if log is not None:
        parts += _ranks(log)
    if profile is not None:
        with _expecting(profile, "--profile"):
            parts += _profile(json.loads(profile.read_bytes()))
    if trace is not None:
        with _expecting(trace, "--trace"):
            parts += _timeline(json.loads(trace.read_bytes())["traceEvents"])
    page = f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(run.name)}</title>\n<style>{_STYLE}</style>\n' + "\n".join(parts)
    with _write.replacing(output) as part:
        part.write_text(page + "\n</html>\n", encoding="utf-8")


Rows = list[dict[str, Any]]


def _read_run(path: Path) -> tuple[Rows, Rows, dict[str, Any]]:
    """Its steps, each as often as it was trained last, its evaluations, and its summary, empty if the run has not come to it."""
    steps: dict[int, dict[str, Any]] = {}
    evaluations: Rows = []
    summary: dict[str, Any] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("summary"), dict):
            summary = row["summary"]
        elif isinstance(row, dict) and isinstance(row.get("step"), int) and "eval_loss" in row:
            evaluations.append(row)
        elif isinstance(row, dict) and isinstance(row.get("step"), int) and "loss" in row:
            steps[row["step"]] = row
        elif number != len(lines) or line.endswith("\n"):  # of a run that was killed, the last line may be incomplete
            raise FSDPError(f"{path}: line {number}: expected an object that fsdp-run --json prints, found {line.strip()[:60]!r}")
    if not steps:
        raise FSDPError(f"{path}: expected the steps that fsdp-run --json prints, found none; run with --json > {path.name}")
    return [steps[number] for number in sorted(steps)], evaluations, summary


@contextlib.contextmanager
def _expecting(path: Path, option: str) -> Iterator[None]:
    """What lacks something, or has something else in its place, is no file of that option."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FSDPError(f"{path}: expected what fsdp-run {option} writes, found something else ({type(error).__name__}: {str(error)[:60]})") from None


def _bytes(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < 4:
        count, unit = count / 1024, unit + 1
    return f"{count:.{2 if unit else 0}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Of which the columns are right-aligned whose first cell begins with a digit."""
    are_numbers = [str(cell)[:1].isdigit() for cell in rows[0]] if rows else [False] * len(columns)

    def line(tag: str, cells: Sequence[Any]) -> str:
        return "<tr>" + "".join(f'<{tag}{" class=n" if is_number else ""}>{escape(str(cell))}</{tag}>' for cell, is_number in zip(cells, are_numbers)) + "</tr>"

    more = f"<p>and {len(rows) - _MOST} more</p>" if len(rows) > _MOST else ""
    return f"<h2>{escape(title)}</h2><table>{line('th', columns)}{''.join(line('td', row) for row in rows[:_MOST])}</table>{more}"


def _facts(steps: Rows, summary: Mapping[str, Any]) -> str:
    predicted = summary.get("predicted", {})
    seconds = _mean(step["seconds"] for step in steps)
    facts = [("steps", f"{steps[0]['step']} to {steps[-1]['step']}"), ("loss", f"{_number(steps[0]['loss'])} to {_number(steps[-1]['loss'])}"),
             ("a step took", _milliseconds(seconds))]  # fmt: skip
    if predicted:
        facts.append(("a step, predicted", _milliseconds(predicted["step_seconds"])))
    if all("exposed_seconds" in step for step in steps):
        facts.append(("exposed communication", _milliseconds(_mean(step["exposed_seconds"] for step in steps))))
    if predicted:
        facts.append(("exposed, predicted", _milliseconds(predicted["exposed_seconds"])))
    if "mfu" in summary:
        facts.append(("MFU", f"{100 * summary['mfu']:.1f} %"))
    if all("tokens_per_second" in step for step in steps):
        facts.append(("tokens/s", f"{_mean(step['tokens_per_second'] for step in steps):.0f}"))
    return '<div class="facts">' + "".join(f"<span>{escape(name)}<b>{escape(value)}</b></span>" for name, value in facts) + "</div>"


def _number(value: Any) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _curves(steps: Rows, evaluations: Rows, summary: Mapping[str, Any]) -> list[str]:
    def curve(key: str, factor: float = 1, rows: Rows = steps) -> list[tuple[float, float]]:
        return [(row["step"], factor * row[key]) for row in rows if isinstance(row.get(key), int | float) and math.isfinite(row[key])]

    predicted = summary.get("predicted", {})
    lines = {"predicted": 1e3 * predicted["step_seconds"]} if predicted else {}
    exposed = {"predicted": 1e3 * predicted["exposed_seconds"]} if predicted else {}
    charts = [
        ("loss", {"training": curve("loss"), "evaluation": curve("eval_loss", rows=evaluations)}, {}),
        ("norm of the gradients", {"norm": curve("grad_norm")}, {}),
        ("learning rate", {"lr": curve("lr")}, {}),
        ("tokens per second", {"tokens/s": curve("tokens_per_second")}, {}),
        ("milliseconds of a step", {"taken": curve("seconds", 1e3)}, lines),
        ("milliseconds of exposed communication", {"rank 0": curve("exposed_seconds", 1e3)}, exposed),
    ]
    return [f"<h2>{title}</h2>{_charts.draw(series, levels)}" for title, series, levels in charts if any(series.values())]


def _memory(steps: Rows, summary: Mapping[str, Any]) -> str:
    names = {"highest_byte": "highest byte of the arena that was written", "resident_bytes": "growth of the process", "planned_bytes": "of it planned, all ranks",
             "scratch_bytes": "scratch of operators", "heap_bytes": "heap", "file_bytes": "code and files"}  # fmt: skip
    rows = [("planned for a rank", _bytes(steps[-1]["peak_bytes"]))]
    rows += [(what, _bytes(summary[key])) for key, what in names.items() if summary.get(key, -1) >= 0]
    return _table("memory", ("what", "bytes"), rows)


def _ranks(folder: Path) -> list[str]:
    """How long the steps of each process took, and what it said last."""
    columns = ("seconds", "forward", "backward", "update", "collectives")
    rows, said = [], []
    for path in sorted(folder.glob("rank-*.log"), key=lambda path: (len(path.name), path.name)):
        steps = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and all(isinstance(row.get(key), int | float) for key in columns):
                steps.append(row)
            elif not isinstance(row, dict):
                said.append(f"{path.stem}: {line}")
        if steps:
            rows.append((path.stem, len(steps), *(_milliseconds(_mean(step[key] for step in steps)) for key in columns)))
    if not rows:
        raise FSDPError(f"{folder}: expected a folder of fsdp-run --log, found no steps of a rank-R.log in it")
    parts = [_table("time of a step, by process", ("process", "steps", "a step", *columns[1:]), rows)]
    return [*parts, f"<h2>what the processes said last</h2><pre>{escape(chr(10).join(said[-_MOST:]))}</pre>"] if said else parts


def _profile(profile: Mapping[str, Any]) -> list[str]:
    def rows(kind: str, *columns: str) -> list[tuple[Any, ...]]:
        found = sorted(profile[kind], key=lambda row: -row["seconds"] * row["count"])
        return [(*(row[column] for column in columns), row["count"], _milliseconds(row["seconds"]), _milliseconds(row["seconds"] * row["count"])) for row in found]

    return [_table("operators", ("operator", "calls a step", "each", "a step"), rows("ops", "signature")),
            _table("collectives", ("collective", "bytes", "ranks", "calls a step", "each", "a step"), rows("collectives", "kind", "bytes", "ranks"))]  # fmt: skip


def _timeline(events: Rows) -> list[str]:
    """Of the latest step, on the first ranks."""
    slices: dict[int, Rows] = defaultdict(list)
    streams: dict[int, str] = {}
    latest = max(event["args"]["step"] for event in events if event["ph"] == "X")
    for event in events:
        if event["ph"] == "X" and event["args"]["step"] == latest and event["cat"] != "init":
            slices[event["pid"]].append(event)
        elif event["ph"] == "M" and event["name"] == "thread_name":
            streams[event["tid"]] = event["args"]["name"]
    return [f"<h2>step {int(latest)} on rank {int(rank)}</h2>{_charts.draw_timeline(slices[rank], streams)}" for rank in sorted(slices)[:_RANKS]]
