"""Ranks as processes of a process group that Python hands over: gloo's, in processes of their own."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import BUILD, FIXTURES, communicate, free_port, succeed
from safetensors.torch import load_file

WORKER = pathlib.Path(__file__).parent / "ProcessGroups" / "worker.py"
pytestmark = pytest.mark.skipif(not (BUILD / "lib" / "fsdp_test_c10d.so").exists(),
                                reason="not run: no headers of Python, or a sanitizer, when the project was built")


def start(ranks: int, tasks: dict, **variables) -> list[subprocess.Popen]:
    """`tasks`: the options of each, by the names of functions of worker.py; `variables` join the environment."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **variables}
    command = [sys.executable, WORKER, BUILD / "lib", json.dumps(list(tasks.items()))]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**variables, "RANK": str(rank)})
            for rank in range(ranks)]


def finish(processes: list[subprocess.Popen], timeout: float = 120) -> list:
    """What each has said last; None if it has died."""
    said = communicate(processes, timeout)
    for process, (stdout, stderr) in zip(processes, said, strict=True):
        assert stdout or process.returncode < 0, stderr
    return [json.loads(stdout.splitlines()[-1]) if process.returncode >= 0 else None for process, (stdout, _) in zip(processes, said, strict=True)]


def run(ranks: int, tasks: dict, **variables) -> list[list]:
    """What the ranks have said, task by task."""
    processes = start(ranks, tasks, **variables)
    said = finish(processes)
    assert {process.returncode for process in processes} == {0}, said
    return [list(each) for each in zip(*said, strict=True)]


# All kinds and types, in place, cut into pieces, of some ranks: PyTorch's own sums in the order of the ranks. A group that is debugged is a wrapper.
@pytest.mark.covers("torch.distributed")
@pytest.mark.parametrize("ranks,debug", [(2, "OFF"), (3, "DETAIL"), (4, "OFF")])
def test_collectives_have_the_bits_of_sums_in_rank_order(ranks, debug):
    checked, totals, times = run(ranks, {"collectives": {}, "crossed": {}, "barrier": {}}, TORCH_DISTRIBUTED_DEBUG=debug)
    assert min(checked) > 300
    # Communicators of one group do not block each other.
    assert totals == [[ranks * 19, ranks * 20]] * ranks
    # Nobody leaves a barrier before all have come.
    for one in zip(*times, strict=True):
        assert max(came for came, _ in one) <= min(left for _, left in one)


# PyTorch's fake group stands for all other ranks: nobody can send less, and no rank sets more aside, however many they are.
@pytest.mark.parametrize("ranks", [8, 1024])
def test_many_ranks_send_the_least_bytes(ranks):
    count = 8192
    (said,), = run(1, {"counts": {"ranks": ranks, "count": count}})
    least = (ranks - 1) * count * 4
    for kind, passes in [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)]:
        messages, sent, received, workspace = said[kind]
        assert (sent, received) == (passes * least, passes * least) and messages >= passes * (ranks - 1), kind
        assert workspace <= 4 << 20
    # What is gathered arrives in its place, in one message of each rank.
    assert said["all_gather"] == [ranks - 1, least, least, 0]


def test_waits_end_with_the_time_out_or_abort():
    late, aborted = run(3, {"wait_for_the_last": {"timeout": 0.3}, "wait_until_aborted": {}})
    for seconds, said in late[:-1]:
        assert 0.3 <= seconds < 1.5 and said == "waited 0.3 s for rank 2 to join it"
    for seconds, said in aborted[:-1]:
        assert seconds < 1 and said == "stopped because another rank failed"


MIXED = "--strategy hybrid_shard --mesh 2x2"
# By the number of ranks: graph, options of fsdp-plan, whether streams overlap.
TRAININGS = {
    1: [("gpt2", "", False)],
    2: [("gpt2", "", False), ("gpt2", "--strategy no_shard --clip-grad-norm 0.5", True), ("llama", "--schedule fsdp2 --accumulate 2", True),
        ("role_bf16", "--grad-scaler init_scale=1024", False), ("role_batch_norm", "--sync-buffers broadcast", False)],
    3: [("gpt2", "--strategy shard_grad_op", True), ("llama_bf16", "", False), ("role_user_output", "", False)],
    4: [("gpt2", f"{MIXED} --accumulate 2 --no-sync", True), ("llama", f"{MIXED} --clip-grad-norm 0.1:inf", False),
        ("llama", "--strategy hybrid_shard_zero2 --mesh 2x2 --bucket units:2", True),
        ("gpt2", "--mesh shard=2,local=2 --unit root:shard=local;.*1:shard=shard --clip-grad-norm 0.5", True)],
}


