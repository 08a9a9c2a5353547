"""`python -m fsdp_mlir demo`."""

import argparse
import sys

from fsdp_mlir import _demo
from fsdp_mlir.errors import CaptureError, PlanError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fsdp_mlir")
    parser.add_subparsers(dest="command", required=True).add_parser("demo", help="capture, compile and train a small Llama")
    parser.parse_args()
    try:
        _demo.main()
    except (CaptureError, PlanError) as error:
        sys.exit(f"fsdp_mlir: error: {error}")


if __name__ == "__main__":
    main()
