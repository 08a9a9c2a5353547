"""`python -m fsdp_mlir calibrate`: how fast this machine computes and sends, as the hardware file that fsdp-plan takes from then on."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fsdp_mlir_tools
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from fsdp_mlir import _options
from fsdp_mlir.capture import capture, save
from fsdp_mlir.errors import PlanError

_REPEATS, _SECONDS = 15, 0.4  # of each measurement: the best of so many, or as many as there is time for
_WIDTHS, _STEPS = (32, 128, 512, 1024), 30  # of the layers whose collectives are measured
_DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def kept() -> Path:
    """Where fsdp-plan looks for a machine that nobody names: fsdp-mlir/cpu.toml in $XDG_CONFIG_HOME, or in ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "fsdp-mlir" / "cpu.toml"


def calibrate(output: Path) -> str:
    """Measures one core of this machine, and ranks as threads, in less than a minute, and writes a hardware file. Other programs make
    it slower than it is. Returns what fsdp-plan says of the fit of its links. Raises PlanError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = _measure_rates()
    finally:
        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as scratch:
        machine = Path(scratch) / output.name
        profiles = [word for ranks in (2, 4) for word in ("--profile", _profile(Path(scratch), ranks))]
        said, _ = _options.run("calibrate", "--hardware", "cpu", *profiles, "-o", machine)
        made = output.with_name(f".{output.name}.{os.getpid()}")
        made.write_text(_replace(machine.read_text(), rates))
        made.replace(output)  # whole, whoever reads it now
    return said


def _best(run: Callable[[], object]) -> float:
    """Seconds of the shortest run."""
    run()
    times, start = [], time.perf_counter()
    while len(times) < _REPEATS and time.perf_counter() - start < _SECONDS:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def _measure_rates() -> dict[str, dict[str, float]]:
    """By table of the file: GFLOP/s by element type, and GB/s."""
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


def _replace(text: str, rates: dict[str, dict[str, float]]) -> str:
    """A hardware file with other numbers."""
    for table, numbers in rates.items():
        head, title, rest = text.partition(f"[{table}]")
        body, following, tail = rest.partition("\n[")
        for key, value in numbers.items():
            spelled = "{ " + ", ".join(f"{name} = {number:.4g}" for name, number in value.items()) + " }" if isinstance(value, dict) else f"{value:.4g}"
            body, count = re.subn(rf"^{key} = .*$", f"{key} = {spelled}", body, flags=re.M)
            assert count == 1, (table, key)
        text = head + title + body + following + tail
    return text


class _Layers(nn.Module):
    """Layers of different widths: collectives of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for width in _WIDTHS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((layer(x[:, : layer.in_features]).square().mean() for layer in self.layers), torch.zeros(()))


def _profile(folder: Path, ranks: int) -> Path:
    """What fsdp-run measures of the collectives of so many ranks."""
    model, plan, data, profile = (folder / name for name in ("m.pt2", "m.plan", "data.safetensors", f"{ranks}.json"))
    batch = torch.randn(2, _WIDTHS[-1])
    save(capture(_Layers(), (batch,)), model)
    save_file({"in_0": torch.randn(ranks * 4, *batch.shape)}, data)
    _options.run(model, "--ranks", str(ranks), "--wrap", r"scope:layers\.\d+", "-o", plan)
    command = [_options.find("fsdp-run"), plan, "--weights", model, "--data", data, "--steps", str(_STEPS), "--profile", profile]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env={"OMP_NUM_THREADS": "1", **fsdp_mlir_tools.environment()})
    if done.returncode:
        raise PlanError(f"fsdp-run: {done.stderr.strip()}")
    return profile
