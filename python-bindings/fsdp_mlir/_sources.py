"""Lines of the user's source: the innermost ones outside of torch and of this package."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


def innermost(frames: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Of (file, line) from the outermost inwards, the user's last; None if that is in no file."""
    own = [(name, line) for name, line in frames if not name.startswith((_TORCH, _HERE)) and name.endswith(".py")]
    return own[-1] if own and not own[-1][0].startswith("<") else None


def frames_of(stack_trace: str) -> list[tuple[str, int]]:
    """(file, line) of each frame of the text that torch.export keeps with a node."""
    frames = []
    for text in stack_trace.splitlines():
        parts = text.strip().split(", ")
        if len(parts) >= 2 and parts[0].startswith('File "') and parts[1].startswith("line "):
            frames.append((parts[0][6:-1], int(parts[1][5:])))
    return frames


def shorten(place: tuple[str, int]) -> str:
    """`file.py:12`, without folders."""
    return f"{os.path.basename(place[0])}:{place[1]}"


def quote(place: tuple[str, int]) -> str:
    """`file.py:12: y = self.linear(x)`; without the text where the file is gone."""
    line = linecache.getline(*place).strip()
    return f"{shorten(place)}: {line}" if line else shorten(place)
