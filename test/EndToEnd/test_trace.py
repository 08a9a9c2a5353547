"""Traces and profiles say what was run, and how long it took."""

import itertools
import json
from collections import Counter

import pytest
from conftest import FIXTURES, succeed, tool

STEPS = 4


@pytest.fixture(scope="module", params=[(), ("--overlap",)], ids=["inline", "overlap"])
def recorded(request, plans, references, tmp_path_factory):
    """Trace, profile and report of a training of gpt2 on 2 ranks."""
    folder = tmp_path_factory.mktemp("trace")
    plan, report = folder / "p.plan", folder / "r.json"
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "-o", plan, "--report", report)
    succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", references("gpt2", 4), "--steps", STEPS,
            "--trace", folder / "t.json", "--profile", folder / "p.json", *request.param)
    return [json.loads((folder / name).read_text()) for name in ("t.json", "p.json", "r.json")]


# Every launch of every rank and step has its slice, in the row of its stream; slices of a row do not overlap.
def test_trace_has_every_command(recorded):
    trace, _, report = recorded
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e.get("name") == "thread_name"}
    assert {name for _, name in rows} <= {0, 1, 2, 3} and set(rows.values()) >= {"compute", "gather", "reduce"}
    for rank, step in itertools.product((0, 1), range(1, STEPS + 1)):
        names = Counter(e["name"].split()[0] for e in slices if (e["pid"], e["args"]["step"]) == (rank, step))
        for row in report["collectives"]:
            assert names[row["kind"]] == row["calls"], (rank, step, row, names)
    for row in rows:
        times = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == row)
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in zip(times, times[1:])), row
    launches = Counter(e["cat"] == "init" for e in slices if e["name"].startswith("aten::"))
    assert launches == {False: 2 * STEPS * report["launches"], True: 2 * report["init_launches"]}


# An arrow leads from each collective to what waits for it, never back in time.
def test_trace_has_arrows(recorded):
    trace, _, report = recorded
    starts = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) >= 2 * STEPS * sum(row["calls"] for row in report["collectives"] if row["kind"] == "all_gather")
    assert all(starts[i]["ts"] <= ends[i]["ts"] and starts[i]["pid"] == ends[i]["pid"] for i in starts)


# The counter never leaves what was planned.
def test_trace_counts_bytes(recorded):
    trace, _, report = recorded
    counts = [e["args"]["bytes alive"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert counts and report["memory"]["persistent_bytes"] <= min(counts)
    assert max(counts) <= report["memory"]["arena_bytes"]
    kinds = [e["args"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert all(sum(args.values()) == 2 * args["bytes alive"] for args in kinds)  # the rest adds up to it
    assert {"shards", "optimizer", "gathered", "activations", "temporaries"} <= set(kinds[-1])
    assert kinds[0]["optimizer"] == 2 * kinds[0]["shards"]  # of AdamW


# What the compiler reads back: each operator and collective with its time and number.
def test_profile(recorded):
    _, profile, report = recorded
    assert (profile["device"], profile["ranks"], profile["steps"]) == ("cpu", 2, STEPS - 1)
    assert sum(op["count"] for op in profile["ops"] if op["op"].startswith("aten::")) == report["launches"]
    for row in report["collectives"]:
        found = [c for c in profile["collectives"] if c["kind"] == row["kind"]]
        assert sum(c["count"] for c in found) == row["calls"]
        assert all(c["ranks"] == 2 and c["bytes"] > 0 for c in found)
    for entry in profile["ops"] + profile["nodes"] + profile["collectives"]:
        assert 0 < entry["seconds"] < 1
    mm = [op for op in profile["ops"] if op["op"] in ("aten::mm", "aten::addmm")]
    assert mm and all("x" in op["signature"] and op["signature"].startswith(op["op"]) for op in mm)
    assert {node["stream"] for node in profile["nodes"]} >= {"compute"}


# Said before a long training, not after it.
@pytest.mark.parametrize("option", ["--trace", "--profile"])
def test_a_file_that_cannot_be_written(option, plans, references, tmp_path):
    target = tmp_path / "missing" / "t.json"
    result = tool("fsdp-run", plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", references("gpt2", 4), "--steps", 1,
                  option, target)
    assert (result.returncode, result.stdout, result.stderr) == (
        1, "", f"error: {target}: cannot create the file: No such file or directory\n")
