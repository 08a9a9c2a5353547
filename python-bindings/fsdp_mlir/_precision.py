"""Mixed precision as FSDP has it: modules compute with casts of what they keep.

The casts are part of the graph: a program takes parameters and buffers as the module has them, and returns gradients of their
dtypes. The compiler puts the cast of a parameter in front of its all-gather, and that of a gradient after the reduction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
from torch.distributed.utils import _apply_to_tensors

from fsdp_mlir.errors import CaptureError

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}
_FIELDS = ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")
_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class _Policy:
    """What FSDP1 or FSDP2 does with a module. A dtype that is None is not changed."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    casts_inputs: bool = False
    ignored: tuple[type, ...] = ()  # classes of modules inside that have no policy

    @staticmethod
    def of(given: Any, is_root: bool) -> _Policy:
        if not isinstance(given, (MixedPrecision, MixedPrecisionPolicy)):
            raise CaptureError(
                "mixed_precision takes MixedPrecision or MixedPrecisionPolicy of torch.distributed.fsdp, or a dict from regular "
                f"expressions for names of modules to these, not a {type(given).__name__}"
            )
        dtypes = {field: getattr(given, field, None) for field in _FIELDS}
        for field, dtype in dtypes.items():
            if dtype is not None and dtype not in _DTYPES:
                raise CaptureError(f"{field} is {str(dtype).removeprefix('torch.')}; choose one of {', '.join(_DTYPES.values())}")
        if isinstance(given, MixedPrecisionPolicy):
            return _Policy(**dtypes, casts_inputs=given.cast_forward_inputs)
        if given.keep_low_precision_grads:
            raise CaptureError(
                "keep_low_precision_grads gives the optimizer gradients of another dtype than the parameters', which that of a plan does "
                "not take (nor does torch.optim.AdamW); leave it out: reduce_dtype decides what is sent"
            )
        casts_inputs = given.cast_root_forward_inputs if is_root else given.cast_forward_inputs
        return _Policy(**dtypes, casts_inputs=casts_inputs, ignored=tuple(given._module_classes_to_ignore))


class _Patterns:
    """Which modules have a policy of their own."""

    def __init__(self, mixed_precision: Any) -> None:
        by_pattern = mixed_precision if isinstance(mixed_precision, Mapping) else {"": mixed_precision}
        self._policies = {p: [_Policy.of(given, is_root) for is_root in (False, True)] for p, given in by_pattern.items()}
        self._unused = set(self._policies)
        for pattern in self._policies:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise CaptureError(f"mixed_precision: {pattern!r} is no regular expression: {error}") from error

    def match(self, path: str) -> _Policy | None:
        found = {pattern: policies[not path] for pattern, policies in self._policies.items() if re.fullmatch(pattern, path)}
        self._unused -= set(found)
        if len(set(found.values())) > 1:
            raise CaptureError(
                f"module `{path}` has different policies of mixed_precision, by {' and '.join(map(repr, found))}; let one of them match it"
            )
        return next(iter(found.values()), None)

    def check_used(self, paths: list[str]) -> None:
        for pattern in self._policies:
            if pattern in self._unused:
                names = ", ".join(f"`{path}`" for path in paths[1 : _SHOWN + 1])
                raise CaptureError(
                    f"mixed_precision: no module has a name that {pattern!r} matches as a whole; there are {names}"
                    f"{', ...' if len(paths) > _SHOWN + 1 else ''}, and '' for the model itself"
                )


@dataclasses.dataclass
class _Kept:
    """A parameter or buffer: its first name, in which dtypes it takes part, and where modules keep it."""

    name: str
    dtypes: tuple[torch.dtype, torch.dtype]  # of the computation, and of sums over ranks
    places: list[tuple[dict[str, Any], str]]


