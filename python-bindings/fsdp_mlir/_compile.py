"""From a model to a plan in one call: capture, fsdp-plan, and a cache of both."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

from fsdp_mlir import _options, _plan, _verify
from fsdp_mlir._keywords import Options
from fsdp_mlir._plan import Plan
from fsdp_mlir._reference import Reference
from fsdp_mlir._capture import capture, save
from fsdp_mlir.errors import CaptureWarning, PlanError

_CHUNK = 1 << 20


def compile(
    model: torch.nn.Module,
    example_batch: Any = None,
    *,
    batches: Sequence[Any] = (),
    ranks: int | None = None,
    mesh: Mapping[str, int] | tuple[int, int] | str | None = None,
    world: int | None = None,
    strategy: Any = None,
    budget: int | str | None = None,
    mixed_precision: MixedPrecision | MixedPrecisionPolicy | Mapping[str, MixedPrecision | MixedPrecisionPolicy] | None = None,
    outputs: Sequence[str | int] = (),
    loss_index: int | None = None,
    evaluation: bool = False,
    unproved: bool = False,
    **options: Unpack[Options],
) -> Plan:
    """Captures the training step of `model` and compiles it for a number of ranks.

    `example_batch` fixes every size: a dict of keyword arguments of the model's forward, a tuple of positional ones, or one tensor. With
    `batches` instead, the plan has a program for each: step for the first, step_1, step_2, ... for the others, over the same shards.
    `mixed_precision`, `outputs` and `loss_index` are those of capture(). `evaluation`: another program, the last, for the first batch with the
    model in eval mode: a forward in the model's own precision.

    `ranks` is the world size, and `mesh` the same as sizes of named axes, outermost first, such as {"replicate": 4, "shard": 8, "local": 8};
    (4, 64) is {"replicate": 4, "shard": 64}, for hybrid strategies. One of them, or `world`: a dry run for so many ranks, which keeps a
    report and no plan. `strategy` is a string or a ShardingStrategy of FSDP1, `budget` the most memory of
    a rank, in bytes or as "16GiB". A model on a GPU has a plan for GPUs, unless `device` says otherwise. `unproved` keeps a plan that cannot be proved to compute what the model does. All other options are
    those of `fsdp-plan` with underscores, such as `no_sync=True` or `reduce_dtype=torch.bfloat16`: fsdp_mlir.options() has them.

    Plans and archives are kept in $XDG_CACHE_HOME/fsdp_mlir (by default ~/.cache/fsdp_mlir), and found again by the graph, the options
    and the compiler. Processes may compile the same at once. A graph is compared with eager PyTorch when its archive is made
    (save(verify=True)).

    Raises PlanError, with the compiler's sentence, for options and for what cannot be compiled; CaptureError for what cannot be captured.
    """
    if (example_batch is None) == (not batches):
        raise PlanError("compile: expected example_batch or batches, found " + ("none" if example_batch is None else "both"))
    if world is None and ranks is None and mesh is None:
        raise PlanError("compile: expected ranks=N, mesh=(replicate, shard) or {axis: size}, or world=N for a dry run, found none")
    if world is not None and ranks is not None:
        raise PlanError("compile: expected ranks=N, or world=N for a dry run, found both; leave one out")
    if options.get("auto") and options.get("decisions") is not None:
        raise PlanError("decisions: expected none beside auto=True, which makes them: Plan.decisions() has them; leave out one of the two")
    if options.get("device") is None and any(parameter.is_cuda for parameter in model.parameters()):
        options["device"] = "cuda"
    given = {"ranks": ranks if world is None else world, "mesh": mesh, "strategy": strategy, "budget": budget, **options}
    arguments = _options.arguments(given)  # ahead of the capture, which takes longer

    cache = _cache()
    with tempfile.TemporaryDirectory(prefix=".part-", dir=cache) as scratch:
        device = next((argument.partition("=")[2] for argument in arguments if argument.startswith("--device=")), "cpu")
        captured = {"mixed_precision": mixed_precision, "outputs": outputs, "loss_index": loss_index, "device": device}
        kept = [_keep_model(model, batch, captured, cache, Path(scratch)) for batch in batches or [example_batch]]
        if evaluation:
            with _evaluating(model):
                forward = captured | {"mixed_precision": None, "gradients": False}
                kept.append(_keep_model(model, batches[0] if batches else example_batch, forward, cache, Path(scratch)))
        models, graphs, references = zip(*kept)
        flags = ["--unproved"] if unproved else []
        made = Path(scratch) / "plan"
        made.mkdir()
        if world is not None:
            _plan.make(made, models, arguments, is_dry=True, flags=flags)
            return Plan(made, models, is_dry=True, reference=references[0])
        folder = cache / "plans" / _key(graphs, arguments, flags)
        if not folder.exists():
            _plan.make(made, models, arguments, is_dry=False, flags=flags)
            _publish(made, folder)
        return Plan(folder, models, reference=references[0])


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """In eval mode, which is meant. Afterwards each module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _cache() -> Path:
    """The folder of all that is kept, which is made. Raises PlanError."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base).resolve() / "fsdp_mlir"
    try:
        for part in ("models", "plans"):
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"{folder}: cannot be made: {error.strerror}; name a folder for caches in XDG_CACHE_HOME") from None
    return folder


def _publish(made: Path, folder: Path) -> None:
    """Gives a finished folder its name, in one step. If another process was first, its folder has the same content and stays."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _keep_model(model: torch.nn.Module, batch: Any, captured: Mapping[str, Any], cache: Path, scratch: Path) -> tuple[Path, str, Reference]:
    """The archive of the model's step for a batch, with the present weights, the digest of its graph, and what it was made of."""
    args, kwargs = _arguments(batch)
    program = capture(model, args, kwargs, **captured)
    made = scratch / "model"
    made.mkdir()
    archive = made / "model.pt2"
    save(program, archive, verify=False)
    graph, whole = _digests(archive)
    folder = cache / "models" / whole
    if folder.exists():
        archive.unlink()
        made.rmdir()
        return folder / archive.name, graph, Reference.of(program)
    try:
        _verify.verify_example(program)
    except _verify.Incomparable as reason:
        warnings.warn(str(reason), CaptureWarning, stacklevel=3)
    _publish(made, folder)
    if made.exists():  # another process was first
        archive.unlink()
        made.rmdir()
    return folder / archive.name, graph, Reference.of(program)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of the model's forward."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    raise PlanError(f"compile: expected a batch that is a dict, a tuple or a tensor, found a {type(batch).__name__}")


def _digests(archive: Path) -> tuple[str, str]:
    """Of what the compiler reads of an archive; and of that and the elements of its weights. The example's inputs are in neither."""
    graph, whole = hashlib.sha256(), hashlib.sha256()
    with zipfile.ZipFile(archive) as file:
        for name in sorted(file.namelist()):
            place = name.partition("/")[2]
            if place.startswith((".data/", "data/sample_inputs/")):
                continue
            content = hashlib.sha256()
            with file.open(name) as entry:
                while block := entry.read(_CHUNK):
                    content.update(block)
            line = f"{place} {content.hexdigest()}\n".encode()
            whole.update(line)
            if not place.startswith("data/weights/") or place.endswith(".json"):
                graph.update(line)
    return graph.hexdigest(), whole.hexdigest()


def _key(graphs: Sequence[str], arguments: Sequence[str], flags: Sequence[str]) -> str:
    """What a plan depends on."""
    contents = [_digest(path) for path in _options.files([*arguments])]
    said = [graphs, [*arguments], contents, [*flags], _compiler(_options.find("fsdp-plan")), torch.__version__, _version()]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


@functools.cache
def _compiler(tool: Path) -> str:
    return _digest(tool)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("fsdp-mlir")
    return "checkout"
