"""Steps that are sharded over one axis of a mesh and replicated over another, and units that decide otherwise than the rest."""

import re

import pytest
from conftest import FIXTURES, succeed, tool


def hybrid(model, tmp_path, outer, inner, names=("replicate", "shard"), storage=""):
    """The logical level for outer x inner ranks."""
    succeed("fsdp-translate", "--import-pt2", FIXTURES / f"{model}.pt2", "--mlir-print-debuginfo", "-o", tmp_path / "aten.mlir")
    text = succeed("fsdp-opt", tmp_path / "aten.mlir", "--fsdp-assign-units",
                   f"--fsdp-shard=mesh={outer}x{inner} strategy=hybrid_shard{' storage-dtype=' + storage if storage else ''}",
                   "--fsdp-insert-optimizer", "--mlir-print-debuginfo").stdout
    return re.sub('"(replicate|shard)"', lambda found: f'"{names[found[1] == "shard"]}"', text)


SCHEDULED = ["--fsdp-async", "--fsdp-prefetch", "--fsdp-apply-schedule", "--fsdp-verify-scheduled", "--fsdp-verify-futures", "--fsdp-verify-order", "--fsdp-verify-equivalence"]


# Proved and run: the loss and the gradients of four ranks with a batch each. No name of an axis means anything.
@pytest.mark.covers("two-dimensional mesh", "DeviceMesh")
@pytest.mark.parametrize("names", [("replicate", "shard"), ("a", "b"), ("shard", "replicate")])
@pytest.mark.parametrize("model, storage, tolerance", [("gpt2", "", "1e-5"), ("frozen", "", "1e-5"), ("bert", "", "1e-5"),
                                                       ("llama_bf16", "", "2e-2"), ("llama_bf16", "f32", "2e-2")])
def test_four_ranks_agree_with_pytorch(model, storage, tolerance, names, tmp_path):
    (tmp_path / "logical.mlir").write_text(hybrid(model, tmp_path, 2, 2, names, storage))
    succeed("fsdp-opt", tmp_path / "logical.mlir", "--fsdp-verify-logical", "--fsdp-verify-equivalence", "--fsdp-hoist-constants", *SCHEDULED,
            "--lower-to-plan", "--plan-verify", "-o", tmp_path / "plan.mlir")
    succeed("fsdp-translate", "--export-plan", tmp_path / "plan.mlir", "-o", tmp_path / "p.plan")
    succeed("fsdp-run", tmp_path / "p.plan", "--weights", FIXTURES / f"{model}.pt2", "--verify", "--reference",
            FIXTURES / f"{model}_ref4.safetensors", "--tolerance", tolerance)


# What is reduced stays in the reduce type until the last reduction.
@pytest.mark.covers("_cast_grad_to_param_dtype")
def test_only_the_last_reduction_is_in_the_storage_type(tmp_path):
    text = hybrid("llama_bf16", tmp_path, 2, 2, storage="f32")
    assert re.search(r"reduce_scatter .* via bf16 .* -> !fsdp\.shard<\d+xbf16, 2>", text)
    assert re.search(r"all_reduce @\S+ .* via bf16 .*xbf16, 2> -> !fsdp\.shard<\d+xf32, 2>", text)


