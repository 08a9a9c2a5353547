"""Trains a plan in Python: the loop is the caller's, a step is the plan's."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from fsdp_mlir import _compiled, _first_steps, _native, _ranks
from fsdp_mlir._first_steps import FirstSteps
from fsdp_mlir._optimizer import PlanOptimizer, _same_names
from fsdp_mlir._pieces import Pieces
from fsdp_mlir.errors import FSDPError

Batch = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
"""The inputs of a plan: one tensor, a tuple in their order, or by their names; also an instance of a dataclass with these names."""


class Trainer:
    """One rank of a training: loads a plan, and runs its steps on batches that it is given.

    `plan`: a path, or what has one (`plan.path`). `model`: the module that it was made of; its parameters and buffers are where the
    training begins, and the plan takes them over: afterwards those of the module are on the device meta, so that no second copy stays
    in memory, unless `keep_module`. What else refers to them, as an optimizer of PyTorch, keeps them alive. `weights`: begin with what
    is in this file or folder instead, which `fsdp-run --weights` would take. With neither, the values are those of the archive that the
    plan was made of (`plan.model_path`).

    A plan for several ranks needs as many processes, each with a Trainer, and a process group of them, as `init_process_group` makes
    it with any backend; a plan for one rank needs none. `group`: other ranks than all. On GPUs, the group says who the ranks are, and
    its store connects communicators of the Trainer's own. On CPUs, None makes a group with gloo for this Trainer; one that is given
    needs `send` and `recv` for tensors of the CPU, and is used for nothing else until `close()`.

    `device`: the GPU of this rank, for a plan for cuda, as "cuda:1" or 1. None takes, in this order, what `init_process_group` was given
    as `device_id`; the current device, once CUDA is in use (`torch.cuda.set_device(local_rank)`, ahead of the Trainer); $LOCAL_RANK's, as
    torchrun sets it; the number of the rank among those of its machine. Each rank has a GPU of its own.

    `lr`, `betas`, `eps`, `weight_decay`, `momentum`: as torch.optim.AdamW and SGD have them; what the plan's optimizer has not is
    ignored. `seed`: rank r draws its random numbers as after `torch.manual_seed(seed + r)`. `timeout`: seconds that a rank waits for
    another one. `overlap`: a second thread for collectives. `trusted`: operators of the user's that the plan may run, by full name.

    `verify_first_step`: compares the first two steps with eager PyTorch on the module: loss, gradients and buffers, and what the optimizer
    of PyTorch makes of parameters and states. A difference is an FSDPError of `step`. It costs two eager steps, and for that time memory
    of about nine times the whole parameters on each rank. None: where it can be done and the parameters take at most 32 MiB.

    A rank computes with one thread. Methods may be called from any thread, one at a time; they hold no GIL, and leave the number of
    threads, the grad mode, the inference mode, the current GPU and its stream as they were. What they do on a GPU has its place in the
    current stream, as operators of PyTorch have. Where ranks are several, all of them call the same methods
    in the same order. Everything raises FSDPError, with one sentence.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | Any,
        model: torch.nn.Module | None = None,
        *,
        weights: str | os.PathLike[str] | None = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | int | None = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        momentum: float = 0.0,
        seed: int = 0,
        timeout: float = 600.0,
        overlap: bool = False,
        trusted: Sequence[str] = (),
        keep_module: bool = False,
        verify_first_step: bool | None = None,
    ) -> None:
        self._runtime = _native.runtime()
        self.path = os.fspath(getattr(plan, "path", plan))
        archive = getattr(plan, "model_path", None)
        if model is None and weights is None and archive is None:
            raise FSDPError(f"{self.path}: expected values to begin with, found none; give the model, weights=, or a Plan that knows its archive")
        self._joined: _ranks.Place | None = None
        self._session = self._runtime.PlanSession(self.path)
        try:
            self._joined = place = _ranks.Place(self.path, self._session.device, device, group, timeout)
            self._session.start(place.group, timeout, overlap, list(trusted), str(_native.libraries()), place.gpu)
            self._group = place.group
            self._session.set_seed(seed)
            self._parameters = {p.name: p for p in self._session.parameters()}
            self._programs: list[str] = self._session.step_programs
            self._inputs = {self._programs[0]: self._session.inputs("step")}
            self._model = None if model is None else _compiled._original(model)
            self._spell: Callable[[str], str] = str if self._model is None else self._match(self._model)
            if weights is not None or self._model is None:
                self._session.load_weights(os.fspath(archive if weights is None else weights))
            else:
                self._take(self._model)
        except BaseException:
            self.close()
            raise
        self._keeps = keep_module
        if self._model is not None and not keep_module:
            self._place(self._model, lambda _, tensor: torch.empty_like(tensor, device="meta"))
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        self.optimizer = PlanOptimizer(self, hyper) if self._session.update_rule else None
        """Its `param_groups` are read by each step: for torch.optim.lr_scheduler, and for checkpoints. None if the plan updates nothing."""
        self._first_steps: FirstSteps | None = None
        if self._session.device == "cpu":
            self._first_steps = _first_steps.start(self, plan, verify_first_step)
        elif verify_first_step:
            raise FSDPError(f"{self.path}: expected a plan for cpu to compare with eager PyTorch, found one for cuda; leave out verify_first_step=True")

    # Training

    def step(self, batch: Batch | list[Batch]) -> torch.Tensor:
        """Runs a step on this rank's batch: forward, backward, and update. Returns the loss, the mean over all ranks.

        Each input has the shape and dtype that the plan was made for. A plan that accumulates takes a list of as many micro-batches; the
        loss is their mean. (A list of tensors is one batch of several inputs, as a DataLoader makes it.) The loss is one number of the
        plan's dtype, without a gradient. It is where the plan is: on a GPU the step may be under way when this returns, and
        `float(loss)` waits for it. A batch for a GPU may be in host memory or on that GPU.
        """
        if self.optimizer is not None:
            self.optimizer._send()
        # A DataLoader makes lists of the inputs of one batch.
        is_one = not isinstance(batch, list) or (len(self._inputs[self._programs[0]]) != 1 and all(isinstance(b, torch.Tensor) for b in batch))
        batches = [batch] if is_one else batch
        inputs = [self._tensors(b, self._programs[0]) for b in batches]
        if (first := self._comparison()) is None:
            return self._session.step(inputs)
        loss = first.backward(inputs[0])
        first.update()
        return loss

    def _comparison(self) -> FirstSteps | None:
        """What runs the next step and compares it with eager PyTorch."""
        if self._first_steps is not None and self._first_steps.is_done:
            self._first_steps = None
        return self._first_steps

    def evaluate(self, batch: Batch, program: str = "eval") -> torch.Tensor:
        """The loss of a program of the plan (`fsdp-plan --program eval=FILE`) on this rank's batch, the mean over all ranks.

        Runs the forward alone, with the parameters as they are. Shapes, dtypes and the result are as those of `step`.
        """
        return self._session.evaluate(self._tensors(batch, program), program)

    def split(self, batch: Batch) -> list[dict[str, torch.Tensor]]:
        """This rank's part of a batch for all ranks and micro-batches, for `step`.

        The first axis of each input is cut into equal parts, those of the plan's shape: for the first micro-batch one for each rank in
        their order, then for the next, as `fsdp-run --data` takes them.
        """
        inputs, size = self._inputs[self._programs[0]], self._session.world_size
        parts = [{} for _ in self._programs]
        for k, ((name, shape, _), value) in enumerate(zip(inputs, self._tensors(batch, self._programs[0], is_own=False), strict=True)):
            name = name or f"in_{k}"
            wanted = len(parts) * size * shape[0] if shape else 0
            if not shape or value.shape[:1] != (wanted,):
                raise FSDPError(f"{self.path}: input {name}: expected {wanted} entries along the first axis, for {size} ranks and {len(parts)} "
                                f"micro-batches, found {list(value.shape)}; give each rank its own batch instead")  # fmt: skip
            for i, part in enumerate(value.unflatten(0, (len(parts), size, shape[0]))[:, self.rank]):
                parts[i][name] = part
        return parts

    @property
    def rank(self) -> int:
        return self._session.rank

    @property
    def steps(self) -> int:
        """Those that are done, with those before a checkpoint."""
        return self._session.steps

    @property
    def grad_norm(self) -> float:
        """That of all gradients of the latest step, before the plan clipped them, as `clip_grad_norm_` returns it.

        With `--grad-scaler`, that of the scaled gradients. Raises FSDPError where the plan does not clip.
        """
        if (norm := self._session.grad_norm) is None:
            raise FSDPError(f"{self.path}: expected a plan that clips gradients, found one that does not; plan with --clip-grad-norm")
        return norm

    def mfu(self, seconds: float) -> float | None:
        """The model FLOPs utilisation of steps that take as many seconds, a fraction, as fsdp-run prints it.

        None where the plan was made without costs, or for a machine of which nobody knows the peak: compile with hardware=.
        """
        predicted = self._session.prediction
        return predicted.mfu(seconds) if predicted else None

    @property
    def lr(self) -> float:
        """The learning rate of the next step, of the first group; setting it sets that of all groups."""
        return float(self._groups()[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self._groups():
            group["lr"] = value

    def _groups(self) -> list[dict[str, Any]]:
        if self.optimizer is None:
            raise FSDPError(f"{self.path}: expected a plan with an optimizer, found one without; plan with --optimizer adamw or sgd")
        return self.optimizer.param_groups

    def _tensors(self, batch: Any, program: str, is_own: bool = True) -> list[torch.Tensor]:
        """The inputs of a program, in its order. `is_own`: with its shapes."""
        if program not in self._inputs:
            self._inputs[program] = self._session.inputs(program)
        inputs = self._inputs[program]
        if isinstance(batch, torch.Tensor):
            tensors = [batch]
        elif isinstance(batch, tuple | list):
            tensors = list(batch)
        else:
            if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
                batch = vars(batch)
            if not isinstance(batch, Mapping):
                raise FSDPError(f"{self.path}: expected a batch as a tuple, a mapping or a dataclass, found {type(batch).__name__}")
            names = [name or f"in_{i}" for i, (name, _, _) in enumerate(inputs)]
            if len(batch) != len(names) or any(name not in batch for name in names):
                found = ", ".join(map(str, batch)) or "none"
                raise FSDPError(f"{self.path}: expected the inputs {', '.join(names)} of program {program}, found {found}; give exactly these")
            tensors = [batch[name] for name in names]
        if len(tensors) != len(inputs):
            raise FSDPError(f"{self.path}: expected the {len(inputs)} inputs of program {program}, found {len(tensors)}")
        for i, ((name, shape, dtype), tensor) in enumerate(zip(inputs, tensors)):
            if not isinstance(tensor, torch.Tensor) or tensor.dtype != dtype or (is_own and tensor.shape != shape):
                found = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
                raise FSDPError(f"{self.path}: input {name or i} of program {program}: expected {dtype} {list(shape)}, found {found}")
        return tensors

    # Parameters

    def full_state_dict(self, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
        """All parameters and buffers, whole, in new host memory: what `state_dict()` of the module would be.

        All ranks call it together. `rank0_only`: the others get an empty one, and need no memory. Without a module, it has the plan's
        names. What the module has and the plan has no use for is as the module has it.
        """
        found: dict[str, torch.Tensor] = {}
        done: dict[str, torch.Tensor | None] = {}
        others = self._others()
        for name, (kind, own) in self._keys().items():
            if kind and own not in done:
                done[own] = self._session.read(kind, own, rank0_only)
            value = done[own] if kind else others[name]
            if value is not None and not (rank0_only and self.rank):
                found[name] = value
        return found

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers for torch.distributed.checkpoint, without moving any: each rank's pieces, in place, on the plan's device.

        `save` and `load` take it as they take that of FSDP2, whose checkpoints have the same names and shapes. Buffers are copies:
        `load_state_dict` after a load gives them to the plan.
        """
        found: dict[str, torch.Tensor] = {}
        others = self._others()
        for name, (kind, own) in self._keys().items():
            if kind == "parameter":
                p = self._parameters[own]
                found[name] = Pieces(p.shape, p.dtype, self._session.views(kind, own))
            else:
                found[name] = self._session.read(kind, own) if kind else others[name]
        return found

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Sets all parameters and buffers: of a whole state dict, which all ranks give alike, or of `state_dict()`.

        Values are converted to the dtype of the plan. Raises FSDPError for missing or other names and shapes, before anything is set.
        """
        keys, others = self._keys(), self._others()
        _same_names("state dict", keys, state_dict)
        for name, (kind, own) in keys.items():
            shape = self._parameters[own].shape if kind == "parameter" else tuple((self._session.read(kind, own) if kind else others[name]).shape)
            if tuple(state_dict[name].shape) != shape:
                raise FSDPError(f"{name}: expected {list(shape)} as in {self.path}, found {list(state_dict[name].shape)}; "
                                "take the state dict of the same model")  # fmt: skip
        for name, (kind, own) in keys.items():
            if kind:
                self._write(kind, own, state_dict[name])
            else:
                others[name].copy_(state_dict[name])

    @contextlib.contextmanager
    def summon_full_params(self, *, writeback: bool = True) -> Iterator[torch.nn.Module]:
        """Gives the module whole parameters and buffers, on all ranks; afterwards it is as before, and its values go to the plan.

        All ranks enter it together. `writeback`: False leaves the plan as it is, whatever was changed.
        """
        model = self._model
        if model is None:
            raise FSDPError(f"{self.path}: expected a Trainer with a module to summon parameters into, found one without; give it the model")
        values = {own: self._session.read(kind, own) for kind, own in dict.fromkeys(self._tensor_of.values())}
        if self._keeps:
            self._copy(model, values)
        else:
            self._place(model, lambda own, _: values[own])
        try:
            yield model
        finally:
            if writeback:
                self._take(model)
            if not self._keeps:
                self._place(model, lambda _, tensor: torch.empty_like(tensor, device="meta"))

    @torch.no_grad()
    def _copy(self, model: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
        for tensors in model.named_parameters(), model.named_buffers():
            for name, tensor in tensors:
                if (own := self._owner(name)) in values:
                    tensor.copy_(values[own])

    def _write(self, kind: str, own: str, value: torch.Tensor) -> None:
        """Values of a whole tensor. Pieces of this Trainer are in place already."""
        if isinstance(value, Pieces):
            views = self._session.views(kind, own)
            if [view.data_ptr() for _, view in value.pieces] != [view.data_ptr() for _, view in views]:
                raise FSDPError(f"{own}: expected a whole tensor, or pieces of this Trainer, found those of another one; take its full_state_dict()")
            return
        self._session.write(kind, own, value.full_tensor() if hasattr(value, "full_tensor") else value)

    # The module

    def _match(self, model: torch.nn.Module) -> Callable[[str], str]:
        """What the module calls the plan's tensors: where all names of one side begin with the same component, the other may lack it."""
        held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
        plan = [name for p in self._parameters.values() for name in (p.name, *p.aliases)]
        first, second = _prefix(plan), _prefix(dict(model.named_parameters()))
        spellings: list[Callable[[str], str]] = [str]
        if first:
            spellings.append(lambda name: name.removeprefix(first))
        if second:
            spellings.append(lambda name: second + name)
        for spell in spellings:
            if all(any(spell(n) in held for n in (p.name, *p.aliases)) for p in self._parameters.values()):
                break
        else:
            missing = [p.name for p in self._parameters.values() if not any(n in held for n in (p.name, *p.aliases))]
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise FSDPError(f"{self.path}: expected the parameters of the plan in the model, found that it lacks {', '.join(missing[:3])}{more}; "
                            "give the model that the plan was made of")  # fmt: skip
        self._tensor_of = {}  # the plan's name of each of the module's
        rounded = []
        for p in self._parameters.values():
            for name in map(spell, (p.name, *p.aliases)):
                if (tensor := held.get(name)) is None:
                    continue
                self._tensor_of[name] = ("parameter", p.name)
                if tuple(tensor.shape) != p.shape:
                    raise FSDPError(f"{self.path}: parameter {p.name}: expected {list(p.shape)} as in the plan, found {list(tensor.shape)} in the model; "
                                    "give the model that the plan was made of")  # fmt: skip
                if torch.promote_types(tensor.dtype, p.dtype) != p.dtype:
                    rounded.append(f"{name} from {tensor.dtype} to {p.dtype}")
        for name in self._session.buffers():
            if spell(name) not in held:
                raise FSDPError(f"{self.path}: expected the buffer {name} of the plan in the model, found none; give the model that the plan was made of")
        # Buffers, and parameters of integers, which nobody trains; on all ranks in the order of the module.
        for name in [name for name in held if name not in self._tensor_of]:
            own = next((n for n in ([name, first + name] + ([name.removeprefix(second)] if second else [])) if spell(n) == name), name)
            if self._session.has_buffer(own):
                self._tensor_of[name] = ("buffer", own)
        if rounded:
            warnings.warn(f"{self.path}: the plan stores parameters in a smaller type and rounds them: {', '.join(rounded[:3])}", stacklevel=3)
        return spell

    def _owner(self, name: str) -> str:
        return self._tensor_of.get(name, ("", ""))[1]

    def _take(self, model: torch.nn.Module) -> None:
        """The plan gets the module's values."""
        seen: dict[str, torch.Tensor] = {}
        for tensors in model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False):
            for name, tensor in tensors:
                kind, own = self._tensor_of.get(name, ("", ""))
                if not kind or seen.get(own) is tensor:
                    continue
                if tensor.is_meta:
                    raise FSDPError(f"{name}: expected a tensor with values, found one on the device meta; give weights=, or materialise the model")
                if own in seen:
                    if not torch.equal(seen[own], tensor):
                        raise FSDPError(f"{name}: expected the values of {own}, to which the plan ties it, found others; tie the weights of the model")
                    continue
                seen[own] = tensor
                self._write(kind, own, tensor)

    def _place(self, model: torch.nn.Module, make: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        """Puts another tensor in the place of each that the plan has; tied ones stay tied."""
        made: dict[str, torch.Tensor] = {}
        for prefix, module in model.named_modules(remove_duplicate=False):
            for tensors in module._parameters, module._buffers:
                for key, tensor in tensors.items():
                    own = self._owner(f"{prefix}.{key}" if prefix else key)
                    if not own or tensor is None:
                        continue
                    if own not in made:
                        value = make(own, tensor.detach())
                        made[own] = torch.nn.Parameter(value, tensor.requires_grad) if tensors is module._parameters else value
                    tensors[key] = made[own]

    def _keys(self) -> dict[str, tuple[str, str]]:
        """Of a state dict: each name with the kind and the plan's name of its tensor, or with nothing, which is the module's alone."""
        if self._model is not None:
            return {name: self._tensor_of.get(name, ("", "")) for name in self._held(keep_vars=True)}
        parameters = {name: ("parameter", p.name) for p in self._parameters.values() for name in (p.name, *p.aliases)}
        return parameters | {name: ("buffer", name) for name in self._session.buffers()}

    def _held(self, **options: Any) -> dict[str, torch.Tensor]:
        """The state dict of the module as it is, also of one by fully_sharded(), whose own gathers."""
        return getattr(self._model, "_own_state_dict", self._model.state_dict)(**options)

    def _others(self) -> dict[str, torch.Tensor]:
        """What is in the module, and not in the plan."""
        return {} if self._model is None else {n: t for n, t in self._held().items() if n not in self._tensor_of}

    # Checkpoints, and the end

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Writes a checkpoint `step-N` into a folder, as `fsdp-run --checkpoint` does, and returns its path.

        It has the parameters, buffers, optimizer states and generators; another number of ranks, and fsdp-run --resume, go on from it,
        as after N steps on batches of a `.safetensors` file. All ranks call it, and see the same folder. It returns when all is on the
        disk; nothing is written if there is one of this step. The first call sets memory aside for a copy of what this rank holds.
        """
        values = self.optimizer._values(self.optimizer.param_groups[0]) if self.optimizer else (0.0,) * 6
        return self._session.save(os.path.abspath(folder), self._runtime.HyperParameters(*values))

    def load(self, folder: str | os.PathLike[str]) -> int:
        """Goes on from a checkpoint, or from the newest one of a folder. Returns how many steps were done.

        All ranks call it. Hyper-parameters stay as they are: learning rates are the caller's, as the place in the data is.
        """
        self._session.load(os.path.abspath(folder))
        return self.steps

    def close(self) -> None:
        """Frees the plan's memory; later calls raise FSDPError. Values that are still wanted are read before."""
        self._session.close()
        if self._joined is not None:
            self._joined.leave()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _prefix(names: Any) -> str:
    """The component with its dot that all names begin with; empty if there is none."""
    firsts = {name[: name.find(".") + 1] for name in names}
    return firsts.pop() if len(firsts) == 1 else ""
