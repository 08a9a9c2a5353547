"""Ranks as processes of MPI: the bits of ranks as threads, one voice, and an end for all of them."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BUILD, FIXTURES, OPEN_MPI, children, communicate, needs_mpi, outcome, start_processes, succeed, tool

pytestmark = needs_mpi


def mpirun(*groups, **options) -> subprocess.CompletedProcess:
    """Runs groups of processes as `start_processes` starts them."""
    process = start_processes(*groups, **options)
    ((stdout, stderr),) = communicate([process], timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def errors(result) -> list[str]:
    """What fsdp-run has said on stderr, without mpirun's own words."""
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


MIXED = "--strategy hybrid_shard --mesh 2x2"
# Graph, ranks, options of fsdp-plan, options of fsdp-run.
TRAININGS = [
    ("gpt2", 1, "", ""),
    ("gpt2", 2, "", ""),
    ("gpt2", 3, "--strategy shard_grad_op", "--overlap"),
    ("gpt2", 4, "", "--overlap --chaos 1"),
    ("gpt2", 8, "--mesh 2x4 --strategy hybrid_shard", "--overlap"),
    ("gpt2", 8, "--mesh replicate=2,shard=2,local=2 --unit root:shard=local --clip-grad-norm 0.5", "--overlap"),
    ("gpt2", 8, "--accumulate 2", "--overlap"),
    ("gpt2", 2, "--strategy no_shard --clip-grad-norm 0.5", ""),
    ("gpt2", 4, f"{MIXED} --accumulate 2 --no-sync", "--overlap"),
    ("llama", 4, f"{MIXED} --clip-grad-norm 0.1:inf", ""),
    ("llama", 2, "--schedule fsdp2 --accumulate 2", "--overlap --chaos 2"),
    ("llama", 4, "--strategy hybrid_shard_zero2 --mesh 2x2 --bucket units:2", "--overlap"),
    ("llama", 4, "--reshard-after-forward 2", ""),
    ("llama_bf16", 3, "", ""),
    ("role_bf16", 2, "--grad-scaler init_scale=1024", ""),
    ("role_batch_norm", 2, "--sync-buffers broadcast", ""),
    ("role_dropout", 2, "--offload all", "--seed 5"),
    ("frozen", 2, "--schedule list", "--lr-schedule cosine"),
]
# The other graphs, with each strategy in turn; but for the one whose operator is in a library.
STRATEGIES = ["full_shard", "shard_grad_op", "no_shard"]
TRAININGS += [(graph, 3, f"--strategy {STRATEGIES[i % 3]} --bind hint", "") for i, graph in enumerate([
    "bert", "role_chain", "role_channels_last", "role_dynamic", "role_encoder_decoder", "role_frozen", "role_gpt2_renamed",
    "role_input_grad", "role_tied", "role_tiny", "role_unused", "role_user_output"])]


def train(run, plans, references, graph, ranks, planned, options):
    plan = plans(graph, ranks, *planned.split())
    ran = run(ranks, plan, "--weights", FIXTURES / f"{graph}.pt2", "--data", references(graph, max(ranks, 2)), "--steps", 3, "--json", *options.split())
    assert ran.returncode == 0, ran.stderr
    return outcome(ran.stdout)


def compare(training, plans, references):
    assert (train(lambda ranks, *arguments: mpirun((ranks, *arguments)), plans, references, *training)
            == train(lambda ranks, *arguments: tool("fsdp-run", *arguments), plans, references, *training))


@pytest.mark.covers("torch.distributed")
@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: "-".join(map(str, training)).replace(" ", "_"))
def test_processes_have_the_bits_of_threads(training, plans, references):
    compare(training, plans, references)


