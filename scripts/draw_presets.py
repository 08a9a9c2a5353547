"""Draws the timelines of docs/schedules.md on one sheet: each preset on four units, predicted and measured.

Needs the gcc build; takes a minute. Example: python scripts/draw_presets.py docs/timelines.svg
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

from draw_timeline import Trace, draw
from preset_chain import PRESETS, write_chain

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH, BATCH, STEPS = 1024, 32, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path, metavar="FILE.svg", help="where the picture goes")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gcc", help="build folder of our tools")
    arguments = parser.parse_args()
    bin = arguments.build / "bin"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        chain = write_chain(folder, WIDTH, BATCH)
        # A second core for each rank, so that there is something to see.
        hardware = (ROOT / "hardware" / "cpu.toml").read_text().replace("shared_core = true ", "shared_core = false")
        (folder / "cpu.toml").write_text(hardware)
        traces = []
        for preset in PRESETS:
            subprocess.run([bin / "fsdp-plan", *chain, "--schedule", preset,
                            "--hardware", folder / "cpu.toml", "--trace", folder / "predicted.json", "-o", folder / "step.plan"], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([bin / "fsdp-run", folder / "step.plan", "--weights", folder / "chain.pt2", "--data", folder / "data.safetensors",
                            "--steps", str(STEPS), "--overlap", "--trace", folder / "measured.json"], check=True, stdout=subprocess.DEVNULL)
            for name in "predicted", "measured":
                traces.append(Trace(f"{preset}, {name}", json.loads((folder / f"{name}.json").read_text())["traceEvents"]))
        arguments.output.write_text(draw(traces, columns=2))


if __name__ == "__main__":
    main()
