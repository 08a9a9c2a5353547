"""Checkpoints of PyTorch that are pickles, read without running any code of theirs.

A file of `torch.save` is read with `weights_only=True`: the classes of PyTorch that a state dict of FSDP holds (ShardedTensor,
DTensor and what they consist of) are stand-ins here, which only keep what was written. The `.metadata` of
`torch.distributed.checkpoint` is read by an unpickler with a list of classes, all of which are plain data.

What comes out is a `Tree`: by path, a tensor in pieces. Nothing in it was checked against the rest: see `Whole.read`.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata

from fsdp_mlir.errors import CheckpointError

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A box of a tensor: where it begins, how large it is, and a function that reads it."""

    offsets: Sizes
    sizes: Sizes
    read: Callable[[], torch.Tensor]


@dataclass
class Whole:
    """A tensor that lies in pieces."""

    dtype: torch.dtype
    sizes: Sizes
    pieces: dict[tuple[Sizes, Sizes], Piece] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Of several with the same elements, as replicas have them, the first is kept."""
        self.pieces.setdefault((piece.offsets, piece.sizes), piece)

    def check(self, name: str) -> None:
        """Raises CheckpointError unless the pieces have as many elements as the tensor, each inside of it."""
        if not all(0 <= size < 1 << 40 for size in self.sizes):
            raise CheckpointError(f"{name}: expected sizes from 0 to 2^40, found {self.sizes}")
        for piece in self.pieces.values():
            if not (len(piece.offsets) == len(piece.sizes) == len(self.sizes)
                    and all(0 <= offset and 0 <= size and offset + size <= whole
                            for offset, size, whole in zip(piece.offsets, piece.sizes, self.sizes, strict=True))):
                raise CheckpointError(f"{name}: expected pieces of a tensor of sizes {self.sizes}, "
                                      f"found one of sizes {piece.sizes} at {piece.offsets}")
        found = sum(math.prod(piece.sizes) for piece in self.pieces.values())
        if found != math.prod(self.sizes):
            raise CheckpointError(f"{name}: expected {math.prod(self.sizes)} elements, found {found}: give the files of all ranks, of one checkpoint")

    def read(self, name: str) -> torch.Tensor:
        """All of it; what `check` has accepted."""
        result, isThere = torch.empty(self.sizes, dtype=self.dtype), torch.zeros(self.sizes, dtype=torch.bool)
        for piece in self.pieces.values():
            tensor = piece.read()
            if tensor.dtype != self.dtype or tuple(tensor.shape) != piece.sizes:
                raise CheckpointError(f"{name}: expected a piece of sizes {piece.sizes} in {self.dtype}, "
                                      f"found {tuple(tensor.shape)} in {tensor.dtype}")
            box = tuple(slice(offset, offset + size) for offset, size in zip(piece.offsets, piece.sizes, strict=True))
            result[box] = tensor
            isThere[box] = True
        if not isThere.all():
            raise CheckpointError(f"{name}: expected pieces that do not overlap: some elements are in two, and others in none")
        return result


Keys = tuple[str, ...]
Tree = dict[Keys, Whole]


def _expect(condition: Any, where: str, what: str) -> None:
    if not condition:
        raise CheckpointError(f"{where}: expected {what}")


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """What the unpicklers, and the code that looks at what they made, raise for bytes that are no checkpoint."""
    try:
        yield
    except (CheckpointError, OSError):
        raise
    except MemoryError as error:
        raise CheckpointError(f"{path}: expected {what} that fits into memory") from error
    except Exception as error:
        text = str(error)
        foreign = re.search(r"(?:unsupported|Unsupported global:) GLOBAL (\S+)|^class (\S+)$", text)
        if foreign:
            raise CheckpointError(f"{path}: expected tensors, numbers and texts in dictionaries and lists, found {foreign[1] or foreign[2]}: "
                                  "what could run code is not read") from error
        # What torch.load advises beside its reason is to trust the file.
        reason = next(iter(text.rpartition("WeightsUnpickler error:")[2].strip().splitlines()), "")[:200]
        reason = f" ({reason})" if reason and not re.search("weights_only", reason) else ""
        raise CheckpointError(f"{path}: expected {what}, found a file that is damaged or something else{reason}") from error


#===-- Files of torch.save ---------------------------------------------------------------------------------------------------------------------===#


class _Record:
    """Stands for an object: its arguments, and its state as attributes."""

    def __new__(cls, *arguments: Any) -> _Record:
        result = super().__new__(cls)
        result.arguments = arguments
        return result

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        slots = state[1] if isinstance(state, tuple) and len(state) == 2 else state
        if isinstance(slots, dict):
            self.__dict__.update({str(key): value for key, value in slots.items()})


class _Wrapper(torch.Tensor):
    """Stands for a tensor that consists of others."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        raise CheckpointError(f"expected a tensor to be read, found {function} of it")

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _ShardedTensor(_Wrapper):
    pass


class _DTensor(_Wrapper):
    pass


