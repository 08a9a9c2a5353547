"""Ranks as processes that NCCL connects: a real fsdp-run of every rank, with GPUs and a NCCL of ordinary memory."""

import fcntl
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest
from conftest import FAKE_GPUS, FIXTURES, OPEN_MPI, children, communicate, free_port, needs_mpi, outcome, start_nccl, succeed

TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
pytestmark = pytest.mark.skipif(not FAKE_GPUS.exists(), reason="not run: PyTorch had no CUDA when the project was built")


def finish(processes, timeout: float = 60) -> tuple[set[int], str, list[str]]:
    """The exit codes of all, what they have printed, and their errors."""
    said = communicate(processes, timeout)
    errors = [line for _, stderr in said for line in stderr.splitlines() if line.startswith("error: ")]
    return {process.returncode for process in processes}, "".join(stdout for stdout, _ in said), errors


def run(ranks: int, *arguments, **variables) -> str:
    codes, stdout, errors = finish(start_nccl(ranks, *arguments, **variables))
    assert (codes, errors) == ({0}, []), stdout
    return stdout


MIXED = "--strategy hybrid_shard --mesh 2x2"
# Graph, ranks, options of fsdp-plan, options of fsdp-run.
TRAININGS = [
    ("gpt2", 1, "", ""),
    ("gpt2", 2, "--strategy shard_grad_op", ""),
    ("gpt2", 3, "--bucket units:2", ""),
    ("gpt2", 2, "--strategy no_shard --clip-grad-norm 0.5", ""),
    ("gpt2", 4, f"{MIXED} --accumulate 2 --no-sync", ""),
    ("llama", 4, f"{MIXED} --clip-grad-norm 0.1:inf", ""),
    ("llama", 2, "--schedule fsdp2 --accumulate 2", ""),
    ("llama", 4, "--strategy hybrid_shard_zero2 --mesh 2x2 --bucket units:2", ""),
    ("llama_bf16", 3, "", ""),
    ("role_bf16", 2, "--grad-scaler init_scale=1024", ""),
    ("role_batch_norm", 2, "--sync-buffers broadcast", ""),
    ("role_dropout", 2, "", "--seed 5"),
    ("frozen", 2, "--schedule list", "--lr-schedule cosine"),
]


# Sums of another order: small differences, and the same in every repetition of the fake.
@pytest.mark.covers("NCCL")
@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: "-".join(map(str, training)).replace(" ", "_"))
def test_trainings_agree_with_threads(training, plans, references):
    graph, ranks, planned, options = training
    arguments = [plans(graph, ranks, *planned.split()), "--weights", FIXTURES / f"{graph}.pt2", "--data", references(graph, max(ranks, 2)),
                 "--steps", 3, "--json", *options.split()]
    losses, parameters = outcome(run(ranks, *arguments))
    expected, _ = outcome(succeed("fsdp-run", *arguments).stdout)
    assert all(math.isclose(*pair, rel_tol=2e-2 if "bf16" in graph else 1e-5) for pair in zip(losses, expected, strict=True)), (losses, expected)
    if ranks == 4:
        assert outcome(run(ranks, *arguments)) == (losses, parameters)


# By the clocks of the fakes: work of a stream takes its turn, what waits begins after what it waits for, and planning reads the measured times.
def test_times_are_those_of_the_gpus(plans, references, tmp_path):
    trace, profile = tmp_path / "t.json", tmp_path / "p.json"
    run(2, plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", references("gpt2", 2), "--steps", 3, "--trace", trace, "--profile", profile)
    events = json.loads(trace.read_text())["traceEvents"]
    rows: dict[tuple, list[tuple]] = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"], event["args"]["step"], event["cat"] == "init"), []).append((event["ts"], event["ts"] + event["dur"]))
    assert {rank for rank, *_ in rows} == {0, 1} and {stream for _, stream, *_ in rows} >= {0, 1, 2}
    for times in map(sorted, rows.values()):
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in zip(times, times[1:]))
    starts, ends = ({e["id"]: e["ts"] for e in events if e["ph"] == phase} for phase in "sf")
    assert starts and all(starts[i] < ends[i] for i in starts)
    planned = ["fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--device", "cuda", "--report", tmp_path / "r.json"]
    assert "predicted" in succeed(*planned, "--profile", profile).stdout
    succeed("fsdp-plan", "calibrate", "--hardware", "h100", "--profile", profile, "-o", tmp_path / "h.toml")


