"""Initial values of a module on the meta device, as a file: one module's tensors in memory at a time.

As in FSDP1, each module that has parameters or buffers of its own gets memory, and then its `reset_parameters()`, or a
function that the caller gives. The random numbers are those after one `torch.manual_seed(seed)`, drawn in the order of
`module.modules()`: that in which most models make their layers, so that the values are those of the same model made on
the CPU.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fsdp_mlir import _compiled, _meta, _write
from fsdp_mlir.errors import CaptureError

# The types of the safetensors format.
_SPELLED = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16", torch.int32: "I32",
    torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip


def initialize(
    module: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    param_init_fn: Callable[[torch.nn.Module], Any] | None = None,
) -> None:
    """Writes the initial values of `module`'s parameters and persistent buffers to `path`, a .safetensors file.

    What is on the meta device (or fake) is made: for each module that owns such tensors, in the order of `module.modules()`,
    the CPU's memory for the tensors that are its own, then `param_init_fn(module)`, or without one `module.reset_parameters()`.
    Either may touch only what the module owns itself, and has to fill all of it; the content of a tensor that two modules share
    is that of the last one. Random numbers are drawn as after `torch.manual_seed(seed)`. A tensor that has content already is
    written as it is. Never more than one module's own tensors are in memory. `module` and the random numbers of the caller are
    afterwards as they were.

    Raises CaptureError, by a sentence that names the module, for one that cannot be initialised so; OSError if the file cannot
    be written. A file that is there already is replaced only once the new one is whole.
    """
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(f"initialize takes a torch.nn.Module, not a {type(module).__name__}")
    if param_init_fn is not None and not callable(param_init_fn):
        raise CaptureError(f"param_init_fn must be a function of a module, not a {type(param_init_fn).__name__}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise CaptureError(f"seed must be an integer from 0 to {2**63 - 1}, not {seed!r}")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise CaptureError(f"`{name}` has no shape before the module has run once; run it, or make its layers with their sizes")
    path = Path(path)
    if path.suffix != ".safetensors":
        raise CaptureError(f"`{path.name}` should end in .safetensors")
    _write.check(path)
    with _compiled.uncompiled(module) as original:
        _initialize(original, path, seed, param_init_fn)


def _initialize(module: torch.nn.Module, path: Path, seed: int, param_init_fn: Callable[[torch.nn.Module], Any] | None) -> None:
    names = _primary_names(module)
    header, places, size = _layout(names, seed)
    with _write.replacing(path) as part, open(part, "wb") as file:
        file.write(header)
        file.truncate(len(header) + size)

        def write(own: str, tensor: torch.Tensor) -> None:
            file.seek(len(header) + places[own])
            file.write(memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            for prefix, owner in module.named_modules():
                _write_module(prefix, owner, names, param_init_fn, write)


def _primary_names(module: torch.nn.Module) -> dict[int, tuple[str, torch.Tensor]]:
    """Of each parameter and persistent buffer, by identity: its first name."""
    kept: dict[int, tuple[str, torch.Tensor]] = {}
    for name, parameter in module.named_parameters():
        kept[id(parameter)] = name, parameter
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                kept.setdefault(id(buffer), (f"{prefix}.{name}" if prefix else name, buffer))
    if not kept:
        raise CaptureError("the module has no parameters or buffers; there is nothing to initialise")
    return kept


def _layout(names: dict[int, tuple[str, torch.Tensor]], seed: int) -> tuple[bytes, dict[str, int], int]:
    """The header of the file, where the bytes of each tensor begin after it, and how many there are."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "init": "from-module", "seed": str(seed)}}
    places, end = {}, 0
    for name, tensor in sorted(names.values(), key=lambda item: -item[1].element_size()):  # so that each is aligned
        if tensor.dtype not in _SPELLED:
            raise CaptureError(f"`{name}` has dtype {str(tensor.dtype).removeprefix('torch.')}, which a safetensors file cannot hold")
        places[name], begin = end, end
        end += tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _SPELLED[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places, end


def _write_module(
    prefix: str,
    owner: torch.nn.Module,
    names: dict[int, tuple[str, torch.Tensor]],
    param_init_fn: Callable[[torch.nn.Module], Any] | None,
    write: Callable[[str, torch.Tensor], None],
) -> None:
    """Makes and writes what `owner` itself owns."""
    place = f"module `{prefix}` ({type(owner).__name__})" if prefix else f"the module ({type(owner).__name__})"
    with _in_memory(owner, names) as (made, kept):
        if made:
            reset = getattr(owner, "reset_parameters", None) if param_init_fn is None else lambda: param_init_fn(owner)
            if reset is None:
                raise CaptureError(
                    f"{place} has tensors on the meta device and no reset_parameters(); give param_init_fn, which initialises one module"
                )
            try:
                reset()
            except Exception as error:
                what = "reset_parameters()" if param_init_fn is None else "param_init_fn"
                raise CaptureError(f"{place} cannot be initialised: {what} says: {error}") from error
        for _, key, tensor in made:
            content = getattr(owner, key, None)
            _check(f"`{prefix}.{key}`" if prefix else f"`{key}`", tensor, content)
            write(names[id(tensor)][0], content)
    for tensor in kept:
        write(names[id(tensor)][0], tensor.cpu())


_Own = tuple[dict[str, Any], str, torch.Tensor]


@contextlib.contextmanager
def _in_memory(owner: torch.nn.Module, names: dict[int, tuple[str, torch.Tensor]]) -> Iterator[tuple[list[_Own], list[torch.Tensor]]]:
    """Gives the module's own empty tensors memory for a while, and copies in place of the others, which a reset would overwrite.
    The lists are of its own tensors that have names: those that were empty, and the others."""
    before = [(holder, dict(holder)) for holder in (owner._parameters, owner._buffers)]
    own = [(holder, key, tensor) for holder, values in before for key, tensor in values.items() if tensor is not None]
    made = [item for item in own if id(item[2]) in names and _meta.is_empty(item[2])]
    if made:
        copies: dict[int, torch.Tensor] = {}
        for holder, key, tensor in own:
            if id(tensor) not in copies:
                content = _unset(tensor) if _meta.is_empty(tensor) else tensor.detach().clone()
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                copies[id(tensor)] = torch.nn.Parameter(content, tensor.requires_grad) if is_parameter else content
            holder[key] = copies[id(tensor)]
        del copies, content
    try:
        yield made, [tensor for _, _, tensor in own if id(tensor) in names and not _meta.is_empty(tensor)]
    finally:
        for holder, values in before:
            holder.clear()
            holder.update(values)


def _unset(tensor: torch.Tensor) -> torch.Tensor:
    """Memory like the tensor's, with content by which `_check` can tell that nothing has been put there."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return made.fill_(float("nan")) if made.is_floating_point() or made.is_complex() else made.zero_()


def _check(name: str, wanted: torch.Tensor, found: Any) -> None:
    if not isinstance(found, torch.Tensor) or _meta.is_empty(found) or found.shape != wanted.shape or found.dtype != wanted.dtype:
        shown = f"{found.dtype} {list(found.shape)} on {found.device}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise CaptureError(f"{name} should be {wanted.dtype} {list(wanted.shape)} on the CPU after its module is initialised, not {shown}")
    if (found.is_floating_point() or found.is_complex()) and found.isnan().any():
        raise CaptureError(f"{name} has elements that its module's initialisation did not set, or set to NaN")
