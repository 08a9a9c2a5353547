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
    kept = _calibrate.kept()
    calibrate = commands.add_parser("calibrate", help="measure this CPU, in less than a minute, for the predictions of fsdp-plan")
    calibrate.add_argument("-o", "--output", type=Path, default=kept, metavar="FILE.toml", help=f"the hardware file; default: {kept}, which fsdp-plan takes if no --hardware is given")
    arguments = parser.parse_args()
    try:
        if arguments.command == "demo":
            _demo.main()
        else:
            print(_calibrate.calibrate(arguments.output), end="")
            print(f"{arguments.output}: this machine")
    except (CaptureError, PlanError, OSError) as error:
        sys.exit(f"fsdp_mlir: error: {error}")


if __name__ == "__main__":
    main()
