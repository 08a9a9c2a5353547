"""How often a plan communicates, and how many bytes, is what PyTorch's FSDP does.

test/fixtures/fsdp_counts.json: for each phase of one step, "collective/ranks/dtype" to [calls, bytes in, bytes out] of
one rank, as recorded. The chain has four units and a root. A plan's all-reduce of the loss is its own and not counted.
"""

import collections
import json
import re

import pytest
from conftest import FIXTURES, succeed

CASES = json.loads((FIXTURES / "fsdp_counts.json").read_text())["cases"]
DTYPES = {"f32": ("float32", 4), "bf16": ("bfloat16", 2)}


def name(case):
    return " ".join(str(v).lower() for k, v in case["config"].items() if k not in ("model", "orig"))


def options(config):
    strategy = config.get("strategy", "SHARD_GRAD_OP" if config.get("reshard") is False else "FULL_SHARD").lower()
    backward = {"BACKWARD_PRE": "backward_pre", "BACKWARD_POST": "backward_post", None: "none"}[config.get("bwd", "BACKWARD_PRE")]
    policy = f"reshard-after-forward={config['reshard']}" if type(config.get("reshard")) is int else f"strategy={strategy}"
    text = rf"ranks={config['world']} {policy} wrap=scope:u\.\d+ backward-prefetch={backward} forward-prefetch={int(config.get('fwd', False))}"
    compute, reduce = config.get("mixed", [None, None])
    if config["api"] == "fsdp2":  # copies into and out of a buffer for each unit
        text += " bucket=copy:units:1"
    return text + (" storage-dtype=f32" if compute else "") + (" reduce-dtype=f32" if reduce else "")


def count(graph, config):
    """{phase: {collective/ranks/dtype: [calls, bytes in, bytes out]}} of the plan."""
    text = succeed("fsdp-opt", graph, f"--fsdp-pipeline={options(config)}").stdout
    sizes = {found[1]: (int(found[2] or 1), found[3])
             for found in re.finditer(r"(%\S+) = plan\.(?:buffer|view) .* : tensor<(?:(\d+)x)?(\w+)>", text)}
    rows = {phase: collections.defaultdict(lambda: [0, 0, 0]) for phase in ("forward", "backward")}
    for kind, group, via, source, target, phase in re.findall(
            r"plan\.(all_gather|reduce_scatter|all_reduce) @(\w+) (?:divide <.*> via (\w+) )?(%\S+) to (%\S+) of .*<(\w+)>", text):
        dtype, itemsize = DTYPES[via or sizes[source][1]]
        ranks = config["reshard"] if group.startswith("local_") else config["world"]
        row = rows[phase][f"{kind}/{ranks}/{dtype}"]
        for column, change in enumerate((1, sizes[source][0] * itemsize, sizes[target][0] * itemsize)):
            row[column] += change
    return {phase: dict(table) for phase, table in rows.items()}


@pytest.mark.covers(
    "_unshard", "_pre_backward_hook", "_post_backward_reshard_only_hook", "_reduce_grad_no_shard", "FULL_SHARD",
    "SHARD_GRAD_OP", "reshard_after_forward=False", "reshard_after_forward=N", "Only")
@pytest.mark.parametrize("case", CASES, ids=name)
def test_collectives_are_those_of_pytorch(case, chains):
    config = case["config"]
    mine = count(chains(config), config)
    if config["api"] == "fsdp2" or not config.get("orig", True):  # other layouts: without padding between parameters
        for table in (mine, case):
            for phase in ("forward", "backward"):
                table[phase] = {key: row[0] for key, row in table[phase].items()}
    assert mine == {phase: case[phase] for phase in ("forward", "backward")}
