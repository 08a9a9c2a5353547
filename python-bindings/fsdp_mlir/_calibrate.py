"""`python -m fsdp_mlir calibrate`: how fast this machine computes and sends, as the hardware file that fsdp-plan takes from then on."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsdp_mlir_tools
import torch
from safetensors.torch import save_file
from torch import nn

from fsdp_mlir import _options, _rates
from fsdp_mlir._capture import capture, save
from fsdp_mlir.errors import PlanError

_WIDTHS, _STEPS = (32, 128, 512, 1024), 30  # of the layers whose collectives are measured


def kept(device: str = "cpu") -> Path:
    """Where fsdp-plan looks for a machine that nobody names: fsdp-mlir/DEVICE.toml in $XDG_CONFIG_HOME, or in ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "fsdp-mlir" / f"{device}.toml"


def calibrate(output: Path, device: str = "cpu", base: str | None = None) -> str:
    """Measures this machine in less than a minute, and writes a hardware file: one core and ranks as threads, or, for "cuda", the
    current GPU, whose links stay those of `base`, a hardware file or the name of one that is built in (by default the one of this GPU).
    Other programs make it slower than it is. Returns what was measured, and what fsdp-plan says of the fit of its links. Raises PlanError.
    """
    rates = _rates.of_cpu() if device == "cpu" else _rates.of_gpu()
    base = base or ("cpu" if device == "cpu" else _builtin(torch.cuda.get_device_name(), rates["memory"]["gib"]))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        measured, machine = Path(scratch) / "rates.toml", Path(scratch) / output.name
        measured.write_text("\n".join(_write(rates)) + "\n")
        profiles = [word for ranks in (2, 4) for word in ("--profile", _profile(Path(scratch), ranks))] if device == "cpu" else []
        said, _ = _options.run("calibrate", "--hardware", base, "--rates", measured, *profiles, "-o", machine)
        made = output.with_name(f".{output.name}.{os.getpid()}")
        shutil.copyfile(machine, made)
        made.replace(output)  # whole, whoever reads it now
        return measured.read_text() + said + (f"links: those of {base}\n" if device == "cuda" else "")


def _builtin(name: str, gib: float) -> str:
    """The hardware file that has the links of a GPU, by what PyTorch calls it. Raises PlanError."""
    for word, file in (("GB200", "gb200-nvl72"), ("B200", "b200"), ("H200", "h200"), ("H100", "h100"), ("A100", "a100-80" if gib > 60 else "a100-40")):
        if word in name:
            return file
    raise PlanError(f"calibrate: expected an A100, H100, H200, B200 or GB200, found {name}; name a hardware file that has its links with --hardware")


def _write(rates: _rates.Rates) -> Iterator[str]:
    """The lines of a hardware file."""
    yield from (f"{key} = {value:.4g}" for key, value in rates.items() if not isinstance(value, dict))
    for table, numbers in rates.items():
        if isinstance(numbers, dict):
            yield f"[{table}]"
            for key, value in numbers.items():
                each = ", ".join(f"{name} = {number:.4g}" for name, number in value.items()) if isinstance(value, dict) else ""
                yield f"{key} = {{ {each} }}" if each else f"{key} = {value:.4g}"


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
