"""The module of a loop of PyTorch, with the steps of a plan: the call runs forward and backward, the optimizer's step the update."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from fsdp_mlir import _compiled, _plan
from fsdp_mlir._compile import compile
from fsdp_mlir._first_steps import FirstSteps
from fsdp_mlir._groups import options_of, take_groups
from fsdp_mlir._optimizer import PlanOptimizer, ShardedParameter
from fsdp_mlir._trainer import Trainer
from fsdp_mlir.errors import FSDPError


def fully_sharded(
    model: torch.nn.Module,
    example_batch: Any,
    *,
    optimizer: torch.optim.Optimizer | str | None = None,
    evaluation: bool = False,
    **options: Any,
) -> Any:
    """Compiles the step of `model` and makes it a module that is trained by a plan, in a loop as it is.

    Returns the model itself, whose class is now one of its own and of FullyShardedModule: `loss = model(**batch)`, `loss.backward()`,
    `model.optimizer.step()` and `zero_grad()` are one step of the plan. The batch has the names, shapes and dtypes of `example_batch`
    (see compile()); the loss is one number, the mean over all ranks, of one micro-batch.

    `optimizer`: a torch.optim.AdamW or SGD of all parameters that train, before its first step: its groups and hyper-parameters become
    those of the plan, and `model.optimizer` takes its place. Or "adamw" or "sgd", with `lr`, `betas`, `eps`, `weight_decay` and
    `momentum`. `evaluation`: in eval mode, the model has the loss of the same example batch in eval mode. Options are those of compile()
    and Trainer; without `ranks` and `mesh`, the plan is for all ranks of the process group.

    Raises FSDPError for optimizers; otherwise as compile() and Trainer do.
    """
    if optimizer == "none":
        raise FSDPError("optimizer: expected a torch.optim.AdamW or SGD, 'adamw' or 'sgd', found 'none'; a loop without updates needs no plan")
    model = _compiled._original(model)
    training = {key: options.pop(key) for key in inspect.signature(Trainer).parameters if key in options and key != "plan"}
    if training.get("device") is not None:
        options["device"], training["device"] = _split_device(training["device"])
    momentum = training.get("momentum", False)  # of compile(), whether; of a Trainer, how much
    if isinstance(momentum, bool):
        training.pop("momentum", None)
    given = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    if given is not None:
        options |= options_of(given, model)
    else:
        options |= {"momentum": bool(momentum)} | ({"optimizer": optimizer} if optimizer else {})
    if not options.keys() & {"ranks", "mesh"}:
        options["ranks"] = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    mode = model.training
    plan = compile(model, example_batch, evaluation=evaluation, **options)
    trainer = Trainer(plan, model, **training)
    assert trainer.optimizer is not None
    if given is not None:
        take_groups(given, trainer.optimizer)
    is_mean = str(options.get("accumulate") or "").endswith(":mean")
    constants = {k: v for k, v in example_batch.items() if not isinstance(v, torch.Tensor)} if isinstance(example_batch, Mapping) else {}
    loop = _Loop(trainer, mode, is_mean, constants, _plan.program_name(1) if evaluation else "")
    trainer.optimizer._loop = loop
    own = type(model)
    model.__class__ = type(own.__name__, (FullyShardedModule, own), {"__module__": own.__module__, "__qualname__": own.__qualname__})
    model.__dict__["_fsdp"] = loop
    _guard(model)
    return model


def _split_device(device: Any) -> tuple[str, torch.device | None]:
    """The kind, which a plan is for, and the device if it is a certain one, which a Trainer takes."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise FSDPError(f"device: expected 'cpu', 'cuda', or a GPU such as 'cuda:1', found {device!r}") from None
    return place.type, None if place.index is None else place


class _Micro:
    """A micro-batch whose forward and backward have run. Whether the caller has asked for its gradients."""

    is_taken = False


