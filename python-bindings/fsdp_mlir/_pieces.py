"""What a rank holds of a tensor, in the protocol by which torch.distributed.checkpoint saves and loads DTensors.

A rank holds an interval of a flat parameter, which is several boxes of a tensor: more than a DTensor can say.
"""

from __future__ import annotations

from typing import Any

import torch
from fsdp_mlir.errors import FSDPError
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


class Pieces(torch.Tensor):
    """A tensor of a plan: its shape and dtype are those of the whole, its elements those of this rank, in the memory that is trained.

    `pieces` has pairs of an offset in each axis and a view. What is written to a view is trained on from the next step.
    It is for torch.distributed.checkpoint alone, and has no operators: `Trainer.full_state_dict()` has tensors to compute with.
    """

    pieces: list[tuple[list[int], torch.Tensor]]

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, pieces: list[tuple[list[int], torch.Tensor]]) -> Pieces:
        device = pieces[0][1].device if pieces else "cpu"
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        self.pieces = pieces
        return self

    def __init__(self, *_: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:  # as the planner of a load does
            (self,) = args
            return Pieces(tuple(self.shape), self.dtype, self.pieces)
        if func is torch.ops.aten.new_empty.default:  # as async_save does, which then copies the attributes
            self, shape = args
            return Pieces(tuple(shape), self.dtype, [])
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") in (None, args[0].dtype) and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return Pieces(tuple(args[0].shape), args[0].dtype, args[0].pieces)  # as accelerate does, which moves states to the device of the model
        raise NotImplementedError(f"{func} on what one rank holds of a tensor; Trainer.full_state_dict() has whole ones")

    def __reduce_ex__(self, _: Any) -> Any:
        raise FSDPError("expected states of a plan in torch.distributed.checkpoint, found a pickle, which would have a part of them; use Trainer.save, "
                        "or full_state_dict()")  # fmt: skip

    def __repr__(self, **_: Any) -> str:
        return f"Pieces(shape={list(self.shape)}, dtype={self.dtype}, pieces={[(o, list(t.shape)) for o, t in self.pieces]})"

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offsets), view.shape) for offsets, view in self.pieces]

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [WriteItem(MetadataIndex(fqn, chunk.offsets, i), WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, self.shape))
                for i, chunk in enumerate(self.__create_chunk_list__())]  # fmt: skip

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return next(view for offsets, view in self.pieces if torch.Size(offsets) == index.offset)
