"""A loop of PyTorch with a config file, a data loader, accumulation, a scheduler and checkpoints, as torchtitan has it.

    torchrun --nproc-per-node 2 loop.py loop.toml [FILE]

trains on the bytes of FILE. `--fsdp2` does the same with FSDP2: the loop is the same for both.
"""

import argparse
import pathlib
import tomllib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F

import fsdp_mlir


class Block(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(dim), torch.nn.RMSNorm(dim)
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim, bias=False), torch.nn.Linear(dim, dim, bias=False)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(dim, 4 * dim), torch.nn.GELU(), torch.nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Decoder(torch.nn.Module):
    def __init__(self, dim, n_layers, n_heads):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(256, dim), torch.nn.Linear(dim, 256, bias=False)
        self.layers = torch.nn.ModuleList([Block(dim, n_heads) for _ in range(n_layers)])

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Windows(torch.utils.data.Dataset):
    """Pieces of a text, as bytes."""

    def __init__(self, path, length):
        self.bytes, self.length = torch.tensor(list(pathlib.Path(path).read_bytes())), length

    def __len__(self):
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, index):
        piece = self.bytes[index * self.length : (index + 1) * self.length + 1]
        return {"tokens": piece[:-1], "labels": piece[1:]}


class Planned:
    """The model by a plan."""

    def __init__(self, model, optimizer, example, micro_batches, max_norm):
        options = {"accumulate": f"{micro_batches}:mean"} if micro_batches > 1 else {}
        self.model = fsdp_mlir.fully_sharded(model, example, optimizer=optimizer, clip_grad_norm=max_norm, **options)
        self.optimizer = self.model.optimizer

    def clip(self):
        """A part of the plan."""

    def state(self):
        return {"model": self.model.plan_trainer.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state):
        self.model.plan_trainer.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class FSDP2:
    """The model by FSDP2."""

    def __init__(self, model, optimizer, example, micro_batches, max_norm):
        for layer in model.layers:
            torch.distributed.fsdp.fully_shard(layer)
        torch.distributed.fsdp.fully_shard(model)
        kind, groups = type(optimizer), [{**group, "params": list(model.parameters())} for group in optimizer.param_groups]
        self.model, self.optimizer, self.max_norm = model, kind(groups), max_norm

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)

    def state(self):
        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))

    def load(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def batches(config, path, skip):
    """This rank's, epoch after epoch; `skip` of them were trained on before."""
    windows = Windows(path, config["training"]["seq_len"])
    sampler = torch.utils.data.DistributedSampler(windows, seed=0, drop_last=True)
    loader = torch.utils.data.DataLoader(windows, config["training"]["local_batch_size"], sampler=sampler, drop_last=True)
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for row in loader:
            if skip == 0:
                yield row
            skip -= skip > 0


def train(config, path, shard):
    training, checkpoint, adamw = config["training"], config["checkpoint"], config["optimizer"]
    micro_batches = training["global_batch_size"] // (training["local_batch_size"] * dist.get_world_size())
    torch.manual_seed(0)
    model = Decoder(**config["model"])
    optimizer = torch.optim.AdamW(model.parameters(), adamw["lr"], (adamw["beta1"], adamw["beta2"]), weight_decay=adamw["weight_decay"])
    sharded = shard(model, optimizer, next(batches(config, path, 0)), micro_batches, training["max_norm"])
    model, optimizer = sharded.model, sharded.optimizer
    warmup, steps = config["lr_scheduler"]["warmup_steps"], training["steps"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / warmup, (steps - n) / (steps - warmup)))

    done, folder = 0, checkpoint["folder"]
    if folder and pathlib.Path(folder, ".metadata").exists():
        state = sharded.state() | {"step": 0, "scheduler": scheduler.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        sharded.load(state)
        scheduler.load_state_dict(state["scheduler"])
        done = state["step"]
    rows = batches(config, path, done * micro_batches)
    for step in range(done + 1, steps + 1):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(micro_batches):
            loss = model(**next(rows))
            (loss / micro_batches).backward()
            total += loss.detach() / micro_batches
        sharded.clip()
        optimizer.step()
        scheduler.step()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total.item() / dist.get_world_size():.6f} lr {scheduler.get_last_lr()[0]:.6f}", flush=True)
        if folder and step % checkpoint["interval"] == 0:
            dcp.save(sharded.state() | {"step": step, "scheduler": scheduler.state_dict()}, checkpoint_id=folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("file", nargs="?", default=__file__)
    parser.add_argument("--fsdp2", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(tomllib.loads(given.config.read_text()), given.file, FSDP2 if given.fsdp2 else Planned)
    dist.destroy_process_group()
