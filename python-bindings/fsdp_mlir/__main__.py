"""`python -m fsdp_mlir demo`, `python -m fsdp_mlir calibrate`, `python -m fsdp_mlir report`."""

import argparse
import sys
from pathlib import Path

from fsdp_mlir import _calibrate, _demo, _report
from fsdp_mlir.errors import CaptureError, FSDPError, PlanError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fsdp_mlir")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="capture, compile and train a small Llama")
    calibrate = commands.add_parser("calibrate", help="measure this CPU or GPU, in less than a minute, for the predictions of fsdp-plan")
    calibrate.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what is measured; default: cpu")
    calibrate.add_argument("--hardware", metavar="FILE.toml|NAME", help="the hardware file that has what is not measured: of a GPU, its links; default: the one that is built in for it")
    calibrate.add_argument("-o", "--output", type=Path, metavar="FILE.toml", help=f"the hardware file; default: {_calibrate.kept()} (cuda.toml), which fsdp-plan takes if no --hardware is given")
    report = commands.add_parser("report", help="one page of a run of fsdp-run, for a browser")
    report.add_argument("run", type=Path, metavar="RUN.json", help="what fsdp-run --json has printed")
    report.add_argument("--trace", type=Path, metavar="T.json", help="of fsdp-run --trace: the timeline of the last step")
    report.add_argument("--profile", type=Path, metavar="P.json", help="of fsdp-run --profile: the time of each operator and collective")
    report.add_argument("--log", type=Path, metavar="FOLDER", help="of fsdp-run --log: the time of each process, and what it has said last")
    report.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html")
    arguments = parser.parse_args()
    try:
        if arguments.command == "demo":
            _demo.main()
        elif arguments.command == "report":
            _report.write(arguments.output, arguments.run, arguments.trace, arguments.profile, arguments.log)
        else:
            output = arguments.output or _calibrate.kept(arguments.device)
            print(_calibrate.calibrate(output, arguments.device, arguments.hardware), end="")
            print(f"{output}: this machine")
    except (CaptureError, FSDPError, PlanError, OSError) as error:
        sys.exit(f"fsdp_mlir: error: {error}")


if __name__ == "__main__":
    main()
