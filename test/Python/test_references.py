"""References for several ranks and for training: their shapes, and that they are what they say."""

from functools import partial

import make_rank_reference as maker
import pytest
import torch
from fixture_models import role
from safetensors import safe_open
from safetensors.torch import load_file


@pytest.fixture
def script(capsys):
    def call(*args, code=0):
        try:
            status = maker.main([str(a) for a in args])
        except SystemExit as stop:
            status = stop.code
        done = capsys.readouterr()
        assert status == code, done.err
        return done.out + done.err

    return call


def test_a_batch_for_each_rank(fixtures, tmp_path, script):
    out = tmp_path / "ref.safetensors"
    assert script(3, fixtures / "gpt2.pt2", "--output", out) == "ref.safetensors: 28 gradients, loss 4.869192\n"
    made, one = load_file(out), load_file(fixtures / "gpt2_ref.safetensors")
    assert made.keys() == one.keys()
    assert made["in_0"].shape == (3, 2, 16) and torch.equal(made["in_0"][0], one["in_0"])
    assert torch.equal(made["in_0"], made["in_1"])
    assert not torch.equal(made["in_0"][1], made["in_0"][2])
    assert all(made[k].shape == one[k].shape for k in made if not k.startswith("in_"))


def test_the_mean_is_that_of_the_ranks(fixtures):
    program = maker.load(fixtures / "role_tiny.pt2")
    reference = maker.one_step(program, 4, seed=3)
    grads = [maker.run(program, [reference["in_0"][r], reference["in_1"][r]]).grads["weight"] for r in range(4)]
    torch.testing.assert_close(reference["grad.weight"], sum(grads) / 4)


@pytest.mark.parametrize("name", ["frozen", "batch_norm", "channels_last", "unused", "tied", "dropout"])
def test_training_is_that_of_eager_pytorch(name, fixtures):
    """Four steps of two ranks against eager modules, one per rank as far as buffers go."""
    program = maker.load(fixtures / f"role_{name}.pt2")
    make = partial(torch.optim.AdamW, fused=True, lr=1e-2, betas=(0.8, 0.95), eps=1e-8, weight_decay=0.1)
    made = maker.training(program, 2, 4, seed=7, storage=None, make=make, draws="5")
    states = [torch.Generator().manual_seed(5 + rank).get_state() for rank in range(2)]
    modules = [role(name).module for _ in range(2)]
    first = dict(modules[0].named_parameters())
    trained = [p for n, p in first.items() if p.requires_grad]
    optimizer = make(trained)
    losses = []
    for step in range(4):
        total = 0.0
        for rank, module in enumerate(modules):
            module.zero_grad()
            torch.set_rng_state(states[rank])
            loss = module(*(made[f"in_{i}"][2 * step + rank] for i in range(2)))
            states[rank] = torch.get_rng_state()
            loss.backward()
            total += loss.item() / 2
        with torch.no_grad():
            for mine, other in zip(modules[0].parameters(), modules[1].parameters()):
                if mine.grad is not None:
                    mine.grad.add_(other.grad).mul_(0.5)
            optimizer.step()
            for mine, other in zip(modules[0].parameters(), modules[1].parameters()):
                other.copy_(mine)
        losses.append(total)
    torch.testing.assert_close(made["losses"], torch.tensor(losses), rtol=1e-5, atol=1e-6)
    assert {k for k in made if k.startswith("param.")} == {f"param.{n}" for n in first}
    for key, parameter in first.items():
        torch.testing.assert_close(made[f"param.{key}"], parameter.detach(), rtol=1e-3, atol=1e-4)


def test_committed_training_reference(fixtures):
    made, program = load_file(fixtures / "frozen_train2x5.safetensors"), maker.load(fixtures / "frozen.pt2")
    with safe_open(fixtures / "frozen_train2x5.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata == {"ranks": "2", "steps": "5", "lr": "0.001", "beta1": "0.9", "beta2": "0.999", "eps": "1e-08", "weight_decay": "0.1"}
    assert made["in_0"].shape == (10, 2, 16) and made["losses"].shape == (5,) and made["losses"].dtype == torch.float32
    trained = {s.target for s in program.graph_signature.output_specs if "GRADIENT" in s.kind.name}
    for name, before in program.state_dict.items():
        if f"param.{name}" in made:
            assert torch.equal(made[f"param.{name}"], before) == (name not in trained), name


def test_fp32_masters(fixtures):
    program = maker.load(fixtures / "role_bf16.pt2")
    make = partial(torch.optim.AdamW, fused=True, lr=1e-3)
    made = maker.training(program, 2, 2, seed=7, storage=torch.float32, make=make)
    assert {t.dtype for k, t in made.items() if k.startswith("param.")} == {torch.float32}
    plain = maker.training(program, 2, 2, seed=7, storage=None, make=make)
    assert {t.dtype for k, t in plain.items() if k.startswith("param.")} == {torch.bfloat16}


def test_what_the_script_rejects(fixtures, tmp_path, script):
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"PK")
    assert script(2, broken, code=1).startswith(f"error: {broken}: not a torch.export archive that this torch can load; ")
    assert "RANKS, --steps and --micro-batches must be at least 1" in script(0, broken, code=2)
