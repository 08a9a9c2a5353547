"""A rank that fails while training stops all others within seconds, by one sentence: exit status 3."""

import re
import time

import pytest
from conftest import FIXTURES, tool


# An operator that throws in the second step of one rank: the others wait for it in a collective.
@pytest.mark.covers("Asserting")
def test_a_failing_rank_stops_all(plans, references, operators):
    command = ["fsdp-run", plans("role_custom_op", 3), "--weights", FIXTURES / "role_custom_op.pt2",
               "--data", references("role_custom_op", 3), "--steps", 5, "--load", operators]
    started = time.monotonic()
    result = tool(*command, FSDP_TEST_DEED="throw")
    assert time.monotonic() - started < 10
    assert result.returncode == 3, result.stdout + result.stderr
    assert result.stdout.startswith("step 1/5  loss ") and "step 2" not in result.stdout
    # Then, if it took some time, who was waited for, and what late ones did last.
    assert re.fullmatch(r"error: rank [0-2], step 2, program step, fsdp_test::scaled_square, node scaled_square, "
                        r"scope blocks\.0\.feed_forward: out of luck\n"
                        r"(note: .*, under way for \S+ s: ranks? [0-2, ]+ (has|have) come(, ranks? [0-2, ]+ (has|have) not)?\n)*"
                        r"(note: rank [0-2](, latest collective: .*, (under way for|done in) \S+ s| tells nothing)\n)*", result.stderr), result.stderr
