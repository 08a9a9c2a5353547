#!/usr/bin/env python3
"""Capture a small transformers GPT-2 for the demo, with text to train it on.

Writes into the folder OUT:
  gpt2.pt2     the training graph, (input_ids, labels: i64 [batch, length]) -> loss, with its initial weights
  config.json  the model's transformers configuration
  hub          the same model with its initial weights, as `save_pretrained` writes it
  tokens.bin   the text as little-endian 16-bit tokens, one for each byte
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python-bindings"))

import numpy as np
import torch
import torch.nn.functional as F
import transformers

import fsdp_mlir

TEXT = Path("/usr/share/common-licenses")  # on every Debian machine


class WithLoss(torch.nn.Module):
    """(input_ids, labels: i64 [batch, length]) -> the mean loss of predicting each label from what precedes it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.m = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.m(input_ids=input_ids, use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def text_bytes(source: Path) -> bytes:
    """The bytes of a file, or of a folder's plain files in order of name. Raises FileNotFoundError if there are none."""
    files = [source] if source.is_file() else sorted(f for f in source.glob("*") if f.is_file() and not f.is_symlink())
    if not files:
        raise FileNotFoundError(f"no text in {source}: name a file or a folder with --text")
    return b"".join(f.read_bytes() for f in files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the files; made if it is missing")
    parser.add_argument("--text", type=Path, default=TEXT, help=f"a file, or a folder of files (default {TEXT})")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--length", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=options.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    try:
        tokens = np.frombuffer(text_bytes(options.text), dtype=np.uint8).astype("<u2")
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = options.batch * options.length
    if len(tokens) < size:
        print(f"error: the text has {len(tokens)} bytes, a batch needs {size}", file=sys.stderr)
        return 1
    model = WithLoss(transformers.GPT2LMHeadModel(config)).train()
    ids = torch.from_numpy(tokens[:size].astype(np.int64)).view(options.batch, options.length)
    program = fsdp_mlir.capture(model, (ids, ids.clone()))
    options.out.mkdir(parents=True, exist_ok=True)
    fsdp_mlir.save(program, options.out / "gpt2.pt2")
    config.save_pretrained(options.out)
    model.m.save_pretrained(options.out / "hub")
    tokens.tofile(options.out / "tokens.bin")
    count = sum(p.numel() for p in model.parameters())
    print(
        f"{options.out / 'gpt2.pt2'}: {count / 1e6:.2f} M parameters, {len(program.graph.nodes)} nodes, "
        f"batch {options.batch} x {options.length}; tokens.bin: {len(tokens)} tokens, {len(tokens) // size} batches"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
