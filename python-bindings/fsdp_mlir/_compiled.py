"""Modules under torch.compile: a plan is made of what was compiled."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def uncompiled(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The original of a module. While this is entered, the modules in it that torch.compile has wrapped are the originals, too, and
    names are theirs."""
    wrapped = [(part._modules, key, m) for part in module.modules() for key, m in part._modules.items() if _is_compiled(m)]
    try:
        for modules, key, compiled in wrapped:
            modules[key] = _original(compiled)
        yield _original(module)
    finally:
        for modules, key, compiled in wrapped:
            modules[key] = compiled


@contextlib.contextmanager
def eager(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """As uncompiled(); compiled functions that it calls run as they are written, too."""
    with uncompiled(module) as original, torch.compiler.set_stance("force_eager"):
        yield original


def _original(module: torch.nn.Module) -> torch.nn.Module:
    while _is_compiled(module):
        module = module._orig_mod  # type: ignore[assignment]
    return module


def _is_compiled(module: torch.nn.Module | None) -> bool:
    """Without an import of torch.compile's machinery, which takes a second: it is there where something is compiled."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)
