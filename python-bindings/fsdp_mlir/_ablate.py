"""What of a step overlaps: its time as it is, without collectives, and without computations."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist

from fsdp_mlir import _native, _ranks
from fsdp_mlir.errors import FSDPError


@dataclass(frozen=True)
class Measured:
    """Steps of this rank, or of rank 0 if ranks are threads: means over them, and what each ran."""

    seconds: float
    exposed: float
    """Seconds in which nothing is computed, as what is sent or copied is waited for."""
    operators: int
    collectives: int


@dataclass(frozen=True)
class Predicted:
    """What fsdp-plan has predicted of a step, in seconds."""

    seconds: float
    exposed: float
    flops: float
    mfu: float | None
    """Model FLOPs utilisation, a fraction, at the predicted time; None if the hardware file knows no peak."""


@dataclass(frozen=True)
class Ablation:
    """What ablate() finds. print() shows it as text, show() as a table if rich is installed."""

    step: Measured
    without_collectives: Measured
    without_computations: Measured
    predicted: Predicted | None
    """None for a plan that was made without costs (hardware=)."""

    @property
    def hidden(self) -> float:
        """Seconds by which a step is shorter than its two halves one after the other; less than 0 if they slow each other down."""
        return self.without_collectives.seconds + self.without_computations.seconds - self.step.seconds

    def rows(self) -> list[tuple[str, ...]]:
        """Titles, and a row for each: what was run, its milliseconds, those predicted, exposed milliseconds, those predicted, operators, collectives."""
        p = self.predicted
        whole, alone, exposed = (p.seconds, p.seconds - p.exposed, p.exposed) if p else (None, None, None)
        return [("", "ms", "predicted", "exposed ms", "predicted", "operators", "collectives"),
                ("step", *_cells(self.step, whole, exposed)),
                ("without collectives", *_cells(self.without_collectives, alone, None)),
                ("without computations", *_cells(self.without_computations, None, None)),
                ("hidden", _spell(self.hidden), "", "", "", "", "")]  # fmt: skip

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)

    def show(self) -> None:
        """Prints it: in a terminal as a table, if rich is installed, otherwise as text."""
        if sys.stdout.isatty() and importlib.util.find_spec("rich"):
            from fsdp_mlir import _table

            _table.show_rows("a step and its halves", self.rows())
        else:
            print(self)


def _spell(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3f}"


def _cells(measured: Measured, predicted: float | None, exposed: float | None) -> tuple[str, ...]:
    return (_spell(measured.seconds), _spell(predicted), _spell(measured.exposed), _spell(exposed), str(measured.operators), str(measured.collectives))


def ablate(
    plan: str | os.PathLike[str] | Any,
    *,
    steps: int = 10,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | int | None = None,
    timeout: float = 600.0,
    overlap: bool = False,
    trusted: Sequence[str] = (),
) -> Ablation:
    """Measures steps of `plan` as they are, with collectives and copies that move nothing, and with operators that compute nothing.

    Each is run in a session of its own, on made-up parameters and batches of zeros: it needs the memory of the plan once more than a Trainer
    beside it, whose state stays as it is. Nothing of what is computed can be read. Numbers that are zero need less power, so a GPU may run
    such steps at a higher clock. `steps`: of each kind, after two that do not count. All else is as Trainer has it, and all ranks call it; a plan
    for CPUs without a process group is run by ranks that are threads of this process.

    Raises FSDPError as Trainer does.
    """
    if not isinstance(steps, int) or not 1 <= steps <= 1_000_000:
        raise FSDPError(f"steps: expected a whole number from 1 to 1000000, found {steps!r}")
    path = os.fspath(getattr(plan, "path", plan))
    session = _native.runtime().PlanSession(path)
    place: _ranks.Place | None = None
    try:
        place = _ranks.Place(path, session.device, device, group, timeout)
        start: tuple[Any, ...] = (place.group, timeout, overlap, list(trusted), str(_native.libraries()), place.gpu)
        # computes, communicates
        whole, alone, sent = (session.measure(*start, *parts, steps) for parts in ((True, True), (True, False), (False, True)))
        p = session.prediction
    finally:
        session.close()
        if place is not None:
            place.leave()
    predicted = Predicted(p.seconds, p.exposed, p.flops, p.mfu(p.seconds)) if p else None
    return Ablation(_measured(whole), _measured(alone), _measured(sent), predicted)


def _measured(found: Any) -> Measured:
    return Measured(*(getattr(found, field.name) for field in fields(Measured)))
