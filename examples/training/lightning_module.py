"""A LightningModule with the steps of a plan.

    torchrun --nproc-per-node 2 lightning_module.py FOLDER

trains, and resumes if FOLDER has a checkpoint. `--eager` is the same without a plan.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from loop import Decoder, Windows

import fsdp_mlir

STEPS, MICRO_BATCHES, MAX_NORM = 6, 2, 0.5


class Training(lightning.LightningModule):
    """A module as it is, but for `configure_optimizers` and `zero_grad`."""

    def __init__(self, eager, example):
        super().__init__()
        self.eager, self.example, self.total = eager, example, torch.zeros(())
        self.model = Decoder(dim=32, n_layers=2, n_heads=4)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        if not self.eager:
            fsdp_mlir.fully_sharded(self.model, self.example, optimizer=optimizer, accumulate=f"{MICRO_BATCHES}:mean", clip_grad_norm=MAX_NORM)
            optimizer = self.model.optimizer
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def zero_grad(self, set_to_none=True):
        self.model.zero_grad(set_to_none)  # there are no gradients here to look at

    def training_step(self, batch, _):
        return self.model(**batch)

    def on_train_batch_end(self, outputs, batch, index):
        self.total += self.trainer.strategy.reduce(outputs["loss"].detach().clone(), reduce_op="mean")
        if (index + 1) % MICRO_BATCHES == 0:  # Lightning has divided the losses
            if self.trainer.is_global_zero:
                print(f"step {self.trainer.global_step} loss {self.total.item():.6f} lr {self.lr_schedulers().get_last_lr()[0]:.6f}", flush=True)
            self.total.zero_()


class PlanStrategy(DDPStrategy):
    """Processes as for DDP, and nothing around the module: the plan reduces gradients, and has a checkpoint of its own beside Lightning's."""

    def configure_ddp(self):
        pass

    def optimizer_state(self, optimizer):
        return {"lr": [group["lr"] for group in optimizer.param_groups]}

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        super().save_checkpoint(checkpoint, filepath, storage_options)
        self.lightning_module.model.plan_trainer.save(f"{filepath}.plan")

    def load_checkpoint(self, path, *options, **more):
        self.path = path
        return super().load_checkpoint(path, *options, **more)

    def load_model_state_dict(self, *_, **__):
        """The plan is made later, with the optimizer."""

    def load_optimizer_state_dict(self, checkpoint):
        self.lightning_module.model.plan_trainer.load(f"{self.path}.plan")
        for group, lr in zip(self.optimizers[0].param_groups, checkpoint["optimizer_states"][0]["lr"], strict=True):
            group["lr"] = lr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("file", nargs="?", default=__file__)
    parser.add_argument("--eager", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(Windows(given.file, 32), batch_size=2, drop_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy=DDPStrategy() if given.eager else PlanStrategy(),
        max_steps=STEPS, accumulate_grad_batches=MICRO_BATCHES, gradient_clip_val=MAX_NORM if given.eager else None, default_root_dir=given.folder,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(given.folder, "step-{step}", every_n_train_steps=4, save_top_k=-1, auto_insert_metric_name=False)],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    path = f"{given.folder}/step-4.ckpt"
    trainer.fit(Training(given.eager, next(iter(loader))), loader, ckpt_path=path if os.path.exists(path) else None)


if __name__ == "__main__":
    main()
