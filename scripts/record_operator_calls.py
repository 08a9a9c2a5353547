#!/usr/bin/env python3
"""Writes test/Unit/Runtime/Inputs/operator_calls.jsonl: calls that OperatorFuzzTest changes.

PyTorch's own samples of its operators (its op_db) are run forward and backward,
and two of the calls that reach ATen's kernels are kept for each overload; calls
that the samples never make, but captured graphs do, stand in MANUAL. A tensor is
{"t": dtype, "s": sizes, "st": strides if not row-major, "r": [least, greatest] of
integers}; its elements are drawn anew. Needs the package expecttest, as op_db does.
"""

import collections
import json
import pathlib
import re
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "test/Unit/Runtime/Inputs/operator_calls.jsonl"
KEPT = 2  # of each overload
DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def row_major(sizes):
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.insert(0, stride)
        stride *= max(size, 1)
    return strides


def encode(value):
    """The JSON of an argument; ValueError for what the test cannot make."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in DTYPES or value.layout != torch.strided or value.numel() > 5000:
            raise ValueError
        text = {"t": DTYPES[value.dtype], "s": list(value.shape)}
        if list(value.stride()) != row_major(text["s"]):
            text["st"] = list(value.stride())
        if value.dtype in (torch.int64, torch.int32) and value.numel():
            with _disable_current_modes():
                text["r"] = [max(int(value.min()), -(2**40)), min(int(value.max()), 2**40)]
        return text
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": DTYPES[value]}
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return {}  # the default
    raise ValueError


def kind(value):
    """What makes two calls different: ranks, types, layouts, flags."""
    if isinstance(value, dict):
        return (value.get("t"), len(value.get("s", [])), "st" in value)
    if isinstance(value, list):
        return tuple(kind(item) for item in value)
    return value if isinstance(value, bool) else type(value).__name__


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = collections.defaultdict(dict)

    def add(self, schema, args, kwargs):
        name = schema.name.removeprefix("aten::")
        name += "." + schema.overload_name if schema.overload_name else ""
        call = {a.name: v for a, v in zip(schema.arguments, args)} | kwargs
        line = json.dumps({"op": name} | call, separators=(",", ":"))
        if len(line) > 1200 or re.search(r"Infinity|NaN|\d{19}", line):
            return
        known = self.calls[name]
        if len(known) < KEPT:
            known.setdefault(repr([(k, kind(v)) for k, v in call.items()]), line)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            try:
                self.add(func._schema, [encode(a) for a in args], {k: encode(v) for k, v in (kwargs or {}).items()})
            except ValueError:
                pass
        return result


def record_samples(recorder):
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64):
            if dtype not in op.dtypes:
                continue
            differentiable = dtype.is_floating_point or dtype.is_complex
            try:
                samples = op.sample_inputs(
                    "cpu", dtype, requires_grad=differentiable and dtype in op.supported_backward_dtypes("cpu")
                )
                for _, sample in zip(range(25), samples):
                    with recorder:
                        results = op(sample.input, *sample.args, **sample.kwargs)
                        results = results if isinstance(results, (tuple, list)) else [results]
                        results = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                        if results:
                            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
            except Exception:  # a sample that does not run here is none
                continue


# What captured graphs call, though no sample does: the operator, and its first arguments.
def tensor(*sizes, t="f32", st=None):
    return {"t": t, "s": list(sizes)} | ({"st": st} if st else {})


def integers(*sizes, r, t="i64"):
    return {"t": t, "s": list(sizes), "r": r}


MANUAL = [
    ("_weight_norm_interface", tensor(4, 3), tensor(4, 1), 0),
    ("_weight_norm_interface", tensor(4, 3, 2), tensor(1, 1, 2), 2),
    ("_weight_norm_interface_backward", tensor(4, 3), tensor(4, 3), tensor(4, 1), tensor(4, 1), 0),
    ("_weight_norm_interface_backward", tensor(4, 3, 2), tensor(4, 3, 2), tensor(1, 1, 2), tensor(1, 1, 2), 2),
    ("_ctc_loss", tensor(6, 2, 5), integers(2, 3, r=[1, 4]), [6, 5], [3, 2], 0, False),
    ("_ctc_loss", tensor(6, 2, 5), integers(5, r=[1, 4]), [6, 5], [3, 2], 0, True),
    ("_ctc_loss_backward", tensor(2), tensor(6, 2, 5), integers(2, 3, r=[1, 4]), [6, 5], [3, 2], tensor(2), tensor(2, 6, 7), 0, False),
    ("_fused_rms_norm", tensor(4, 8), [8], tensor(8), 1e-05),
    ("_fused_rms_norm", tensor(2, 4, 8), [4, 8], None, None),
    ("_fused_rms_norm_backward", tensor(4, 8), tensor(4, 8), [8], tensor(4, 1), tensor(8), [True, True]),
    ("_native_batch_norm_legit_functional", tensor(2, 3, 4, 4), tensor(3), tensor(3), tensor(3), tensor(3), True, 0.1, 1e-05),
    ("_native_batch_norm_legit_no_training", tensor(2, 3, 4, 4), tensor(3), tensor(3), tensor(3), tensor(3), 0.1, 1e-05),
    ("_batch_norm_with_update_functional", tensor(2, 3, 4, 4), tensor(3), tensor(3), tensor(3), tensor(3), 0.1, 1e-05),
    ("_native_batch_norm_legit_functional", tensor(2, 3, 4, 4, t="bf16"), tensor(3), tensor(3), tensor(3), tensor(3), True, 0.1, 1e-05),
    ("_native_batch_norm_legit_no_training", tensor(2, 3, 4, 4, t="bf16"), tensor(3), tensor(3), tensor(3), tensor(3), 0.1, 1e-05),
    ("_batch_norm_with_update_functional", tensor(2, 3, 4, 4, t="bf16"), tensor(3), tensor(3), tensor(3), tensor(3), 0.1, 1e-05),
    ("native_batch_norm_backward", tensor(2, 3, 4, 4), tensor(2, 3, 4, 4), tensor(3), tensor(3), tensor(3), tensor(3), tensor(3), True, 1e-05, [True, True, True]),
    ("native_batch_norm_backward", tensor(2, 3, 4, 4), tensor(2, 3, 4, 4), tensor(3), tensor(3), tensor(3), tensor(0), tensor(0), False, 1e-05, [True, True, True]),
    ("_grouped_mm", tensor(8, 16, t="bf16"), tensor(2, 16, 8, t="bf16"), integers(2, r=[0, 8], t="i32")),
    ("_addmm_activation", tensor(4), tensor(3, 5), tensor(5, 4), 1, 1, True),
    ("_reshape_copy", tensor(3, 4), [12]),
    ("affine_grid_generator", tensor(1, 2, 3), [1, 2, 4, 4], False),
    ("_unsafe_index.Tensor", tensor(4, 5), [integers(3, r=[0, 3]), None]),
    ("_unsafe_index_put", tensor(4, 5), [integers(3, r=[0, 3])], tensor(3, 5), True),
    ("index_put_", tensor(4, 5), [integers(3, r=[0, 3])], tensor(3, 5), True),
    ("_upsample_bicubic2d_aa", tensor(1, 2, 6, 6), [3, 4], False, None, None),
    ("_upsample_bicubic2d_aa_backward", tensor(1, 2, 3, 4), [3, 4], [1, 2, 6, 6], False, None, None),
    ("slice_scatter", tensor(4, 5), tensor(2, 5), 0, 1, 3, 1),
    ("select_scatter", tensor(4, 5), tensor(5), 0, 1),
    ("copy", tensor(4, 5), tensor(5)),
    ("contiguous", tensor(4, 5, st=[1, 4])),
    ("reshape", tensor(4, 5), [2, 10]),
    ("lift_fresh_copy", tensor(3)),
    ("lift", tensor(3)),
    ("matmul", tensor(2, 3, 4), tensor(4, 5)),
    ("linear", tensor(3, 4), tensor(5, 4), tensor(5)),
    ("var_mean.correction", tensor(3, 4), [1], 1),
    ("_assert_tensor_metadata", tensor(3, 4), [3, 4], [4, 1]),
    ("floor_divide", integers(4, 5, r=[-9, 9]), integers(5, r=[1, 9])),
    ("square", tensor(4)),
    ("relu6", tensor(4)),
    ("std", tensor(4, 5)),
    ("var", tensor(4, 5)),
    ("_int_mm", integers(32, 16, r=[0, 3], t="i8"), integers(16, 8, r=[0, 3], t="i8")),
    ("bitwise_and.Scalar", integers(4, r=[0, 9]), 3),
    ("index_add", tensor(4, 5), 0, integers(3, r=[0, 3]), tensor(3, 5)),
    ("remainder.Tensor", integers(4, 5, r=[-9, 9]), integers(5, r=[1, 9])),
    ("div.Tensor_mode", integers(4, 5, r=[-9, 9]), integers(5, r=[1, 9]), "floor"),
    ("_safe_softmax", tensor(3, 4), 1),
    ("avg_pool2d", tensor(1, 2, 6, 6), [2, 2], [2, 2]),
    ("constant_pad_nd", tensor(3, 4), [1, -1, 0, 2], 0.5),
    ("cumsum", tensor(3, 4), 1),
    ("gather", tensor(3, 4), 1, integers(3, 2, r=[0, 3])),
    ("masked_scatter", tensor(4, 5), tensor(4, 5, t="b"), tensor(20)),
    ("new_full", tensor(3), [2, 3], 1.5),
    ("as_strided_scatter", tensor(4, 5), tensor(2, 3), [2, 3], [5, 1], 6),
    ("as_strided", tensor(4, 5), [2, 3], [5, 1], 6),
    ("conj_physical", tensor(3, 4, t="c64")),
    ("_conj", tensor(3, 4, t="c64")),
    ("resolve_conj", tensor(3, 4, t="c64")),
    ("_embedding_bag", tensor(10, 4), integers(6, r=[0, 9]), integers(3, r=[0, 2]), False, 0, False),
    ("norm.Scalar", tensor(3, 4), 2),
    ("linalg_vector_norm", tensor(3, 4), 2, [1]),
    ("cdist", tensor(3, 4), tensor(5, 4)),
    ("fmod.Tensor", integers(4, r=[0, 9]), integers(4, r=[1, 4])),
    ("max_pool2d_with_indices_backward", tensor(1, 2, 2, 2), tensor(1, 2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, integers(1, 2, 2, 2, r=[0, 15])),
    ("adaptive_max_pool2d_backward", tensor(1, 2, 2, 2), tensor(1, 2, 4, 4), integers(1, 2, 2, 2, r=[0, 15])),
    ("embedding_dense_backward", tensor(3, 4), integers(3, r=[0, 7]), 8, -1, True),
    ("linalg_lu_solve", tensor(4, 4), integers(4, r=[1, 4], t="i32"), tensor(4, 2)),
    ("scalar_tensor", 3.5),
    ("grid_sampler_2d", tensor(1, 2, 4, 4), tensor(1, 3, 3, 2), 0, 0, False),
    ("random_", tensor(4, 5)),
    ("random_.from", integers(4, 5, r=[0, 9]), -3, 7),
    ("random_.to", tensor(4, 5, st=[1, 4]), 7),
    ("bernoulli_.Tensor", tensor(4, 5, t="b"), tensor(5)),
    ("normal_functional", tensor(4, 5), 0.0, 1.0),
    ("normal.float_Tensor", 0.5, tensor(4, 5)),
    ("randperm.generator", 7, None, {"dtype": "i64"}),
    ("rrelu_with_noise_functional", tensor(4, 5), tensor(4, 5), 0.1, 0.3, True),
    ("poisson", tensor(4, 5)),
    ("binomial", tensor(4, 5), tensor(4, 5)),
    ("_standard_gamma", tensor(4, 5)),
    ("_sample_dirichlet", tensor(4, 5)),
]


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recorder = Recorder()
    record_samples(recorder)
    manual = []
    for name, *args in MANUAL:
        packet, _, overload = name.partition(".")
        schema = torch._C._get_schema("aten::" + packet, overload)
        call = {a.name: v for a, v in zip(schema.arguments, args)}
        manual.append(json.dumps({"op": name} | call, separators=(",", ":")))
    lines = sorted({line for calls in recorder.calls.values() for line in calls.values()} | set(manual))
    OUTPUT.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} calls of {len(recorder.calls)} operators")


if __name__ == "__main__":
    main()
