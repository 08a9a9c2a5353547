"""Models that people train: each agrees with eager PyTorch, or is rejected by a sentence that says what to change."""

import dataclasses
import re

import pytest
import plain_models
import transformers_models
import vision_models
from runner import run

CASES = transformers_models.CASES + vision_models.CASES + plain_models.CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_model(case, tmp_path, record_property):
    outcome = run(case, tmp_path)
    record_property("zoo", dataclasses.asdict(outcome))
    found = f"{outcome.stage}: {outcome.sentence}" if outcome.sentence else "agrees"
    assert re.search(case.rejected or "^agrees$", found), found
