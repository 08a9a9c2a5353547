"""run_script.py SCRIPT ARGUMENTS: runs a script and ends the process as soon as it is through.

At the end of Python, the threads of gloo may still free tensors, and PyTorch 2.11 then aborts ("terminate called without an
active exception"): about once in 40 runs of a script that trains with FSDP2 on a machine that has other work. Where a group is
destroyed before, it waits for these threads and they for Python: then the process hangs.
"""

import os
import runpy
import sys

import torch.distributed

if __name__ == "__main__":
    del sys.argv[0]
    torch.distributed.destroy_process_group = lambda *_, **__: None
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
