"""Asks fsdp-plan --auto for the least memory that is known to work."""

import re
import subprocess
import sys


def smallest_budget(command: list[object]) -> int:
    """Bytes, for a command line of fsdp-plan with --auto and without a budget. Ends the script if it says something else."""
    said = subprocess.run([*map(str, command), "--budget", "1"], capture_output=True, text=True).stderr
    found = re.search(r"known to work is (\d+) bytes", said)
    return int(found[1]) if found else sys.exit(f"{' '.join(map(str, command))}: expected to be told the smallest budget, found: {said}")
