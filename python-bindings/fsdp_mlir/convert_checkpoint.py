"""Converts a checkpoint of PyTorch that is a pickle to what `fsdp-run` reads: python -m fsdp_mlir.convert_checkpoint SOURCE... TARGET

SOURCE is a folder of torch.distributed.checkpoint (with .metadata); or files of torch.save, of all ranks if they are sharded,
with the state dicts of FSDP1, FSDP2 or a plain module, and of its optimizer by names of parameters. No code in them is run.

TARGET is a new folder, a checkpoint for `fsdp-run --resume`; or a file .safetensors, for `fsdp-run --weights`, which gets
parameters and buffers alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors.torch import save_file

from fsdp_mlir import _write
from fsdp_mlir._pickles import METADATA, Tree, Whole, read_file, read_folder
from fsdp_mlir.errors import CheckpointError

STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")
# What others make of the states of an optimizer: "state.blocks.0.weight.exp_avg".
FLATTENED = re.compile(r"state\.(.+)\.(exp_avg|exp_avg_sq|momentum_buffer|step)")
BLOCK = 1 << 20  # bytes that a checksum is of
FILE = 5 << 30  # bytes of a file, about
_SPELLED = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
            torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}  # fmt: skip


@dataclass
class Found:
    """Tensors by name; states of the optimizer by parameter and kind."""

    model: dict[str, Whole]
    states: dict[str, dict[str, Whole]]


def read(sources: Sequence[Path]) -> Tree:
    """What all of them have together. Raises CheckpointError and OSError."""
    tree: Tree = {}
    for source in sources:
        if source.is_dir() and not (source / METADATA).exists():
            raise CheckpointError(f"{source}: expected a folder of torch.distributed.checkpoint, which has {METADATA}, found none; "
                                  "of torch.save, give files")
        for where, part in (read_folder if source.is_dir() else read_file)(source).items():
            whole = tree.setdefault(where, part)
            if (whole.dtype, whole.sizes) != (part.dtype, part.sizes):
                raise CheckpointError(f"{source}: {'.'.join(where)}: expected sizes {whole.sizes} in {whole.dtype}, as in the files before it, "
                                      f"found {part.sizes} in {part.dtype}")
            for piece in part.pieces.values():
                whole.add(piece)
    return tree


def classify(tree: Tree, key: str | None = None) -> Found:
    """Which tensors are the model's, and which the optimizer's.

    `key`: where the model is, if several dictionaries have tensors.
    """
    models: dict[str, dict[str, Whole]] = {}
    states: dict[str, dict[str, Whole]] = {}
    for where, whole in tree.items():
        flattened = FLATTENED.fullmatch(where[-1])
        if len(where) > 2 and where[-3] == "state":
            parameter, kind = where[-2:]
        elif flattened:
            parameter, kind = flattened.groups()
        else:
            models.setdefault(".".join(where[:-1]), {})[where[-1]] = whole
            continue
        if kind not in STATES:
            raise CheckpointError(f"optimizer: expected the states of AdamW or of SGD ({', '.join(STATES)}), found {kind} of {parameter}")
        if kind in states.setdefault(parameter, {}):
            raise CheckpointError(f"optimizer: expected the states of one optimizer, found two of {parameter}")
        states[parameter][kind] = whole
    if key is None and len(models) > 1:
        raise CheckpointError(f"expected one dictionary with the tensors of the model, found {', '.join(repr(name) for name in sorted(models))}: "
                              "choose by --model")
    model = next(iter(models.values()), {}) if key is None else models.get(key, {})
    if not model:
        raise CheckpointError("expected the tensors of a model, found none" + (f" in {key!r}" if key is not None else ""))
    flat = next((name for name in model if "_flat_param" in name), None)
    if flat:
        raise CheckpointError(f"expected a full or a sharded state dict, found {flat} of a local one, which only the same FSDP reads")
    return Found(model, states)


def rename(found: Found, renames: Sequence[str]) -> Found:
    """Each is REGEX=TEXT, as of `fsdp-run --rename`."""
    for each in renames:
        pattern, equals, text = each.partition("=")
        try:
            change = re.compile(pattern).sub
            names = {name: change(text, name) for name in [*found.model, *found.states]}
        except (re.error, IndexError) as error:
            raise CheckpointError(f"--rename '{each}': expected REGEX=TEXT of a regular expression, found {error}") from error
        if not equals or all(old == new for old, new in names.items()):
            raise CheckpointError(f"--rename '{each}': expected REGEX=TEXT that changes a name, found none that it changes")
        if len(set(names.values())) != len(names):
            raise CheckpointError(f"--rename '{each}': expected a name of its own for each tensor, found two with the same")
        found = Found({names[name]: whole for name, whole in found.model.items()}, {names[name]: kinds for name, kinds in found.states.items()})
    return found


def number_of_updates(found: Found, given: int | None) -> int:
    """How many updates there were: what the optimizer says of all parameters, or what the caller does."""
    counts = {float(kinds["step"].read(f"optimizer: step of {name}")) for name, kinds in found.states.items() if "step" in kinds}
    if len(counts) > 1:
        raise CheckpointError(f"optimizer: expected one number of steps for all parameters, found {sorted(counts)}")
    if counts and not 0 <= (count := counts.pop()) == int(count) < 2**53:
        raise CheckpointError(f"optimizer: expected a whole number of steps, found {count}")
    if given is None and not found.states:
        raise CheckpointError("expected the states of an optimizer, found none: for weights alone, give a TARGET that ends in .safetensors; "
                              "for an optimizer without states, say --step")
    if given is None and not any("step" in kinds for kinds in found.states.values()):
        raise CheckpointError("optimizer: expected how many steps there were, which SGD does not say: give --step")
    return int(count) if found.states and any("step" in kinds for kinds in found.states.values()) else given


def write_weights(found: Found, target: Path) -> None:
    """Parameters and buffers, as one file."""
    tensors = {name: whole.read(name) for name, whole in found.model.items()}
    with _write.replacing(target) as part:
        save_file(tensors, part, {"format": "pt"})


def groups(tensors: dict[str, Whole]) -> Iterator[dict[str, Whole]]:
    """What goes to each file."""
    group: dict[str, Whole] = {}
    size = 0
    for name, whole in tensors.items():
        bytes_ = whole.dtype.itemsize * torch.Size(whole.sizes).numel()
        if group and size + bytes_ > FILE:
            yield group
            group, size = {}, 0
        group[name] = whole
        size += bytes_
    yield group


def blocks(path: Path) -> dict[str, object]:
    """What a rank's list says of a file."""
    with open(path, "rb") as file:
        sums = [xxhash.xxh3_64_hexdigest(block) for block in iter(lambda: file.read(BLOCK), b"")]
    return {"bytes": path.stat().st_size, "blocks": sums}


