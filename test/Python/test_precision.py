"""What capture makes of FSDP's mixed-precision policies. Against FSDP itself: test/EndToEnd/test_mixed_precision.py."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

import fsdp_mlir
from fsdp_mlir._verify import verify_example

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LOW = MixedPrecision(param_dtype=BF16, reduce_dtype=F32, buffer_dtype=BF16)


class Loss(nn.Module):
    """The mean square of what `inner` makes of x."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        y = self.inner(x)
        return (y[0] if isinstance(y, tuple) else y).float().square().mean()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return nn.functional.cross_entropy(self.head(torch.tanh(self.body(self.embed(ids)))).float().flatten(0, 1), ids.flatten())


class Counting(nn.Module):
    """Buffers that are assigned, changed in place, not changed, and of integers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.register_buffer("assigned", torch.zeros(8))
        self.register_buffer("changed", torch.zeros(8), persistent=False)
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = self.body(x * self.scale)
        self.assigned = self.assigned * 0.5 + y.detach().mean(0)
        self.changed.add_(y.detach().sum(0))
        self.count += 1
        return (y - self.assigned).float().square().mean()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(checkpoint(self.a, x, use_reentrant=False)).float().square().mean()


def captured(module, x, mixed_precision):
    """The program, which computes what the module computes with that policy."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    program = fsdp_mlir.capture(module, (x,), mixed_precision=mixed_precision)
    verify_example(program)
    assert all(torch.equal(value, before[name]) and value.dtype == before[name].dtype for name, value in module.state_dict().items())
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())
    return program


def dtypes(program):
    """What parameters are cast to, by the graph; None for one that is used as it is."""
    found = {}
    targets = program.graph_signature.inputs_to_parameters
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in targets:
            kinds = {user.meta["val"].dtype if user.target is torch.ops.aten._to_copy.default else None for user in node.users}
            (found[targets[node.name]],) = kinds
    return found


torch.manual_seed(0)
INPUTS = {
    "linear": (lambda: Loss(nn.Linear(8, 8)), torch.randn(4, 8)),
    "lstm": (lambda: Loss(nn.LSTM(8, 8, 2)), torch.randn(3, 2, 8)),
    "transformer": (lambda: Loss(nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)), torch.randn(2, 3, 8)),
    "tied": (Tied, torch.randint(0, 16, (2, 5))),
    "weight norm": (lambda: Loss(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))), torch.randn(4, 8)),
    "input that requires grad": (lambda: Loss(nn.Linear(8, 8)), torch.randn(4, 8, requires_grad=True)),
}


# Parameters are cast once, whatever shares them; the program's inputs and gradients keep the module's dtypes.
@pytest.mark.parametrize("policy", [LOW, MixedPrecisionPolicy(param_dtype=F16, output_dtype=F32)], ids=["fsdp1", "fsdp2"])
@pytest.mark.parametrize("kind", INPUTS)
def test_parameters_are_cast(kind, policy):
    make, x = INPUTS[kind]
    torch.manual_seed(0)
    program = captured(make(), x, policy)
    assert set(dtypes(program).values()) == {policy.param_dtype}
    metadata = program.graph_module.meta["custom"]
    assert set(metadata["param_dtype"]) == set(program.graph_signature.parameters)
    assert set(metadata["reduce_dtype"].values()) == ({"float32"} if policy.reduce_dtype else set())
    assert all(value.dtype in (F32, torch.long) for value in program.state_dict.values())


# FSDP casts buffers where it first meets them; here they stay in the module's dtype, and the step reads and writes rounded values.
@pytest.mark.covers("Buffer", "_get_buffers_and_dtypes_for_computation", "_get_orig_buffer_dtypes", "_cast_buffers_to_dtype_and_device")
def test_buffers_hold_what_fits_their_computation():
    program = captured(Counting(), torch.randn(4, 8), LOW)
    assert set(program.graph_signature.buffers_to_mutate.values()) == {"assigned", "changed", "count"}
    step = program.module(check_guards=False)
    step(torch.randn(4, 8))
    for name in ("assigned", "changed"):
        buffer = step.get_buffer(name)
        assert buffer.dtype == F32 and buffer.abs().sum() > 0 and torch.equal(buffer, buffer.to(BF16).float())


# Activation checkpointing calls modules again in the backward.
def test_checkpointed_modules():
    with pytest.warns(fsdp_mlir.CaptureWarning):
        captured(Checkpointed(), torch.randn(4, 8), LOW)


# By default FSDP1 leaves batch norm alone, with what it contains, and casts in front of it and after it.
@pytest.mark.covers("ignored classes of mixed precision")
def test_ignored_classes():
    module = Loss(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)))
    found = dtypes(captured(module, torch.randn(4, 8), LOW))
    assert found == {f"inner.{i}.{name}": None if i == 1 else BF16 for i in range(3) for name in ("weight", "bias")}
    everything = MixedPrecision(param_dtype=BF16, _module_classes_to_ignore=(nn.Linear,))
    assert dtypes(captured(Loss(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))), torch.randn(4, 8), everything))["inner.0.weight"] is None