def _stand_in(name: str) -> tuple[type, str]:
    return type(name.rpartition(".")[2], (_Record,), {}), f"torch.distributed.{name}"


_SHARD, _REPLICATE = _stand_in("tensor.placement_types.Shard"), _stand_in("tensor.placement_types.Replicate")
_STAND_INS = [
    (_ShardedTensor, "torch.distributed._shard.sharded_tensor.api.ShardedTensor"),
    (_DTensor, "torch.distributed.tensor.DTensor"),
    _SHARD,
    _REPLICATE,
    *map(_stand_in, (
        "_mesh_layout._MeshLayout", "_shard.metadata.ShardMetadata", "_shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        "_shard.sharded_tensor.metadata.ShardedTensorMetadata", "_shard.sharded_tensor.metadata.TensorProperties",
        "_shard.sharded_tensor.shard.Shard", "_shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec", "device_mesh.DeviceMesh",
        "remote_device._remote_device", "tensor._dtensor_spec.DTensorSpec", "tensor._dtensor_spec.ShardOrderEntry",
        "tensor._dtensor_spec.TensorMeta")),
    # A member of an enumeration, or a class inside of a class: nobody asks which.
    (lambda *arguments: _Record, "builtins.getattr"),
    (_Record, "fsdp_mlir._pickles._Record"),
]  # fmt: skip


def _load(source: Path | io.BytesIO, path: Path, mmap: bool) -> Any:
    """`torch.load` of tensors in plain containers, and of the stand-ins; `path` is for errors."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # what others have allowed is not meant for a file of a stranger
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_STAND_INS), _reading(path, "a file of torch.save"):
            warnings.simplefilter("ignore")
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _plain(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """The tensor, if all of its elements are there: a stride of 0 makes a terabyte of one element."""
    _expect(type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.device.type == "cpu"
            and not tensor.is_quantized, where, f"a dense tensor, found {type(tensor).__name__}")
    _expect(tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size(), where, "an element of the file for each of its elements")
    return tensor.detach()


def _pieces(value: torch.Tensor, where: str) -> Iterator[tuple[Sizes, torch.Tensor]]:
    """Where each local part of a tensor begins, and the part."""
    if type(value) is _ShardedTensor:
        for shard in value.state[0]:
            yield tuple(shard.metadata.shard_offsets), _plain(shard.tensor, where)
    elif type(value) is _DTensor:
        state = value.state[1] if isinstance(value.state, tuple) else value.state
        mesh, placements = state["_spec"].mesh, state["_spec"].placements
        local = _plain(state["_local_tensor"], where)
        counts = _flat(mesh._layout.shape if hasattr(mesh._layout, "shape") else mesh._layout.arguments[0])
        begin, sizes = [0] * value.dim(), list(value.shape)
        for placement, place, count in zip(placements, mesh._coordinate_on_dim, counts, strict=True):
            if type(placement) is _SHARD[0]:  # as torch.chunk
                chunk = -(-sizes[placement.dim] // count)
                first = min(place * chunk, sizes[placement.dim])
                begin[placement.dim] += first
                sizes[placement.dim] = min(chunk, sizes[placement.dim] - first)
            else:
                _expect(type(placement) is _REPLICATE[0], where, f"shards and replicas, found {placement}")
        _expect(list(local.shape) == sizes, where, f"a local part of sizes {tuple(sizes)}, found {tuple(local.shape)}")
        yield tuple(begin), local
    else:
        yield (0,) * value.dim(), _plain(value, where)


def _flat(shape: Any) -> Sizes:
    """(2, 2) of a mesh layout, which has 2 for (2,)."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


def read_file(path: Path) -> Tree:
    """What one rank has saved by `torch.save`: a state dict, or a dictionary of them."""
    with open(path, "rb"):  # OSError says it better than torch.load
        pass
    tree: Tree = {}

    def walk(value: Any, where: Keys) -> None:
        name = f"{path}: {'.'.join(where)}"
        if isinstance(value, dict):
            for key, each in value.items():
                if not isinstance(key, str):
                    _expect(not isinstance(key, int) or where[-1:] != ("state",), name, "states by the names of parameters, as "
                            "FSDP.optim_state_dict and get_optimizer_state_dict have them; found numbers")
                    continue
                walk(each, (*where, key))
        elif isinstance(value, torch.Tensor):
            whole = tree[where] = Whole(value.dtype, tuple(value.shape))
            for offsets, tensor in _pieces(value, name):
                whole.add(Piece(offsets, tuple(tensor.shape), lambda tensor=tensor: tensor))
        elif where[-1:] == ("step",) and isinstance(value, (int, float)):
            walk(torch.tensor(float(value)), where)

    loaded = _load(path, path, mmap=zipfile.is_zipfile(path))
    _expect(isinstance(loaded, dict), str(path), f"a state dict, or a dictionary of them, found {type(loaded).__name__}")
    with _reading(path, "state dicts of FSDP"):
        walk(loaded, ())
        for where, whole in tree.items():
            other = tree.get((*where[:-1], "exp_avg"))
            if where[-1] == "exp_avg_sq" and other and whole.pieces and other.pieces:
                first, second = (next(iter(each.pieces.values())).read() for each in (other, whole))
                _expect(first.numel() == 0 or first.data_ptr() != second.data_ptr(), f"{path}: {'.'.join(where)}", "a state of its own, found that "
                        "exp_avg is the same memory, as FSDP1 makes them on CPUs with offload_to_cpu=True: save with offload_to_cpu=False")
    return tree


