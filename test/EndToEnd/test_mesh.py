"""Meshes of several axes: which ranks a unit is sharded over, and what that is worth."""

import json
import re

import pytest
from conftest import FIXTURES, find_bits, succeed, tool

CUBE = "replicate=2,shard=2,local=2"
# Options of fsdp-plan for eight ranks.
MESHES = [
    ["--mesh", CUBE],
    ["--mesh", "shard=4,local=2"],
    ["--mesh", "local=2,shard=2,replicate=2"],
    ["--mesh", "a=2,b=2,c=1,d=2", "--schedule", "fsdp2"],
    ["--mesh", "shard=4,local=2", "--reshard-after-forward", "2"],
    ["--mesh", "shard=2,node=2,local=2", "--reshard-after-forward", "4"],
    ["--mesh", "shard=2,local=4", "--reshard-after-forward", "2", "--bucket", "copy:units:2"],
    ["--mesh", CUBE, "--strategy", "full_shard"],
    ["--mesh", "replicate=8"],
    ["--mesh", CUBE, "--unit", ".*: shard=local"],
    ["--mesh", CUBE, "--unit", r"transformer\.h\.\d: shard=shard; root: shard=replicate+local"],
    ["--mesh", "shard=4,local=2", "--unit", "transformer.h.0: shard=local; transformer.h.1: strategy=no_shard", "--bucket", "units:3"],
    ["--mesh", "shard=4,local=2", "--unit", "transformer.h.0: shard=local", "--reshard-after-forward", "2"],
    ["--mesh", CUBE, "--unit", "transformer.h.0: shard=local reshard=false; root: shard=shard+replicate", "--offload", "all", "--schedule", "list"],
    ["--mesh", CUBE, "--unit", "transformer.h.1: shard=replicate", "--auto", "--evaluations", "300"],
]


# Proved and run: the loss and the gradients of eight ranks with a batch each.
@pytest.mark.covers("DeviceMesh", "two-dimensional mesh")
@pytest.mark.parametrize("options", MESHES, ids=" ".join)
def test_eight_ranks_agree_with_pytorch(options, references, tmp_path):
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "-o", tmp_path / "p.plan")
    succeed("fsdp-run", tmp_path / "p.plan", "--weights", FIXTURES / "gpt2.pt2", "--verify", "--overlap", "--reference", references("gpt2", 8),
            "--tolerance", "1e-5")


def communication(tmp_path, *options) -> dict[str, list[str]]:
    """The collectives of a plan, by unit: each kind and the axes that it is over, in order."""
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    table: dict[str, list[str]] = {}
    for kind, group, unit in re.findall(r"plan\.(all_gather|reduce_scatter|all_reduce) @(\S+)_\w+ .* of @(\S+) ", text):
        table.setdefault(unit.removeprefix("m.transformer."), []).append(f"{kind} {group.removesuffix('_all')}")
    return table


# All axes but one, unless a rule says otherwise: the gradients are then summed over the others.
def test_units_communicate_over_their_axes(tmp_path):
    inner = ["all_gather shard_local", "reduce_scatter shard_local", "all_reduce replicate"]
    usual = communication(tmp_path, "--mesh", CUBE)
    assert usual == {"h.0": inner[:1] + inner, "h.1": inner[:1] + inner, "root": inner}
    own = communication(tmp_path, "--mesh", CUBE, "--unit", ".*: shard=shard; transformer.h.1: shard=local+replicate")
    assert own["h.0"] == ["all_gather shard"] * 2 + ["reduce_scatter shard", "all_reduce replicate_local"]
    assert own["h.1"] == ["all_gather replicate_local"] * 2 + ["reduce_scatter replicate_local", "all_reduce shard"]


# The axis that has as many ranks is the group; there is no other axis then.
def test_a_group_is_the_inner_axis(tmp_path):
    table = communication(tmp_path, "--mesh", "shard=4,local=2", "--reshard-after-forward", 2)
    assert table["h.1"] == ["all_gather shard_local", "all_gather local", "reduce_scatter shard_local"]
    split = communication(tmp_path, "--mesh", "shard=8", "--reshard-after-forward", 2)
    assert split == table


