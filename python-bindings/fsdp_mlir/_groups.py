"""The groups of an optimizer of PyTorch as options of a plan."""

from __future__ import annotations

import re
from typing import Any

import torch
from fsdp_mlir._optimizer import RULES, PlanOptimizer
from fsdp_mlir.errors import FSDPError

_HOW = ("foreach", "fused", "capturable", "differentiable")  # not what is computed


def options_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Any]:
    """Options of compile() for the updates of an optimizer over the parameters of `model`. Raises FSDPError for one that no plan has."""
    kind, takes = next(((name, takes) for name, (own, takes) in RULES.items() if type(optimizer) is own), ("", ()))
    if not kind:
        raise FSDPError(f"optimizer: expected a torch.optim.AdamW or SGD, found {type(optimizer).__name__}; plans have no other updates")
    if optimizer.state:
        raise FSDPError("optimizer: expected one ahead of its first step, found one with states; load these into module.optimizer afterwards")
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise FSDPError("optimizer: expected one without a scheduler, found one with; make the scheduler of module.optimizer")
    defaults = type(optimizer)([torch.zeros(())]).defaults
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key not in ("params", *takes, *_HOW) and value != defaults[key]:
                raise FSDPError(f"optimizer: expected {key}={defaults[key]}, found {value}; a plan takes {', '.join(takes)}")
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = [[names.pop(p) for p in group["params"] if p in names] for group in optimizer.param_groups]
    if names:
        raise FSDPError(f"optimizer: expected all parameters that train, found that it lacks {next(iter(names.values()))}; add it, or set its requires_grad to False")
    if not all(groups):
        raise FSDPError(f"optimizer: expected parameters of the model that train in each group, found none in group {groups.index([])}; leave that out")
    rules = [f"^({'|'.join(map(re.escape, group))})$" for group in groups[1:]]
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return {"optimizer": kind} | ({"lr_groups": "; ".join(rules)} if rules else {}) | ({"momentum": True} if momentum else {})


def take_groups(given: torch.optim.Optimizer, optimizer: PlanOptimizer) -> None:
    """Hyper-parameters of each group. The given one holds no parameters any more, and says so when it is used."""
    for group, own in zip(given.param_groups, optimizer.param_groups, strict=True):
        own.update({key: value for key, value in group.items() if key != "params" and key not in _HOW})
        group["params"].clear()

    def reject(*_: Any) -> None:
        raise FSDPError("expected a step of module.optimizer, found one of the optimizer that it has replaced; let the loop and the scheduler use module.optimizer")

    given.register_step_pre_hook(reject)
