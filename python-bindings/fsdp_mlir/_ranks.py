"""Who the ranks of a plan are: the process group that it uses, and the GPU of this process."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

from fsdp_mlir.errors import FSDPError


class Place:
    """Of this process. `group` and `device` are those of Trainer; of a group that was made here, leave() is the end."""

    def __init__(self, path: str, kind: str, device: torch.device | str | int | None, group: dist.ProcessGroup | None, timeout: float) -> None:
        """`kind`: what the plan at `path` is for, cpu or cuda; `timeout` in seconds. Raises FSDPError for a device that is none of that kind."""
        self.group, self.gpu = group, None
        self._own: dist.ProcessGroup | None = None
        is_initialized = dist.is_available() and dist.is_initialized()
        if kind == "cpu":
            if device is not None and str(device) != "cpu":
                raise FSDPError(f"{path}: expected a plan for cuda with device={device}, found one for cpu; plan with --device cuda")
            if group is None and is_initialized:
                self.group = self._own = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))
            return
        if group is None and is_initialized:
            self.group = dist.group.WORLD
        self.gpu = find_gpu(path, device, self.group)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the plan's memory is not PyTorch's

    def leave(self) -> None:
        if self._own is not None and dist.is_initialized():
            dist.destroy_process_group(self._own)
        self._own = None


def find_gpu(path: str, device: torch.device | str | int | None, group: dist.ProcessGroup | None) -> int | None:
    """The index of this rank's GPU, as `Trainer` says; None where only its place among the ranks of its machine can tell."""
    if torch.version.cuda is None:
        raise FSDPError(f"{path}: expected PyTorch with CUDA for a plan for cuda, found {torch.__version__}; install that, or make the plan for cpu")
    if device is None:
        device = getattr(group, "bound_device_id", None)
    if device is not None:
        given = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if given.type != "cuda":
            raise FSDPError(f"{path}: expected a GPU as device, as cuda:0, for a plan for cuda, found {given}")
        return torch.cuda.current_device() if given.index is None else given.index
    if torch.cuda.is_initialized():
        return torch.cuda.current_device()
    local, count = os.environ.get("LOCAL_RANK", ""), torch.cuda.device_count()
    return int(local) % count if local.isdecimal() and count else None