# The innermost module that matches counts, for all that it contains.
def test_policies_of_modules():
    module = Loss(nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Linear(8, 8)))
    policies = {
        "": MixedPrecisionPolicy(param_dtype=F16, cast_forward_inputs=False),
        r"inner\.[01]": MixedPrecisionPolicy(param_dtype=BF16),
        r"inner\.1\.1": MixedPrecisionPolicy(param_dtype=F32, output_dtype=F16),
    }
    assert {name[6:-7]: dtype for name, dtype in dtypes(captured(module, torch.randn(4, 8), policies)).items() if "weight" in name} == {
        "0": BF16, "1.0": BF16, "1.1": None, "2": F16}


# What is not a floating-point tensor, and what the policy leaves alone, is not cast.
@pytest.mark.covers("_root_cast_forward_input")
@pytest.mark.parametrize("policy, casts", [(LOW, True), (MixedPrecision(param_dtype=BF16, cast_root_forward_inputs=False), False),
                                           (MixedPrecision(reduce_dtype=BF16), False)])
def test_inputs(policy, casts):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 8)

        def forward(self, x, ids):
            seen.append((x.dtype, ids.dtype))
            return (self.embed(ids) + x).float().square().mean()

    seen = []
    fsdp_mlir.capture(Both(), (torch.randn(5, 8), torch.randint(0, 4, (5,))), mixed_precision=policy)
    assert set(seen) == {(BF16 if casts else F32, torch.int64)}


# A policy that changes nothing leaves the graph as it is.
def test_empty_policies():
    plain, same = (fsdp_mlir.capture(Tied(), (INPUTS["tied"][1],), mixed_precision=policy) for policy in (None, MixedPrecision(param_dtype=F32)))
    assert str(plain.graph) == str(same.graph)


MESSAGES = [
    ("bf16", "mixed_precision takes MixedPrecision or MixedPrecisionPolicy of torch.distributed.fsdp, or a dict from regular expressions for "
     "names of modules to these, not a str"),
    ({"body": None}, "mixed_precision takes MixedPrecision or MixedPrecisionPolicy of torch.distributed.fsdp, or a dict from regular expressions "
     "for names of modules to these, not a NoneType"),
    (MixedPrecision(param_dtype=torch.int8), "param_dtype is int8; choose one of float16, bfloat16, float32, float64"),
    (MixedPrecisionPolicy(reduce_dtype=torch.int32), "reduce_dtype is int32; choose one of float16, bfloat16, float32, float64"),
    (MixedPrecision(buffer_dtype=torch.complex64), "buffer_dtype is complex64; choose one of float16, bfloat16, float32, float64"),
    (MixedPrecisionPolicy(output_dtype=torch.float8_e4m3fn), "output_dtype is float8_e4m3fn; choose one of float16, bfloat16, float32, float64"),
    (MixedPrecision(keep_low_precision_grads=True), "keep_low_precision_grads gives the optimizer gradients of another dtype than the "
     "parameters', which that of a plan does not take (nor does torch.optim.AdamW); leave it out: reduce_dtype decides what is sent"),
    ({"bod": LOW}, "mixed_precision: no module has a name that 'bod' matches as a whole; there are `embed`, `body`, `head`, and '' for the "
     "model itself"),
    ({"(": LOW}, "mixed_precision: '(' is no regular expression: missing ), unterminated subpattern at position 0"),
    ({"body": LOW, "b.*": MixedPrecision(param_dtype=F16)}, "module `body` has different policies of mixed_precision, by 'body' and 'b.*'; "
     "let one of them match it"),
    ({"head": LOW}, "`embed.weight` and `head.weight` are one tensor, which by mixed_precision is computed with in float32 and in bfloat16; give "
     "all modules that share it one policy"),
    ({"embed": MixedPrecision(reduce_dtype=BF16)}, "`embed.weight` and `head.weight` are one tensor, which by mixed_precision has gradients that "
     "are summed in bfloat16 and in float32; give all modules that share it one policy"),
]


@pytest.mark.parametrize("policy, sentence", MESSAGES)
def test_impossible_policies(policy, sentence):
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(Tied(), (INPUTS["tied"][1],), mixed_precision=policy)
    assert str(caught.value) == sentence


# Where FSDP would fail in the first step, a program is not saved.
def test_dtypes_that_do_not_meet(tmp_path):
    program = fsdp_mlir.capture(Loss(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))), (torch.randn(4, 8),), mixed_precision={
        r"inner\.0": MixedPrecisionPolicy(param_dtype=BF16)})
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.save(program, tmp_path / "m.pt2")
    assert str(caught.value) == (
        "PyTorch cannot compute this model with this mixed_precision: mat1 and mat2 must have the same dtype, but got BFloat16 and Float; where "
        "the dtypes of two modules meet, the first needs an output_dtype or the second cast_forward_inputs=True"
    )


# An archive has the casts, but not what verify needs to have eager PyTorch do the same.
def test_an_archive_is_complete(tmp_path):
    torch.manual_seed(0)
    module, ids = Tied(), INPUTS["tied"][1]
    program = captured(module, ids, LOW)
    fsdp_mlir.save(program, tmp_path / "m.pt2")
    loaded = torch.export.load(tmp_path / "m.pt2")
    assert all(map(torch.equal, program.module()(ids), loaded.module()(ids)))
    with pytest.raises(fsdp_mlir.CaptureError, match="not compared with eager PyTorch: mixed precision is not in the archive; verify what capture returned"):
        fsdp_mlir.verify(module, loaded, (ids,))