# PyTorch's own loss and gradients, in several processes.
@pytest.mark.parametrize("strategy,graph", list(zip(["full_shard", "shard_grad_op", "no_shard"] * 3, [
    "bert", "frozen", "gpt2", "llama", "llama_bf16", "role_encoder_decoder", "role_tied", "role_unused", "role_user_output"])))
def test_gradients_agree_with_pytorch(graph, strategy, plans, references):
    keep = ["--keep-output"] if graph == "role_user_output" else []
    run(3, plans(graph, 3, "--strategy", strategy, *keep), "--reference", references(graph, 3), "--weights", FIXTURES / f"{graph}.pt2",
        "--tolerance", "3e-2" if "bf16" in graph else "1e-5")


@pytest.fixture
def arguments(plans):
    """A training of three ranks."""
    return [plans("gpt2", 3), "--verbose", "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2]


@needs_mpi
def test_mpirun_starts_them_too(arguments):
    ran = subprocess.run(["mpirun", "-n", "3", FAKE_GPUS, *map(str, arguments), "--backend", "nccl"], capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port()), **OPEN_MPI})
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.count("step 2/2") == 1
    assert re.search(r"memory of its GPU beside that: [\d.]+ [MG]iB for NCCL's buffers, an estimate; 1.00 GiB before the start", ran.stdout), ran.stdout