class _Loop:
    """Where a loop is in its step."""

    def __init__(self, trainer: Trainer, mode: bool, is_mean: bool, constants: Mapping[str, Any], evaluation: str) -> None:
        self.trainer, self.mode, self.constants, self.evaluation = trainer, mode, constants, evaluation
        self.count = len(trainer._programs)
        self.scale = 1 / self.count if is_mean else 1.0
        self.done: list[_Micro] = []
        self.is_stale = False  # gradients of a step before: PyTorch would add to them
        self.first: FirstSteps | None = None  # what runs the present step, if it is compared with eager PyTorch
        self.is_open = False  # the module has whole values, or is asked for its own

    def forward(self, batch: Any) -> torch.Tensor:
        """Runs forward and backward of the next micro-batch. Returns its loss, whose backward() says that its gradients count."""
        if self.count == 1 and not any(each.is_taken for each in self.done):
            self.done.clear()  # of a loss that was only looked at
        if len(self.done) == self.count:
            raise FSDPError(f"expected optimizer.step() or zero_grad() after {self.count} of {self.count} micro-batches, found another forward; "
                            "compile with accumulate=K for the number K of forwards in a step")  # fmt: skip
        session, inputs = self.trainer._session, self.trainer._tensors(batch, self.trainer._programs[0])
        self.first = self.trainer._comparison()
        loss = self.first.backward(inputs) if self.first else session.backward(inputs, len(self.done))
        micro = _Micro()
        self.done.append(micro)
        return _Loss.apply(torch.zeros((), requires_grad=True), loss, functools.partial(self.take, micro))  # type: ignore[no-any-return,no-untyped-call]

    def take(self, micro: _Micro, scale: float) -> None:
        """What backward() of a loss means; `scale`: the derivative by this loss of what was differentiated."""
        if torch.is_grad_enabled():
            raise FSDPError("expected a backward without create_graph, found one with; a plan has first derivatives alone")
        if micro not in self.done or micro.is_taken:
            raise FSDPError("expected one backward() of each loss, ahead of the next forward and step, found another; the plan keeps no activations")
        if self.is_stale:
            raise FSDPError("expected zero_grad() between optimizer.step() and backward(), found none; PyTorch would add to the gradients before, a plan does not")
        if not math.isclose(scale, self.scale, rel_tol=1e-5):
            raise FSDPError(f"expected a backward() of {self.scale:.6g} times the loss of each of {self.count} micro-batches, found {scale:.6g} times; "
                            "compile with accumulate='K:mean' to divide by K, with grad_scaler to scale, or put the factor into the model")  # fmt: skip
        micro.is_taken = True

    def update(self) -> None:
        taken = sum(each.is_taken for each in self.done)
        if taken != self.count or len(self.done) != self.count:
            raise FSDPError(f"expected backward() of {self.count} losses ahead of optimizer.step(), found {taken} of {len(self.done)} forwards; drop an "
                            "incomplete last step, and compile with accumulate=K for the number K of forwards in one")  # fmt: skip
        assert self.trainer.optimizer is not None
        self.trainer.optimizer._send()
        (self.first or self.trainer._session).update()
        self.done.clear()
        self.is_stale = True

    def zero_grad(self) -> None:
        """Drops the gradients so far."""
        self.is_stale = False
        if any(each.is_taken for each in self.done):
            if not all(each.is_taken for each in self.done):
                raise FSDPError("expected zero_grad() ahead of a forward or after its backward(), found it between those of a later micro-batch")
            self.done.clear()

    def check_idle(self, what: str) -> None:
        """Other programs may use the memory of gradients."""
        if any(each.is_taken for each in self.done):
            raise FSDPError(f"expected {what} after optimizer.step() or zero_grad(), found it while gradients wait; call one of the two first")
        self.done.clear()

    def evaluate(self, batch: Any, training: bool) -> torch.Tensor:
        self.check_idle("an evaluation")
        if training == self.mode:
            return self.trainer.evaluate(batch, self.trainer._programs[0])
        if not self.evaluation or training:
            raise FSDPError(f"expected a call in {'train' if self.mode else 'eval'} mode, which the plan was made in, found another mode; "
                            "give fully_sharded(evaluation=True), or call train()")  # fmt: skip
        return self.trainer.evaluate(batch, self.evaluation)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        before, self.is_open = self.is_open, True
        try:
            yield
        finally:
            self.is_open = before


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, loss: torch.Tensor, take: Callable[[float], None]) -> torch.Tensor:
        ctx.take = take
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        ctx.take(gradient.item())
        return None, None, None