class Precision:
    """What a module computes in which precision.

    `mixed_precision` is a policy for the whole module, or one for each module whose whole name a regular expression matches, and
    for what that contains; the innermost counts. A module with a policy of its own casts its inputs and outputs like one that
    FSDP wraps.

    Raises CaptureError for a policy that cannot be, that contradicts another or that applies to nothing.
    """

    def __init__(self, module: torch.nn.Module, mixed_precision: Any = None) -> None:
        self._kept: dict[int, _Kept] = {}  # by the identity of the tensor
        self._hooks: dict[torch.nn.Module, Callable[[torch.nn.Module], list[Any]]] = {}
        self._casts: list[_Kept] = []
        self.metadata: dict[str, dict[str, str]] = {}  # see capture
        if mixed_precision is None:
            return
        self._read(module, _Patterns(mixed_precision))
        tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
        self._casts = [kept for key, kept in self._kept.items() if tensors[key].dtype != kept.dtypes[0]]
        trained = [self._kept[id(p)] for p in module.parameters() if id(p) in self._kept]
        self.metadata = {
            "param_dtype": {kept.name: _DTYPES[kept.dtypes[0]] for kept in trained if kept in self._casts},
            "reduce_dtype": {kept.name: _DTYPES[kept.dtypes[1]] for kept in trained if kept.dtypes[1] != kept.dtypes[0]},
        }

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While this is entered, the module computes like that; what it writes to its buffers is in them afterwards."""
        with contextlib.ExitStack() as stack:
            for kept in self._casts:
                stack.enter_context(_cast_in_place(kept))
            for part, add in self._hooks.items():
                for handle in add(part):
                    stack.callback(handle.remove)
            yield

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """What PyTorch rejects while this is entered is the policy's fault."""
        try:
            yield
        except RuntimeError as error:
            if not self._hooks:
                raise
            raise CaptureError(
                f"PyTorch cannot compute this model with this mixed_precision: {str(error).splitlines()[0]}; where the dtypes of two modules "
                "meet, the first needs an output_dtype or the second cast_forward_inputs=True"
            ) from error

    def _read(self, module: torch.nn.Module, patterns: _Patterns) -> None:
        policies: dict[str, _Policy] = {}
        for path, part in module.named_modules(remove_duplicate=False):
            own = patterns.match(path)
            policy = own or (policies[path.rpartition(".")[0]] if path else _Policy())
            if own:
                self._hooks[part] = functools.partial(_cast_borders, policy)
            elif isinstance(part, policy.ignored):
                policy = _Policy()
                self._hooks[part] = _keep_full
            policies[path] = policy
            for holder, dtype, reduce in (
                (part._parameters, policy.param_dtype, policy.reduce_dtype),
                (part._buffers, policy.buffer_dtype, None),
            ):
                for key, tensor in holder.items():
                    if tensor is not None and tensor.is_floating_point():
                        computed = dtype or tensor.dtype
                        self._keep(f"{path}.{key}" if path else key, tensor, (computed, reduce or computed), (holder, key))
        patterns.check_used(list(policies))

    def _keep(self, name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, torch.dtype], place: tuple[dict[str, Any], str]) -> None:
        kept = self._kept.setdefault(id(tensor), _Kept(name, dtypes, []))
        kept.places.append(place)
        if kept.dtypes != dtypes:
            place = int(kept.dtypes[0] == dtypes[0])
            what = ("is computed with", "has gradients that are summed")[place]
            raise CaptureError(
                f"`{kept.name}` and `{name}` are one tensor, which by mixed_precision {what} in {_DTYPES[kept.dtypes[place]]} and in "
                f"{_DTYPES[dtypes[place]]}; give all modules that share it one policy"
            )


@contextlib.contextmanager
def _cast_in_place(kept: _Kept) -> Iterator[None]:
    """Modules find the tensor in the dtype that they compute with."""
    holder, key = kept.places[0]
    full = holder[key]
    value = full.to(kept.dtypes[0])
    version = value._version
    try:
        for holder, key in kept.places:
            holder[key] = value
        yield
        now = holder[key]
    finally:
        for holder, key in kept.places:
            holder[key] = full
    if now is not value or now._version != version:
        full.copy_(now)


def _to(dtype: torch.dtype, value: Any) -> Any:
    """The floating-point tensors inside of `value` in another dtype, as FSDP finds them."""
    return _apply_to_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)


def _cast_borders(policy: _Policy, part: torch.nn.Module) -> list[Any]:
    """The hooks of a module that FSDP wraps, as handles."""
    handles = []
    if policy.casts_inputs and policy.param_dtype:
        handles.append(
            part.register_forward_pre_hook(
                lambda _, args, kwargs: (_to(policy.param_dtype, args), _to(policy.param_dtype, kwargs)), prepend=True, with_kwargs=True
            )
        )
    if policy.output_dtype:
        handles.append(part.register_forward_hook(lambda _, args, output: _to(policy.output_dtype, output)))
    return handles


def _keep_full(part: torch.nn.Module) -> list[Any]:
    """The hooks of a module of an ignored class: it computes in f32, and returns the dtype of its last input that was of another."""
    last: list[torch.dtype] = []

    def widen(_: torch.nn.Module, args: Any) -> Any:
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point() or tensor.dtype == torch.float32:
                return tensor
            last.append(tensor.dtype)
            return tensor.to(torch.float32)

        last.clear()
        return _apply_to_tensors(cast, args)

    return [
        part.register_forward_pre_hook(widen),
        part.register_forward_hook(lambda _, args, output: _to(last[-1], output) if last else output),
    ]