# Two machines, as far as the processes can tell; Slurm has dealt them out in turns.
def test_srun_starts_them_too(plans):
    if subprocess.run(["unshare", "--uts", "hostname", "node0"], capture_output=True).returncode:
        pytest.skip("not run: no right to give processes a host name of their own")  # CAP_SYS_ADMIN, which containers may lack
    arguments = [plans("gpt2", 4, *MIXED.split()), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2]
    port = str(free_port())
    processes = [subprocess.Popen(["unshare", "--uts", "sh", "-c", f'hostname node{rank % 2} && exec "$@"', "sh", FAKE_GPUS, *map(str, arguments), "--backend", "nccl"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_LOCALID": str(rank // 2),
                                       "SLURM_STEP_NODELIST": "node[0-1]", "SLURM_JOB_ID": "77", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
                 for rank in range(4)]
    codes, stdout, errors = finish(processes)
    assert (codes, errors) == ({0}, [])
    assert "4 processes on 2 machines: axis replicate crosses machines, axis shard lies inside one; figures of a process are rank 0's\n" in stdout


def test_variables_that_do_not_go_together_are_rejected(arguments):
    codes, _, errors = finish(start_nccl(1, *arguments, RANK="3"))
    assert codes == {1} and errors == ["error: expected RANK below WORLD_SIZE in the environment, found 3 and 1"]


def test_a_process_for_each_rank(arguments):
    codes, _, errors = finish(start_nccl(2, *arguments))
    assert codes == {1} and errors == [
        f"error: {arguments[0]}: expected a process for each of its 3 ranks, found 2; start it with torchrun --nproc-per-node 3 --no-python"]


# A rank that never comes, a kernel that never ends, an error of NCCL.
@pytest.mark.parametrize("fault,said", [
    ("1 absentFrom 2", r"error: (?:rank \d: )?waited 2 s for the others of ranks 0 1 2 to join ncclCommSplit"),
    ("1 hangsAt 5", r"error: rank [012], step 1, program step, .*: waited 2 s for the others of ranks 0 1 2 to join a collective"),
    ("1 failsAt 5", r"error: rank 1, step 1, program step, .*: ncclGroupEnd: remote process exited"),
])
def test_what_goes_wrong_is_said_once(fault, said, arguments):
    started = time.monotonic()
    codes, _, (error,) = finish(start_nccl(3, *arguments, "--timeout", 2, FSDP_FAKE_NCCL=fault))
    assert time.monotonic() - started < 12
    assert re.fullmatch(said, error), error
    assert codes in ({1}, {3})


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_is_named(victim, arguments):
    processes = start_nccl(3, *arguments[:-1], 1000000, "--json")
    assert processes[0].stdout.readline().startswith('{"step": 1,')
    processes[victim].send_signal(signal.SIGKILL)
    died = time.monotonic()
    codes, _, (error,) = finish(processes)
    assert time.monotonic() - died < 10
    assert re.fullmatch(rf"error: rank {victim} \(process {processes[victim].pid} on \S+\) has ended before the run did", error), error
    assert codes == {-signal.SIGKILL, 3}


def test_sigterm_ends_a_training(arguments):
    processes = start_nccl(3, *arguments[:-1], 1000000, "--json")
    assert processes[0].stdout.readline().startswith('{"step": 1,')
    processes[1].send_signal(signal.SIGTERM)
    codes, _, errors = finish(processes)
    assert (codes, errors) == ({4}, [])


# The output of rank 0 fills its pipe, so that it stands still at the end, and the others wait for its exit code.
def test_nobody_ends_while_another_one_looks_after_it(arguments):
    lines = run(3, *arguments, "--json").splitlines(keepends=True)
    page = 4096
    steps = (page - len(lines[-1]) // 2) // len(lines[0])
    processes = start_nccl(3, *arguments[:-1], steps, "--json")
    fcntl.fcntl(processes[0].stdout, fcntl.F_SETPIPE_SZ, page)
    waiting = bytearray(4)
    filled = time.monotonic()
    while time.monotonic() - filled < 1:
        before = bytes(waiting)
        fcntl.ioctl(processes[0].stdout, termios.FIONREAD, waiting)
        if before != waiting or int.from_bytes(waiting, sys.byteorder) < page // 2:
            filled = time.monotonic()
        time.sleep(0.01)
    assert [process.poll() for process in processes] == [None, None, None]
    processes[1].send_signal(signal.SIGSTOP)
    os.read(processes[0].stdout.fileno(), page)
    time.sleep(1)
    processes[1].send_signal(signal.SIGCONT)
    codes, stdout, errors = finish(processes)
    assert (codes, errors) == ({0}, []) and stdout.startswith('{"summary"')


# As a person would leave it alone: a rank is killed twice, the agent starts all again, the training goes on.
def test_torchrun_goes_on_after_a_failure(arguments, tmp_path):
    training = [*map(str, arguments[:-1]), "60", "--json", "--backend", "nccl", "--checkpoint", str(tmp_path / "run"), "--every", "4", "--resume", "auto"]
    agent = subprocess.Popen([TORCHRUN, "--nproc-per-node", "3", "--max-restarts", "3", "--standalone", "--no-python", FAKE_GPUS, *training],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    steps, kills = {}, 0
    for line in agent.stdout:
        said = json.loads(line)
        if "step" in said:
            steps[said["step"]] = said["loss"]
            # Lines may be those of processes that have been killed: all must be there again.
            if kills < 2 and said["step"] >= (9, 21)[kills] and len(ranks := children(agent.pid)) == 3:
                kills += 1
                os.kill(ranks[kills % 3], signal.SIGKILL)
        else:
            summary = said
    agent.stderr.read()
    assert (agent.wait(), kills) == (0, 2)
    expected, parameters = outcome(run(3, *arguments[:-1], 60, "--json"))
    assert [steps[step] for step in sorted(steps)] == expected and summary["summary"]["parameters"] == parameters
    # What these processes have written, threads load.
    shutil.rmtree(tmp_path / "run" / "step-00000060")
    other = [*arguments[:-1], "60"]
    succeed("fsdp-run", *other, "--resume", tmp_path / "run")
