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

# What two micro-batches do otherwise than the third one, as letters of "micro", and how a plan is told so.
ACCUMULATION = {
    "nns": ["--no-sync"],  # no_sync(), set_requires_gradient_sync(False)
    "pps": ["--no-all-reduce"],  # set_requires_all_reduce(False)
    "kks": ["--reshard-after-backward", "false"],  # set_reshard_after_backward(False)
    "qqs": ["--reshard-after-backward", "false", "--no-sync"],
}


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
    body = re.search(rf"plan\.program @{program}(?: part<\w+>)? \{{\n(.*?)\n    \}}", text, re.DOTALL)[1]
    for kind, group, via, source, target, phase in re.findall(
            r"plan\.(all_gather|reduce_scatter|all_reduce) @(\w+) (?:divide <.*> via (\w+) )?(%\S+) to (%\S+) of .*<(\w+)>", body):
        dtype, itemsize = DTYPES[via or sizes[source][1]]
        row = rows[phase][f"{kind}/{groups[group]}/{dtype}"]
        for column, change in enumerate((1, sizes[source][0] * itemsize, sizes[target][0] * itemsize)):
            row[column] += change
    return {phase: dict(table) for phase, table in rows.items()}


def table(step):
    """The table of a recorded step. In a group of one rank a plan sends nothing, where FSDP1 calls a collective."""
    return {phase: {key: row for key, row in step[phase].items() if "/1/" not in key} for phase in ("forward", "backward")}


def check(case, text, program, expected):
    mine = count(text, program)
    if case["config"]["api"] == "fsdp2" or not case["config"].get("orig", True):  # other layouts: without padding between parameters
        mine, expected = ({phase: {key: row[0] for key, row in found[phase].items()} for phase in found} for found in (mine, expected))
    assert (program, mine) == (program, expected)


# A step, and an evaluation, after a step: all parameters are sharded.
@pytest.mark.covers(
    "_unshard", "_pre_backward_hook", "_post_backward_reshard_only_hook", "_reduce_grad_no_shard", "FULL_SHARD", "SHARD_GRAD_OP",
    "reshard_after_forward=True", "reshard_after_forward=False", "reshard_after_forward=None", "reshard_after_forward=N", "Only",
    "_post_forward", "HYBRID_SHARD")
@pytest.mark.parametrize("case", [case for case in CASES if case["config"]["micro"].startswith("s")], ids=name)
def test_collectives_are_those_of_pytorch(case, archives, tmp_path):
    config, modes = case["config"], [step["mode"] for step in case["steps"]]
    step, evaluation = archives(config)
    succeed("fsdp-plan", step, "--program", f"eval={evaluation}", *options(config), "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    for before, recorded in zip(["sync", *modes], case["steps"]):
        if before == "sync" and recorded["mode"] != "no_sync":
            check(case, text, "eval" if recorded["mode"] == "eval" else "step", table(recorded))


# Two micro-batches that do not synchronise, or not everything, and one that does. Where FSDP1 keeps parameters gathered after the forward, they stay
# until the last micro-batch has ended, under no_sync(); of a plan and of FSDP2, that is a decision of its own.
@pytest.mark.covers("set_requires_gradient_sync", "set_reshard_after_backward", "set_requires_all_reduce", "Accumulates", "_finalize_params")
@pytest.mark.parametrize("mode, case", [(mode, case) for mode in ACCUMULATION for case in CASES if mode in case["config"]["micro"]],
                         ids=lambda value: name(value) if isinstance(value, dict) else value)
def test_accumulation_communicates_as_in_pytorch(mode, case, archives, tmp_path):
    config, start = case["config"], case["config"]["micro"].index(mode)
    keeps = ["--reshard-after-backward", "false"] if config.get("strategy") in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2") else []
    succeed("fsdp-plan", archives(config)[0], *options(config), "--accumulate", 3, *ACCUMULATION[mode], *keeps, "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    for program, step in zip(("first", "middle", "last"), case["steps"][start:start + 3]):
        check(case, text, program, table(step))
