"""transformers.Trainer with the steps of a plan.

    torchrun --nproc-per-node 2 transformers_trainer.py FOLDER

trains a small Llama, evaluates it, saves it, and resumes if FOLDER has a checkpoint. `--eager` is the same without a plan.
"""

import argparse
import os

import torch
import transformers

import fsdp_mlir


class PlannedTrainer(transformers.Trainer):
    """A Trainer as it is: arguments, logs, schedulers, evaluation and `save_model` stay. `plan`: options of fsdp_mlir.fully_sharded."""

    def __init__(self, *args, plan=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.plan = plan or {}

    def create_optimizer(self, *args):
        """The model is sharded when its optimizer is known, with the first batch as the example."""
        optimizer, count = super().create_optimizer(*args), self.args.gradient_accumulation_steps
        example = dict(next(iter(self.get_train_dataloader())))
        if self.model_accepts_loss_kwargs:  # the model divides a sum, micro-batches add
            example["num_items_in_batch"] = torch.ones(())
        options = {"accumulate": count if self.model_accepts_loss_kwargs else f"{count}:mean"} if count > 1 else {}
        if self.args.max_grad_norm:
            options["clip_grad_norm"] = self.args.max_grad_norm
        self.model.train()
        fsdp_mlir.fully_sharded(self.model, example, optimizer=optimizer, evaluation=True, seed=self.args.seed, **options, **self.plan)
        self.optimizer = self.model.optimizer
        return self.optimizer

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """`num_items_in_batch` is that of all ranks, and the gradients are the mean over these."""
        if self.model_accepts_loss_kwargs:
            inputs["num_items_in_batch"] = torch.as_tensor(num_items_in_batch, dtype=torch.float32) / self.accelerator.num_processes
        loss = model(**inputs)
        return (loss, {}) if return_outputs else loss

    def _clip_grad_norm(self, model):
        """A part of the plan."""

    def _get_grad_norm(self, model, grad_norm=None):
        """Known after the step: see log()."""

    def log(self, logs, *args):
        if "loss" in logs and self.args.max_grad_norm:
            logs["grad_norm"] = self.model.plan_trainer.grad_norm
        super().log(logs, *args)

    def save_model(self, output_dir=None, _internal_call=False):
        self._save(output_dir or self.args.output_dir, state_dict=self.model.state_dict())  # which all ranks gather

    def _save_optimizer_and_scheduler(self, output_dir):
        self.model.plan_trainer.save(f"{output_dir}/plan")
        if self.args.should_save:
            state = {"lr": [group["lr"] for group in self.optimizer.param_groups], "scheduler": self.lr_scheduler.state_dict()}
            torch.save(state, f"{output_dir}/scheduler.pt")

    def _load_from_checkpoint(self, *_):
        """The plan's checkpoint has the parameters, too."""

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None:
            self.model.plan_trainer.load(f"{checkpoint}/plan")
            state = torch.load(f"{checkpoint}/scheduler.pt")
            self.lr_scheduler.load_state_dict(state["scheduler"])
            for group, lr in zip(self.optimizer.param_groups, state["lr"], strict=True):
                group["lr"] = lr


def rows(count):
    """Texts of different lengths: the loss is the mean over all tokens, of all ranks and micro-batches."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (count, 16), generator=generator)
    lengths = torch.randint(4, 17, (count, 1), generator=generator)
    return [{"input_ids": row, "labels": row.masked_fill(torch.arange(16) >= length, -100)} for row, length in zip(ids, lengths)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--eager", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      tie_word_embeddings=True, use_cache=False)  # fmt: skip
    arguments = transformers.TrainingArguments(
        given.folder, use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=2, gradient_accumulation_steps=2, max_steps=6,
        learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.1, max_grad_norm=0.5, logging_steps=1, eval_strategy="steps",
        eval_steps=3, save_steps=4, report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    kind = transformers.Trainer if given.eager else PlannedTrainer
    trainer = kind(transformers.LlamaForCausalLM(config), arguments, train_dataset=rows(64), eval_dataset=rows(8))
    trainer.train(resume_from_checkpoint=os.path.isdir(f"{given.folder}/checkpoint-4") and f"{given.folder}/checkpoint-4" or None)
    trainer.save_model(f"{given.folder}/trained")
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            for what in "loss", "grad_norm", "eval_loss", "learning_rate":
                if what in entry:
                    print(f"step {entry['step']} {what} {float(entry[what]):.7g}")


if __name__ == "__main__":
    main()
