"""The optimizer of a plan, as torch.optim would show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from fsdp_mlir._pieces import Pieces
from fsdp_mlir.errors import FSDPError

if TYPE_CHECKING:
    from fsdp_mlir._fully_sharded import _Loop
    from fsdp_mlir._trainer import Trainer

_STATES = {"momentum": "momentum_buffer"}  # where PyTorch has another name
RULES: dict[str, tuple[type[torch.optim.Optimizer], tuple[str, ...]]] = {
    "adamw": (torch.optim.AdamW, ("lr", "betas", "eps", "weight_decay")),
    "sgd": (torch.optim.SGD, ("lr", "momentum", "weight_decay")),
}


class ShardedParameter(torch.nn.Parameter):
    """The place of a parameter of a plan, on the device meta. Its gradient lives inside a step alone."""

    @property
    def grad(self) -> None:
        raise FSDPError("expected a loop that leaves .grad to the plan, found a use of it; step the optimizer of the plan, clip with "
                        "clip_grad_norm= of compile(), scale with grad_scaler=, call zero_grad()")  # fmt: skip

    @grad.setter
    def grad(self, _: Any) -> None:
        self.grad  # noqa: B018


class PlanOptimizer(torch.optim.Optimizer):
    """The hyper-parameters and states of a plan's updates, for learning rate schedulers and checkpoints.

    Each decay group of the plan is one of `param_groups`, with the keys of torch.optim.AdamW or SGD. A step reads `lr`, `betas`,
    `eps`, `weight_decay` and `momentum`; the group `no_decay` of a plan has no weight decay, whatever it says. Parameters are
    placeholders on the device meta.
    """

    def __init__(self, trainer: Trainer, hyper: dict[str, Any]) -> None:
        self._trainer, self._session = trainer, trainer._session
        self._loop: _Loop | None = None  # of fully_sharded()
        kind, self._takes = RULES[self._session.update_rule]
        self._facts = [p for p in self._session.parameters() if p.group is not None]
        self._indices = sorted({p.group for p in self._facts})
        names = self._session.decay_groups()
        groups = []
        for index in self._indices:
            group = {"params": [ShardedParameter(torch.empty(p.shape, dtype=p.dtype, device="meta")) for p in self._facts if p.group == index]}
            groups.append(group | ({"weight_decay": 0.0} if names[index] == "no_decay" else {}))
        defaults = kind([torch.zeros(())]).defaults | {key: hyper[key] for key in self._takes}
        self._sent: list[Any] = [None] * len(groups)
        super().__init__(groups, defaults)
        self._defaults = {key: value for key, value in defaults.items() if key not in self._takes}

    def step(self, closure: Any = None) -> Any:
        """The update, after the backward of fully_sharded()'s losses. Of a Trainer, raises FSDPError: it is part of `Trainer.step`."""
        if self._loop is None:
            raise FSDPError("expected a call of Trainer.step, of which the update is a part, found one of its optimizer's step; leave it out")
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._loop.update()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of fully_sharded()'s losses so far. Of a Trainer, nothing: they live inside a step alone."""
        if self._loop is not None:
            self._loop.zero_grad()

    def _values(self, group: dict[str, Any]) -> tuple[float, ...]:
        changed = next((key for key, value in self._defaults.items() if group[key] != value), None)
        if changed:
            raise FSDPError(f"param_groups: expected {changed}={self._defaults[changed]} as the plan has it, found {group[changed]}; a plan "
                            f"takes {', '.join(self._takes)}")  # fmt: skip
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        return tuple(map(float, (group["lr"], beta1, beta2, group.get("eps", 0.0), group["weight_decay"], group.get("momentum", 0.0))))

    def _send(self) -> None:
        """Tells the plan what has changed."""
        for place, (index, group) in enumerate(zip(self._indices, self.param_groups, strict=True)):
            values = self._values(group)
            if values != self._sent[place]:
                self._session.set_hyper_parameters(index, self._trainer._runtime.HyperParameters(*values))
                self._sent[place] = values
        self._opt_called = True  # or schedulers warn that they are called too early

    def state_dict(self) -> dict[str, Any]:
        """As `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` has it, by names of parameters.

        `state` has for each parameter its moments, of which each rank holds pieces (see `Trainer.state_dict`), and for AdamW `step`:
        updates so far, float32 without axes.
        """
        spell, updates = self._trainer._spell, torch.tensor(self._session.updates, dtype=torch.float32)
        state: dict[str, dict[str, torch.Tensor]] = {}
        for p in self._facts:
            values: dict[str, torch.Tensor] = {"step": updates.clone()} if "exp_avg" in p.states else {}
            for kind in p.states:
                views = self._session.views(kind, p.name)
                values[_STATES.get(kind, kind)] = Pieces(p.shape, views[0][1].dtype if views else p.dtype, views)
            state[spell(p.name)] = values
        return {"state": state, "param_groups": self._groups()}

    def _groups(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in group.items() if key != "params"} | {"params": [self._trainer._spell(p.name) for p in self._facts if p.group == index]}
                for index, group in zip(self._indices, self.param_groups, strict=True)]  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict()` returns, after torch.distributed.checkpoint.load has filled it, or with whole tensors in it.

        Hyper-parameters are those of the groups that have the same parameters. Raises FSDPError for other parameters, states or shapes.
        """
        state, spell = state_dict["state"], self._trainer._spell
        wanted = {spell(p.name): p for p in self._facts}
        _same_names("states of parameters", wanted, state)
        steps = {float(values["step"]) for values in state.values() if "step" in values}
        if len(steps) > 1:
            raise FSDPError(f"optimizer state: expected one number of updates of all parameters, found {sorted(steps)}; load a state of one training")
        for name, p in wanted.items():
            for kind in p.states:
                key = _STATES.get(kind, kind)
                if key not in state[name]:
                    raise FSDPError(f"optimizer state of {name}: expected {key}, found {', '.join(state[name]) or 'none'}; load one of the same optimizer")
                self._trainer._write(kind, p.name, state[name][key])
        if steps:
            self._session.set_updates(int(steps.pop()))
        mine = self._groups()
        for given in state_dict["param_groups"]:
            for group, own in zip(self.param_groups, mine, strict=True):
                if set(given["params"]) >= set(own["params"]):
                    group.update({key: value for key, value in given.items() if key in self._takes or key == "initial_lr"})


def _same_names(what: str, wanted: Any, found: Any) -> None:
    """Raises FSDPError unless there are the same names on both sides."""
    for side, names in ("lacks", [n for n in wanted if n not in found]), ("has no use for", [n for n in found if n not in wanted]):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            whose = "what was given" if side == "lacks" else "the plan"
            raise FSDPError(f"{what}: expected those of the plan, found that {whose} {side} {', '.join(names[:3])}{more}; take those of the same model")
