"""The trainings that are compared with PyTorch's FSDP: a table in which every two values of two features meet.

A case is a dict with a value for each feature. Features are few-valued, and most faults need two of them, so that a
table of pairs finds what the product of all would find, with 60 rows instead of millions.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Container
from typing import Any

Case = dict[str, Any]

# The first value of each feature is the usual one.
FEATURES: dict[str, list[Any]] = {
    "model": ["gpt2", "llama", "bert"],
    "world": [2, 4],
    "sharding": ["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2",
                 "reshard true", "reshard false", "reshard 2", "reshard true 2x2"],
    "first_block": ["as the rest", "reshard", "inner axis"],
    "axis_of_one": [False, True],
    "wrap": ["blocks", "parts", "size"],
    "schedule": ["backward_pre", "backward_post", "no_prefetch", "forward_prefetch", "no_limit", "fsdp1", "fsdp2", "manual-block", "inductor", "list", "auto"],
    "bucket": ["none", "merge:units:2", "copy:units:2", "copy:bytes:20000"],
    "reduce_wait": ["use", "backward", "next"],
    "remat": ["none", "blocks", "cheap of blocks"],
    "chunk_loss": ["1", "3"],
    "param_dtype": ["f32", "bf16"],
    "reduce_dtype": ["f32", "bf16", "bf16 of the first block"],
    "accumulate": ["1", "3 no_sync", "3", "3:mean no_sync", "3 no_all_reduce"],
    "reshard_after_backward": [True, False],
    "optimizer": ["adamw", "sgd", "momentum"],
    "clip": ["none", "0.5", "20:1", "0.01:inf"],
    "no_decay": ["none", "dims<2", "bias|embed"],
    "dropout": [0.0, 0.1],
    "frozen": ["none", "unit", "part"],
    "tied": [True, False],
    "offload": ["none", "all", "optimizer", "params"],
    "run": ["plain", "overlap", "chaos"],
}
HSDP = "reshard true 2x2"
PRESETS = ["fsdp1", "fsdp2", "manual-block", "inductor", "list"]


def is_fsdp2(case: Case) -> bool:
    return case["sharding"].startswith("reshard")


def has_mesh(case: Case) -> bool:
    """Whether it is sharded in groups of two and replicated in groups of two."""
    return case["sharding"].startswith("hybrid") or case["sharding"].endswith("2x2")


def has_inner_axis(case: Case) -> bool:
    """Whether the first block is sharded in groups of two, and all else over four ranks."""
    return case.get("first_block") == "inner axis"


def is_low(case: Case) -> bool:
    """Whether some computations or reductions are in bf16."""
    return case["reduce_dtype"] != "f32" or case["param_dtype"] != "f32"


def micro_batches(case: Case) -> int:
    return int(case["accumulate"][0])


def is_possible(case: Case) -> bool:
    """Whether no two of the values exclude each other; a feature may be missing."""
    if case.get("accumulate", "").endswith("all_reduce"):  # an option of FSDP2 alone, on a mesh
        if case.get("sharding", HSDP) != HSDP:
            return False
        case = case | {"sharding": HSDP}
    if has_inner_axis(case):
        case = {"world": 4, "sharding": "reshard true"} | case
    sharding, schedule, first_differs = case.get("sharding", ""), case.get("schedule"), case.get("first_block") == "reshard"
    return not (
        (case.get("world") == 2 and sharding and (sharding == "reshard 2" or has_mesh(case)))
        or (case.get("axis_of_one") is True and sharding and has_mesh(case))
        # FSDP2 has a mesh for each module, whose gradients PyTorch does not clip together.
        or (has_inner_axis(case) and (case["world"] == 2 or not is_fsdp2(case) or has_mesh(case) or case.get("axis_of_one") is True
                                      or case.get("clip", "none") != "none"))
        # By size, it is not known what is a unit. There is nothing to reshard, or the number is of all units.
        or ((first_differs or has_inner_axis(case) or case.get("reduce_dtype", "").endswith("block")) and case.get("wrap") == "size")
        or (first_differs and sharding in ("no_shard", "reshard 2"))
        # There is no next micro-batch, or pieces are kept.
        or (case.get("reshard_after_backward") is False and (case.get("accumulate") == "1" or sharding == "reshard 2"))
        # A preset decides these itself.
        or (schedule in PRESETS and (case.get("bucket", "none") != "none" or case.get("reduce_wait", "use") != "use"))
        # A search decides these itself, and does not know the others.
        or (schedule == "auto" and (first_differs or sharding in ("shard_grad_op", "hybrid_shard_zero2", "reshard false", "reshard 2")
            or any(case.get(name, usual) != usual for name, usual in (
                ("bucket", "none"), ("reduce_wait", "use"), ("remat", "none"), ("reshard_after_backward", True)))))
        # Nor does it know the copies of sums that are all-reduced once.
        or (schedule == "auto" and "no_all_reduce" in case.get("accumulate", "") and case.get("offload") in ("all", "optimizer"))
        # FSDP2 has one backward prefetch, and no policy by size.
        or (sharding.startswith("reshard") and (schedule in ("backward_post", "no_prefetch", "no_limit") or case.get("wrap") == "size"))
        # Where four ranks share three elements, one has no element, of which FSDP2 has no largest one: its rank fails, and the others hang.
        or (sharding.startswith("reshard") and "2x2" not in sharding and case.get("clip", "").endswith("inf")
            and (case.get("world") == 4 or sharding == "reshard 2"))
        # FSDP1 gives a tied parameter in f32 the unreduced gradient in bf16, which fails.
        or (sharding == "no_shard" and case.get("param_dtype") == "bf16" and case.get("accumulate", "").endswith("no_sync")
            and case.get("tied") is True)
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


def pairs(case: Case) -> set[frozenset]:
    """What the case has of each two features."""
    return set(map(frozenset, itertools.combinations(case.items(), 2)))


@functools.cache
def possible_pairs() -> list[frozenset]:
    choices = [[(name, value) for value in values] for name, values in FEATURES.items()]
    every = (pair for two in itertools.combinations(choices, 2) for pair in itertools.product(*two))
    return [frozenset(pair) for pair in every if complete(dict(pair))]


def extend(start: frozenset, todo: Container[frozenset], random_numbers: random.Random) -> Case:
    """A case with this pair and, feature by feature, the value that brings most of what is to do; the usual one, if that is as good."""
    case = dict(sorted(start))
    for name in random_numbers.sample(list(FEATURES), len(FEATURES)):
        if name not in case:
            values = [value for value in FEATURES[name] if is_possible(case | {name: value})]
            case[name] = max(values, key=lambda value: sum(frozenset([(name, value), item]) in todo for item in case.items()))
    return {name: case[name] for name in FEATURES}


def table(rows: int) -> list[Case]:
    """At least so many cases, and at least as many as it takes for every possible pair of values to be in one.

    Greedy: each row is the best of some that begin with a pair that is not there yet. What comes first covers the most.
    """
    random_numbers, result = random.Random(0), []
    todo: dict[frozenset, None] = dict.fromkeys(possible_pairs())  # a set with an order
    while todo or len(result) < rows:
        starts = list(todo) or possible_pairs()
        candidates = [extend(start, todo, random_numbers) for start in random_numbers.sample(starts, min(20, len(starts)))]
        best = max(candidates, key=lambda case: sum(pair in todo for pair in pairs(case)))
        result.append(best)
        for pair in pairs(best):
            todo.pop(pair, None)
    return result


def name(index: int, case: Case) -> str:
    """What is unusual about the case."""
    unusual = [f"{key}={value}" for key, value in case.items() if value != FEATURES[key][0]]
    return f"{index:02} {' '.join(unusual) or 'usual'}"
