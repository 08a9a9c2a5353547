"""The plan waits where the schedule says, and nowhere else; memory is counted in one way.

A wait of the compute stream is a decision of the scheduled level. A place in memory that another stream still uses would
make it wait as well, and no schedule, prediction or report would know: so memory is assigned by the events that are there.
"""

import itertools
import re

import pytest
from conftest import FIXTURES, succeed

STREAMS = {"unshard": "gather", "reduce_scatter": "reduce", "all_reduce": "all_reduce", "copy": "copy"}
COLLECTIVE = re.compile(r"plan\.(all_gather|reduce_scatter|all_reduce|copy) (@\S+)?.*<\w+> on (\w+)$")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """The scheduled level and the plan of one compilation."""
    folder = tmp_path_factory.mktemp("waits")

    def compile(graph, options):
        source = folder / f"{graph}.mlir"
        if not source.exists():
            succeed("fsdp-translate", "--import-pt2", FIXTURES / f"{graph}.pt2", "-o", source)
        result = succeed("fsdp-opt", source, f"--fsdp-pipeline={options}", "--mlir-print-ir-after=fsdp-verify-order")
        return result.stderr, result.stdout

    return compile


def programs(text, begin):
    """The lines of each function or program."""
    found, body = {}, None
    for line in text.splitlines():
        if opened := re.match(begin, line):
            body = found.setdefault(opened[1], [])
        elif body is not None and re.match(r" *}$", line):
            body = None
        elif body is not None:
            body.append(line.strip())
    return found


def scheduled_waits(lines, sizes):
    """What the compute stream waits for, in its order: (stream, which call of it), and how many calls were issued before."""
    issued, calls, waits, last = dict.fromkeys(STREAMS.values(), 0), {}, [], None
    for line in lines:
        if launch := re.match(r"(%\S+) = fsdp\.async\.(unshard|reduce_scatter|all_reduce|copy) ", line):
            stream, axes = STREAMS[launch[2]], re.search(r"over \[(.*?)\]", line)
            if axes and not any(sizes[axis] > 1 for axis in re.findall(r'"(\w+)"', axes[1])):
                continue  # one rank: nothing is sent
            bucket = re.search(r" bucket (\d+)", line)
            key = bucket and (stream, bucket[1])
            issued[stream] += key is None or key != last
            last = key
            calls[launch[1]] = (stream, issued[stream])
        elif "fsdp.async.wait" in line:
            if call := calls.get(re.search(r"wait (%[^ :]+)", line)[1]):
                waits.append((call, sum(issued.values())))
        else:
            last = None
    return waits


def planned_waits(lines):
    """The same, and after each call of all streams what the compute stream knows."""
    issued, events, waits = dict.fromkeys(STREAMS.values(), 0), {}, []
    known = {stream: dict.fromkeys(STREAMS.values(), 0) for stream in (*STREAMS.values(), "compute")}
    knowledge, last = [], None
    for line in lines:
        role = re.search(r"<(\w+)>", line)
        if event := re.match(r"(%\S+) = plan\.record <\w+>(?: on (\w+))?", line):
            stream = event[2] or "compute"
            events[event[1]] = {**known[stream], **({stream: issued[stream]} if event[2] else {})}, (stream, issued.get(stream))
        elif event := re.match(r"plan\.wait (%\S+) <\w+>(?: on (\w+))?", line):
            clock, call = events[event[1]]
            stream = event[2] or "compute"
            known[stream] = {name: max(count, clock[name]) for name, count in known[stream].items()}
            if stream == "compute":
                waits.append((call, sum(issued.values())))
                knowledge.append((sum(issued.values()), dict(known["compute"])))
        elif call := COLLECTIVE.search(line):
            if call[1] == "copy" and call[3] != "copy":
                continue  # a cast on the stream of a collective
            group = re.search(r" group (\d+)", line)
            key = group and (call[3], group[1])
            issued[call[3]] += key is None or key != last
            last = key
    return waits, knowledge


PRESETS = ["", *(f" schedule={name}" for name in ("fsdp1", "fsdp2", "manual-block", "inductor", "list")), " auto hardware=h100 evaluations=500"]
MESHES = ["ranks=4", "mesh=2x2"]
OPTIONS = ["strategy=shard_grad_op", "reduce-wait=use", "reduce-wait=backward", "bucket=units:2", "bucket=copy:units:2", "bucket=merge:units:2",
           "backward-prefetch=backward_post", "forward-prefetch=2 limit-all-gathers=3", "limit-all-gathers=0", "limit-all-gathers=1",
           "reshard-after-forward=2", "accumulate=3", "accumulate=3 no-sync", "accumulate=2 reshard-after-backward=false", "clip-grad-norm=1.0",
           "offload=params", "offload=all", "offload=all clip-grad-norm=1.0", "storage-dtype=bf16", "reduce-dtype=bf16", "remat=scope:.*\\.\\d+"]
CASES = [*itertools.product(("gpt2", "llama", "llama_bf16", "bert", "frozen"), MESHES, PRESETS),
         *((graph, mesh, " " + option) for graph in ("gpt2", "llama_bf16") for mesh in MESHES for option in OPTIONS),
         *(("role_chain", mesh, " grad-scaler=default accumulate=2:mean clip-grad-norm=1.0") for mesh in MESHES)]


@pytest.mark.parametrize("graph, mesh, options", CASES, ids=lambda value: value.strip().replace(" ", ",") or "default")
def test_waits_are_those_of_the_schedule(compiled, graph, mesh, options):
    if "remat" in options:
        options = options.replace(".*", "m.transformer.h" if graph == "gpt2" else "m.model.layers")
    text, plan = compiled(graph, mesh + options)
    sizes = {axis: int(size) for axis, size in re.findall(r'"(\w+)" = (\d+)', re.search(r"fsdp\.mesh .*", text)[0])}
    functions = programs(text, r"  func\.func @([\w.]+)\(")
    for name, lines in programs(plan, r" *plan\.program @(\w+)").items():
        if name == "init":
            continue
        asked, (waits, knowledge) = scheduled_waits(functions[name], sizes), planned_waits(lines)
        assert set(waits) <= set(asked), "a wait that no schedule asked for"
        for (stream, call), issued in asked:
            assert any(known[stream] >= call for place, known in knowledge if place <= issued), f"no wait for {stream} {call} after {issued} calls"


@pytest.mark.parametrize("options", ["ranks=4" + options for options in (*PRESETS, " forward-prefetch=1", " bucket=units:2", " reduce-wait=use", " offload=all",
                                                                         " reshard-after-forward=2")])
@pytest.mark.parametrize("graph", ["gpt2", "llama", "llama_bf16"])
def test_memory_is_counted_in_one_way(compiled, graph, options, tmp_path):
    """The peak of the timeline is that of --fsdp-verify-memory."""
    text, _ = compiled(graph, options)
    (tmp_path / "scheduled.mlir").write_text(text)
    remarks = succeed("fsdp-opt", tmp_path / "scheduled.mlir", "--fsdp-annotate-costs", "--fsdp-verify-memory", "--fsdp-schedule=algorithm=program",
                      "--remarks-filter=fsdp-(verify-memory|schedule)", "--remark-format=emitRemark", "-o", "/dev/null").stderr
    counted = int(re.search(r"peak \|.* Bytes=(\d+)", remarks)[1])
    number, unit = re.search(r'timeline \|.* Peak="([\d.]+) (\w+)"', remarks).groups()
    spelled = counted / {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
    assert float(number) == pytest.approx(spelled, abs=0.0051)
