"""The report of a plan as tables in a terminal, by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

if TYPE_CHECKING:
    from fsdp_mlir._plan import Plan


def show(plan: Plan, console: Console | None = None) -> None:
    """Prints units, collectives and memory; what else there is to know stands in report()."""
    console = console or Console()
    console.print(repr(plan), markup=False, highlight=False)
    summary, memory = plan.summary, plan.summary["memory"]
    sizes = {key.removesuffix("_bytes").replace("_", " "): memory[key] for key in memory if key.endswith("_bytes") and memory[key]}
    for title, columns, rows in (
        ("units", ("name", "parameters", "elements", "shard_bytes", "gathers", "reductions"), summary["units"]),
        ("calls per step and rank", ("kind", "communicator", "calls", "bytes"), summary["collectives"]),
        ("memory per rank", ("what", "bytes"), [{"what": what, "bytes": size} for what, size in sizes.items()]),
    ):
        table = Table(title=title)
        for column in columns:
            table.add_column(column, justify="left" if column in ("name", "kind", "communicator", "what") else "right")
        for row in rows:
            table.add_row(*(_cell(column, row[column]) for column in columns))
        console.print(table)


def show_rows(title: str, rows: Sequence[Sequence[str]], console: Console | None = None) -> None:
    """Prints rows, of which the first has the names of the columns and numbers stand in all columns but the first."""
    table = Table(title=title)
    for i, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if i else "left")
    for row in rows[1:]:
        table.add_row(*row)
    (console or Console()).print(table)


def _cell(column: str, value: Any) -> str:
    return decimal(value) if column.endswith("bytes") else str(value)
