"""What a module keeps besides its parameters and buffers, and memory that its tensors share: a graph shows neither."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor

from fsdp_mlir._constants import Constants
from fsdp_mlir.errors import CaptureError

_OF_MODULES = frozenset(key for key in vars(torch.nn.Module()) if "hook" not in key)  # a forward may install hooks, once
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ABSENT = object()


@dataclasses.dataclass
class Change:
    module: str  # in words
    attribute: str
    holder: Any
    key: Any
    before: Any
    now: Any

    @property
    def is_number(self) -> bool:
        return isinstance(self.now, (bool, int, float, complex, str)) and isinstance(self.before, (bool, int, float, complex, str))

    @property
    def is_state(self) -> bool:
        return self.is_number or any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(self.now))


class Attributes:
    """The attributes of all modules, and what the lists, dictionaries and objects among them hold, when this is made."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._records: list[tuple[str, str, Any, dict[Any, Any]]] = []  # module, path of the holder, holder, content
        seen: set[int] = set()
        for path, part in module.named_modules():
            self._visit(f"module `{path}`" if path else "the model itself", "", vars(part), seen)

    def _visit(self, module: str, path: str, holder: Any, seen: set[int]) -> None:
        if id(holder) in seen:
            return
        seen.add(id(holder))
        content = _content(holder, path)
        self._records.append((module, path, holder, content))
        for key, value in content.items():
            inner = _holder(value)
            if inner is not None:
                self._visit(module, f"{path}.{key}" if path else str(key), inner, seen)

    def changes(self) -> Iterator[Change]:
        """Each value that is another one now."""
        for module, path, holder, before in self._records:
            now = _content(holder, path)
            for key in dict.fromkeys([*before, *now]):
                old, new = before.get(key, _ABSENT), now.get(key, _ABSENT)
                if not _is_same(old, new):
                    yield Change(module, f"{path}.{key}" if path else str(key), holder, key, old, new)

    def restore(self) -> None:
        for _, path, holder, before in self._records:
            now = _content(holder, path)  # what has not changed may not be changeable
            changed = {key: value for key, value in before.items() if now.get(key, _ABSENT) is not value}
            if not isinstance(holder, dict):
                if changed or len(now) != len(before):
                    holder.clear()
                    (holder.update if isinstance(holder, set) else holder.extend)(before.values())
                continue
            for key in now.keys() - before.keys():
                del holder[key]
            if changed:
                holder.update(changed)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for module, path, _, content in self._records:
            for key, value in content.items():
                if isinstance(value, torch.Tensor):
                    yield f"attribute `{f'{path}.{key}' if path else key}` of {module}", value


def _is_same(a: Any, b: Any) -> bool:
    """torch.export replaces lists and dictionaries by others like them."""
    if a is b or type(a) is type(b) and isinstance(a, _PLAIN) and a == b:
        return True
    if type(a) is not type(b) or not isinstance(a, (list, tuple, dict)) or len(a) != len(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_is_same(a[key], b[key]) for key in a)
    return all(map(_is_same, a, b))


def keep_constants(changes: list[Change], constants: Constants) -> bool:
    """Gives attributes that were set to constants their contents. Whether all the tensors set were constants."""
    complete = True

    def content(value: FakeTensor) -> torch.Tensor:
        nonlocal complete
        known = constants.content(value)
        complete = complete and known is not None
        return value if known is None else known.clone()

    for change in changes:
        if change.now is not _ABSENT and isinstance(change.holder, (dict, list)):
            change.holder[change.key] = pytree.tree_map_only(FakeTensor, content, change.now)
    return complete


def check_memory(module: torch.nn.Module, attributes: Attributes, written: set[str], constants: list[torch.Tensor]) -> None:
    """Raises CaptureError if memory that a step changes, of trained parameters or of `written` buffers, belongs to two tensors.

    Attributes count if the graph has them among its `constants`.
    """
    tensors: dict[int, tuple[str, torch.Tensor, bool]] = {}
    for name, parameter in module.named_parameters():
        tensors[id(parameter)] = (f"parameter `{name}`", parameter, parameter.requires_grad)
    for name, buffer in module.named_buffers():
        tensors.setdefault(id(buffer), (f"buffer `{name}`", buffer, name in written))
    used = {value.untyped_storage()._cdata for value in constants}
    for name, value in attributes.tensors():
        if value.layout == torch.strided and value.untyped_storage()._cdata in used:
            tensors.setdefault(id(value), (name, value, False))
    groups = collections.defaultdict(list)
    for name, tensor, changes in tensors.values():
        if tensor.layout == torch.strided and tensor.numel():
            groups[tensor.untyped_storage()._cdata].append((*_extent(tensor), name, changes))
    for group in groups.values():
        group.sort()
        for (_, end, first, first_changes), (begin, _, second, second_changes) in zip(group, group[1:]):
            if begin < end and (first_changes or second_changes):
                advice = "tie them by assigning one to the other (b.weight = a.weight, not .data), or clone() one"
                raise CaptureError(f"{first} and {second} share memory, which a graph cannot keep; {advice}")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte in its storage, and the one after the last."""
    first = tensor.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def _holder(value: Any) -> Any:
    """What holds the parts of `value`; None if it is a value by itself."""
    if isinstance(value, (dict, list, set, collections.deque)):
        return value
    if isinstance(value, (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, *_PLAIN)):
        return None
    return getattr(value, "__dict__", None)


def _content(holder: Any, path: str) -> dict[Any, Any]:
    if isinstance(holder, dict):
        return {k: v for k, v in holder.items() if path or k not in _OF_MODULES}
    return {item: item for item in holder} if isinstance(holder, set) else dict(enumerate(holder))
