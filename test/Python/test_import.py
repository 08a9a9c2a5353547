"""`import fsdp_mlir` takes no time beyond PyTorch's, and has all names when they are asked for."""

import os
import subprocess
import sys

import fsdp_mlir


def test_names_are_imported_when_they_are_asked_for():
    assert sorted([*fsdp_mlir._HOMES, "CaptureError", "CaptureWarning", "FSDPError", "PlanError"]) == sorted(fsdp_mlir.__all__)
    for name in fsdp_mlir.__all__:
        value = getattr(fsdp_mlir, name)
        assert callable(value) and value.__doc__ and name in dir(fsdp_mlir), name


# Time is not measured: what takes it is an import of PyTorch's exporter, of its compiler, or of FSDP.
def test_an_import_brings_nothing_heavy():
    heavy = "torch.export", "torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch._decomp"
    code = f"import torch; before = set(sys.modules); import fsdp_mlir; print([m for m in {heavy!r} if m in sys.modules and m not in before])"
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}"], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == "[]\n"


def test_there_is_no_other_name():
    assert not hasattr(fsdp_mlir, "captured")