# Two machines, as far as a process can tell: started in turns, those of one become consecutive ranks.
def test_ranks_of_a_machine_are_next_to_each_other(plans):
    own_name = ["unshare", "--uts", "sh", "-c", 'hostname "node$((OMPI_COMM_WORLD_RANK % 2))" && exec "$@"', "sh"]
    if subprocess.run([*own_name[:2], "hostname", "node0"], capture_output=True).returncode:
        pytest.skip("not run: no right to give processes a host name of their own")  # CAP_SYS_ADMIN, which containers may lack
    arguments = [plans("gpt2", 4, *MIXED.split()), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2]
    ran = mpirun((4, *arguments), before=own_name, MASTER_ADDR="127.0.0.1")
    assert ran.returncode == 0, ran.stderr
    assert "4 processes on 2 machines: axis replicate crosses machines, axis shard lies inside one; figures of a process are rank 0's\n" in ran.stdout
    ran = mpirun((4, *arguments, "--map", "launcher"), before=own_name, MASTER_ADDR="127.0.0.1")
    assert "4 processes on 2 machines: axis replicate lies inside one, axis shard crosses machines; figures" in ran.stdout
    ran = mpirun((4, *arguments, "--json"), before=own_name, MASTER_ADDR="127.0.0.1")
    assert outcome(ran.stdout) == outcome(succeed("fsdp-run", *arguments, "--json").stdout)


@pytest.fixture
def two_machines(tmp_path):
    """How mpirun starts on the first of two machines with a wire between them: network namespaces with host names, on one machine really."""
    names = [f"fsdp{os.getpid()}{end}" for end in "ab"]
    commands = [f"ip netns add {name}" for name in names] + [
        f"ip link add v{names[0]} type veth peer name v{names[1]}",
        *(f"ip link set v{name} netns {name}" for name in names),
        *(f"ip -n {name} addr add 10.77.0.{number}/24 dev v{name}" for number, name in enumerate(names, 1)),
        *(f"ip -n {name} link set {device} up" for name in names for device in ("lo", f"v{name}"))]
    try:
        for command in commands:
            if not shutil.which("ip") or subprocess.run(command.split(), capture_output=True).returncode:
                pytest.skip("not run: no right to make network namespaces")  # CAP_SYS_ADMIN and CAP_NET_ADMIN, which containers may lack
        agent = tmp_path / "agent"  # in place of ssh
        agent.write_text(f"""#!/bin/sh
host=$1; shift
exec ip netns exec {names[1]} unshare --uts sh -c 'hostname $0 && exec sh -c "$1"' "$host" "$*"
""")
        agent.chmod(0o755)
        yield ["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c", 'hostname one && exec "$@"', "sh", "mpirun", "--host", "one:2,two:2",
               "--mca", "plm_rsh_agent", str(agent), "-x", "MASTER_ADDR=10.77.0.1", "-x", "OMP_NUM_THREADS"]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def start_on(machines, *arguments) -> subprocess.Popen:
    return subprocess.Popen([*machines, BUILD / "bin" / "fsdp-run", *map(str, arguments), "--backend", "mpi"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **OPEN_MPI})


def test_two_machines_have_the_bits_of_one(two_machines, plans):
    arguments = [plans("gpt2", 4, *MIXED.split()), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2, "--json"]
    stdout, stderr = start_on(two_machines, *arguments).communicate(timeout=60)
    assert outcome(stdout) == outcome(succeed("fsdp-run", *arguments).stdout), stderr


