"""Draws traces of `fsdp-plan --trace` and `fsdp-run --trace` as one SVG: the shortest step of rank 0, all on one scale of time.

A row for each stream, an arrow from each collective to what waits for it, and the bytes alive below. One panel per trace,
under its label. Example: draw_timeline.py -o timeline.svg predicted=predicted.json measured=measured.json
"""

import argparse
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, ROW, GAP, MEMORY, TITLE, BOTTOM = 1000, 90, 22, 5, 44, 26, 26  # pixels
COLORS = {"forward": "#4e79a7", "backward": "#f28e2b", "recompute": "#b07aa1", "update": "#59a14f", "wait": "#dddddd"}
STREAMS = {"gather": "#76b7b2", "reduce": "#e15759", "all_reduce": "#edc948", "copy": "#9c755f"}


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
        self.bytes = [(e["ts"] - self.start, e["args"]["bytes alive"]) for e in events if e["ph"] == "C" and self.holds(e)]

    def holds(self, event: dict) -> bool:
        return 0 <= event["ts"] - self.start <= self.length

    def height(self) -> int:
        return TITLE + len(self.rows) * (ROW + GAP) + (MEMORY if self.bytes else 0) + GAP


def color(stream: str, event: dict) -> str:
    return STREAMS.get(stream) or COLORS.get(event.get("cat", ""), "#bab0ac") if not event["name"].startswith(("wait", "drain")) else COLORS["wait"]


def spell_time(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms" if microseconds >= 1000 else f"{microseconds:.1f} us"


def panel(trace: Trace, top: float, scale: float, most: int) -> list[str]:
    """The shapes of one trace whose upper edge is at `top`; `scale` is pixels per microsecond, `most` bytes the full height."""
    def text(x: float, y: float, what: str, style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(what)}</text>'

    shapes = [text(4, top + 17, f"{trace.label}: {spell_time(trace.length)}", ' class="title"')]
    tops = {tid: top + TITLE + i * (ROW + GAP) for i, tid in enumerate(sorted(trace.rows))}
    for tid, y in tops.items():
        shapes.append(text(4, y + 15, trace.rows[tid]))
        shapes.append(f'<rect x="{LEFT}" y="{y}" width="{trace.length * scale:.1f}" height="{ROW}" class="lane"/>')
    for event in sorted(trace.slices, key=lambda e: e["ts"]):
        x, width, y = LEFT + (event["ts"] - trace.start) * scale, event["dur"] * scale, tops[event["tid"]]
        if width < 0.1:
            continue
        tip = f"{event['name']} ({event['args'].get('node', event['cat'])}): {spell_time(event['dur'])}"
        shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.4):.1f}" height="{ROW}" fill="{color(trace.rows[event["tid"]], event)}">'
                      f"<title>{escape(tip)}</title></rect>")
        name = event["name"].split()[-1] if " " in event["name"] and "," not in event["name"] else event["name"].removeprefix("aten::")
        if width > 6 * len(name) and name != "wait":
            shapes.append(text(x + 2, y + 14, name, ' class="name"'))
    for source, target in trace.arrows:
        x, y = LEFT + (source["ts"] - trace.start) * scale, tops[source["tid"]]
        x2, y2 = LEFT + (target["ts"] - trace.start) * scale, tops[target["tid"]] + ROW
        shapes.append(f'<path d="M{x:.1f} {y} L{x2:.1f} {y2}" class="arrow"/>')
    if trace.bytes:
        base = top + TITLE + len(tops) * (ROW + GAP) + MEMORY - 4
        now = trace.bytes[0][1]
        path = f"M{LEFT} {base} V{base - now / most * (MEMORY - 8):.1f}"
        for time, bytes in [*trace.bytes, (trace.length, trace.bytes[-1][1])]:
            x = LEFT + time * scale
            path += f" L{x:.1f} {base - now / most * (MEMORY - 8):.1f} L{x:.1f} {base - bytes / most * (MEMORY - 8):.1f}"
            now = bytes
        peak = max(bytes for _, bytes in trace.bytes)
        shapes.append(f'<path d="{path} L{LEFT + trace.length * scale:.1f} {base} Z" class="memory"/>')
        shapes.append(text(4, base - 6, f"{peak / 2**20:.1f} MiB"))
    return shapes


def draw(traces: list[Trace]) -> str:
    longest = max(trace.length for trace in traces)
    scale = (WIDTH - LEFT - 10) / longest
    most = max((bytes for trace in traces for _, bytes in trace.bytes), default=1)
    shapes, top = [], 0.0
    for trace in traces:
        shapes += panel(trace, top, scale, most)
        top += trace.height()
    tick = 10 ** math.floor(math.log10(longest / 4))
    tick *= next(factor for factor in (5, 2, 1) if tick * factor <= longest / 4)
    for i in range(int(longest / tick) + 1):
        x = LEFT + i * tick * scale
        if x > WIDTH - 50:  # no room for its text
            continue
        shapes.append(f'<path d="M{x:.1f} {TITLE} V{top:.0f}" class="tick"/><text x="{x:.1f}" y="{top + 16:.0f}">{spell_time(i * tick)}</text>')
    style = ("text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:13px}.name{fill:#fff;font-size:9px}.lane{fill:#f4f4f4}"
             ".arrow{stroke:#333;stroke-width:.6;fill:none}.memory{fill:#d7e3ef;stroke:#4e79a7;stroke-width:.8}"
             ".tick{stroke:#999;stroke-width:.4;stroke-dasharray:2 3}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + BOTTOM:.0f}"><style>{style}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(shapes) + "\n</svg>\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="LABEL=TRACE", help="a trace, and what it is called")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="FILE.svg")
    arguments = parser.parse_args()
    traces = []
    for argument in arguments.traces:
        label, separator, path = argument.partition("=")
        if not separator:
            parser.error(f"expected LABEL=TRACE, found '{argument}'")
        traces.append(Trace(label, json.loads(pathlib.Path(path).read_text())["traceEvents"]))
    arguments.output.write_text(draw(traces))


if __name__ == "__main__":
    main()
