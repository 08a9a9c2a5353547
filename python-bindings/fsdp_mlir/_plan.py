"""A compiled step: the plan file, the model that it is of, and what the compiler says about it."""

from __future__ import annotations

import html as _html
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_mlir import _options, _write
from fsdp_mlir._reference import Reference
from fsdp_mlir.errors import PlanError

_FOLDER = ("step.plan", "report.txt", "report.json", "decisions.toml", "arguments.json")
# What the rows of `fsdp-plan compare` differ in: a plan's own are a row of their own.
_SCHEDULES = {
    "--schedule", "--backward-prefetch", "--forward-prefetch", "--limit-all-gathers", "--bucket", "--reduce-wait", "--auto", "--decisions",
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """What Plan.compare() finds. print() shows the table."""

    text: str
    rows: list[dict[str, Any]]
    """One for each schedule: `name`, `bytes` of the arena of a rank, `nanoseconds` of a step (null without durations), and what else
    `fsdp-plan compare --report` has."""

    def __str__(self) -> str:
        return self.text


class Plan:
    """What compile() returns. Every method that asks the compiler again raises PlanError with its sentence."""

    def __init__(self, folder: Path, models: Sequence[Path], *, is_dry: bool = False, reference: Reference | None = None) -> None:
        """`folder`: what make() has written; `models`: the archive of each program, that of the step first; `reference`: what that was
        captured of, in this process. Raises PlanError for a folder that is not whole."""
        self._reference = reference
        self._folder = None if is_dry else folder
        self._models = tuple(models)
        try:
            self._report = (folder / "report.txt").read_text()
            self._arguments: list[str] = json.loads((folder / "arguments.json").read_text())
            self._decisions = (folder / "decisions.toml").read_text() if "--auto" in self._arguments else None
            self.summary: dict[str, Any] = json.loads((folder / "report.json").read_text())
            """The report as `fsdp-plan --report` writes it: units, collectives, memory in bytes, durations in nanoseconds."""
            self._arguments = _replaced(self._arguments, _get_decided(self.summary))
            for file in (*models, *([] if is_dry else [folder / "step.plan"])):
                file.stat()
        except (OSError, ValueError) as error:
            raise PlanError(f"{folder}: expected a plan of compile() or save(), found a damaged one: {error}; remove the folder") from None

    @property
    def path(self) -> str:
        """The plan file, as fsdp-run takes it. Raises PlanError for a dry run, which has none."""
        if self._folder is None:
            raise PlanError(f"expected a plan, found a dry run (world={self.ranks}), of which none is kept; compile with ranks={self.ranks}")
        return str(self._folder / "step.plan")

    @property
    def model_path(self) -> str:
        """The archive (.pt2) of the step: its graph, and the weights that the model had."""
        return str(self._models[0])

    @property
    def ranks(self) -> int:
        """The world size."""
        return int(self.summary["ranks"])

    def __repr__(self) -> str:
        mesh, memory = self.summary["mesh"], self.summary["memory"]
        place = self._folder / "step.plan" if self._folder else "dry run"
        return (f"<Plan for {self.ranks} ranks ({', '.join(f'{axis} {size}' for axis, size in mesh.items())}), {self.summary['strategy']}, "
                f"{self.summary['device']}, {memory['arena_bytes'] / 2**20:.2f} MiB per rank: {place}>")  # fmt: skip

    def __str__(self) -> str:
        return self.report()

    def report(self) -> str:
        """What fsdp-plan prints: units, calls, memory, the predicted step, and the proof."""
        return self._report

    def show(self) -> None:
        """Prints the report: in a terminal as tables, if rich is installed, otherwise as text."""
        if sys.stdout.isatty() and importlib.util.find_spec("rich"):
            from fsdp_mlir import _table

            _table.show(self)
        else:
            print(self.report(), end="")

    def explain(self, hardware: str | os.PathLike[str] | None = None) -> str:
        """Where the time and the memory of a step go: the part of the report from the predicted step on.

        `hardware`, a name or a file of --hardware, predicts for another machine than the plan was compiled for. If it was compiled for
        none, durations are those of the device's default: "h100", or "cpu".
        """
        text = self._report
        if hardware is not None or self.summary["predicted"] is None:
            default = "h100" if self.summary["device"] == "cuda" else "cpu"
            text, _ = self._ask([], {"--hardware": os.fspath(hardware or default)})
        start = text.find("\npredicted step ")
        end = text.find("\n\n", text.find("\nmemory per rank\n", start))
        return text[start + 1 : end + 1]

    def compare(self, *others: Mapping[str, Any], hardware: str | os.PathLike[str] | None = None) -> Comparison:
        """The presets of schedules, --auto, this plan's schedule if that is another one, and `others`, options of compile() on top of
        this plan's, such as {"schedule": "fsdp2", "remat": "budget:4GiB"}: memory, time and calls of each."""
        own = [argument for argument in self._arguments if argument.partition("=")[0] in _SCHEDULES]
        rows = [own] if own and own != ["--auto"] else []  # which has a row
        rows += [_options.arguments(other) for other in others]
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "report.json"
            sets = [word for row in rows for word in ("--with", " ".join(map(_quote, row)))]
            kept = [argument for argument in self._with(hardware) if argument.partition("=")[0] not in _SCHEDULES]
            text, _ = _options.run("compare", *_programs(self._models), *kept, *sets, "--report", report)
            found = json.loads(report.read_text())
        return Comparison(text, found["points"])

    def html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The page of `fsdp-plan --html`, timeline and memory of a step; also written to `path`, if that is given."""
        with tempfile.TemporaryDirectory() as scratch:
            page = Path(scratch) / "page.html"
            self._ask(["--html", str(page)])
            text = page.read_text()
        if path is not None:
            with _write.replacing(Path(path)) as part:
                part.write_text(text)
        return text

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{_html.escape(self.html())}" style="width: 100%; height: 700px; border: 0"></iframe>'

    def remarks(self, passes: str = ".*") -> list[str]:
        """What passes of matching names decided and why, one line each: `fsdp-remat: ...`."""
        _, errors = self._ask([f"--remarks-filter={passes}"])
        mark = "fsdp-plan: remark: "
        return [line.removeprefix(mark) for line in errors.splitlines() if line.startswith(mark)]

    def decisions(self) -> dict[str, Any]:
        """What the search of auto=True decided, as its file of decisions has it. Raises PlanError for a plan without a search."""
        if self._decisions is None:
            raise PlanError("expected a plan of auto=True, whose search makes decisions, found one with a schedule; compile with auto=True")
        return tomllib.loads(self._decisions)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the plan, its report and the archives with their weights to a new folder, which load() reads on any machine. Raises
        PlanError for a dry run and if there is such a folder; OSError if it cannot be written."""
        target, source = Path(folder), Path(self.path).parent
        if target.exists():
            raise PlanError(f"{target}: expected a new folder, found one that is there; remove it or choose another name")
        with tempfile.TemporaryDirectory(prefix=".save-", dir=target.resolve().parent) as scratch:
            part = Path(scratch) / "plan"
            part.mkdir()
            for name in _FOLDER:
                if (source / name).exists():
                    shutil.copy(source / name, part / name)
            for number, model in enumerate(self._models):
                shutil.copy(model, part / _model_name(number))
            part.rename(target)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Plan:
        """What save() has written. Raises PlanError for anything else."""
        source = Path(folder).resolve()
        if not (source / "step.plan").is_file():
            raise PlanError(f"{folder}: expected a folder of Plan.save(), found no step.plan in it")
        count = max(sum(1 for _ in source.glob("model*.pt2")), 1)
        return cls(source, [source / _model_name(number) for number in range(count)])

    def _with(self, hardware: str | os.PathLike[str] | None) -> list[str]:
        """The plan's options, for this machine."""
        if hardware is None:
            return self._arguments
        return _replaced(self._arguments, {"--hardware": os.fspath(hardware)})

    def _ask(self, more: Sequence[str], replaced: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Compiles again, as a dry run: the answer depends on the options alone. What was found by a search is carried out."""
        given = self._arguments
        with tempfile.TemporaryDirectory() as scratch:
            if self._decisions is not None:
                (Path(scratch) / "decisions.toml").write_text(self._decisions)
                given = [a for a in given if a != "--auto" and not a.startswith("--evaluations=")]
                given = [*given, f"--decisions={scratch}/decisions.toml"]
            return _options.run(*_programs(self._models), *_replaced(given, replaced or {}), *more)


def make(folder: Path, models: Sequence[Path], arguments: list[str], *, is_dry: bool, flags: Sequence[str] = ()) -> None:
    """Compiles `models`, archives over the same parameters, and writes to `folder` what a Plan is made of. Raises PlanError."""
    outputs = ["--report", str(folder / "report.json")]
    if not is_dry:
        outputs += ["-o", str(folder / "step.plan")]
    if "--auto" in arguments:
        outputs += [f"--decisions={folder / 'decisions.toml'}"]
    text, _ = _options.run(*_programs(models), *arguments, *flags, *outputs)
    (folder / "report.txt").write_text(text)
    (folder / "arguments.json").write_text(json.dumps(arguments))


def program_name(number: int) -> str:
    """Of the archive of this number among those of a plan: step, step_1, step_2, ..."""
    return f"step_{number}" if number else "step"


def _programs(models: Sequence[Path]) -> list[str]:
    return [str(models[0]), *(f"--program={program_name(n)}={model}" for n, model in enumerate(models) if n)]


def _model_name(number: int) -> str:
    return f"model_{number}.pt2" if number else "model.pt2"


def _replaced(arguments: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [*(a for a in arguments if a.partition("=")[0] not in values), *(f"{flag}={value}" for flag, value in values.items() if value)]


def _get_decided(summary: Mapping[str, Any]) -> dict[str, str]:
    """The values that a search has taken for options that are auto; none where that is as if there was no option."""
    search = summary.get("search") or {}
    names = ("mesh", "--mesh"), ("reshard_after_forward", "--reshard-after-forward"), ("offload", "--offload"), ("chunk_loss", "--chunk-loss")
    values = {flag: search[name] for name, flag in names if name in search}
    if values.get("--reshard-after-forward") == "true":
        values["--reshard-after-forward"] = ""  # beside decisions, it says of how many ranks each may keep a piece
    if "unit_axes" in search:
        values["--unit"] = search.get("unit", "")
    return values


def _quote(argument: str) -> str:
    """As GNU command lines quote: in double quotes a backslash keeps the next character."""
    if not set(argument) & set(" \t\n'\"\\"):
        return argument
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