# The same on the scheduled level, with one axis wrong.
@pytest.mark.covers("DeviceMesh", "hybrid without usable groups")
@pytest.mark.parametrize("pattern, replacement, sentence", [
    (r'(all_reduce @m\.transformer\.h\.1 over) \["replicate"\]', r'\1 ["shard"]',
     "expected axes over which unit 'm.transformer.h.1' is replicated, got \"shard\""),
    (r'(reduce_scatter @m\.transformer\.h\.1 over) \["shard"\]', r'\1 ["replicate"]',
     "expected all axes over which unit 'm.transformer.h.1' is sharded, got [\"replicate\"]"),
    (r'(unshard @m\.transformer\.h\.1 <forward> over) \["shard"\]', r'\1 ["replicate"]',
     "expected axes over which unit 'm.transformer.h.1' is sharded, in its order, got \"replicate\""),
    (r'(fsdp\.unit @m\.transformer\.h\.1 on @mesh) shard \["shard"\] replicate \["replicate"\]', r'\1 shard ["replicate"] replicate ["shard"]',
     "is sharded"),
    (r'(fsdp\.unit @m\.transformer\.h\.1 on @mesh shard \["shard"\] replicate) \["replicate"\]', r"\1 []",
     "expected axes over which unit 'm.transformer.h.1' is replicated, got \"replicate\""),
    (r'(all_reduce on @mesh for loss over) \["replicate", "shard"\]', r'\1 ["replicate"]', "expected the loss to be summed over 4 ranks, found 2"),
    (r'(all_reduce @m\.transformer\.h\.1 over \["replicate"\] divide <pre = 1, post =) 2', r"\1 1",
     "expected the gradient of unit 'm.transformer.h.1' to be divided by 4, found a division by 2"),
])
def test_wrong_axes_are_rejected(pattern, replacement, sentence, tmp_path):
    (tmp_path / "logical.mlir").write_text(hybrid("gpt2", tmp_path, 2, 2))
    scheduled = succeed("fsdp-opt", tmp_path / "logical.mlir", *SCHEDULED).stdout
    changed, count = re.subn(pattern, replacement, scheduled)
    assert count >= 1
    (tmp_path / "scheduled.mlir").write_text(changed)
    result = tool("fsdp-opt", tmp_path / "scheduled.mlir", *SCHEDULED[2:])
    assert result.returncode != 0 and sentence in result.stderr, result.stderr


# A gradient that replicas do not sum differs from rank to rank.
def test_replicas_must_be_summed(tmp_path):
    text = hybrid("gpt2", tmp_path, 2, 2)
    found = re.search(r"\n *(%\S+) = fsdp\.all_reduce @m\.transformer\.h\.1 .*? (%\S+) : .*", text)
    name, part = found.groups()
    step, source = text.replace(found[0], "").split("func.func private")
    (tmp_path / "logical.mlir").write_text(re.sub(rf"{name}(?![\w#])", part, step) + "func.func private" + source)
    result = tool("fsdp-opt", tmp_path / "logical.mlir", "--fsdp-verify-equivalence")
    assert "expected the gradient of unit 'm.transformer.h.1' to be summed over 4 ranks, found 2" in result.stderr


# Whatever the mesh and the strategy, and where units differ: loss and gradients of four ranks with a batch each.
@pytest.mark.covers("HYBRID_SHARD", "HYBRID_SHARDING_STRATEGIES", "HybridShardProcessGroupType")
@pytest.mark.parametrize("options", [
    ["--mesh", "2x2"],
    ["--mesh", "2x2", "--strategy", "hybrid_shard_zero2"],
    ["--mesh", "replicate=2,shard=2", "--strategy", "full_shard"],
    ["--mesh", "2x2", "--strategy", "no_shard"],
    ["--mesh", "4x1", "--strategy", "hybrid_shard"],
    ["--mesh", "1x4", "--strategy", "hybrid_shard"],
    ["--mesh", "2x2", "--reshard-after-forward", "false"],
    ["--ranks", "4", "--unit", "root: strategy=no_shard; transformer.h.0: reshard=false"],
    ["--ranks", "4", "--unit", r"m\.transformer\.h\.0: strategy=no_shard"],
    ["--mesh", "2x2", "--unit", r"transformer\.h\.\d: strategy=full_shard", "--schedule", "fsdp2"],
], ids=" ".join)
def test_options_agree_with_pytorch(options, tmp_path):
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "-o", tmp_path / "p.plan")
    succeed("fsdp-run", tmp_path / "p.plan", "--weights", FIXTURES / "gpt2.pt2", "--verify", "--overlap", "--reference",
            FIXTURES / "gpt2_ref4.safetensors", "--tolerance", "1e-5")


def communication(options, tmp_path, folder="plan.mlir"):
    """The collectives of a plan, by unit: kind and communicator in order."""
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    table = {}
    for kind, group, unit in re.findall(r"plan\.(all_gather|reduce_scatter|all_reduce) @(\S+) .* of @(\S+) ", text):
        table.setdefault(unit, []).append(f"{kind} {group}")
    return table


