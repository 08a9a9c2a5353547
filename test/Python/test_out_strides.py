"""Kernels that go element by element write into any strides of `out`: kernel selection relies on it (SelectKernels.cpp)."""

import json
import pathlib

import torch

CALLS = pathlib.Path(__file__).parents[1] / "Unit/Runtime/Inputs/operator_calls.jsonl"
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
          "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "b": torch.bool,
          "c64": torch.complex64, "c128": torch.complex128}
ONEDNN = {"aten::gelu", "aten::gelu_backward"}


def tensor(recorded):
    dtype, sizes = DTYPES[recorded["t"]], recorded["s"]
    if dtype == torch.bool:
        return torch.rand(sizes) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(sizes, dtype=torch.float64).add(0.1).to(dtype)
    low, high = recorded.get("r", [1, 3])
    return torch.randint(low, high + 1, sizes, dtype=dtype)


def argument(recorded):
    if isinstance(recorded, list):
        return [argument(each) for each in recorded]
    return tensor(recorded) if isinstance(recorded, dict) and "t" in recorded else recorded


def with_out(op):
    """The overload that takes the same arguments and writes one result."""
    def kinds(schema):
        return [(a.name, str(a.type)) for a in schema.arguments if not (a.alias_info and a.alias_info.is_write)]

    overloads = [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads()]
    found = [o for o in overloads if "out" in o._schema.overload_name and kinds(o._schema) == kinds(op._schema)]
    return found[0] if found else None


def test_pointwise_kernels_keep_the_strides_of_out():
    torch.manual_seed(0)
    tried, failed = set(), set()
    for line in CALLS.read_text().splitlines():
        call = json.loads(line)
        packet, _, overload = call.pop("op").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if torch.Tag.pointwise not in op.tags or op._schema.name in ONEDNN or not (out := with_out(op)):
            continue
        if {str(a.type) for a in op._schema.arguments if a.name in call} - {"Tensor", "number", "Optional[number]", "float"}:
            continue
        arguments = {name: argument(value) for name, value in call.items()}
        expected = op(**arguments)
        if not isinstance(expected, torch.Tensor) or expected.dim() < 2 or expected.numel() < 2:
            continue
        reverse = tuple(reversed(range(expected.dim())))
        found = expected.new_empty([expected.size(d) for d in reverse]).permute(reverse)
        strides = found.stride()
        out(**arguments, out=found)
        tried.add(op._schema.name)
        if found.stride() != strides or not torch.allclose(found, expected, 1e-4, 1e-6, equal_nan=True):
            failed.add(op._schema.name)
    assert not failed and len(tried) > 30, (failed, len(tried))
