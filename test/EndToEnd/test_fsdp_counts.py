"""How often a plan communicates, and how many bytes, is what PyTorch's FSDP does.

test/fixtures/fsdp_counts.json: for each phase of each step, "collective/ranks/dtype" to [calls, bytes in, bytes out] of
one rank, as recorded. The chain has four units and a root. A plan's all-reduce of the loss is its own and not counted.
"""

import collections
import json
import math
import re

import pytest
import torch
from torch.distributed.fsdp import MixedPrecision
from conftest import FIXTURES, digest, succeed

import fsdp_mlir

DTYPES = {"f32": ("float32", 4), "bf16": ("bfloat16", 2)}


# With groups of one rank, FSDP1's hybrid strategies never sum over the replicas; a plan does.
CASES = [case for case in json.loads((FIXTURES / "fsdp_counts.json").read_text())["cases"] if case["config"].get("mesh") != [4, 1]]


def name(case):
    return " ".join(str(v).lower() for k, v in case["config"].items() if k != "model")


def options(config):
    backward = {"BACKWARD_PRE": "backward_pre", "BACKWARD_POST": "backward_post", None: "none"}[config.get("bwd", "BACKWARD_PRE")]
    policy = ["--strategy", config["strategy"].lower().lstrip("_")] if "strategy" in config else []
    if config.get("reshard") is not None:
        policy = ["--reshard-after-forward", str(config["reshard"]).lower()]
    if config.get("reshard") is True:  # FSDP2 then frees the root, too
        policy += ["--unit", "root: reshard=true"]
    mesh = ["--mesh", "x".join(map(str, config["mesh"]))] if "mesh" in config else ["--ranks", config["world"]]
    bucket = ["--bucket", "copy:units:1"] if config["api"] == "fsdp2" else []  # copies into and out of a buffer for each unit
    return [*mesh, *policy, "--wrap", r"scope:u\.\d+", "--backward-prefetch", backward,
            "--forward-prefetch", int(config.get("fwd", False)), *bucket]


@pytest.fixture(scope="module")
def archives(once):
    """archives(config): archives of the chain's training step and of its evaluation."""
    from fixture_models import Chain

    def find(config):
        args, mixed = config["args"], config.get("mixed")
        precision = MixedPrecision(*(dtype and getattr(torch, dtype) for dtype in mixed)) if mixed else None

        def make(training):
            def write(path):
                chain = Chain(args["n"], args["d"], frozen=args.get("frozen", ())).train(training)
                program = fsdp_mlir.capture(chain, (torch.ones(2, args["d"]),), gradients=training, mixed_precision=precision)
                fsdp_mlir.save(program, path, verify=False)
            return write

        return [once(f"chain-{digest(args, mixed, training)}.pt2", make(training)) for training in (True, False)]

    return find


def count(text, program):
    """{phase: {collective/ranks/dtype: [calls, bytes in, bytes out]}} of a program."""
    axes = [int(size) for size in re.findall(r'"\w+" = (\d+)', re.search(r"mesh \[(.*?)\]", text)[1])]
    groups = {communicator: math.prod(axes[int(axis)] for axis in own.split(","))
              for communicator, own in re.findall(r"plan\.communicator @(\w+) axes \[(.*?)\]", text)}
    sizes = {found[1]: (int(found[2] or 1), found[3])
             for found in re.finditer(r"(%\S+) = plan\.(?:buffer|view) .* : tensor<(?:(\d+)x)?(\w+)>", text)}
    rows = {phase: collections.defaultdict(lambda: [0, 0, 0]) for phase in ("forward", "backward")}
    body = re.search(rf"plan\.program @{program} \{{\n(.*?)\n    \}}", text, re.DOTALL)[1]
    for kind, group, via, source, target, phase in re.findall(
            r"plan\.(all_gather|reduce_scatter|all_reduce) @(\w+) (?:divide <.*> via (\w+) )?(%\S+) to (%\S+) of .*<(\w+)>", body):
        dtype, itemsize = DTYPES[via or sizes[source][1]]
        row = rows[phase][f"{kind}/{groups[group]}/{dtype}"]
        for column, change in enumerate((1, sizes[source][0] * itemsize, sizes[target][0] * itemsize)):
            row[column] += change
    return {phase: dict(table) for phase, table in rows.items()}


def recorded(case):
    """(program, table) of the recorded steps whose parameters were all sharded before, one of each kind.

    In a group of one rank a plan sends nothing, where FSDP1 calls a collective.
    """
    before, found = "sync", {}
    for step in case["steps"]:
        if before == "sync" and step["mode"] in ("sync", "eval"):
            program = {"sync": "step", "eval": "eval"}[step["mode"]]
            found.setdefault(program, {phase: {key: row for key, row in step[phase].items() if "/1/" not in key} for phase in ("forward", "backward")})
        before = step["mode"]
    return found.items()


@pytest.mark.covers(
    "_unshard", "_pre_backward_hook", "_post_backward_reshard_only_hook", "_reduce_grad_no_shard", "FULL_SHARD", "SHARD_GRAD_OP",
    "reshard_after_forward=True", "reshard_after_forward=False", "reshard_after_forward=None", "reshard_after_forward=N", "Only",
    "_post_forward", "HYBRID_SHARD")
@pytest.mark.parametrize("case", CASES, ids=name)
def test_collectives_are_those_of_pytorch(case, archives, tmp_path):
    config = case["config"]
    step, evaluation = archives(config)
    succeed("fsdp-plan", step, "--program", f"eval={evaluation}", *options(config), "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    for program, expected in recorded(case):
        mine = count(text, program)
        if config["api"] == "fsdp2" or not config.get("orig", True):  # other layouts: without padding between parameters
            for table in (mine, expected):
                for phase in ("forward", "backward"):
                    table[phase] = {key: row[0] for key, row in table[phase].items()}
        assert (program, mine) == (program, expected)
