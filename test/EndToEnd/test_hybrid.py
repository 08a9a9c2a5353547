"""A hybrid step, sharded over one axis and replicated over another: made from a sharded one by hand, since axes are data."""

import re

import pytest
from conftest import FIXTURES, succeed, tool

def hybrid(model, tmp_path, outer, inner, names=("replica", "shard"), storage=""):
    """The logical level for outer x inner ranks. What 2 ranks reduce-scatter, replicas then sum; the storage type comes last."""
    succeed("fsdp-translate", "--import-pt2", FIXTURES / f"{model}.pt2", "--mlir-print-debuginfo", "-o", tmp_path / "aten.mlir")
    text = succeed("fsdp-opt", tmp_path / "aten.mlir", "--fsdp-assign-units", f"--fsdp-shard=ranks={inner}{' storage-dtype=' + storage if storage else ''}",
                   "--fsdp-insert-optimizer", "--mlir-print-debuginfo").stdout
    ranks = outer * inner
    text = text.replace(f'["replica" = 1, "shard" = {inner}]', f'["replica" = {outer}, "shard" = {inner}]')
    text = re.sub(r"(all_reduce on @mesh for loss .*?)post = [\d.]+", rf"\1post = {ranks}", text)
    pattern = r'( *)(%\S+) = (fsdp\.reduce_scatter (@\S+) .*?divide )<.*?>( via (\w+) %\S+ : \S+ -> (!fsdp\.shard<\S+ \d+>))(.*)'

    def add(found):
        space, name, begin, unit, end, kind, shard, loc = found.groups()
        part = re.sub(r"x\w+,", f"x{kind},", shard)
        end = end.replace(shard, part)
        return (f"{space}%part{name[1:]} = {begin}<pre = 2, post = 1>{end}{loc}\n"
                f'{space}{name} = fsdp.all_reduce {unit} over ["replica"] divide <pre = 1, post = {ranks / 2}> via {kind} '
                f"%part{name[1:]} : {part} -> {shard}{loc}")

    text, count = re.subn(pattern, add, text)
    assert count > 0
    return re.sub('"(replica|shard)"', lambda found: f'"{names[found[1] == "shard"]}"', text)


SCHEDULED = ["--fsdp-async", "--fsdp-prefetch", "--fsdp-apply-schedule", "--fsdp-verify-scheduled", "--fsdp-verify-futures", "--fsdp-verify-order", "--fsdp-verify-equivalence"]


# Proved and run: the loss and the gradients of four ranks with a batch each. No name of an axis means anything.
@pytest.mark.covers("two-dimensional mesh", "DeviceMesh")
@pytest.mark.parametrize("names", [("replica", "shard"), ("a", "b"), ("shard", "replica")])
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
    (r'(all_reduce @m\.transformer\.h\.1 over) \["replica"\]', r'\1 ["shard"]',
     "expected axes over which unit 'm.transformer.h.1' is replicated, got \"shard\""),
    (r'(reduce_scatter @m\.transformer\.h\.1 over) \["shard"\]', r'\1 ["replica"]',
     "expected all axes over which unit 'm.transformer.h.1' is sharded, got [\"replica\"]"),
    (r'(unshard @m\.transformer\.h\.1 <forward> over) \["shard"\]', r'\1 ["replica"]',
     "expected axes over which unit 'm.transformer.h.1' is sharded, in its order, got \"replica\""),
    (r'(fsdp\.unit @m\.transformer\.h\.1 on @mesh) shard \["shard"\] replicate \["replica"\]', r'\1 shard ["replica"] replicate ["shard"]',
     "is sharded"),
    (r'(fsdp\.unit @m\.transformer\.h\.1 on @mesh shard \["shard"\] replicate) \["replica"\]', r"\1 []",
     "expected axes over which unit 'm.transformer.h.1' is replicated, got \"replica\""),
    (r'(all_reduce on @mesh for loss over) \["replica", "shard"\]', r'\1 ["replica"]', "expected the loss to be summed over 4 ranks, found 2"),
    (r'(all_reduce @m\.transformer\.h\.1 over \["replica"\] divide <pre = 1, post =) 2', r"\1 1",
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
    dropped, count = re.subn(r'\n *(%\S+) = fsdp\.all_reduce @m\.transformer\.h\.1 .*', "", text)
    name = re.search(r"(%\S+) = fsdp\.all_reduce @m\.transformer\.h\.1 ", text)[1]
    assert count == 1
    (tmp_path / "logical.mlir").write_text(dropped.replace(f"%part{name[1:]} =", f"{name} ="))
    result = tool("fsdp-opt", tmp_path / "logical.mlir", "--fsdp-verify-equivalence")
    assert "expected the gradient of unit 'm.transformer.h.1' to be summed over 4 ranks, found 2" in result.stderr