# Names are names: the plan of a mesh is that of the same ranks under one axis.
def test_axes_that_are_used_together_are_one(references, tmp_path):
    paths = [tmp_path / "one.plan", tmp_path / "three.plan"]
    for path, mesh in zip(paths, ("shard=8", "shard=2,node=2,local=2")):
        succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--mesh", mesh, "-o", path)
    bits = find_bits("gpt2", references("gpt2", 8), 0, paths)
    assert len(set(bits.values())) == 1


# One sentence says what to change.
@pytest.mark.parametrize("options, sentence", [
    (["--mesh", "shard=4,local=2", "--ranks", 4], "--mesh: expected the 4 of --ranks, found 'shard=4,local=2'"),
    (["--mesh", "shard=4,local"], "--mesh: expected RxS, such as 2x4, or axes NAME=SIZE, outermost first"),
    (["--mesh", "shard=4,=2"], "--mesh: expected RxS"),
    (["--mesh", "shard=4,2d=2"], "--mesh: expected RxS"),
    (["--mesh", "shard=4,"], "--mesh: expected RxS"),
    (["--mesh", "shard=4,local=0"], "--mesh: expected RxS"),
    (["--mesh", "shard=4,local=2,shard=2"], "--mesh: expected each axis once, and 'shard' is there twice; found"),
    (["--mesh", "a=70000,b=70000,c=70000,d=70000,e=70000"], "--mesh: expected less than 2^31 ranks"),
    (["--mesh", "shard=4,local=2", "--strategy", "hybrid_shard"], "give a mesh of two axes, such as --mesh 2x4"),
    (["--mesh", "shard=4,local=2", "--reshard-after-forward", 3], "expected a number of ranks that divides the 8 of --ranks; found '3'"),
    (["--mesh", "shard=3,local=2", "--reshard-after-forward", 3], 'the ranks of the innermost of the axes ["shard", "local"], or of equal parts of one, got 3'),
    (["--mesh", "shard=4,local=2", "--unit", "root: shard=node"],
     "expected 'shard=node' of 'root' to name an axis of the mesh; there are 'replicate', 'shard', 'local'"),
    (["--ranks", 8, "--unit", "root: shard=local"], "expected 'shard=local' of 'root' to name an axis of the mesh; there are 'replicate', 'shard'"),
    (["--mesh", "shard=4,local=2", "--unit", "root: shard="], "--unit: expected shard to be axes of --mesh, each once, such as shard+local"),
    (["--mesh", "shard=4,local=2", "--unit", "root: shard=local+local"], "--unit: expected shard to be axes of --mesh, each once"),
    (["--mesh", "shard=4,auto=2"], "--mesh: expected RxS"),
    (["--mesh", "shard=4,local=2", "--unit", "root: shard=local+auto"], "--unit: expected shard to be axes of --mesh, each once, such as shard+local, or auto"),
    (["--mesh", "shard=4,local=2", "--unit", "root: shard=auto"], "--unit: 'shard=auto' is a decision of --auto; give both"),
    (["--mesh", "2x4", "--auto", "--unit", "root: shard=auto"],
     "--unit: 'shard=auto' decides between axes that shard; give a mesh of several, such as --mesh shard=8,local=8, or --mesh auto"),
    (["--mesh", "shard=4,local=2", "--auto", "--unit", "root: shard=auto strategy=no_shard"],
     "--unit: 'no_shard' shards over no axis; leave it or shard out of 'root'"),
    (["--mesh", "shard=4,local=2", "--auto", "--hardware", "h100", "--unit", "nobody: shard=auto"],
     "expected 'nobody' to match the name of a unit; there are"),
    (["--mesh", "shard=4,local=2", "--unit", "root: shard=local strategy=no_shard"],
     "--unit: 'no_shard' shards over no axis; leave it or shard out of 'root'"),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "")
def test_bad_meshes_are_rejected(options, sentence, tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "-o", tmp_path / "p.plan")
    assert result.returncode == 1 and sentence in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not (tmp_path / "p.plan").exists()


# A group along an inner axis stays in a node; one along an outer axis has each of its ranks in another.
def test_groups_in_a_node_are_faster(tmp_path):
    def gathers(axis):
        succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--mesh", "shard=8,local=8", "--unit", f".*: shard={axis}", "--device", "cuda", "--hardware",
                "h100", "--trace", tmp_path / "trace.json", "-o", tmp_path / "p.plan")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        return sum(event["dur"] for event in events if "gather" in event.get("name", "") and event["ph"] == "X")

    assert 0 < gathers("local") < 0.8 * gathers("shard")
