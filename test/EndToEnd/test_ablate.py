"""fsdp_mlir.ablate runs a step as the plan has it, and each half of it alone, and changes nothing that anybody trains."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import BUILD, FAKE_GPUS, FIXTURES, ROOT, free_port, needs_trainer, succeed
from fixture_models import role

import fsdp_mlir
from fsdp_mlir import FSDPError, Trainer

pytestmark = [needs_trainer, pytest.mark.usefixtures("surroundings")]
WORKER = ROOT / "test" / "EndToEnd" / "Inputs" / "ablate_rank.py"


def counts(found: fsdp_mlir.Ablation) -> list[tuple[int, int]]:
    return [(m.operators, m.collectives) for m in (found.step, found.without_collectives, found.without_computations)]


# What fsdp-plan counts; launches on other streams than compute belong to what is sent.
@pytest.mark.parametrize("graph, ranks, options, sent", [
    ("gpt2", 2, "", 0),
    ("role_chain", 2, "--accumulate 3:mean --clip-grad-norm 1 --grad-scaler default", 0),
    ("llama_bf16", 4, "--mesh 2x2 --storage-dtype f32 --hardware cpu", None),
    ("gpt2", 2, "--bucket copy:units:2", None),
    ("role_dropout", 1, "--offload all", 0),
])
@pytest.mark.parametrize("overlap", [False, True])
def test_each_half_runs_its_own_commands(graph, ranks, options, sent, overlap, tmp_path):
    shard = [] if "--mesh" in options else ["--ranks", ranks]
    succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", *shard, *options.split(), "-o", tmp_path / "p.plan", "--report", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    calls = sum(row["calls"] for row in report["collectives"])
    whole, alone, others = counts(found := fsdp_mlir.ablate(tmp_path / "p.plan", steps=2, overlap=overlap))
    assert whole == (report["launches"], calls) and alone[1] == 0 and others[1] == calls
    assert alone[0] + others[0] == report["launches"] and (sent is None or others[0] == sent)
    assert (found.predicted is None) == ("--hardware" not in options)


def test_predictions_stand_beside(tmp_path):
    hardware = ["--hardware", "h100", "--device", "cpu"]
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, *hardware, "-o", tmp_path / "p.plan", "--report", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())["predicted"]
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 1, *hardware, "-o", tmp_path / "one.plan")
    found = fsdp_mlir.ablate(str(tmp_path / "p.plan"), steps=1)
    assert found.predicted.seconds == pytest.approx(1e-9 * report["step_ns"]) and found.predicted.exposed == pytest.approx(1e-9 * report["exposed_ns"])
    assert found.predicted.flops == report["flops"] and found.predicted.mfu == pytest.approx(report["flops"] / 67e12 / found.predicted.seconds)
    text = str(found).splitlines()
    assert text[0].split() == ["ms", "predicted", "exposed", "ms", "predicted", "operators", "collectives"]
    assert [text[1].split()[i] for i in (2, 4)] == [f"{1e-6 * report[key]:.3f}" for key in ("step_ns", "exposed_ns")]
    with Trainer(tmp_path / "one.plan", weights=FIXTURES / "gpt2.pt2") as trainer:
        assert trainer.mfu(2.0) == pytest.approx(report["flops"] / 67e12 / 2.0)


# A Trainer goes on as if nothing had been: its state, and the bits of its next steps.
def test_a_trainer_sees_nothing_of_it(plans):
    case, twin = role("dropout"), role("dropout")
    plan, threads, draws = plans("role_dropout", 1), torch.get_num_threads(), torch.get_rng_state()
    with Trainer(plan, case.module) as trainer, Trainer(plan, twin.module) as other:
        for each in trainer, other:
            each.step(case.inputs)
        before = trainer.full_state_dict()
        fsdp_mlir.ablate(plan, steps=2)
        assert all(torch.equal(value, before[name]) for name, value in trainer.full_state_dict().items())
        assert trainer.steps == 1 and trainer.step(case.inputs).item() == other.step(case.inputs).item()
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), draws)


# Also of GPUs, which are of ordinary memory here as their NCCL is.
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_of_a_process_group(device, tmp_path):
    fake = FAKE_GPUS.parents[1]
    if device == "cuda" and not list((fake / "python" / "fsdp_mlir").glob("_runtime.*")):
        pytest.skip("not run: PyTorch had no CUDA when the project was built")  # whose headers the fake GPUs are built with
    plan, build = tmp_path / "p.plan", fake if device == "cuda" else BUILD
    succeed("fsdp-plan", FIXTURES / "role_chain.pt2", "--ranks", 2, "--device", device, "-o", plan, "--report", tmp_path / "r.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port(), WORKER, plan, tmp_path]
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("python-bindings", "scripts"))
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300,
                            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths, "FSDP_BUILD": str(build.resolve())})
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    launches, calls = report["launches"], sum(row["calls"] for row in report["collectives"])
    expected = [(launches, calls), (launches, 0), (0, calls)]
    for rank in range(2):
        is_same, found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert is_same and [(found[key]["operators"], found[key]["collectives"]) for key in ("step", "without_collectives", "without_computations")] == expected


@pytest.mark.parametrize("arguments, sentence", [
    ({"steps": 0}, "steps: expected a whole number from 1 to 1000000, found 0"),
    ({"steps": 1.5}, "steps: expected a whole number from 1 to 1000000, found 1.5"),
    ({"timeout": -1}, "timeout: expected from 0.001 to 1e9 seconds, found -1.000000"),
    ({"device": "cuda:0"}, "{plan}: expected a plan for cuda with device=cuda:0, found one for cpu; plan with --device cuda"),
])
def test_bad_arguments_are_one_sentence(arguments, sentence, plans):
    plan = plans("role_tied", 1)
    with pytest.raises(FSDPError) as error:
        fsdp_mlir.ablate(plan, **arguments)
    assert str(error.value) == sentence.format(plan=plan)


def test_the_example_of_the_page():
    blocks = [block.split("```")[0] for block in (ROOT / "docs" / "python.md").read_text().split("```python\n")]
    (code,) = [block for block in blocks if "ablate(" in block]
    scope = {}
    exec(blocks[1].split("plan = ")[0], scope)
    exec(code, scope)
    assert scope["found"].step.collectives > 0 and scope["found"].predicted is not None
