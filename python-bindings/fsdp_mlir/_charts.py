"""Curves and timelines as SVG, without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _ROW = 1148, 220, 78, 18, 22, 24
_COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")
_LEVEL = "#d6222f"
# As the page of fsdp-plan has them.
_PHASES = {"forward": "#4e79a7", "backward": "#f28e2b", "recompute": "#b07aa1", "update": "#59a14f"}
_STREAMS = {"gather": "#3f9b96", "reduce": "#8c6bb1", "all_reduce": "#c9a227", "copy": "#9c755f"}
_MOST = 1000  # points of a curve


def draw(series: Mapping[str, Points], levels: Mapping[str, float]) -> str:
    """Curves over the steps, and levels that stand beside them, by name."""
    drawn = {name: _thinned(points) for name, points in series.items() if points}
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points] + list(levels.values())
    x, y = _Scale(min(xs), max(xs), _LEFT, _WIDTH - 8), _Scale(min(ys), max(ys), _HEIGHT - _BOTTOM, _TOP)
    parts = [_line(_LEFT, y(tick), _WIDTH, y(tick), "#e4e4e4") + _text(_LEFT - 6, y(tick) + 4, f"{tick:.6g}", "end") for tick in y.ticks()]
    parts += [_text(x(tick), _HEIGHT - 6, f"{tick:.0f}", "middle") for tick in sorted({round(tick) for tick in x.ticks()}) if min(xs) <= tick <= max(xs)]
    place = _LEFT
    for color, (name, points) in zip(_COLORS, drawn.items()):
        corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{color}"><title>step {a:g}: {b:.6g}</title></circle>' for a, b in points if len(points) <= 100]
        parts.append(_text(place, 12, name, "start", color))
        place += 8 * len(name) + 20
    for name, level in levels.items():
        parts.append(_line(_LEFT, y(level), _WIDTH, y(level), _LEVEL, ' stroke-dasharray="6 4"') + _text(place, 12, f"{name} {level:.4g}", "start", _LEVEL))
        place += 8 * len(name) + 90
    return _svg(_HEIGHT, parts)


def draw_timeline(slices: Iterable[Mapping[str, Any]], streams: Mapping[int, str]) -> str:
    """Slices of a trace, a row for each stream. Where computations wait it is red, where others do grey."""
    slices = list(slices)
    rows = {tid: number for number, tid in enumerate(sorted({event["tid"] for event in slices}))}
    begin = min(event["ts"] for event in slices)
    end = max(event["ts"] + event["dur"] for event in slices)
    x = _Scale(begin, end, _LEFT, _WIDTH - 8)
    parts = [_text(_LEFT - 6, _ROW * row + 16, streams.get(tid, str(tid)), "end") for tid, row in rows.items()]
    for event in slices:
        name, stream = str(event["name"]), streams.get(event["tid"], "")
        color = _STREAMS.get(stream) or _PHASES.get(event["cat"], "#bab0ac")
        if name == "wait" or name.startswith("drain "):
            color = _LEVEL if stream == "compute" else "#dddddd"
        left, width = x(event["ts"]), max(x(event["ts"] + event["dur"]) - x(event["ts"]), 0.4)
        title = escape(f"{name}, {event['dur']:.1f} us, {event['args'].get('node', '')}".removesuffix(", "))
        parts.append(f'<rect x="{left:.2f}" y="{_ROW * rows[event["tid"]] + 2}" width="{width:.2f}" height="{_ROW - 5}" fill="{color}"><title>{title}</title></rect>')
    height = _ROW * len(rows) + _BOTTOM
    parts += [_text(x(begin + tick), height - 6, f"{tick / 1e3:.4g} ms", "middle") for tick in _Scale(0, end - begin, 0, 1).ticks()]
    return _svg(height, parts)


class _Scale:
    """From values to a place on the page."""

    def __init__(self, least: float, most: float, begin: float, end: float) -> None:
        self.least, self.most = (least, most) if most > least else (least - 0.5 * (abs(least) or 1), least + 0.5 * (abs(least) or 1))
        self.begin, self.end = begin, end

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.least) / (self.most - self.least) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Four or more round values."""
        rough = (self.most - self.least) / 4
        unit = 10.0 ** math.floor(math.log10(rough))
        step = max(factor * unit for factor in (1, 2, 5) if factor * unit <= rough)
        first = math.ceil(self.least / step)
        return [step * number for number in range(first, math.floor(self.most / step) + 1)]


def _thinned(points: Points) -> Points:
    """Of many points, the least and the largest of each few."""
    if len(points) <= _MOST:
        return points
    size = -(-2 * len(points) // _MOST)
    kept: list[tuple[float, float]] = []
    for i in range(0, len(points), size):
        part = points[i : i + size]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return kept


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" font-size="11" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, color: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'
