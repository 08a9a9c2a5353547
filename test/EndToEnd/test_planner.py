"""Searched steps on every model and machine: what is said of them holds, and no known policy is better."""

import json
import re
import tomllib

import pytest
from conftest import FIXTURES, ROOT, SAMPLE, succeed, tool

MODELS = sorted(path.name for path in FIXTURES.glob("*.pt2"))
MACHINES = sorted(path.stem for path in (ROOT / "hardware").glob("*.toml"))
BUDGETS = 6


def search(model, options, report):
    """The report of a searched plan; or the least bytes that are known to do."""
    result = tool("fsdp-plan", FIXTURES / model, "--bind", "hint", "--auto", "--evaluations", 300, *options, "--report", report)
    if result.returncode == 0:
        return json.loads(report.read_text())
    assert (least := re.search(r"known to work is (\d+) bytes", result.stderr)), result.stderr
    return int(least[1])


# Every model on each machine in turn, from the least memory to more than enough. Whatever the budget, the plan keeps to it and is proved, its
# predicted time is that of the search, no bound is above it, and no policy that fits into the same memory is faster. More memory never
# makes a plan impossible.
@pytest.mark.parametrize("model", MODELS)
def test_no_known_policy_is_better(model, tmp_path):
    machine = MACHINES[(MODELS.index(model) + SAMPLE) % len(MACHINES)]
    options = ["--ranks", 4, "--hardware", machine]
    most = search(model, options, tmp_path / "r.json")["memory"]["arena_bytes"]
    least = search(model, [*options, "--budget", 1], tmp_path / "r.json")
    was_possible = False
    for i in range(BUDGETS):
        budget = round(least * (1.05 * most / least) ** (i / (BUDGETS - 1)))
        report = search(model, [*options, "--budget", budget], tmp_path / "r.json")
        if isinstance(report, int):  # who says what is enough does not know alignment: a step of a KiB is made of that
            assert not was_possible and i < BUDGETS - 1
            continue
        was_possible = True
        found = report["search"]
        assert report["proved"] and report["memory"]["arena_bytes"] <= budget
        assert found["bound_ns"] <= found["step_ns"] == report["predicted"]["step_ns"]
        for policy in report["points"]:
            assert policy["bytes"] > found["budget_bytes"] or policy["nanoseconds"] >= found["step_ns"], policy
    assert was_possible


# A file of decisions is what people edit: written by a search, carried out again to the same plan, and complete.
def test_decisions_are_a_file(tmp_path):
    options = ["--ranks", 4, "--accumulate", 3, "--hardware", "h100"]
    file, plans = tmp_path / "d.toml", [tmp_path / "a.plan", tmp_path / "b.plan"]
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "--auto", "--decisions", file, "-o", plans[0])
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "--decisions", file, "-o", plans[1])
    assert succeed("fsdp-plan", "diff", *plans)
    decisions = tomllib.loads(file.read_text())
    assert set(decisions["programs"]) == {"first", "middle", "last"}
    assert all(len(program["units"]) == 3 for program in decisions["programs"].values())


# What a search does not know is said at once.
@pytest.mark.parametrize("options, sentence", [
    ("--auto --schedule fsdp1", "--auto: decides what --schedule says; give one of the two"),
    ("--auto --remat scope:.*", "--auto: decides what --remat says; give one of the two"),
    ("--auto --offload all", "--auto: does not know --offload yet; give one of the two"),
    ("--auto --strategy shard_grad_op", "--auto: decides what --strategy says; give one of the two"),
    ("--decisions d.toml --bucket units:2", "--decisions: decides what --bucket says; give one of the two"),
    ("--evaluations 5", "--evaluations: expected --auto, whose search tries so many steps"),
    ("--auto --evaluations 0", "--evaluations: expected a number of at least 1; found '0'"),
])
def test_contradictions_are_one_sentence(options, sentence):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, *options.split())
    assert result.returncode == 1 and result.stderr.splitlines() == [f"fsdp-plan: error: {sentence}"]