def write_checkpoint(found: Found, target: Path, updates: int, step: int, position: int) -> None:
    """A folder as include/fsdp/Archive/Checkpoint.h describes it, of one rank. It appears when it is whole."""
    tensors = dict(found.model)
    for name, kinds in found.states.items():
        tensors |= {f"optim.state.{name}.{kind}": whole for kind, whole in kinds.items() if kind != "step"}
    steps = {f"optim.state.{name}.step": torch.tensor(float(updates)) for name in found.states}
    both = tensors.keys() & steps.keys() | {name for name in found.model if name.startswith("optim.state.")}
    if both:
        raise CheckpointError(f"expected names of parameters that do not begin with optim.state., found {sorted(both)[0]}")
    shapes = {name: {"dtype": _SPELLED[whole.dtype], "shape": list(whole.sizes)} for name, whole in tensors.items()}
    shapes |= {name: {"dtype": "F32", "shape": []} for name in steps}
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=target.resolve().parent) as place:
        folder = Path(place) / target.name
        (folder / "ranks").mkdir(parents=True)
        parts, files = list(groups(tensors)), {}
        for i, part in enumerate(parts):
            values = {name: whole.read(name) for name, whole in part.items()} | (steps if i == 0 else {})
            # As torch.distributed.checkpoint's HuggingFaceStorageReader wants it.
            saved = json.dumps({name: {"saved_offsets": [0] * value.dim()} for name, value in values.items()})
            name = f"shard-00001-model-{i + 1:05}-of-{len(parts):05}.safetensors"
            save_file(values, folder / name, {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": saved})
            files[name] = blocks(folder / name)
        own = "ranks/rank-00001.safetensors"
        save_file({}, folder / own)
        files[own] = blocks(folder / own)
        rank_list = json.dumps(files, indent=2) + "\n"
        (folder / "ranks" / "rank-00001.json").write_text(rank_list)
        manifest = {"version": 1, "step": step, "position": position, "updates": updates, "ranks": 1, "mesh": "PyTorch", "facts": {}, "names": {},
                    "tensors": dict(sorted(shapes.items())), "lists": [xxhash.xxh3_64_hexdigest(rank_list.encode())]}
        text = json.dumps(manifest, indent=2).removesuffix("\n}") + ",\n"
        (folder / "manifest.json").write_text(f'{text}  "checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n')
        os.rename(folder, target)


def convert(
    sources: Sequence[Path], target: Path, *, model: str | None = None, renames: Sequence[str] = (), step: int | None = None, position: int = 0
) -> str:
    """Returns what was written, in words. Raises CheckpointError and OSError; TARGET appears only when it is whole."""
    if os.path.lexists(target):
        raise CheckpointError(f"{target}: expected a target that is not there yet")
    _write.check(target)
    found = rename(classify(read(sources), model), renames)
    named = [*found.model.items(), *((f"{kind} of {name}", whole) for name, kinds in found.states.items() for kind, whole in kinds.items())]
    for name, whole in named:
        if whole.dtype not in _SPELLED:
            raise CheckpointError(f"{name}: expected a type that safetensors has, found {whole.dtype}")
        whole.check(name)
    for name, kinds in found.states.items():
        if name not in found.model:
            raise CheckpointError(f"optimizer: expected states of the model's parameters, found some of {name}, which the model lacks")
        for kind, whole in kinds.items():
            expected = () if kind == "step" else found.model[name].sizes
            if whole.sizes != expected and not (kind == "step" and whole.sizes == (1,)):
                raise CheckpointError(f"optimizer: {kind} of {name}: expected sizes {expected}, found {whole.sizes}")
    if target.suffix == ".safetensors":
        write_weights(found, target)
        return f"{target}: {len(found.model)} tensors" + (", without the states of the optimizer" if found.states else "")
    updates = number_of_updates(found, step)
    write_checkpoint(found, target, updates, updates if step is None else step, position)
    return f"{target}: {len(found.model)} tensors, states of {len(found.states)} parameters, after step {updates if step is None else step}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m fsdp_mlir.convert_checkpoint", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+", metavar="SOURCE")
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument("--model", metavar="KEY", help="the dictionary that has the model's tensors, if several have some: model, or app.model")
    parser.add_argument("--rename", action="append", default=[], metavar="REGEX=TEXT", help="changes names of parameters and buffers, as of fsdp-run")
    parser.add_argument("--step", type=int, metavar="N", help="steps that are done (default: those of the optimizer)")
    parser.add_argument("--position", type=int, default=0, metavar="N",
                        help="samples of the data that all ranks have taken (default 0: data begin anew)")
    options = parser.parse_args(arguments)
    try:
        for name in ("step", "position"):
            if not 0 <= (getattr(options, name) or 0) < 2**63:
                raise CheckpointError(f"--{name}: expected a number from 0, found {getattr(options, name)}")
        print(convert(options.sources, options.target, model=options.model, renames=options.rename, step=options.step, position=options.position))
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
