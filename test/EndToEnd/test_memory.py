"""Memory is what was planned, and what else the process takes has a name."""

import json

import pytest
from conftest import FIXTURES, succeed

ALIGNMENT = 64
HYPER = 64  # bytes on the host: the hyper-parameters of one decay group, aligned


@pytest.fixture(scope="module", ids=str, params=[
    *((graph, ranks) for graph in ("gpt2", "llama") for ranks in (1, 2, 3)),
    ("gpt2", 2, "--bucket", "copy:units:2"), ("llama", 2, "--schedule", "fsdp2"), ("gpt2", 4, "--reshard-after-forward", 2),
])
def summary(request, plans, references):
    """The number of ranks, and the summary of a short training."""
    graph, ranks, *options = request.param
    ran = succeed("fsdp-run", plans(graph, ranks, *options), "--weights", FIXTURES / f"{graph}.pt2", "--data", references(graph, 4),
                  "--steps", 3, "--json")
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


# The arena, scratch of operators, the allocator's heap, and pages of code and files are all there is.
def test_growth_is_itemised(summary):
    _, found = summary
    named = sum(found[f"{name}_bytes"] for name in ("planned", "scratch", "heap", "file"))
    assert abs(named - found["resident_bytes"]) <= 0.05 * found["resident_bytes"], found
