"""`python -m fsdp_mlir report`: the page of a run says what fsdp-run has written, and nothing of it becomes a part of the page's own text."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest
from conftest import FIXTURES, succeed

GPT2 = FIXTURES / "gpt2.pt2"
STEP = {"step": 1, "loss": 2.5, "lr": 0.1, "seconds": 0.5, "collective_seconds": 0.1, "exposed_seconds": 0.1, "peak_bytes": 1024}


def report(*arguments) -> str:
    """What the command says of an error; empty if there is none."""
    from fsdp_mlir.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fsdp_mlir", "report", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return end.code
    return ""


class Reader(HTMLParser):
    """The texts of a page by the element that they are in, and all elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.texts, self.inside = set(), {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside:
            self.texts.setdefault(self.inside[-1], []).append(data)


def read(path) -> Reader:
    return Reader(path.read_text())


def test_the_page_says_what_the_run_has_written(plans, references, tmp_path):
    run, trace, profile, log, page = (tmp_path / name for name in ("run.json", "t.json", "p.json", "log", "run.html"))
    plan = plans("gpt2", 2, "--hardware", "cpu", "--clip-grad-norm", "1")
    run.write_text(succeed("fsdp-run", plan, "--weights", GPT2, "--data", references("gpt2", 2), "--steps", 4, "--json", "--trace", trace,
                           "--profile", profile, "--log", log).stdout)
    assert report(run, "--trace", trace, "--profile", profile, "--log", log, "-o", page) == ""
    *steps, last = map(json.loads, run.read_text().splitlines())
    found = read(page)
    assert {"loss", "norm of the gradients", "learning rate", "tokens per second", "milliseconds of a step", "milliseconds of exposed communication",
            "memory", "time of a step, by process", "operators", "collectives", "step 4 on rank 0", "step 4 on rank 1"} == set(found.texts["h2"])
    for key in "loss", "grad_norm":
        assert all(f"step {step['step']}: {step[key]:.6g}" in found.texts["title"] for step in steps)
    facts = found.texts["b"]
    assert facts[:2] == ["1 to 4", f"{steps[0]['loss']:.6g} to {steps[-1]['loss']:.6g}"]
    predicted = last["summary"]["predicted"]
    assert facts[3] == f"{1e3 * predicted['step_seconds']:.3g} ms" and facts[5] == f"{1e3 * predicted['exposed_seconds']:.3g} ms"
    drawn = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X" and event["args"]["step"] == 4]
    assert page.read_text().count("<rect ") == sum(event["cat"] != "init" for event in drawn)
    operators = {row["signature"] for row in json.loads(profile.read_text())["ops"]}
    assert len(operators & set(found.texts["td"])) == min(20, len(operators))
    assert "script" not in found.tags and "http" not in page.read_text()


# Whatever names hold: they are text.
def test_names_stay_text(tmp_path):
    bad = "<script>alert(1)</script>&<img src=x onerror=alert(1)>\"'"
    run, trace, profile, log, page = (tmp_path / name for name in ("<b>run.json", "t.json", "p.json", "log", "run.html"))
    run.write_text(json.dumps(STEP) + "\n")
    trace.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "thread_name", "tid": 0, "pid": 0, "args": {"name": bad}}, {
        "ph": "X", "name": bad, "cat": bad, "tid": 0, "pid": 0, "ts": 0, "dur": 1, "args": {"step": 1, "node": bad}}]}))
    profile.write_text(json.dumps({"ops": [{"signature": bad, "seconds": 1, "count": 1}], "collectives": [{"kind": bad, "bytes": bad, "ranks": bad, "seconds": 1, "count": 1}]}))
    log.mkdir()
    (log / "rank-0.log").write_text(json.dumps({key: 1 for key in ("step", "seconds", "forward", "backward", "update", "collectives")}) + f"\n{bad}\n")
    assert report(run, "--trace", trace, "--profile", profile, "--log", log, "-o", page) == ""
    found = read(page)
    assert found.tags <= {"html", "meta", "title", "style", "h1", "h2", "div", "span", "b", "svg", "line", "text", "polyline", "circle", "rect", "table", "tr", "th", "td", "pre"}
    assert found.texts["h1"] == ["<b>run.json"] and found.texts["pre"] == [f"rank-0: {bad}"] and found.texts["td"].count(bad) == 4
    assert any(text.startswith(bad) for text in found.texts["title"])


# What a run that was killed has left is a run; a step that was trained again counts once; a loss that is not finite is said to be so.
def test_what_a_run_leaves(tmp_path):
    run, page = tmp_path / "run.json", tmp_path / "run.html"
    rows = [STEP, {**STEP, "step": 2, "loss": 9.5}, {**STEP, "step": 2, "loss": None}, {"step": 2, "eval_loss": 1.25}]
    run.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    assert report(run, "-o", page) == ""
    found = read(page)
    assert found.texts["b"][:2] == ["1 to 2", "2.5 to not finite"] and "step 2: 1.25" in found.texts["title"]
    assert not any("9.5" in text for text in found.texts["title"])


@pytest.mark.parametrize("name, content, sentence", [
    ("run", "no JSON\n", "run.json: line 1: expected an object that fsdp-run --json prints, found 'no JSON'"),
    ("run", "", "run.json: expected the steps that fsdp-run --json prints, found none; run with --json > run.json"),
    ("run", '{"step": 1, "loss": 2}\n', "run.json: expected what fsdp-run --json writes, found something else (KeyError: 'seconds')"),
    ("trace", "[]", "trace.json: expected what fsdp-run --trace writes, found something else (TypeError: "),
    ("trace", '{"traceEvents": []}', "trace.json: expected what fsdp-run --trace writes, found something else (ValueError: "),
    ("profile", "{", "profile.json: expected what fsdp-run --profile writes, found something else (JSONDecodeError: "),
    ("log", None, "log: expected a folder of fsdp-run --log, found no steps of a rank-R.log in it"),
])
def test_other_files_are_rejected(name, content, sentence, tmp_path):
    (run := tmp_path / "run.json").write_text(json.dumps(STEP) + "\n")
    path = tmp_path / (f"{name}.json" if content is not None else name)
    if content is not None:
        path.write_text(content)
    said = report(run, *([] if name == "run" else [f"--{name}", path]), "-o", tmp_path / "page.html")
    assert re.fullmatch(rf"fsdp_mlir: error: {re.escape(f'{tmp_path}/{sentence}')}.*", said), said
    assert not (tmp_path / "page.html").exists()


def test_what_is_read_is_not_overwritten(tmp_path):
    (run := tmp_path / "run.json").write_text(json.dumps(STEP) + "\n")
    assert "expected a file of its own to write to" in report(run, "-o", run) and json.loads(run.read_text()) == STEP