#===-- Folders of torch.distributed.checkpoint -------------------------------------------------------------------------------------------------===#

METADATA = ".metadata"


def _member(owner: Any, name: Any) -> Any:
    """`getattr` of an enumeration."""
    if owner is not metadata._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError("class builtins.getattr")
    return owner.__members__[name]


class _MetadataUnpickler(pickle.Unpickler):
    _CLASSES = {
        **{("torch.distributed.checkpoint.metadata", kind.__name__): kind
           for kind in (metadata.BytesStorageMetadata, metadata.ChunkStorageMetadata, metadata.Metadata, metadata.MetadataIndex,
                        metadata.StorageMeta, metadata.TensorProperties, metadata.TensorStorageMetadata, metadata._MEM_FORMAT_ENCODING)},
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
        ("torch", "Size"): torch.Size,
        ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
        ("builtins", "getattr"): _member,
        # Where it was written once.
        ("pathlib", "PosixPath"): lambda *parts: None,
        ("pathlib", "WindowsPath"): lambda *parts: None,
        **{("torch", str(dtype).removeprefix("torch.")): dtype for dtype in (
            torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)},
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._CLASSES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"class {module}.{name}") from None


def read_folder(folder: Path) -> Tree:
    """What `torch.distributed.checkpoint.save` has written."""
    path = folder / METADATA
    with open(path, "rb") as file, _reading(path, "the metadata of torch.distributed.checkpoint"):
        found = _MetadataUnpickler(file).load()
        _expect(isinstance(found, metadata.Metadata), str(path), f"the metadata of torch.distributed.checkpoint, found {type(found).__name__}")
        tree: Tree = {}
        for name, entry in found.state_dict_metadata.items():
            if not isinstance(entry, metadata.TensorStorageMetadata):
                continue  # hyper-parameters, which are pickles of their own
            where = tuple(map(str, (found.planner_data or {}).get(name, (name,))))
            whole = Whole(entry.properties.dtype, tuple(entry.size))
            _expect(where and isinstance(whole.dtype, torch.dtype) and all(type(size) is int for size in whole.sizes),
                    f"{path}: {name}", "a type and sizes")
            _expect(where not in tree, f"{path}: {name}", "a name of its own")
            tree[where] = whole
            for chunk in entry.chunks:
                stored = _find(found, name, chunk, path)
                whole.add(Piece(tuple(chunk.offsets), tuple(chunk.sizes), _Chunk(folder, stored, whole.dtype, tuple(chunk.sizes), name)))
        return tree


def _find(found: metadata.Metadata, name: str, chunk: metadata.ChunkStorageMetadata, path: Path) -> filesystem._StorageInfo:
    stored = found.storage_data.get(metadata.MetadataIndex(name, chunk.offsets))
    where = f"{path}: {name}"
    _expect(isinstance(stored, filesystem._StorageInfo), where, f"a place of its piece at {tuple(chunk.offsets)}, found none")
    _expect(stored.relative_path == Path(stored.relative_path).name, where, f"the name of a file in the folder, found {stored.relative_path!r}")
    _expect(stored.transform_descriptors is None, where, f"plain files, found {stored.transform_descriptors}")
    return stored


@dataclass(frozen=True)
class _Chunk:
    """Reads a piece of a folder."""

    folder: Path
    stored: filesystem._StorageInfo
    dtype: torch.dtype
    sizes: Sizes
    name: str

    def __post_init__(self) -> None:
        path, stored = self.folder / self.stored.relative_path, self.stored
        size = path.stat().st_size
        numbers = (stored.offset, stored.length, *self.sizes)
        _expect(all(type(number) is int and number >= 0 for number in numbers), f"{path}: {self.name}", "sizes and places of at least 0")
        # Nobody sets memory aside for more than there is.
        _expect(math.prod(self.sizes) * self.dtype.itemsize <= stored.length and stored.offset + stored.length <= size,
                f"{path}: {self.name}", f"{stored.length} bytes at {stored.offset} for sizes {self.sizes}, found a file of {size} bytes")

    def __call__(self) -> torch.Tensor:
        path = self.folder / self.stored.relative_path
        with open(path, "rb") as file:
            file.seek(self.stored.offset)
            tensor = _load(io.BytesIO(file.read(self.stored.length)), path, mmap=False)
        _expect(isinstance(tensor, torch.Tensor), f"{path}: {self.name}", f"a tensor, found {type(tensor).__name__}")
        return _plain(tensor, f"{path}: {self.name}")
