"""`python -m fsdp_mlir demo`, `python -m fsdp_mlir calibrate`."""

import argparse
import sys
from pathlib import Path

from fsdp_mlir import _calibrate, _demo
from fsdp_mlir.errors import CaptureError, PlanError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fsdp_mlir")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="capture, compile and train a small Llama")
    calibrate = commands.add_parser("calibrate", help="measure this CPU or GPU, in less than a minute, for the predictions of fsdp-plan")
    calibrate.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what is measured; default: cpu")
    calibrate.add_argument("--hardware", metavar="FILE.toml|NAME", help="the hardware file that has what is not measured: of a GPU, its links; default: the one that is built in for it")
    calibrate.add_argument("-o", "--output", type=Path, metavar="FILE.toml", help=f"the hardware file; default: {_calibrate.kept()} (cuda.toml), which fsdp-plan takes if no --hardware is given")
    arguments = parser.parse_args()
    try:
        if arguments.command == "demo":
            _demo.main()
        else:
            output = arguments.output or _calibrate.kept(arguments.device)
            print(_calibrate.calibrate(output, arguments.device, arguments.hardware), end="")
            print(f"{output}: this machine")
    except (CaptureError, PlanError, OSError) as error:
        sys.exit(f"fsdp_mlir: error: {error}")


if __name__ == "__main__":
    main()