# The others of its machine see it; mpirun ends all of them a second later.
def test_a_rank_that_dies_on_another_machine_is_named(two_machines, plans):
    running = start_on(two_machines, plans("gpt2", 4, *MIXED.split()), "--weights", FIXTURES / "gpt2.pt2",
                       "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 1000000, "--json")
    assert running.stdout.readline().startswith('{"step": 1,')
    victim = next(int(pid) for pid in subprocess.run(["pgrep", "-f", "fsdp-run.*--steps 1000000"], capture_output=True, text=True).stdout.split()
                  if b"OMPI_COMM_WORLD_RANK=3\0" in (environment := pathlib.Path(f"/proc/{pid}/environ").read_bytes()) and b"MASTER_ADDR=10.77.0.1\0" in environment)
    os.kill(victim, signal.SIGKILL)
    died = time.monotonic()
    stderr = running.communicate(timeout=30)[1]
    assert time.monotonic() - died < 10
    assert f"error: rank 3 (process {victim} on two) has ended before the run did\n" in stderr, stderr


# Gradients, and outputs of every rank, are in several processes; one speaks.
@pytest.mark.parametrize("graph,ranks,options", [("gpt2", 2, ()), ("role_user_output", 3, ("--keep-output",))])
def test_references_are_compared_by_all(graph, ranks, options, plans, references):
    arguments = [plans(graph, ranks, *options), "--reference", references(graph, ranks), "--json", "--weights", FIXTURES / f"{graph}.pt2"]
    assert mpirun((ranks, *arguments)).stdout == succeed("fsdp-run", *arguments).stdout
    other = [*arguments[:-2], "--init", "zeros"]
    ran, expected = mpirun((ranks, *other)), tool("fsdp-run", *other)
    assert (ran.returncode, ran.stdout, errors(ran)) == (2, expected.stdout, expected.stderr.splitlines())


@pytest.mark.covers("summon_full_params: rank0_only")
def test_rank_0_writes_what_all_hold(plans, tmp_path):
    for name, run in ("mpi", lambda *arguments: mpirun((4, *arguments))), ("local", lambda *arguments: tool("fsdp-run", *arguments)):
        ran = run(plans("gpt2", 4, "--mesh", "2x2", "--strategy", "hybrid_shard"), "--weights", FIXTURES / "gpt2.pt2",
                  "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2, "--summon", tmp_path / name, "--with-grads",
                  "--export", tmp_path / f"{name}.safetensors")
        assert ran.returncode == 0, ran.stderr
    for name in ("", ".safetensors"):
        assert (tmp_path / f"mpi{name}").read_bytes() == (tmp_path / f"local{name}").read_bytes()


@pytest.fixture
def arguments(plans):
    """A training of two ranks."""
    return [plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 2]


def test_only_rank_0_reports(arguments):
    ran = mpirun((2, *arguments, "--verbose"))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("step 2/2") == 1 and "2 processes on 1 machine; figures of a process are rank 0's\n" in ran.stdout
    assert re.search(r"; [\d.]+ KiB workspace of collectives; ", ran.stdout)


# On one clock: a reduction of one rank cannot end before the other one has begun it.
def test_a_trace_shows_all_processes(arguments, tmp_path):
    assert mpirun((2, *arguments, "--trace", tmp_path / "t.json", "--profile", tmp_path / "p.json")).returncode == 0
    slices = [event for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    sums = [[(slice["ts"], slice["ts"] + slice["dur"]) for slice in slices if slice["pid"] == rank and slice["name"].startswith("reduce_scatter ")]
            for rank in range(2)]
    assert len(sums[0]) == len(sums[1]) > 2
    assert all(max(one[0], other[0]) < min(one[1], other[1]) for one, other in zip(*sums, strict=True))
    assert json.loads((tmp_path / "p.json").read_text())["ranks"] == 2


def test_help_is_given_once():
    ran = mpirun((2, "--help"))
    assert ran.returncode == 0 and ran.stdout.count("Usage: fsdp-run") == 1


def test_a_process_for_each_rank(arguments):
    ran = mpirun((3, *arguments))
    assert (ran.returncode, ran.stdout, errors(ran)) == (
        1, "", [f"error: {arguments[0]}: expected a process for each of its 2 ranks, found 3; start it with mpirun -n 2"])


def test_a_secret_is_shared(arguments):
    expected = mpirun((2, *arguments, "--json"))
    ran = mpirun((2, *arguments, "--json"), FSDP_STORE_SECRET="open sesame")
    assert ran.returncode == 0 and outcome(ran.stdout) == outcome(expected.stdout)


# What a launcher has started without --backend would train four times.
@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_processes_that_do_not_know_each_other_are_told(variable, arguments):
    note = f"note: {variable} is 4, but without --backend mpi or nccl each process trains alone, with all ranks as its threads\n"
    assert succeed("fsdp-run", *arguments, **{variable: "4"}).stderr == note
    assert succeed("fsdp-run", *arguments, **{variable: "1"}).stderr == ""


# Two processes would be the same rank.
def test_all_processes_have_the_same_map(arguments):
    ran = mpirun((1, *arguments), (1, *arguments, "--map", "launcher"))
    assert ran.returncode == 1 and set(errors(ran)) == {"error: --map: expected the same for all processes, found two"}


# What is wrong for all is said once and names nobody; what is wrong for one names it.
def test_what_is_rejected_is_said_once(arguments, tmp_path):
    ran = mpirun((2, *arguments, "--lr", "-1"))
    assert (ran.returncode, errors(ran)) == (1, ["error: expected a learning rate of at least 0, found -1.000000"])
    ran = mpirun((1, *arguments), (1, tmp_path / "none.plan", *arguments[1:]))
    assert (ran.returncode, errors(ran)) == (1, [f"error: rank 1: {tmp_path}/none.plan: cannot open: No such file or directory"])


# Before anything is loaded.
def test_processes_must_be_given_the_same(arguments, plans, tmp_path):
    def differ(*other):
        ran = mpirun((1, *arguments), (1, *other))
        assert (ran.returncode, ran.stdout) == (2, "")
        (error,) = errors(ran)
        return re.sub(r"[0-9a-f]{16}", "D", error)

    plan, *rest = arguments
    assert differ(plans("gpt2", 2, "--strategy", "shard_grad_op"), *rest) == (
        "error: rank 1: expected a plan with digest D as on rank 0, found with digest D")
    assert differ(*arguments, "--seed", 3) == "error: rank 1: expected --seed 0 as on rank 0, found 3"
    # All of them: the first is not in the way of the others.
    assert differ(*arguments[:-1], 3, "--rename", "h=h", "--eps", 0.5) == (
        'error: rank 1: expected --steps 2 as on rank 0, found 3; rank 1: expected --eps 1e-08 as on rank 0, found 0.5; '
        'rank 1: expected --rename none as on rank 0, found "h=h"')
    weights = tmp_path / "weights.safetensors"
    succeed("fsdp-run", *arguments, "--summon", weights)
    other = list(arguments)
    other[2] = weights
    assert differ(*other) == "error: rank 1: expected weights with digest D as on rank 0, found with digest D"
    # The same file at another place is none.
    other[2] = shutil.copy(FIXTURES / "gpt2.pt2", tmp_path / "copy.pt2")
    assert mpirun((1, *arguments), (1, *other)).returncode == 0


def disturb(deed, plans, references, operators, *options, rank=1):
    """Three processes, of which the one with that rank does something bad in its second step."""
    command = [plans("role_custom_op", 3), "--weights", FIXTURES / "role_custom_op.pt2", "--data", references("role_custom_op", 3),
               "--steps", 5, "--load", operators, *options]
    started = time.monotonic()
    ran = mpirun((3, *command), FSDP_TEST_DEED=deed, FSDP_TEST_RANK=str(rank))
    assert time.monotonic() - started < 20
    assert ran.stdout.startswith("step 1/5  loss ") and "step 2" not in ran.stdout
    return ran


@pytest.mark.parametrize("options", [(), ("--overlap",)], ids=["inline", "overlap"])
def test_a_failing_rank_stops_all(options, plans, references, operators):
    ran = disturb("throw", plans, references, operators, *options)
    assert (ran.returncode, errors(ran)) == (
        3, ["error: rank 1, step 2, program step, fsdp_test::scaled_square, node scaled_square, scope blocks.0.feed_forward: out of luck"])


# Who waits for whom is said, and what each rank did last is in its log.
def test_a_rank_that_hangs_is_waited_for_only_so_long(plans, references, operators, tmp_path):
    ran = disturb("hang", plans, references, operators, "--timeout", 2, "--log", tmp_path / "logs")
    (error,) = errors(ran)
    assert ran.returncode == 3
    assert re.fullmatch(r"error: rank [02], step 2, program step, AllGather, node \S+, unit \S+: waited 2 s for rank 1 to join it", error), error
    notes = [line for line in ran.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2, notes
    assert re.fullmatch(r"note: step 2, program step, command \d+, all_gather of unit \S+, under way for \S+ s: ranks 0, 2 have come, rank 1 has not", notes[0]), notes
    assert re.fullmatch(r"note: rank 1, latest collective: step 2, program step, command \d+, all_gather of unit \S+, done in \S+ s", notes[1]), notes
    for rank in range(3):
        begin, *steps, end = map(json.loads, (tmp_path / "logs" / f"rank-{rank}.log").read_text().splitlines())
        assert begin["ranks"] == 3 and [step["step"] for step in steps] == [1] and steps[0]["collectives"] > 0
        assert end["error"] == error.removeprefix("error: ") and 5 < len(end["collectives"]) <= 64
        assert all(line.startswith(f"rank {rank}: step ") for line in end["collectives"])
        assert ("under way for" in end["collectives"][-1]) == (rank != 1)


# mpirun stops the others as soon as one has died: they say who it was before that. With rank 0, the store dies.
@pytest.mark.parametrize("deed,rank", [("kill", 1), ("exit", 2), ("kill", 0)])
def test_a_rank_that_dies_is_named(deed, rank, plans, references, operators):
    ran = disturb(deed, plans, references, operators, rank=rank)
    (error,) = errors(ran)
    assert re.fullmatch(rf"error: rank {rank} \(process \d+ on \S+\) has ended before the run did", error), error
    assert ran.returncode != 0


# The others know it from the start, though nobody has read anything yet.
def test_a_rank_that_dies_while_the_others_wait_for_it_is_named(plans, tmp_path):
    slow = tmp_path / "python3"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec cat > {tmp_path}/lines\n")
    slow.chmod(0o755)
    command = ["mpirun", "-n", "3", BUILD / "bin" / "fsdp-run", plans("gpt2", 3), "--backend", "mpi", "--weights", FIXTURES / "gpt2.pt2",
               "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", "2", "--tensorboard", tmp_path / "events"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **OPEN_MPI, "PATH": f"{tmp_path}:{os.environ['PATH']}"}) as running:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        (first,) = [process for process in children(running.pid) if children(process)]
        os.kill(first, signal.SIGKILL)
        [(stdout, said)] = communicate([running], 60)
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert re.fullmatch(rf"error: rank 0 \(process {first} on \S+\) has ended before the run did", error), error
    assert running.returncode != 0 and "step 1/" not in stdout


# At any moment: while MPI starts, plans are read or tensors loaded, in a step, between steps, while others wait.
@pytest.mark.parametrize("overlap", [False, True], ids=["inline", "overlap"])
def test_kill_at_random_moments(overlap, plans, request, tmp_path):
    random.seed(overlap)
    moments = 100 if request.config.getoption("--all-pairs") else 3
    command = ["mpirun", "-n", "3", BUILD / "bin" / "fsdp-run", plans("gpt2", 3), "--backend", "mpi", "--weights", FIXTURES / "gpt2.pt2",
               "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", "1000000", *(["--overlap"] if overlap else [])]
    for _ in range(moments):
        with open(tmp_path / "stdout", "w") as stdout, subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True,
                                                                        env={**os.environ, "OMP_NUM_THREADS": "1", **OPEN_MPI}) as running:
            while len(started := children(running.pid)) < 3:
                time.sleep(0.01)
            time.sleep(wait := random.random() * 2)
            victim = random.choice(started)
            os.kill(victim, signal.SIGKILL)
            died = time.monotonic()
            said = [line for line in running.stderr if line.startswith("error: ")]
            running.wait()
        assert time.monotonic() - died < 10, wait
        assert running.returncode != 0
        # Before the processes know of each other, mpirun alone says it.
        assert "step 1/" not in (tmp_path / "stdout").read_text() and not said or re.fullmatch(rf"error: rank \d \(process {victim} on \S+\) has ended before the run did\n", *said), (wait, said)


# The signal that users send is obeyed: with other processes and without.
@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_ends_a_training(ranks, plans):
    command = ["mpirun", "-n", str(ranks), BUILD / "bin" / "fsdp-run", plans("gpt2", ranks), "--backend", "mpi", "--weights", FIXTURES / "gpt2.pt2",
               "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", "1000000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **OPEN_MPI}) as running:
        assert running.stdout.readline().startswith('{"step": 1,')
        asked = time.monotonic()
        os.kill(children(running.pid)[0], signal.SIGTERM)
        [(_, said)] = communicate([running], 60)
    assert time.monotonic() - asked < 10
    assert running.returncode == 4 and re.search(r"stopped by a signal after step \d+\n", said)
