"""A model, and one rank of its first steps beside eager PyTorch: first_steps_rank.py FOLDER JSON, under torchrun.

The JSON has plans by name: another one than the compiler's, or an empty text. FOLDER/R.json gets what rank R says of each.
"""

import json
import os
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python-bindings"))

import torch

import fsdp_mlir


class Model(torch.nn.Module):
    """Random numbers and buffers of each rank's own, a constant, a tied parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(11, 16), torch.nn.Linear(16, 11)
        self.head.weight = self.embed.weight
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(2))

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + 0.375 * block(x)
        return torch.nn.functional.cross_entropy(self.head(x), labels)


def batch(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {name: torch.randint(11, (24,), generator=generator) for name in ("ids", "labels")}


def replaced(plan: fsdp_mlir.Plan, path: str):
    """A plan of the same model whose file is another one."""
    return types.SimpleNamespace(path=path, model_path=plan.model_path, _reference=plan._reference, _arguments=plan._arguments)


def train(plan, model, **options) -> list[float]:
    with fsdp_mlir.Trainer(plan, model, lr=1e-2, weight_decay=0.1, seed=3, **options) as trainer:
        rank = trainer.rank
        return [trainer.step(batch(10 * step + rank)).item() for step in range(3)]


def main(folder: str, plans: dict[str, str]) -> None:
    torch.distributed.init_process_group("gloo")
    said = {}
    for name, path in plans.items():
        model = Model()
        plan = fsdp_mlir.compile(model, batch(0), ranks=torch.distributed.get_world_size())
        try:
            said[name] = train(replaced(plan, path) if path else plan, model, verify_first_step=name != "plain")
        except fsdp_mlir.FSDPError as error:
            said[name] = str(error)
    Path(folder, f"{torch.distributed.get_rank()}.json").write_text(json.dumps(said))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], json.loads(sys.argv[2]))
