"""Draws the timelines of docs/schedules.md on one sheet: each preset on four units, predicted and measured.

Needs the gcc build; takes a minute. Example: python scripts/draw_presets.py docs/timelines.svg
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from draw_timeline import Trace, draw
from fixture_models import Chain
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python-bindings"))
import fsdp_mlir  # noqa: E402

PRESETS = ["fsdp1", "fsdp2", "manual-block", "inductor", "list"]
WIDTH, BATCH, STEPS, BATCHES = 1024, 32, 300, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path, metavar="FILE.svg", help="where the picture goes")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()
    bin = arguments.build / "bin"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        torch.manual_seed(0)
        torch.export.save(fsdp_mlir.capture(Chain(4, WIDTH), (torch.randn(BATCH, WIDTH),)), folder / "chain.pt2")
        save_file({"in_0": torch.randn(2 * BATCHES, BATCH, WIDTH)}, folder / "data.safetensors")
        # A second core for each rank, so that there is something to see.
        hardware = (ROOT / "hardware" / "cpu.toml").read_text().replace("shared_core = true ", "shared_core = false")
        (folder / "cpu.toml").write_text(hardware)
        traces = []
        for preset in PRESETS:
            subprocess.run([bin / "fsdp-plan", folder / "chain.pt2", "--ranks", "2", "--wrap", r"scope:u\.\d+", "--schedule", preset,
                            "--hardware", folder / "cpu.toml", "--trace", folder / "predicted.json", "-o", folder / "step.plan"], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([bin / "fsdp-run", folder / "step.plan", "--weights", folder / "chain.pt2", "--data", folder / "data.safetensors",
                            "--steps", str(STEPS), "--overlap", "--trace", folder / "measured.json"], check=True, stdout=subprocess.DEVNULL)
            for name in "predicted", "measured":
                traces.append(Trace(f"{preset}, {name}", json.loads((folder / f"{name}.json").read_text())["traceEvents"]))
        arguments.output.write_text(draw(traces, columns=2))


if __name__ == "__main__":
    main()
