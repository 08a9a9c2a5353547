"""A schedule orders and groups, and changes no bit: four steps give the losses of the plain order, digit by digit."""

import json

import pytest
from conftest import FIXTURES, succeed

SCHEDULES = [
    "--prefetch backward_pre --limit 1", "--prefetch backward_post --forward-prefetch 2 --limit 3",
    "--forward-prefetch 4 --limit 0 --bucket blocks:2", "--bucket bytes:60000 --limit 4",
    "--schedule fsdp1", "--schedule fsdp2", "--schedule manual-block", "--schedule inductor",
]


def losses(plan):
    ran = succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors",
                  "--steps", 4, "--json")
    return [json.loads(line)["loss"] for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_bits_do_not_depend_on_the_schedule(ranks, plans):
    plain = losses(plans("gpt2", ranks, "--prefetch", "none", "--limit", "0"))
    assert len(set(plain)) == 4
    for schedule in SCHEDULES:
        assert losses(plans("gpt2", ranks, *schedule.split())) == plain, schedule
