"""Timelines are small SVG files, and show what is in the traces."""

import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "draw_timeline.py"


def trace(*, step=1, pid=0):
    row = {"pid": pid, "tid": 0, "ts": 0.0}
    place = {"pid": pid, "tid": 1, "ts": 5.0}
    return {"traceEvents": [
        {"ph": "M", **row, "name": "thread_name", "args": {"name": "compute"}},
        {"ph": "M", **place, "name": "thread_name", "args": {"name": "gather"}},
        {"ph": "X", **place, "dur": 10.0, "name": "all_gather h.<0>", "cat": "forward", "args": {"step": step, "bytes": 4}},
        {"ph": "X", **row, "dur": 9.0, "name": "aten::mm", "cat": "forward", "args": {"step": step, "node": "mm_1"}},
        {"ph": "X", **row, "ts": 15.0, "dur": 9.0, "name": "aten::mm", "cat": "backward", "args": {"step": step, "node": "mm_2"}},
        {"ph": "s", **place, "id": 0, "name": "wait"}, {"ph": "f", **row, "ts": 15.0, "id": 0, "name": "wait", "bp": "e"},
        {"ph": "C", **place, "name": "arena", "args": {"bytes alive": 1 << 20, "shards": 1 << 19, "gathered": 1 << 19}}]}


def draw(tmp_path, *traces):
    arguments = []
    for index, content in enumerate(traces):
        path = tmp_path / f"{index}.json"
        path.write_text(json.dumps(content))
        arguments.append(f"trace {index}={path}")
    return subprocess.run([sys.executable, SCRIPT, "-o", tmp_path / "t.svg", *arguments], capture_output=True, text=True)


# Names of a trace are text, never markup.
def test_draws_slices_arrows_and_memory(tmp_path):
    assert draw(tmp_path, trace(), trace(step=3)).returncode == 0
    content = (tmp_path / "t.svg").read_text()
    root = ElementTree.fromstring(content)
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["aten::mm (mm_1): 9.0 us", "all_gather h.<0> (forward): 10.0 us", "aten::mm (mm_2): 9.0 us", "shards", "gathered"] * 2
    assert content.count('class="arrow" marker-end') == 2 and content.count('class="memory"') == 4
    assert "trace 0: 24.0 us, peak 1.0 MiB" in content and content.count(">h.&lt;0&gt;</text>") == 2


def test_rejects_a_trace_without_slices(tmp_path):
    result = draw(tmp_path, trace(pid=1))
    assert result.returncode and result.stderr == "trace 0: expected slices of rank 0, found none\n"
