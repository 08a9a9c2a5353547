"""The options of `fsdp-plan` in Python: `--no-sync` is `no_sync=True`. What there is comes from the tool itself (`--help-json`)."""

from __future__ import annotations

import difflib
import enum
import functools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fsdp_mlir_tools
from fsdp_mlir.errors import PlanError

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
_WORD = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Option:
    """A row of the table of options (Options.td)."""

    name: str
    """As a keyword of compile(): `no_sync`."""
    values: str
    """What may be given, such as `cpu|cuda`; empty for a flag, which takes True or False."""
    default: str
    """Empty where there is none."""
    help: str
    alias: str = ""
    """Another name, as a keyword; may be empty."""

    @property
    def flag(self) -> str:
        """As on the command line: `--no-sync`."""
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """All values there are, where they are words; otherwise nothing."""
        words = tuple(self.values.split("|")) if self.values else ()
        if not words or not all(_WORD.fullmatch(word) for word in words):
            return ()
        return words if self.default in words or not self.default else (*words, self.default)


def options() -> dict[str, Option]:
    """All options that compile() takes beside its own arguments, by name. Raises PlanError if there is no fsdp-plan."""
    return dict(_read(find("fsdp-plan")))


def find(tool: str) -> Path:
    """fsdp_mlir_tools.find. Raises PlanError."""
    try:
        return fsdp_mlir_tools.find(tool)
    except fsdp_mlir_tools.ToolError as error:
        raise PlanError(str(error)) from None


def run(*arguments: str | os.PathLike[str]) -> tuple[str, str]:
    """What `fsdp-plan ARGUMENTS` writes to its standard output and error. Raises PlanError with its sentences if it fails."""
    tool = find("fsdp-plan")
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, env=fsdp_mlir_tools.environment())
    if done.returncode == 0:
        return done.stdout, done.stderr
    errors = [line.removeprefix("fsdp-plan: error: ") for line in done.stderr.splitlines() if line.startswith("fsdp-plan: error: ")]
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    raise PlanError("\n".join(errors) or f"{tool} ended with {ended}: {done.stderr.strip() or 'it said nothing'}")


@functools.cache
def _read(tool: Path) -> Mapping[str, Option]:
    said, _ = run("--help-json")
    rows = [Option(row["name"].replace("-", "_"), row["values"], row["default"], row["help"], row["alias"].replace("-", "_")) for row in json.loads(said)]
    return {row.name: row for row in rows}


def arguments(given: Mapping[str, Any]) -> list[str]:
    """The command line of these options, one argument each; those that are None are left out. Files are named by their whole path.

    Raises PlanError for a name or a value that there is not.
    """
    table = options()
    aliases = {option.alias: option for option in table.values() if option.alias}
    made = []
    for name, value in given.items():
        option = table.get(name) or aliases.get(name)
        if option is None:
            raise PlanError(f"{name}: there is no such option of compile(){_meant(name, table)}")
        if value is None:
            continue
        text = _spell(option, value)
        if text is not None:
            made.append(f"{option.flag}={text}" if option.values else option.flag)
    return made


def files(given: list[str]) -> Iterator[Path]:
    """Of arguments(): those whose value is a file that is there."""
    for argument in given:
        value = argument.partition("=")[2].removeprefix("file:")
        if os.path.isabs(value) and os.path.isfile(value):
            yield Path(value)


def _meant(text: str, known: Any) -> str:
    close = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; fsdp_mlir.options() has all of them"


def _spell(option: Option, value: Any) -> str | None:
    """A value as the command line has it; None for a flag that is not given."""
    choices = option.choices
    if not option.values:
        if not isinstance(value, bool):
            raise PlanError(f"{option.name}: expected True or False, found {value!r}")
        return "" if value else None
    if isinstance(value, bool):
        text = str(value).lower()
        if text not in option.values.split("|"):
            raise PlanError(f"{option.name}: expected {option.values}, found {value}")
        return text
    if isinstance(value, torch.dtype):
        text = _DTYPES.get(value, str(value))
    elif isinstance(value, enum.Enum):  # ShardingStrategy, BackwardPrefetch
        text = value.name.lower().lstrip("_")
    elif isinstance(value, tuple) and option.name == "mesh" and len(value) == 2:
        text = f"{value[0]}x{value[1]}"
    elif isinstance(value, Mapping) and option.name == "mesh":
        text = ",".join(f"{axis}={size}" for axis, size in value.items())
    elif isinstance(value, re.Pattern):
        text = value.pattern
    elif isinstance(value, (str, int, float, os.PathLike)):
        text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    else:
        raise PlanError(f"{option.name}: expected {option.values}, found {value!r}")
    if choices and text not in choices:
        close = difflib.get_close_matches(text, choices, n=1)
        raise PlanError(f"{option.name}: expected one of {', '.join(choices)}; found {text!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return _whole(option, text)


def _whole(option: Option, text: str) -> str:
    """A plan is asked again from another folder."""
    prefix, path = ("file:", text[5:]) if text.startswith("file:") else ("", text)
    names_file = prefix or ("FILE" in option.values and Path(path).suffix)
    return f"{prefix}{Path(path).resolve()}" if names_file else text
