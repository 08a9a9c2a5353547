#!/usr/bin/env python3
"""Make the role graphs of test/fixtures (role_*.pt2 with role_*_ref.safetensors), or Llama graphs for measurements.

Without options all roles are made; every run gives the same graphs and numbers. A reference holds the inputs in_0,
in_1, ..., the loss, and grad.NAME for every parameter with a gradient, by PyTorch's eager mode. Random numbers
(role_dropout) are those after torch.manual_seed(0).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python-bindings"))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors.torch import save_file
from torch.export.graph_signature import OutputKind
from tqdm import tqdm

import fsdp_mlir
from fixture_models import LLAMAS, ROLES, Case, llama, role

SEED = 0  # of the random operations inside a step


def eager(case: Case) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients by PyTorch's eager mode; the module's buffers change as in a training step."""
    torch.manual_seed(SEED)
    case.module.zero_grad()
    result = case.module(*case.inputs)
    loss = result["loss"] if isinstance(result, dict) else result
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in case.module.named_parameters() if p.grad is not None}


def write(case: Case, folder: Path, name: str, reference: bool = True) -> None:
    """Writes NAME.pt2 and, with `reference`, NAME_ref.safetensors. Raises RuntimeError if the graph lacks a gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = fsdp_mlir.capture(case.module, case.inputs, dynamic_shapes=case.dynamic_shapes, outputs=case.outputs)
        fsdp_mlir.save(program, folder / f"{name}.pt2")
    if not reference:
        return
    loss, grads = eager(case)
    outputs = program.graph_signature.output_specs
    have = {s.target for s in outputs if s.kind == OutputKind.GRADIENT_TO_PARAMETER}
    if have != set(grads):
        raise RuntimeError(f"{name}: the graph and eager mode differ in which gradients exist: {sorted(have ^ set(grads))}")
    tensors = {f"in_{i}": t.detach() for i, t in enumerate(case.inputs)} | {"loss": loss}
    tensors |= {f"grad.{key}": grad for key, grad in grads.items()}
    save_file({key: t.contiguous().clone() for key, t in tensors.items()}, folder / f"{name}_ref.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUTDIR", help="where the files go; made if it is missing")
    parser.add_argument("--role", action="append", choices=sorted(ROLES), help="only this role (may be repeated)")
    for name, size in LLAMAS.items():
        parser.add_argument(
            f"--{name}",
            action="append_const",
            dest="llamas",
            const=name,
            help=f"make {name.replace('-', '_')}.pt2 instead: {size.layers} layers, width {size.width}, batch "
            f"{size.batch[0]}x{size.batch[1]}, {'fp32 with weights and reference' if size.real else 'bf16 without weights'}",
        )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    roles = options.role or ([] if options.llamas else list(ROLES))
    with tqdm(total=len(roles) + len(options.llamas or []), unit="graph") as progress:
        for name in roles:
            progress.set_postfix_str(name)
            write(role(name), options.folder, f"role_{name}")
            progress.update()
        for name in options.llamas or []:
            progress.set_postfix_str(name)
            write(llama(name), options.folder, name.replace("-", "_"), reference=LLAMAS[name].real)
            progress.update()


if __name__ == "__main__":
    main()
