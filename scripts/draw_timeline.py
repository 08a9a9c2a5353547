"""Draws traces of `fsdp-plan --trace` and `fsdp-run --trace` as one SVG: the shortest step of rank 0, all on one scale of time.

Each trace has a row for each stream, an arrow from the end of each collective to what waits for it, and the memory of the arena
by what it is for. Example: draw_timeline.py -o timeline.svg predicted=predicted.json measured=measured.json
"""

import argparse
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

PANEL, LEFT, ROW, GAP, MEMORY, TITLE, LEGEND, AXIS = 900, 74, 20, 5, 64, 26, 46, 24  # pixels
COLORS = {"forward": "#4e79a7", "backward": "#f28e2b", "recompute": "#b07aa1", "update": "#59a14f", "wait": "#dddddd"}
STREAMS = {"gather": "#3f9b96", "reduce": "#e15759", "all_reduce": "#c9a227", "copy": "#9c755f"}
# The memory of the arena, from the bottom up.
KINDS = {"shards": "#4e79a7", "optimizer": "#59a14f", "other": "#bab0ac", "gathered": "#3f9b96", "activations": "#f28e2b", "temporaries": "#e4c1d6"}


def length_of(slices: list[dict]) -> tuple[float, float, list[dict]]:
    """How long slices take in all, when they start, and themselves."""
    start = min(e["ts"] for e in slices)
    return max(e["ts"] + e["dur"] for e in slices) - start, start, slices


class Trace:
    """One step of one rank: slices, arrows and bytes alive, in microseconds from its start."""

    def __init__(self, label: str, events: list[dict]) -> None:
        self.label = label
        events = [e for e in events if e["pid"] == 0]
        self.rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        slices = [e for e in events if e["ph"] == "X"]
        if not slices:
            sys.exit(f"{label}: expected slices of rank 0, found none")
        steps: dict[int, list[dict]] = {}
        for event in slices:
            steps.setdefault(event["args"]["step"], []).append(event)
        self.length, self.start, self.slices = min((length_of(step) for step in steps.values()), key=lambda found: found[0])
        ours = {e["id"]: e for e in events if e["ph"] == "s" and self.holds(e)}
        self.arrows = [(ours[e["id"]], e) for e in events if e["ph"] == "f" and e["id"] in ours]
        self.ends = {(e["tid"], e["ts"]): e["ts"] + e["dur"] for e in self.slices}
        self.memory = [(e["ts"] - self.start, e["args"]) for e in events if e["ph"] == "C" and self.holds(e)]
        self.peak = max((args["bytes alive"] for _, args in self.memory), default=0)

    def holds(self, event: dict) -> bool:
        return 0 <= event["ts"] - self.start <= self.length

    def height(self) -> int:
        return TITLE + len(self.rows) * (ROW + GAP) + MEMORY + 2 * GAP


def text(x: float, y: float, what: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(what)}</text>'


def color(stream: str, event: dict) -> str:
    return STREAMS.get(stream) or COLORS.get(event.get("cat", ""), "#bab0ac") if not event["name"].startswith(("wait", "drain")) else COLORS["wait"]


def spell_time(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms" if microseconds >= 1000 else f"{microseconds:.1f} us"


def slices_of(trace: Trace, tops: dict, left: float, scale: float) -> list[str]:
    """A rectangle for each slice. Collectives are named by their unit, computations where there is room."""
    shapes, names = [], []
    named = dict.fromkeys(tops, -1.0)  # where the last name of a row ends
    for event in sorted(trace.slices, key=lambda e: e["ts"]):
        tid = event["tid"]
        x, width, y = left + (event["ts"] - trace.start) * scale, event["dur"] * scale, tops[tid]
        if width < 0.1:
            continue
        tip = f"{event['name']} ({event['args'].get('node', event['cat'])}): {spell_time(event['dur'])}"
        fill = color(trace.rows[tid], event)
        shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.4):.1f}" height="{ROW}" fill="{fill}"><title>{escape(tip)}</title></rect>')
        isCollective, waits = event["name"].startswith(("all_", "reduce_")), event["name"].startswith(("wait", "drain"))
        units = [part.split()[-1] for part in event["name"].split(", ")]
        name = (units[0] if len(units) == 1 else f"{len(units)} units") if isCollective else event["name"].removeprefix("aten::").split(".")[0]
        size = 5.2 * len(name)
        middle = max(x + width / 2, left + size / 2)
        if not waits and (width > size or isCollective and middle - size / 2 > named[tid]):
            style = ' class="name"' if width > size else ' class="over"'
            names.append(text(middle, y + 14, name, style))
            named[tid] = middle + size / 2
    return shapes + names


def arrows_of(trace: Trace, tops: dict, left: float, scale: float) -> list[str]:
    """From the end of a collective to what waits for it."""
    shapes = []
    for source, target in trace.arrows:
        x = left + (trace.ends.get((source["tid"], source["ts"]), source["ts"]) - trace.start) * scale
        x2 = left + (target["ts"] - trace.start) * scale
        y, y2 = tops[source["tid"]], tops[target["tid"]] + ROW
        if y < y2:  # downwards
            y, y2 = y + ROW, tops[target["tid"]]
        shapes.append(f'<path d="M{x:.1f} {y} L{x2:.1f} {y2}" class="arrow" marker-end="url(#head)"/>')
    return shapes


