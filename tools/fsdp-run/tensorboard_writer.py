"""Writes event files of TensorBoard: python3 tensorboard_writer.py FOLDER, started by fsdp-run --tensorboard.

Reads the lines of `fsdp-run --json` from the standard input until it ends. Says "ready" on the standard output, or in a
sentence why it is not; and in another one what has stopped it later.
"""

import json
import math
import sys
import time

# Of a step, by what the line has: the tag, and what a number is multiplied by.
STEP = {
    "loss": ("loss", 1),
    "eval_loss": ("eval_loss", 1),
    "lr": ("learning_rate", 1),
    "grad_norm": ("grad_norm", 1),
    "tokens_per_second": ("tokens_per_second", 1),
    "seconds": ("milliseconds_per_step", 1e3),
    "exposed_seconds": ("exposed_communication_milliseconds", 1e3),
    "peak_bytes": ("memory_MiB", 2**-20),
}


def main() -> None:
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        sys.exit(f"expected a Python with the library tensorboard, found {sys.executable}: {error}; pip install tensorboard")
    writer = EventFileWriter(sys.argv[1], flush_secs=2)
    print("ready", flush=True)
    isFirst = True
    for line in sys.stdin:
        values = json.loads(line)
        if "step" not in values:
            continue
        if isFirst:
            # What an earlier run has written of this step and those after it is not shown.
            writer.add_event(Event(wall_time=time.time(), step=values["step"], session_log=SessionLog(status=SessionLog.START)))
            isFirst = False
        found = [
            Summary.Value(tag=tag, simple_value=math.nan if values[key] is None else values[key] * factor)
            for key, (tag, factor) in STEP.items() if key in values
        ]
        writer.add_event(Event(wall_time=time.time(), step=values["step"], summary=Summary(value=found)))
    writer.close()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
