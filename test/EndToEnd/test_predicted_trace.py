"""The predicted timeline of fsdp-plan says what the plan does, in the format of fsdp-run's."""

import json
from collections import Counter

import pytest
from conftest import FIXTURES, succeed, tool

SCHEDULES = ["--schedule fsdp1", "--schedule fsdp2", "--schedule inductor", "--schedule list"]


def predict(folder, model, *options):
    trace, report = folder / "t.json", folder / "r.json"
    succeed("fsdp-plan", FIXTURES / f"{model}.pt2", "--ranks", 2, "-o", folder / "p.plan", "--report", report, "--trace", trace, *options)
    return json.loads(trace.read_text())["traceEvents"], json.loads(report.read_text())


# Every collective has its slice and an arrow to what waited for it; rows do not overlap; at the end only arguments are left.
@pytest.mark.covers("Performance")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_trace_says_what_is_planned(model, schedule, tmp_path):
    events, report = predict(tmp_path, model, *schedule.split())
    slices = [e for e in events if e["ph"] == "X"]
    launched = Counter(part.split()[0] for e in slices if "bytes" in e["args"] for part in e["name"].split(", "))
    assert launched == Counter({row["kind"]: row["calls"] for row in report["collectives"]})
    rows = {e["tid"] for e in events if e.get("name") == "thread_name"}
    assert {e["tid"] for e in slices} == rows
    for row in rows:
        times = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == row)
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in zip(times, times[1:]))
    begins, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert begins.keys() == ends.keys() and len(begins) >= launched["all_gather"] / (8 if "inductor" in schedule else 1)
    for i, begin in begins.items():
        source = next(e for e in slices if e["tid"] == begin["tid"] and e["ts"] == begin["ts"])
        assert source["ts"] + source["dur"] <= ends[i]["ts"] + 1e-3
        assert any(e["ts"] == ends[i]["ts"] and e["tid"] == ends[i]["tid"] for e in slices)
    counts = [e["args"]["bytes alive"] for e in events if e["ph"] == "C"]
    assert counts[-1] == min(counts) < max(counts)
    kinds = [e["args"] for e in events if e["ph"] == "C"]
    assert all(sum(args.values()) == 2 * args["bytes alive"] for args in kinds)  # the rest adds up to it
    assert {"shards", "optimizer", "gathered", "activations", "temporaries"} <= set(kinds[-1])


# What was measured takes the place of what is predicted, and list scheduling answers to it.
def test_profile(tmp_path):
    events, _ = predict(tmp_path, "gpt2")
    gathers = [e for e in events if e.get("name", "").startswith("all_gather")]
    sizes = {e["args"]["bytes"] for e in gathers}
    profile = tmp_path / "measured.json"
    profile.write_text(json.dumps({"nodes": [], "collectives": [
        {"kind": "all_gather", "bytes": size, "ranks": 2, "seconds": 1e-3} for size in sizes]}))
    for options in [(), ("--schedule", "list")]:
        slow, _ = predict(tmp_path, "gpt2", "--profile", profile, *options)
        assert {e["dur"] for e in slow if e.get("name", "").startswith("all_gather")} == {1000.0}


# What fsdp-run writes, fsdp-plan understands: every node and every collective of the step has its measured time.
@pytest.mark.parametrize("options", [(), ("--schedule", "inductor")])
def test_profile_of_a_run(options, plans, tmp_path):
    measured = tmp_path / "measured.json"
    succeed("fsdp-run", plans("gpt2", 2, *options), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors",
            "--steps", 4, "--profile", measured)
    profile = json.loads(measured.read_text())
    events, _ = predict(tmp_path, "gpt2", "--profile", measured, *options)
    slices = [e for e in events if e["ph"] == "X"]
    predicted = Counter()
    for event in slices:
        predicted[event["args"].get("node")] += event["dur"] / 1e6
    for node in profile["nodes"]:
        if node["stream"] == "compute":
            assert predicted[node["node"]] == pytest.approx(node["seconds"], abs=1e-8), node
    for kind in {row["kind"] for row in profile["collectives"]}:
        sent = sum(row["seconds"] * row["count"] for row in profile["collectives"] if row["kind"] == kind)
        assert sum(e["dur"] for e in slices if e["name"].startswith(kind)) / 1e6 == pytest.approx(sent, abs=1e-7), kind


@pytest.mark.parametrize("options, sentence", [
    (("--profile", "/nowhere/p.json"), "/nowhere/p.json: cannot open: No such file or directory"),
    (("--schedule", "list", "--limit-all-gathers", "3"), "--schedule: 'list' already says what --limit-all-gathers is; give one of the two"),
    (("--trace", "/nowhere/t.json"), "/nowhere/t.json: cannot create the file: No such file or directory"),
    (("--schedule", "list", "--profile", "/nowhere/p.json"), "/nowhere/p.json: cannot open: No such file or directory"),
])
def test_rejections(options, sentence, tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "-o", tmp_path / "p.plan", *options)
    assert (result.returncode, result.stderr) == (1, f"fsdp-plan: error: {sentence}\n")
