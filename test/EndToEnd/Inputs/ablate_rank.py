"""A rank of test_ablate.py under torchrun: `plan folder`. Writes what it has found, and whether its Trainer has seen nothing of it."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from fixture_models import role

import fsdp_mlir

plan, folder = sys.argv[1:]
dist.init_process_group("gloo")
case = role("chain")
with fsdp_mlir.Trainer(plan, case.module) as trainer:
    trainer.step(case.inputs)
    before = trainer.full_state_dict()
    found = fsdp_mlir.ablate(plan, steps=2)
    after = trainer.full_state_dict()
    trainer.step(case.inputs)
same = all(torch.equal(value, after[name]) for name, value in before.items())
(Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps([same, asdict(found)]))
dist.destroy_process_group()
