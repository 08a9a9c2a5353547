"""Schedules each model by list, with and without a limit of memory, verifies the result, and compares times with program order.

usage: schedule_models.py FOLDER_OF_TOOLS MODEL.pt2...
"""

import re
import subprocess
import sys

SHARD = ["--fsdp-assign-units", "--fsdp-shard=ranks=4", "--fsdp-insert-optimizer", "--fsdp-hoist-constants", "--fsdp-async"]
PREFETCHED = ["--fsdp-prefetch=forward-prefetch=1", "--fsdp-bucket=bucket=units:2", "--fsdp-limit-in-flight=limit-all-gathers=3", "--fsdp-place-reduce-waits=reduce-wait=next"]
VERIFY = ["--fsdp-apply-schedule", "--fsdp-verify-scheduled", "--fsdp-verify-futures", "--fsdp-verify-order", "--fsdp-verify-equivalence"]
REMARKS = ["--remarks-filter=fsdp-schedule", "--remark-format=emitRemark", "-o", "/dev/null"]


def run(arguments, text):
    return subprocess.run([f"{sys.argv[1]}/{arguments[0]}", *arguments[1:]], input=text, capture_output=True, text=True)


def timeline(step, *options):
    """The microseconds that a schedule takes; the result is verified."""
    result = run(["fsdp-opt", *options, *REMARKS], step)
    found = re.search(r'timeline \|.*Step="([\d.]+) (us|ms)"', result.stderr)
    assert result.returncode == 0 and found, result.stderr
    return float(found[1]) * (1000 if found[2] == "ms" else 1)


for model in sys.argv[2:]:
    imported = run(["fsdp-translate", "--import-pt2", model], "").stdout
    for passes in ([], PREFETCHED):
        step = run(["fsdp-opt", *SHARD, *passes, "--fsdp-annotate-costs=hardware=h100"], imported).stdout
        program = timeline(step, "--fsdp-schedule=algorithm=program", *VERIFY)
        best = timeline(step, "--fsdp-schedule", *VERIFY)
        assert best <= program and (passes or best < program), (model, passes, best, program)
        rejected = run(["fsdp-opt", "--fsdp-schedule=budget=1", "-o", "/dev/null"], step).stderr
        least = re.search(r"the smallest that can be met is (\d+) bytes", rejected)[1]
        limited = timeline(step, f"--fsdp-schedule=budget={least}", *VERIFY, f"--fsdp-verify-memory=budget={least}")
        assert limited >= best, (model, passes, limited, best)
        below = run(["fsdp-opt", f"--fsdp-schedule=budget={int(least) - 1}", "-o", "/dev/null"], step)
        assert below.returncode and f"the smallest that can be met is {least} bytes" in below.stderr, below.stderr
        print(f"{model}: {program} us in program order, {best} by list, {limited} in {least} bytes")