def memory_of(trace: Trace, left: float, base: float, scale: float, most: int) -> list[str]:
    """Areas, one on the other; `most` bytes have the full height."""
    shapes, times = [], [time for time, _ in trace.memory] + [trace.length]
    below = [0] * len(trace.memory)
    for kind, fill in KINDS.items():
        above = [low + args.get(kind, 0) for low, (_, args) in zip(below, trace.memory, strict=True)]
        if above != below:
            steps = [[(left + times[k + side] * scale, base - values[k] / most * MEMORY) for k in range(len(values)) for side in (0, 1)]
                     for values in (above, below)]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*steps[0], *reversed(steps[1])])
            shapes.append(f'<polygon points="{points}" fill="{fill}" class="memory"><title>{kind}</title></polygon>')
        below = above
    return shapes


def panel(trace: Trace, left: float, top: float, scale: float, most: int) -> list[str]:
    """The shapes of one trace; `scale` is pixels per microsecond, `most` the bytes of the full height."""
    shapes = [text(left, top + 17, f"{trace.label}: {spell_time(trace.length)}, peak {trace.peak / 2**20:.1f} MiB", ' class="title"')]
    tops = {tid: top + TITLE + i * (ROW + GAP) for i, tid in enumerate(sorted(trace.rows))}
    for tid, y in tops.items():
        shapes.append(text(left - 6, y + 14, trace.rows[tid], ' class="row"'))
        shapes.append(f'<rect x="{left}" y="{y}" width="{trace.length * scale:.1f}" height="{ROW}" class="lane"/>')
    base = top + TITLE + len(tops) * (ROW + GAP) + MEMORY
    shapes += slices_of(trace, tops, left, scale) + arrows_of(trace, tops, left, scale) + memory_of(trace, left, base, scale, most)
    return [*shapes, text(left - 6, base - 2, "memory", ' class="row"')]


def legend() -> list[str]:
    """What the colors mean, in two lines."""
    shapes = []
    lines = [("slices:", {**{k: v for k, v in COLORS.items() if k != "wait"}, "all-gather": STREAMS["gather"], "reduction": STREAMS["reduce"],
                          "all-reduce": STREAMS["all_reduce"], "waiting": COLORS["wait"]}), ("memory:", KINDS)]
    for line, (title, colors) in enumerate(lines):
        x, y = LEFT, 6 + line * 20
        shapes.append(text(x - 6, y + 10, title, ' class="row"'))
        for name, fill in colors.items():
            shapes.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{fill}"/>' + text(x + 16, y + 10, name))
            x += 30 + 6.4 * len(name)
    return shapes


def draw(traces: list[Trace], columns: int = 1) -> str:
    """All traces in rows of so many, on one scale of time and one of memory."""
    longest = max(trace.length for trace in traces)
    scale = (PANEL - LEFT - 14) / longest
    most = max(1, *(trace.peak for trace in traces))
    shapes, top = legend(), float(LEGEND)
    for first in range(0, len(traces), columns):
        row = traces[first:first + columns]
        for column, trace in enumerate(row):
            shapes += panel(trace, LEFT + column * PANEL, top, scale, most)
        top += max(trace.height() for trace in row)
    tick = 10 ** math.floor(math.log10(longest / 4))
    tick *= next(factor for factor in (5, 2, 1) if tick * factor <= longest / 4)
    for column in range(min(columns, len(traces))):
        for i in range(int(longest / tick) + 1):
            x = LEFT + column * PANEL + i * tick * scale
            shapes.append(f'<path d="M{x:.1f} {LEGEND + TITLE} V{top:.0f}" class="tick"/>' + text(x, top + 14, spell_time(i * tick), ' class="axis"'))
    style = ("text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:13px}.row{text-anchor:end}.axis{text-anchor:middle}"
             ".name{fill:#fff;font-size:9px;text-anchor:middle}.over{font-size:9px;text-anchor:middle}.lane{fill:#f4f4f4}"
             ".arrow{stroke:#333;stroke-width:.7;fill:none}.tick{stroke:#999;stroke-width:.4;stroke-dasharray:2 3}")
    head = ('<defs><marker id="head" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
            '<path d="M0 0 L6 3 L0 6 z" fill="#333"/></marker></defs>')
    width = PANEL * min(columns, len(traces))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + AXIS:.0f}"><style>{style}</style>{head}'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(shapes) + "\n</svg>\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="LABEL=TRACE", help="a trace, and what it is called")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="FILE.svg")
    parser.add_argument("--columns", type=int, default=1, metavar="N", help="traces beside each other (default 1)")
    arguments = parser.parse_args()
    traces = []
    for argument in arguments.traces:
        label, separator, path = argument.partition("=")
        if not separator:
            parser.error(f"expected LABEL=TRACE, found '{argument}'")
        traces.append(Trace(label, json.loads(pathlib.Path(path).read_text())["traceEvents"]))
    arguments.output.write_text(draw(traces, arguments.columns))


if __name__ == "__main__":
    main()
