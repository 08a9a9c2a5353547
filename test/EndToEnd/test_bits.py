"""The same bits however a step is scheduled and run: inline or overlapped, in peace or in chaos."""

import itertools
import json
import os
import random

import pytest
from conftest import FIXTURES, SAMPLE, draw_decisions, succeed, tool

SCHEDULES = [
    f"--backward-prefetch {prefetch} --bucket {bucket} --limit-all-gathers {limit}"
    for prefetch, bucket, limit in itertools.product(["none", "backward_pre", "backward_post"], ["none", "units:2", "copy:units:2"], [2, 0])
]
OTHERS = [
    "--limit-all-gathers 1", "--backward-prefetch backward_post --forward-prefetch 2 --limit-all-gathers 3", "--forward-prefetch 4 --limit-all-gathers 0 --bucket units:2",
    "--bucket bytes:60000 --limit-all-gathers 4", "--bucket copy:units:1", "--bucket copy:bytes:200000 --limit-all-gathers 4", "--schedule fsdp1", "--schedule fsdp2", "--schedule manual-block", "--schedule inductor",
    r"--remat scope:transformer\.h\.\d+", r"--remat scope:.*mlp --reshard-after-forward false", r"--remat cheap:transformer\.h\.\d+",
    "--schedule list", "--schedule list --budget 700KiB", "--auto --hardware h100", "--auto --budget 700KiB",
]
SMALL_GROUPS = ["--reshard-after-forward 2", "--reshard-after-forward 2 --limit-all-gathers 0 --forward-prefetch 2", "--reshard-after-forward 2 --bucket units:2",
                "--reshard-after-forward 2 --backward-prefetch backward_post", r"--reshard-after-forward 2 --remat scope:.*mlp", r"--reshard-after-forward 2 --remat cheap:.*[.]\d+", "--reshard-after-forward 2 --schedule list",
                "--reshard-after-forward 2 --auto --hardware h100 --budget 400KiB"]
DATA = {"gpt2": "gpt2_train2x5.safetensors", "llama": "llama_ref4.safetensors"}
SEEDS = int(os.environ.get("FSDP_CHAOS_SEEDS", 10))
STEPS = 4


@pytest.fixture(scope="module")
def train(plans):
    """train(graph, ranks, schedule, *options): the losses of a few steps, digit by digit, and a hash of all parameters after them."""
    known = {}

    def run(graph, ranks, schedule="--backward-prefetch none --limit-all-gathers 0", *options):
        key = (graph, ranks, schedule, options)
        if key not in known:
            plan = plans(graph, ranks, *schedule.split())
            ran = succeed("fsdp-run", plan, "--weights", FIXTURES / f"{graph}.pt2", "--data", FIXTURES / DATA[graph],
                          "--steps", STEPS, "--json", *options)
            *steps, last = map(json.loads, ran.stdout.splitlines())
            known[key] = [step["loss"] for step in steps], last["summary"]["parameters"]
            assert len(set(known[key][0])) == STEPS
        return known[key]

    return run


# A schedule orders and groups; the second thread changes when things happen. Neither changes what is computed. Each schedule is run
# on two numbers of ranks; the less usual ones inline on the other two.
@pytest.mark.covers("Prefetches")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_schedules_keep_the_bits(ranks, train):
    plain = train("gpt2", ranks)
    for schedule in (SCHEDULES + OTHERS)[ranks % 2 :: 2]:
        assert train("gpt2", ranks, schedule, "--overlap") == plain, schedule
    for schedule in OTHERS[1 - ranks % 2 :: 2]:
        assert train("gpt2", ranks, schedule) == plain, schedule


# Who gathers from whom changes nothing of what is gathered.
@pytest.mark.parametrize("graph", ["gpt2", "llama"])
def test_small_groups_keep_the_bits(graph, train):
    for seed, schedule in enumerate(SMALL_GROUPS, 1):
        assert train(graph, 4, schedule) == train(graph, 4), schedule
        assert train(graph, 4, schedule, "--overlap", "--chaos", seed) == train(graph, 4), schedule


# Nor does it what a unit leaves to its backward: nothing, all, or a piece.
@pytest.mark.parametrize("graph", ["gpt2", "llama"])
def test_decisions_keep_the_bits(graph, train, tmp_path):
    options, generator = "--hardware h100 --reshard-after-forward 2 --wrap size:2048", random.Random(SAMPLE)
    written = tmp_path / "d.toml"
    succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", "--ranks", 4, *options.split(), "--auto", "--evaluations", 100, "--decisions", written)
    for seed in range(1, 5):
        file = tmp_path / f"{seed}.toml"
        file.write_text(draw_decisions(written.read_text(), generator, pieces=True))
        assert train(graph, 4, f"{options} --decisions {file}", "--overlap", "--chaos", seed) == train(graph, 4), file.read_text()


# Delays before every command, and NaN in whatever is not in use: a wait that is missing in the plan would show.
@pytest.mark.parametrize("seed", range(1 + SAMPLE, SAMPLE + SEEDS + 1))
@pytest.mark.parametrize("graph", ["gpt2", "llama"])
def test_chaos_keeps_the_bits(graph, seed, train):
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    assert train(graph, 4, schedule, "--overlap", "--chaos", seed) == train(graph, 4)


# What is compared depends on the updates: another learning rate gives others.
def test_other_trainings_have_other_bits(train):
    default = "--backward-prefetch none --limit-all-gathers 0"
    losses, parameters = train("gpt2", 2, default, "--lr", 0.01)
    assert losses[1:] != train("gpt2", 2)[0][1:] and parameters != train("gpt2", 2)[1]


# A GPU's streams overlap by themselves.
def test_overlap_is_for_the_cpu(plans):
    plan = plans("gpt2", 2, "--device", "cuda")
    ran = tool("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / DATA["gpt2"], "--steps", 1, "--overlap")
    assert (ran.returncode, ran.stderr) == (1, f"error: {plan}: expected a plan for cpu with --overlap, found one for cuda\n")