# Each unit communicates as its own rule says; the last one that says something wins.
@pytest.mark.covers("CustomPolicy: arguments for each module", "set_reshard_after_forward")
def test_rules_decide_for_units(tmp_path):
    (tmp_path / "rules").write_text("# all, then one\n.*: strategy=shard_grad_op\n\ntransformer.h.1: reshard=true ; root: strategy=no_shard\n")
    table = communication(["--mesh", "2x2", "--unit", f"file:{tmp_path / 'rules'}"], tmp_path)
    both = ["all_gather replicate_shard_gather", "reduce_scatter replicate_shard_reduce"]
    assert table == {"m.transformer.h.0": both, "m.transformer.h.1": [both[0]] + both, "root": ["all_reduce replicate_shard_all_reduce"]}


# Storage and reduce type are a unit's own.
def test_rules_decide_types(tmp_path):
    succeed("fsdp-plan", FIXTURES / "llama_bf16.pt2", "--ranks", "4", "--unit", "model.layers.1: storage=f32 reduce=f32", "-o", tmp_path / "p.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout
    types = dict(re.findall(r"plan\.unit @(\S+) .*?(storage \w+ reduce \w+)", text))
    assert types.pop("m.model.layers.1") == "storage f32 reduce f32"
    assert set(types.values()) == {"storage bf16 reduce bf16"}
    succeed("fsdp-run", tmp_path / "p.plan", "--weights", FIXTURES / "llama_bf16.pt2", "--reference", FIXTURES / "llama_bf16_ref4.safetensors",
            "--tolerance", "2e-2")


# One sentence says what to change.
@pytest.mark.parametrize("options, sentence", [
    (["--mesh", "2x3", "--ranks", "4"], "--mesh: expected the 4 of --ranks, found '2x3'"),
    (["--strategy", "hybrid_shard", "--ranks", "4"], "--strategy: 'hybrid_shard' shards in groups of ranks; give a mesh of two axes, such as --mesh 2x4"),
    (["--strategy", "hybrid_shard", "--mesh", "shard=4"], "give a mesh of two axes"),
    (["--mesh", "8"], "--mesh: expected RxS, such as 2x4, or axes NAME=SIZE, outermost first, such as replicate=2,shard=4,local=8, "
                      "each size at least 1, or auto; found '8'"),
    (["--mesh", "0x2"], "--mesh: expected RxS"),
    (["--mesh", "2x2x2"], "--mesh: expected RxS"),
    (["--mesh", "100000x100000"], "--mesh: expected less than 2^31 ranks, found '100000x100000'"),
    (["--mesh", "2x4", "--reshard-after-forward", "3"], "divides the 4 of a group of --mesh; found '3'"),
    (["--ranks", "4", "--unit", "zzz: reshard=true"], "expected 'zzz' to match the name of a unit; there are 'root', 'm.transformer.h.0', 'm.transformer.h.1'"),
    (["--ranks", "4", "--unit", "reshard=true"], r"--unit: expected REGEX: and what is decided, such as 'h\.\d+: reshard=false'"),
    (["--ranks", "4", "--unit", "h: reshard=maybe"], "expected reshard to be true or false"),
    (["--ranks", "4", "--unit", "h: prefetch=3"], "expected strategy, shard, reshard, reshard-after-backward, storage or reduce in place of 'prefetch'"),
    (["--ranks", "4", "--unit", "h: reduce=i8"], "expected reduce to be one of"),
    (["--ranks", "4", "--unit", "file:nofile"], "expected a file of rules: nofile: cannot open"),
    (["--ranks", "4", "--unit", "(: reshard=true"], "parentheses not balanced"),
    (["--ranks", "4", "--reshard-after-forward", "2", "--unit", "root: reshard=true"], "leave strategy and reshard out of 'root'"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_contradictions_are_rejected(options, sentence, tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", *options, "-o", tmp_path / "p.plan")
    assert result.returncode == 1 and sentence in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not (tmp_path / "p.plan").exists()