@pytest.mark.parametrize("ranks", TRAININGS)
def test_trainings_have_the_bits_of_threads(ranks, plans, references, tmp_path):
    files = [(plans(graph, ranks, *planned.split()), FIXTURES / f"{graph}.pt2", references(graph, max(ranks, 2))) for graph, planned, _ in TRAININGS[ranks]]
    overlaps = [overlap for _, _, overlap in TRAININGS[ranks]]
    trainings = [{"files": list(map(str, one)), "overlap": overlap} for one, overlap in zip(files, overlaps, strict=True)]
    (said,) = run(ranks, {"trainings": {"trainings": trainings, "steps": 3}})
    assert all(one == said[0] for one in said)
    for (plan, weights, data), (losses, parameters) in zip(files, said[0], strict=True):
        ran = succeed("fsdp-run", plan, "--weights", weights, "--data", data, "--steps", 3, "--json", "--summon", tmp_path / "parameters")
        expected = [step["loss"] for step in map(json.loads, ran.stdout.splitlines()) if "loss" in step]
        assert [float(f"{loss:.9g}") for loss in losses] == expected
        held = {name: hashlib.sha256(value.view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
                for name, value in load_file(tmp_path / "parameters").items()}
        assert parameters == {name: held[name] for name in parameters}


@pytest.fixture
def files(plans):
    """files(ranks, *options): plan, weights and data."""
    return lambda ranks, *options: [str(plans("gpt2", ranks, *options)), str(FIXTURES / "gpt2.pt2"), str(FIXTURES / "gpt2_train2x5.safetensors")]


def test_processes_with_other_plans_are_named(files):
    processes = start(2, {"train": {"files": [files(2), files(2, "--strategy", "no_shard")], "timeout": 10}})
    for said in finish(processes):
        assert re.match("rank 1: expected .* as on rank 0, found ", said), said


def test_a_group_of_gpus_is_rejected(files):
    assert finish(start(1, {"of_gpus": {"files": files(1)}}))[0].startswith("expected a process group for tensors of the CPU, as gloo's; found one of ")


# Of three: one that never makes a backend, and one that stops in the middle. Who speaks last may find the store of rank 0 gone.
@pytest.mark.parametrize("last,sentence", [(-1, "waited 3 s for process 2 of 3 to start"),
                                           (3, r"rank [01], step 4, program step, .*, unit .*: waited 3 s for rank 2 to join it")])
def test_a_peer_that_does_not_come(last, sentence, files):
    processes, began = start(3, {"train": {"files": files(3), "timeout": 3, "absent": [2, last]}}), time.monotonic()
    *others, _ = finish(processes)
    assert time.monotonic() - began < 40
    lost = "cannot reach the store of the process group: .*"
    assert any(re.match(sentence, said) for said in others), others
    assert all(re.fullmatch(rf"{sentence}(; who failed first is not known: {lost})?|{lost}", said) for said in others), others


# Rank 0 has the store of the group.
@pytest.mark.parametrize("victim", [0, 2])
def test_a_peer_that_dies_ends_all(victim, files):
    processes = start(3, {"train": {"files": files(3), "timeout": 60}})
    assert processes[0].stdout.readline() == "trains\n"
    processes[victim].send_signal(signal.SIGKILL)
    died = time.monotonic()
    others = [said for said in finish(processes) if said]
    assert time.monotonic() - died < 10 and len(others) == 2
    lost = rf"(rank [012], step \d+, program step, .*: )?cannot reach (rank {victim}|the store of the process group): .*"
    # Without its store, a rank may blame one that has only left because of the victim, and says that this may be so.
    unsure = r"rank [12], step \d+, program step, .*: cannot reach rank [012]: .*; who failed first is not known: cannot reach the store of the process group: .*"
    assert all(re.fullmatch(lost if victim else f"{lost}|{unsure}", said, re.DOTALL) for said in others), others
