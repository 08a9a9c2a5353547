"""Memory is what was planned, and what else the process takes has a name."""

import json
import random
import re

import pytest
from conftest import FIXTURES, SAMPLE, draw_decisions, succeed

ALIGNMENT = 64
OPTIONS = ["", *(f"--schedule {name}" for name in ("fsdp1", "fsdp2", "manual-block", "inductor", "list")), "--mesh 2x2", "--mesh 1x1",
           "--mesh shard=2,local=2 --unit root:shard=local",
           "--strategy shard_grad_op", "--strategy no_shard", "--bucket units:2", "--bucket copy:units:2", "--bucket merge:units:2", "--reduce-wait use",
           "--offload all", "--offload params", "--storage-dtype f32", "--reduce-dtype bf16", "--accumulate 3", "--accumulate 3 --no-sync",
           "--mesh 2x2 --accumulate 2 --no-all-reduce", "--accumulate 2 --reshard-after-backward false", "--clip-grad-norm 1",
           "--reshard-after-forward 2", "--optimizer none", "--auto --evaluations 500", "--auto --hardware h100 --evaluations 500", "--auto --mesh 2x2 --accumulate 3", "--device cuda", "--ignore weight", "--forward-prefetch 2 --limit-all-gathers 3"]
HYPER = 64  # bytes on the host: the hyper-parameters of one decay group, aligned


@pytest.fixture(scope="module", ids=str, params=[
    *((graph, ranks) for graph in ("gpt2", "llama") for ranks in (1, 2, 3)),
    ("gpt2", 2, "--bucket", "copy:units:2"), ("llama", 2, "--schedule", "fsdp2"), ("gpt2", 4, "--reshard-after-forward", 2),
])
def summary(request, plans, references):
    """The number of ranks, and the summary of a short training."""
    graph, ranks, *options = request.param
    # MKL keeps buffers of each thread, of which it touches a part: how much of the heap that is would depend on the processor.
    ran = succeed("fsdp-run", plans(graph, ranks, *options), "--weights", FIXTURES / f"{graph}.pt2", "--data", references(graph, 4),
                  "--steps", 3, "--json", MKL_DISABLE_FAST_MM="1")
    *steps, last = map(json.loads, ran.stdout.splitlines())
    assert [step["step"] for step in steps] == [1, 2, 3]
    return ranks, last["summary"]


# Transient memory and a page after it are filled with a pattern. The last byte that a training changes is in the last
# 64 bytes of the plan: not a byte more is needed, and none is planned in vain.
@pytest.mark.covers("lifetime of all-gather buffers", "Performance")
def test_highest_byte_is_the_planned_peak(summary):
    ranks, found = summary
    planned = found["planned_bytes"] // ranks - HYPER
    assert planned - ALIGNMENT < found["highest_byte"] <= planned


# A schedule is priced by the memory of its values, long before there is a plan. What the plan takes in addition is alignment, and gaps
# between buffers that none fits into.
@pytest.mark.parametrize("graph", ["gpt2", "llama", "llama_bf16", "bert", "frozen", "role_batch_norm", "role_dropout", "role_tied"])
def test_the_peak_of_the_schedule_is_that_of_the_plan(graph, tmp_path):
    for options in OPTIONS:
        ranks = [] if "--mesh" in options else ["--ranks", 4]
        shown = succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", *ranks, *options.split(), "-o", tmp_path / "p.plan", "--report", tmp_path / "r.json").stdout
        memory = json.loads((tmp_path / "r.json").read_text())["memory"]
        assert memory["scheduled_bytes"] == memory["value_bytes"] <= memory["lower_bound_bytes"] <= memory["arena_bytes"], options
        assert re.search(r"of which values of the schedule +\S+ \w+ +\+\S+ \w+ alignment, \+\S+ \w+ gaps\n", shown), shown


# The same of decisions that nobody would make: calls of any units, launches and waits anywhere, in places that a search comes to only on large models.
@pytest.mark.parametrize("graph, ranks", [("gpt2", 4), ("llama", 3), ("llama_bf16", 4), ("bert", 2)])
def test_the_peak_of_any_decisions_is_that_of_the_plan(graph, ranks, tmp_path):
    pieces = ["--reshard-after-forward", 2] * (ranks == 4)
    options = [FIXTURES / f"{graph}.pt2", "--ranks", ranks, "--wrap", "size:2048", "--accumulate", 2, "--hardware", "h100", *pieces]
    file, report = tmp_path / "d.toml", tmp_path / "r.json"
    succeed("fsdp-plan", *options, "--auto", "--evaluations", 100, "--decisions", file)
    written, generator = file.read_text(), random.Random(SAMPLE)
    for _ in range(5):
        text = draw_decisions(written, generator, bool(pieces))
        file.write_text(text)
        succeed("fsdp-plan", *options, "--decisions", file, "--report", report)
        memory = json.loads(report.read_text())["memory"]
        assert memory["scheduled_bytes"] == memory["value_bytes"] <= memory["arena_bytes"], text


# The arena, scratch of operators, the allocator's heap, and pages of code and files are all there is.
def test_growth_is_itemised(summary):
    _, found = summary
    named = sum(found[f"{name}_bytes"] for name in ("planned", "scratch", "heap", "file"))
    assert abs(named - found["resident_bytes"]) <= 0.05 * found["resident_bytes"], found


# PyTorch holds, in units of a rank's shard of the parameters: 1 at first, 3 when SGD with momentum has made its step, 2 as soon
# as gradients are None. A plan has the momentum from the first step on, and gradients only within one.
@pytest.mark.covers("Performance", "_reset_flat_param_grad_info_if_needed")
@pytest.mark.parametrize("strategy, ranks", [("full_shard", 2), ("shard_grad_op", 2), ("no_shard", 1)])
def test_state_is_that_of_pytorch(strategy, ranks, tmp_path):
    plan, report = tmp_path / "p.plan", tmp_path / "r.json"
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--strategy", strategy, "--optimizer", "sgd", "--momentum",
            "--reduce-wait", "backward", "-o", plan, "--report", report)
    text = succeed("fsdp-translate", "--import-plan", plan).stdout
    shard = 4 * sum(int(padded) for padded in re.findall(r"plan\.unit .* padded = (\d+)>", text)) // ranks
    held = {row["what"]: row["bytes"] for row in json.loads(report.read_text())["memory"]["persistent"]}
    assert held["parameter shards"] == held["optimizer state"] == shard
    assert not any("gradient" in what for what in held)
    sizes = {value: 4 * int(size) for value, size in re.findall(r"(%\d+) = plan\.buffer gradient .*: tensor<(\d+)xf32>", text)}
    assert sum(sizes[target] for target in re.findall(r"plan\.(?:reduce_scatter|all_reduce) .* to (%\d+) of", text)) == shard