class FullyShardedModule(torch.nn.Module):
    """What fully_sharded() makes of a module: its call is the plan's. Parameters and buffers of the plan are on the device meta.

    Methods that gather or load values are called by all ranks. Whatever a plan cannot do is an FSDPError of one sentence.
    """

    _is_accelerate_prepared = True  # nothing is wrapped around it, as DistributedDataParallel would be
    _fsdp: _Loop

    @property
    def optimizer(self) -> PlanOptimizer:
        """For the loop and for schedulers; see Trainer.optimizer."""
        assert self._fsdp.trainer.optimizer is not None
        return self._fsdp.trainer.optimizer

    @property
    def plan_trainer(self) -> Trainer:
        """For checkpoints (`save`, `load`, `state_dict`), `grad_norm` and `close`."""
        return self._fsdp.trainer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of this rank's batch, the mean over all ranks. With gradients enabled, the backward runs, too."""
        loop = self._fsdp
        if loop.is_open:
            return super().__call__(*args, **kwargs)
        batch: Any = args
        if kwargs or not args:
            if args:
                kwargs = dict(zip(inspect.signature(self.forward).parameters, args)) | kwargs
            batch = {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor) or k not in loop.constants or v != loop.constants[k]}
        if not torch.is_grad_enabled():
            return loop.evaluate(batch, self.training)
        if self.training != loop.mode:
            return loop.evaluate(batch, self.training)  # which has no gradient
        return loop.forward(batch)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._fsdp.zero_grad()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Whole parameters and buffers in new host memory, on all ranks; see Trainer.full_state_dict."""
        found, prefix = super().state_dict(*args, **kwargs), kwargs.get("prefix", "")
        if not self._fsdp.is_open:
            for name, value in self._fsdp.trainer.full_state_dict().items():
                found[prefix + name] = value
        return found

    def _own_state_dict(self, **kwargs: Any) -> Any:
        """What the module itself has: for its Trainer, without moving values."""
        return super().state_dict(**kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        loop = self._fsdp
        loop.check_idle("a load")
        whole = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        keys = loop.trainer._keys()
        for name, key in keys.items():  # of tied parameters, one is enough
            same = next((other for other in whole if keys.get(other) == key), None)
            if key[0] and name not in whole and same:
                whole[name] = whole[same]
        loop.trainer.load_state_dict(whole)
        for name, key in keys.items():  # the modules inside compare shapes, and have nothing to copy to
            if key[0]:
                state_dict[prefix + name] = torch.empty_like(whole[name], device="meta")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        if self._fsdp.is_open:
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        probe = fn(torch.zeros(1))
        if probe.device.type != "cpu" or probe.dtype != torch.float32:
            raise FSDPError(f"expected a module to stay where its plan has it, found a move to {probe.device} and {probe.dtype}; move the model ahead of "
                            "fully_sharded, and give it mixed_precision=")  # fmt: skip
        return self

    @contextlib.contextmanager
    def summon_full_params(self, *, writeback: bool = True) -> Iterator[FullyShardedModule]:
        """Whole parameters and buffers in the module, whose call is that of the model; see Trainer.summon_full_params."""
        self._fsdp.check_idle("summon_full_params()")
        with self._fsdp.opened():
            with self._fsdp.trainer.summon_full_params(writeback=writeback):
                yield self
            _guard(self)


def _guard(model: torch.nn.Module) -> None:
    """Parameters on the device meta say what is wrong when somebody reads their gradients. Tied ones stay tied."""
    made: dict[int, ShardedParameter] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta and not isinstance(parameter, ShardedParameter):
                module._parameters[key] = made.setdefault(id(parameter), ShardedParameter(parameter.detach(), parameter.requires_grad))
