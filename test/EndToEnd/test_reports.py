"""A report explains where the time and the memory of a step go: its sums are those of the predicted timeline and of the plan."""

import json
import pathlib
import re
import shutil
import subprocess
from collections import Counter

import pytest
from conftest import FIXTURES, ROOT, succeed, tool

GPT2 = FIXTURES / "gpt2.pt2"


def report_of(folder, *options):
    """The report as JSON and as text, and the slices of the predicted timeline."""
    report, trace = folder / "r.json", folder / "t.json"
    shown = succeed("fsdp-plan", GPT2, "--ranks", 2, "--report", report, "--trace", trace, *options).stdout
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    return json.loads(report.read_text()), shown, slices


# The report adds up what the timeline shows slice by slice: the length of the step, and what the compute stream waits for.
@pytest.mark.parametrize("options", ["--schedule fsdp1", "--schedule fsdp2", "--schedule inductor", "--schedule list", "--clip-grad-norm 1"])
def test_predictions_are_those_of_the_timeline(options, tmp_path):
    report, shown, slices = report_of(tmp_path, "--hardware", "h100", *options.split())
    predicted = report["predicted"]
    assert predicted["step_ns"] / 1e3 == pytest.approx(max(e["ts"] + e["dur"] for e in slices))
    exposed, taken, calls = Counter(), Counter(), Counter()
    for event in slices:
        if "exposed" in event["args"]:
            kind = event["name"].split(",")[0].split()[0]
            exposed[kind] += event["args"]["exposed"]
            taken[kind] += event["dur"]
            calls[kind] += 1
    rows = {row["kind"]: row for row in predicted["kinds"]}
    assert rows.keys() == calls.keys()
    for kind, row in rows.items():
        assert (row["calls"], row["ns"] / 1e3, row["exposed_ns"] / 1e3) == (calls[kind], pytest.approx(taken[kind]), pytest.approx(exposed[kind]))
        assert row["exposed_ns"] == sum(call["exposed_ns"] for call in predicted["exposed"] if call["kind"] == kind)
    assert predicted["exposed_ns"] == sum(row["exposed_ns"] for row in rows.values()) > 0
    assert "predicted step " in shown and " exposed communication\n" in shown


# A step of five micro-batches runs the middle program three times.
def test_programs_count_as_often_as_a_step_runs_them(tmp_path):
    report, _, _ = report_of(tmp_path, "--accumulate", 5, "--hardware", "h100")
    programs = report["programs"]
    assert [row["runs"] for row in programs] == [1, 3, 1]
    for total, part in ("step_ns", "predicted_ns"), ("exposed_ns", "exposed_ns"):
        assert report["predicted"][total] == sum(row["runs"] * row[part] for row in programs)
    calls = Counter({row["kind"]: row["calls"] for row in report["collectives"]})
    assert Counter({row["kind"]: row["calls"] for row in report["predicted"]["kinds"]}) == calls


# Without durations nothing is predicted, and nothing is said of time.
def test_nothing_is_predicted_without_durations(tmp_path):
    shown = succeed("fsdp-plan", GPT2, "--ranks", 2, "--report", tmp_path / "r.json").stdout
    assert "predicted" not in shown and json.loads((tmp_path / "r.json").read_text())["predicted"] is None


# Kinds and layers partition what is alive at the peak.
@pytest.mark.parametrize("options", ["", "--schedule fsdp2", "--accumulate 2", "--remat scope:.*h.0", "--reshard-after-forward 2 --mesh 1x2"])
def test_the_peak_is_explained_as_a_whole(options, tmp_path):
    succeed("fsdp-plan", GPT2, "--ranks", 2, "--report", tmp_path / "r.json", *options.split())
    memory = json.loads((tmp_path / "r.json").read_text())["memory"]
    kinds = memory["peak_by_kind"]
    assert sum(row["bytes"] for row in kinds) == sum(row["bytes"] for row in memory["alive_at_peak"])
    assert sum(row["buffers"] for row in kinds) == sum(row["buffers"] for row in memory["alive_at_peak"])
    assert all(sum(layer["bytes"] for layer in row["layers"]) == row["bytes"] for row in kinds)
    assert "activations" in {row["kind"] for row in kinds}


# A model of many layers fills no page.
def test_layers_are_ranges(tmp_path):
    shown = succeed("fsdp-plan", GPT2, "--ranks", 2).stdout
    assert "  m.transformer.h.0 .. 1 " in shown and " others" not in shown


# A model of billions of parameters fills no page: units that are alike are one row.
def test_units_that_are_alike_are_one_row(tmp_path):
    subprocess.run(["zstd", "-dqf", FIXTURES / "llama_7b.pt2.zst", "-o", tmp_path / "m.pt2"], check=True)
    shown = succeed("fsdp-plan", tmp_path / "m.pt2", "--ranks", 64, "--device", "cuda").stdout
    assert re.search(r"^root +3 .*\nm\.model\.layers\.0 \.\. 31, each +9 +202383360 .* 2 +1\n\n", shown, re.MULTILINE), shown
    assert shown.count("\n") < 40


# A rejected plan is not reported.
def test_no_report_of_what_is_rejected(tmp_path):
    result = tool("fsdp-plan", GPT2, "--ranks", 2, "--budget", "1KiB", "--report", tmp_path / "r.json")
    assert result.returncode == 1 and not result.stdout and not list(tmp_path.iterdir())


