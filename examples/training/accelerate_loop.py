"""A loop of accelerate with the steps of a plan.

    torchrun --nproc-per-node 2 accelerate_loop.py

`prepare`, `accumulate` and `backward` stay as they are. `--eager` is the same without a plan.
"""

import argparse

import torch
from accelerate import Accelerator
from loop import Decoder, Windows

import fsdp_mlir

STEPS, MICRO_BATCHES, MAX_NORM = 4, 2, 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=__file__)
    parser.add_argument("--save", help="a file for the trained weights")
    parser.add_argument("--eager", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    model = Decoder(dim=32, n_layers=2, n_heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(Windows(given.file, 32), batch_size=2, drop_last=True)
    if not given.eager:
        model = fsdp_mlir.fully_sharded(model, next(iter(loader)), optimizer=optimizer, accumulate=f"{MICRO_BATCHES}:mean", clip_grad_norm=MAX_NORM)
        optimizer = model.optimizer
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    total = torch.zeros(())
    for count, row in enumerate(loader, 1):
        with accelerator.accumulate(model):
            loss = model(**row)
            accelerator.backward(loss)
            if given.eager and accelerator.sync_gradients:  # a part of the plan
                accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += accelerator.reduce(loss.detach(), "mean") / MICRO_BATCHES
        if count % MICRO_BATCHES == 0:
            accelerator.print(f"step {count // MICRO_BATCHES} loss {total.item():.6f} lr {scheduler.get_last_lr()[0]:.6f}")
            total.zero_()
        if count == STEPS * MICRO_BATCHES:
            break
    if given.save:
        accelerator.save(accelerator.get_state_dict(model), given.save)  # all ranks gather, the first one writes
    accelerator.end_training()


if __name__ == "__main__":
    main()
