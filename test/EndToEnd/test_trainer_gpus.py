"""fsdp_mlir.Trainer with plans for GPUs, which are of ordinary memory here as their NCCL is: the losses, values and checkpoints of CPUs."""

import pytest
import torch
from conftest import FAKE_GPUS, FIXTURES
from fixture_models import role, without_attention
from test_trainer import run_ranks, run_threads, write_data

import fsdp_mlir
from fsdp_mlir import FSDPError, Trainer, _ranks

FAKE_BUILD = FAKE_GPUS.parents[1]
pytestmark = pytest.mark.skipif(not list((FAKE_BUILD / "python" / "fsdp_mlir").glob("_runtime.*")),
                                reason="not run: no headers of Python, or PyTorch had no CUDA, when the project was built")
LR = 2**-7  # a number of f32, as a GPU's kernel reads it


@pytest.fixture
def archives(once):
    """Of roles without attention, which has other kernels on a GPU."""

    def find(name: str):
        def make(path):
            case = without_attention(role(name))
            fsdp_mlir.save(fsdp_mlir.capture(case.module, case.inputs), path)

        return once(f"{name}_without_attention.pt2", make)

    return find


@pytest.fixture
def gpu_plans(plans, archives):
    return lambda name, ranks, *options: str(plans(archives(name).with_suffix(""), ranks, "--device", "cuda", *options))


def run(ranks, folder, tasks):
    return run_ranks(ranks, folder, tasks, FSDP_BUILD=str(FAKE_BUILD.resolve()), WITHOUT_ATTENTION="1")


# Bits are those of the CPU: of two ranks, a sum has one order.
@pytest.mark.covers("NCCL", "GPU")
@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_and_values_are_those_of_cpus(ranks, plans, archives, gpu_plans, tmp_path):
    names = ["tied", "frozen", "batch_norm", "dropout"]
    data = {name: write_data(name, 12, tmp_path / f"{name}.safetensors") for name in names}
    tasks = [{"plan": gpu_plans(name, ranks), "name": name, "data": str(data[name]), "steps": 3, "lr": LR} for name in names]
    loop = {"name": "tied", "data": str(data["tied"]), "steps": 3, "lr": LR, "device": "cuda"}
    for said in run(ranks, tmp_path / "run", {"train": tasks, "loop": [loop]}):
        assert said["loop"][0] == said["train"][0][0]
        for name, (losses, hashes) in zip(names, said["train"], strict=True):
            archive = archives(name)
            expected, values = run_threads(plans(archive.with_suffix(""), ranks), name, data[name], 3, tmp_path, lr=LR, archive=archive)
            assert losses == expected, name
            assert not hashes or {key: hashes[key] for key in values} == values, name


# Micro-batches, checkpoints of both kinds, and what goes wrong between ranks.
def test_ranks_that_nccl_connects(gpu_plans, tmp_path):
    data = {name: str(write_data(name, 12, tmp_path / f"{name}.safetensors")) for name in ("tied", "frozen")}
    first, second = run(2, tmp_path / "two", {
        "accumulate": [{"plan": gpu_plans("tied", 2, "--accumulate", "2:mean"), "data": data["tied"]}],
        "checkpoints": [{"plan": gpu_plans("tied", 2), "data": data["tied"], "folder": str(tmp_path / "run")}],
        "cross_load": [{"plan": gpu_plans("frozen", 2), "data": data["frozen"], "folder": str(tmp_path)}],
        "dcp_load": [{"plan": gpu_plans("frozen", 2), "folder": str(tmp_path / "mine")}],
        "rejected": [{"plans": {str(n): gpu_plans("tied", n) for n in (2, 3)}, "other_plan": gpu_plans("tied", 2, "--forward-prefetch", "1")}],
    })
    ((by_rank, split),) = first["accumulate"]
    assert by_rank == split and first["accumulate"] == second["accumulate"]
    assert first["checkpoints"][0][0] and second["checkpoints"][0] == first["checkpoints"][0]
    expected, mine, apart, theirs = first["cross_load"][0]
    assert mine == pytest.approx(expected, rel=1e-5) and theirs == pytest.approx(expected, rel=1e-5) and apart < 1e-2
    assert first["dcp_load"][0][0] == first["dcp_load"][0][1]
    size, plan, _, _ = first["rejected"][0]
    assert "expected a process group of the plan's 3 ranks, found one of 2" in size
    assert "rank 1: expected a plan with digest " in plan


# A machine without a GPU, and devices that are none of the plan's.
def test_gpus_that_are_not_there(plans, gpu_plans, monkeypatch):
    archive = FIXTURES / "role_tied.pt2"
    if not torch.cuda.is_available():
        with pytest.raises(FSDPError, match=".plan: expected a GPU for a plan for cuda, found none that PyTorch sees; make the plan for cpu"):
            Trainer(gpu_plans("tied", 1), weights=archive)
    with pytest.raises(FSDPError, match="expected a plan for cuda with device=cuda:1, found one for cpu; plan with --device cuda"):
        Trainer(plans("role_tied", 1), weights=archive, device="cuda:1")
    with pytest.raises(FSDPError, match="expected a GPU as device, as cuda:0, for a plan for cuda, found cpu"):
        Trainer(gpu_plans("tied", 1), weights=archive, device="cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(FSDPError, match="expected PyTorch with CUDA for a plan for cuda, found "):
        Trainer(gpu_plans("tied", 1), weights=archive)


# Whoever has said which GPU is asked in an order.
def test_the_gpu_of_a_rank(monkeypatch):
    class Group:
        bound_device_id = torch.device("cuda", 5)

    def find(device=None, group=None):
        return _ranks.find_gpu("a.plan", device, group)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert find() is None
    monkeypatch.setenv("LOCAL_RANK", "7")  # of eight ranks, with four GPUs each to be seen
    assert find() == 3
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert find() == 2 and find(group=Group()) == 5
    assert find("cuda:1", Group()) == find(1, Group()) == find(torch.device("cuda", 1)) == 1 and find("cuda") == 2
