"""The trainings that are compared with PyTorch's FSDP: a table in which every two values of two features meet.

A case is a dict with a value for each feature. Features are few-valued, and most faults need two of them, so that a
table of pairs finds what the product of all would find, with 60 rows instead of millions.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]

# The first value of each feature is the usual one.
FEATURES: dict[str, list[Any]] = {
    "model": ["gpt2", "llama", "bert"],
    "world": [2, 4],
    "sharding": ["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2",
                 "reshard true", "reshard false", "reshard 2", "reshard true 2x2"],
    "first_block": ["as the rest", "reshard"],
    "wrap": ["blocks", "parts", "size"],
    "schedule": ["backward_pre", "backward_post", "no_prefetch", "forward_prefetch", "no_limit", "fsdp1", "fsdp2", "manual-block", "inductor", "list"],
    "bucket": ["none", "merge:units:2", "copy:units:2", "copy:bytes:20000"],
    "reduce_wait": ["use", "backward", "next"],
    "remat": ["none", "blocks"],
    "reduce_dtype": ["f32", "bf16", "bf16 of the first block"],
    "optimizer": ["adamw", "sgd", "momentum"],
    "frozen": ["none", "unit", "part"],
    "tied": [True, False],
    "run": ["plain", "overlap", "chaos"],
}
PRESETS = ["fsdp1", "fsdp2", "manual-block", "inductor", "list"]


def is_fsdp2(case: Case) -> bool:
    return case["sharding"].startswith("reshard")


def has_mesh(case: Case) -> bool:
    """Whether it is sharded in groups of two and replicated in groups of two."""
    return case["sharding"].startswith("hybrid") or case["sharding"].endswith("2x2")


def is_low(case: Case) -> bool:
    """Whether some reductions are in bf16."""
    return case["reduce_dtype"] != "f32"


def is_possible(case: Case) -> bool:
    """Whether no two of the values exclude each other; a feature may be missing."""
    sharding, schedule, first_differs = case.get("sharding", ""), case.get("schedule"), case.get("first_block") == "reshard"
    return not (
        (case.get("world") == 2 and sharding and (sharding == "reshard 2" or has_mesh(case)))
        # By size, it is not known what is a unit. There is nothing to reshard, or the number is of all units.
        or ((first_differs or case.get("reduce_dtype", "").endswith("block")) and case.get("wrap") == "size")
        or (first_differs and sharding in ("no_shard", "reshard 2"))
        # A preset decides these itself.
        or (schedule in PRESETS and (case.get("bucket", "none") != "none" or case.get("reduce_wait", "use") != "use"))
        # FSDP2 has one backward prefetch, and no policy by size.
        or (sharding.startswith("reshard") and (schedule in ("backward_post", "no_prefetch", "no_limit") or case.get("wrap") == "size"))
        # Both ends of a tie must be of one unit in FSDP1.
        or (case.get("wrap") == "size" and case.get("tied") is True)
    )


def complete(case: Case) -> Case | None:
    """The first possible case with these values, or None."""
    if not is_possible(case):
        return None
    missing = next((name for name in FEATURES if name not in case), None)
    if missing is None:
        return case
    return next(filter(None, (complete(case | {missing: value}) for value in FEATURES[missing])), None)


def pairs(case: Case) -> Iterator[tuple]:
    return itertools.combinations([(name, case[name]) for name in FEATURES if name in case], 2)


def table(rows: int) -> list[Case]:
    """At least so many cases, and at least as many as it takes for every possible pair of values to be in one.

    Greedy: each row is the best of some that begin with a pair that is not there yet. What comes first covers the most.
    """
    random_numbers, result = random.Random(0), []
    choices = [[(name, value) for value in values] for name, values in FEATURES.items()]
    possible = [pair for two in itertools.combinations(choices, 2) for pair in itertools.product(*two) if complete(dict(pair))]
    todo: set[tuple] = set()
    covered = False
    while not covered or len(result) < rows:
        todo = todo or set(possible)
        candidates = []
        for start in random_numbers.sample(sorted(todo, key=repr), min(20, len(todo))):
            case = dict(start)
            for name in random_numbers.sample(list(FEATURES), len(FEATURES)):
                values = [v for v in FEATURES[name] if name not in case and complete(case | {name: v})]
                if values:
                    gains = [sum(pair in todo for pair in pairs(case | {name: value})) for value in values]
                    case[name] = values[gains.index(max(gains))]  # the usual one, if that is as good
            candidates.append(case)
        best = max(candidates, key=lambda case: sum(pair in todo for pair in pairs(case)))
        result.append({name: best[name] for name in FEATURES})
        todo -= set(pairs(best))
        covered = covered or not todo
    return result


def name(index: int, case: Case) -> str:
    """What is unusual about the case."""
    unusual = [f"{key}={value}" for key, value in case.items() if value != FEATURES[key][0]]
    return f"{index:02} {' '.join(unusual) or 'usual'}"