# A row of the comparison is what a compilation with its options reports.
def test_a_comparison_is_a_compilation_for_each_row(tmp_path):
    shared = ["--ranks", 2, "--hardware", "h100", "--accumulate", 3]
    own = ["--schedule fsdp2 --remat scope:.*", "--limit-all-gathers 4 --forward-prefetch 2", "--accumulate 2"]
    succeed("fsdp-plan", "compare", GPT2, *shared, "--report", tmp_path / "c.json", *(part for text in own for part in ("--with", text)))
    points = {point["name"]: point for point in json.loads((tmp_path / "c.json").read_text())["points"]}
    presets = ["fsdp1", "fsdp2", "manual-block", "inductor", "list"]
    searched = "auto"
    assert list(points) == [*presets, searched, *own]
    for name, point in points.items():
        options = ["--schedule", name] if name in presets else ["--auto"] if name == searched else name.split()
        before = shared[:4] if "--accumulate" in options else shared
        succeed("fsdp-plan", GPT2, *before, *options, "--report", tmp_path / "r.json")
        report = json.loads((tmp_path / "r.json").read_text())
        assert point == {
            "name": name, "proved": True, "bytes": report["memory"]["arena_bytes"], "peak_bytes": report["memory"]["scheduled_bytes"],
            "calls": sum(row["calls"] for row in report["collectives"]),
            "nanoseconds": report["predicted"]["step_ns"], "exposed_ns": report["predicted"]["exposed_ns"]}


# As of diff: 0 for the same, 1 for a difference, 2 for trouble. A script can ask whether a plan has changed.
def test_exit_codes_of_diff(plans, tmp_path):
    a, b = plans("gpt2", 2), plans("gpt2", 2, "--schedule", "fsdp2")
    codes = [tool("fsdp-plan", "diff", *pair).returncode for pair in [(a, a), (a, b), (a, tmp_path / "none.plan"), (a, GPT2), (a,)]]
    assert codes == [0, 1, 2, 2, 2]


def page_of(path):
    """The data of a page; the page loads nothing from elsewhere."""
    page = path.read_text()
    assert not re.search(r"\b(?:src|href)=|@import|url\(", page) and set(re.findall(r"https?://[^\"]+", page)) <= {"http://www.w3.org/2000/svg"}
    data, = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert "<" not in data  # no name can end the element
    return json.loads(data)


# One file has the report and the timelines of all programs, whatever the model is called.
def test_a_page_has_the_report_and_the_timelines(tmp_path):
    model = tmp_path / "<!--<script>.pt2"
    shutil.copy(GPT2, model)
    succeed("fsdp-plan", model, "--ranks", 2, "--accumulate", 3, "--hardware", "h100", "--budget", "1GiB", "--html", tmp_path / "p.html",
            "--report", tmp_path / "r.json", "--trace", tmp_path / "t.json")
    page = page_of(tmp_path / "p.html")
    assert page["name"] == model.name and page["report"] == json.loads((tmp_path / "r.json").read_text())
    assert [row["name"] for row in page["programs"]] == ["first", "middle", "last"]
    assert page["programs"][0]["events"] == json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert page["report"]["memory"]["budget_bytes"] == 2**30


# The script of the page runs, and shows what the report says. Points that a report may have become a picture.
@pytest.mark.skipif(not shutil.which("node"), reason="not run: there is no node")
@pytest.mark.parametrize("options", ["--hardware h100", "--hardware cpu --schedule fsdp2", "--accumulate 2 --hardware h100 --offload optimizer", ""])
def test_the_script_of_a_page_runs(options, tmp_path):
    page = tmp_path / "p.html"
    succeed("fsdp-plan", GPT2, "--ranks", 2, "--html", page, *options.split())
    report = page_of(page)["report"]
    points = [{"name": "another plan", "bytes": 2**20, "nanoseconds": 10**6}, {"name": "no time", "bytes": 2**20}]
    page.write_text(page.read_text().replace('"points":[]', f'"points": {json.dumps(points)}', 1))
    result = subprocess.run(["node", pathlib.Path(__file__).with_name("page_dom.js"), page], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    texts = shown["texts"]
    assert {"gpt2.pt2", "proved: the plan computes what the model does", "Exposed collectives, per step", "another plan", "this plan"} <= set(texts)
    assert "no time" not in texts and not any(re.search("undefined|NaN|object", text) for text in texts)
    table = texts[texts.index("Exposed collectives, per step") + 8:][:7 * len(report["predicted"]["exposed"])]
    assert Counter(table[::7]) == Counter(row["kind"] for row in report["predicted"]["exposed"])
    assert shown["painted"]["#d6222f"] > 0  # what is exposed


# A plan that the machine has no memory for is one, but nobody should find that out on the machine.
def test_the_arena_stands_beside_the_memory_of_the_machine(tmp_path):
    hardware = tmp_path / "small.toml"
    text = succeed("fsdp-plan", "compare", GPT2, "--ranks", 2, "--hardware", "h100").stdout
    assert "than the machine has" not in text
    hardware.write_text(re.sub(r"(?m)^gib = .*$", "gib = 0.001", (ROOT / "hardware" / "h100.toml").read_text()))
    arguments = [GPT2, "--ranks", 1, "--storage-dtype", "f64", "--accumulate", 2, "--hardware", hardware]
    shown = succeed("fsdp-plan", *arguments, "--report", tmp_path / "r.json").stdout
    assert re.search(r"  arena +[\d.]+ MiB   MORE than the 1\.02 MiB that the machine has\n", shown), shown
    assert json.loads((tmp_path / "r.json").read_text())["memory"]["capacity_bytes"] == int(0.001 * 2**30)
    rows = succeed("fsdp-plan", "compare", *arguments).stdout.split("\n\n")[0].splitlines()[1:]
    assert all(row.endswith("  more than the machine has") for row in rows), rows
