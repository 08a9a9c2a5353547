"""Operators that write what their schemas call read-only.

Hazards, drains and the order of streams rest on schemas. Each operator is called with random arguments, and compares what
its schema calls read-only before and after; those that write it must be in the table `hiddenWrites` of OpFactsManual.cpp.
"""

import json
import os
import pathlib
import random
import re
import signal

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRIES, CALLS = 10, 3  # of arguments, until so many fit
SHAPES = [(4,), (4, 4), (2, 4, 4), (2, 4, 4, 4), (), (2, 4)]
# Outside of what a plan holds, or in need of more than arguments.
FOREIGN = re.compile(r"_?(set_|resize|record_stream|from_file|cuda|cudnn|mps|print|pin|nested|sparse|to_sparse|rename|debug|sym_|"
                     r"vulkan|xpu|validate|mkldnn|miopen|is_|assert|test|as_strided|rand|normal|bernoulli)")
SIMPLE = {"int": [0, 1, 2, 4], "float": [0.1, 1e-5, 1.0], "bool": [True, False], "number": [1, 0.5, 2], "str": ["mean"],
          "List[int]": [[4], [4, 4], [1, 1], [0], [0, 1], []], "List[bool]": [[True] * 3], "List[float]": [[1.0, 1.0]]}


def value(kind, rng):
    if kind.startswith("Optional["):
        return None if rng.random() < 0.3 else value(kind[9:-1], rng)
    if kind == "Tensor":
        shape = rng.choice(SHAPES)
        return torch.rand(shape) if rng.random() < 0.8 else torch.randint(0, 2, shape)
    if kind == "List[Tensor]":
        return [torch.rand(rng.choice(SHAPES[:3])) for _ in range(2)]
    return rng.choice(SIMPLE[kind]) if kind in SIMPLE else None


def leaves(given):
    if isinstance(given, torch.Tensor):
        return [given]
    return [leaf for each in given for leaf in leaves(each)] if isinstance(given, (list, tuple)) else []


def get_overload(name):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def written(overload, arguments):
    """The arguments that a call writes and should not; an error if it takes no such arguments."""
    schema = overload._schema.arguments
    watched = [(argument.name, tensor, tensor.clone()) for argument, given in zip(schema, arguments)
               if not (argument.alias_info and argument.alias_info.is_write) for tensor in leaves(given)]
    overload(*[given for argument, given in zip(schema, arguments) if not argument.kwarg_only],
             **{argument.name: given for argument, given in zip(schema, arguments) if argument.kwarg_only})
    return {name for name, tensor, old in watched if not torch.equal(tensor.nan_to_num(), old.nan_to_num())}


def survey(names):
    """Yields each name, how often it could be called, and what it wrote; in a child, for some calls crash."""
    while names:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            torch.set_num_threads(1)
            with os.fdopen(writer, "w", buffering=1) as out:
                for name in names:
                    signal.alarm(10)
                    overload, calls, found = get_overload(name), 0, set()
                    for attempt in range(TRIES):
                        rng = random.Random(f"{name} {attempt}")
                        torch.manual_seed(attempt)
                        try:
                            found |= written(overload, [value(str(a.type), rng) for a in overload._schema.arguments])
                            calls += 1
                        except Exception:
                            continue
                        if calls == CALLS:
                            break
                    out.write(json.dumps([name, calls, sorted(found)]) + "\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            results = [json.loads(line) for line in lines]
        os.waitpid(child, 0)
        yield from results
        names = names[len(results) + 1:]


def known():
    """The table, by packet: the positions of what is written."""
    text = (ROOT / "lib" / "Operators" / "OpFactsManual.cpp").read_text()
    rows = re.findall(r'\{"(\w+)", (0x\w+)\}', text[text.index("hiddenWrites[]"):text.index("// Costs")])
    return {packet: [i for i in range(32) if int(bits, 16) >> i & 1] for packet, bits in rows}


def test_nobody_else_writes_what_it_reads():
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    names = [name for name in names if not FOREIGN.match(name.removeprefix("aten::"))]
    called, liars = 0, {}
    for name, calls, found in survey(names):
        called += calls > 0
        if found:
            liars[name] = found
    assert called > 1200
    assert not {name: found for name, found in liars.items() if name.removeprefix("aten::").split(".")[0] not in known()}


STATISTICS = (torch.zeros(4), torch.ones(4))
NORM = (torch.rand(2, 4, 4, 4), torch.rand(4), torch.rand(4), *STATISTICS, True, 0.1, 1e-5)
CALLS_THAT_WRITE = {
    "batch_norm": (*NORM, False), "instance_norm": (*NORM, False), "_batch_norm_impl_index": (*NORM, False),
    "native_batch_norm": NORM, "batch_norm_update_stats": (NORM[0], *STATISTICS, 0.1),
    "cov": (torch.tensor(0.5), 0, torch.tensor(1)),
}


# The rows are true, as far as there is no GPU.
@pytest.mark.parametrize("packet", CALLS_THAT_WRITE)
def test_the_table_is_right(packet):
    overload = getattr(torch.ops.aten, packet).default
    arguments = [given.clone() if isinstance(given, torch.Tensor) else given for given in CALLS_THAT_WRITE[packet]]
    arguments += [argument.default_value for argument in overload._schema.arguments[len(arguments):]]
    assert written(overload, arguments) == {overload._schema.arguments[i].name for i in known()[packet]}


def test_every_row_that_runs_on_a_cpu_is_tried():
    gpu = {"batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "cudnn_batch_norm", "miopen_batch_norm"}
    assert known().keys() - gpu == CALLS_THAT_WRITE.keys()
