"""How fast one core of this machine, or one GPU of it, runs PyTorch's operators: what a hardware file has beside its links."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fsdp_mlir.errors import PlanError

Rates = Mapping[str, Any]
"""A hardware file in part: its tables, and numbers in its units (GFLOP/s, GB/s, GiB, us)."""

_REPEATS, _SECONDS = 15, 0.4  # of each measurement: so many runs, or as many as there is time for
_DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def of_cpu() -> Rates:
    """Of one core, by the shortest of some runs: others use the machine, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure_core()
    finally:
        torch.set_num_threads(threads)


def _best(run: Callable[[], object]) -> float:
    """Seconds of the shortest run."""
    run()
    times, start = [], time.perf_counter()
    while len(times) < _REPEATS and time.perf_counter() - start < _SECONDS:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def _measure_core() -> Rates:
    matrix, attention = {}, {}
    for name, dtype in _DTYPES.items():
        size = 512 if dtype.itemsize > 2 else 192  # in 16 bits, a CPU may be fifty times slower
        a, b, c = (torch.randn(size, size).to(dtype) for _ in range(3))
        matrix[name] = 2 * size**3 / _best(lambda: torch.mm(a, b, out=c)) / 1e9
        q, k, v = (torch.randn(1, 8, 256, 64).to(dtype) for _ in range(3))
        attention[name] = 4 * 8 * 256**2 * 64 / _best(lambda: F.scaled_dot_product_attention(q, k, v)) / 1e9
    near, far = (tuple(torch.randn(count) for _ in range(3)) for count in (2**16, 2**24))
    bandwidth = [3 * 4 * x.numel() / _best(lambda: torch.add(x, y, out=z)) / 1e9 for x, y, z in (near, far)]
    copy = 4 * far[0].numel() / _best(lambda: far[0].copy_(far[1])) / 1e9
    vector = 10 * near[0].numel() / _best(lambda: torch.exp(near[0], out=near[1])) / 1e9  # exp counts ten for each element
    return {"compute": {"matrix": matrix, "attention": attention, "vector": vector}, "memory": {"gbytes": bandwidth[1], "cache_gbytes": bandwidth[0]},
            "host": {"link_gbytes": copy, "gbytes": bandwidth[1]}}  # fmt: skip


def of_gpu() -> Rates:
    """Of the current GPU, by the median of some tenths of a second: clocks fall under load, and a step is that long. Takes about ten
    seconds and 4 GiB. What no operator shows alone (how many exponentials a second, in f64 attention) is left to the file that the
    rates go into. Raises PlanError if there is no GPU."""
    if not torch.cuda.is_available():
        raise PlanError(f"calibrate: expected a GPU that PyTorch can use, found none ({torch.__version__}); leave out --device cuda to measure the CPU")
    matrix = {name: _products(dtype) for name, dtype in _DTYPES.items()}
    # No kernel has f64, and flash attention is for 16 bits: nothing asks for these rates, but a file has them.
    attention = {"f64": matrix["f64"]} | {name: _attention(_DTYPES[name]) for name in ("f32", "bf16", "f16")}
    flash = attention | {name: _attention(_DTYPES[name], [SDPBackend.FLASH_ATTENTION]) for name in ("bf16", "f16")}
    masked = attention | {name: _attention(_DTYPES[name], [SDPBackend.EFFICIENT_ATTENTION], is_masked=True) for name in ("f32", "bf16", "f16")}
    compute = {"matrix": matrix, "attention": attention, "flash_attention": flash, "masked_attention": masked}
    down, host = torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    copies = [down.nbytes / _median(lambda: a.copy_(b, non_blocking=True)) / 1e9 for a, b in ((down, host), (host, down))]
    x, y = torch.randn(1 << 26), torch.randn(1 << 26)
    return {"launch_us": _launch(), "compute": compute, "memory": {"gbytes": _elementwise(), "gib": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 2**30},
            "host": {"link_gbytes": min(copies), "gbytes": 3 * x.nbytes / _best(lambda: torch.add(x, y, out=y)) / 1e9}}  # fmt: skip


def _median(run: Callable[[], object]) -> float:
    """Seconds of a run on the GPU: the median of those of about 0.4 s, one after the other."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    count = max(5, min(1000, int(_SECONDS / (time.perf_counter() - begin))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) / 1e3


def _products(dtype: torch.dtype) -> float:
    """GFLOP/s of the products of a layer: 8,192 tokens, widths of 4,096."""
    tokens, width = (8192, 4096) if dtype.itemsize < 8 else (2048, 2048)
    a, b = (torch.randn(rows, width, device="cuda", dtype=dtype) for rows in (tokens, width))
    return 2 * tokens * width**2 / _median(lambda: torch.mm(a, b)) / 1e9


def _attention(dtype: torch.dtype, backends: list[SDPBackend] | None = None, *, is_masked: bool = False) -> float:
    """GFLOP/s of a causal attention, forward and backward, 2,048 tokens and heads of 128: by the kernel that PyTorch prefers, or by these.
    With a mask, a kernel computes all; without one, half of it, and half is counted."""
    heads, tokens, width = 64, 2048, 128
    q, k, v = (torch.randn(1, heads, tokens, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    gradient = torch.randn_like(q)
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril() if is_masked else None
    if mask is not None:
        mask = torch.zeros(tokens, tokens, dtype=dtype, device="cuda").masked_fill(~mask, -torch.inf)

    def run() -> None:
        with sdpa_kernel(backends or [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        torch.autograd.grad(out, (q, k, v), gradient)

    flops = (4 + 10) * heads * tokens**2 * width  # as fsdp-plan counts them
    return (flops if is_masked else flops / 2) / _median(run) / 1e9


def _elementwise() -> float:
    """GB/s, reads and writes together, of what a block has between its products, in bf16: sums, casts, products with a row, means, copies
    that transpose, and halves that are joined."""
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    row, wide = torch.randn(8192, device="cuda", dtype=torch.bfloat16), x.float()
    operators: list[tuple[Callable[[], object], float]] = [
        (lambda: x + y, 3), (lambda: F.silu(x), 2), (lambda: x.float(), 3), (lambda: wide.bfloat16(), 3), (lambda: wide * row, 4),
        (lambda: wide.square().mean(-1), 6), (lambda: x.view(64, 128, 64, 128).transpose(1, 2).contiguous(), 2),
        (lambda: torch.cat((-x[:, 4096:], x[:, :4096]), -1), 3),
    ]  # fmt: skip
    return sum(count for _, count in operators) * x.nbytes / sum(_median(run) for run, _ in operators) / 1e9


def _launch() -> float:
    """Microseconds from one small operator to the next, where the host is ahead."""
    x, count = torch.zeros(16, device="cuda"), 1000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        torch.cuda._sleep(100_000_000)  # some 50 ms, in which all are launched
        begin.record()
        for _ in range(count):
            x.add_(1)
        end.record()
        torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count
