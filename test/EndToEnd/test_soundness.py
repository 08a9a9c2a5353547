"""What is proved is right.

Random damage to whole plan files, in every field that the schema has, one or two at a time: what the file check and the
proof accept leaves the bits that the plan itself leaves, in chaos and without. `--all-mutants` tries eight hundred times as
many and writes docs/internals/soundness.md.
"""

import collections
import json
import os

import pytest
from conftest import BUILD, FIXTURES, ROOT, SAMPLE, find_bits, made_on, succeed

# Graphs, and more of a name if there are several plans of one; the ranks and options of their plans.
GRAPHS = {
    "gpt2": (3, ()),
    "bert": (3, ("--strategy", "shard_grad_op", "--ignore", "bias", "--lr-groups", "dims<2")),
    "llama": (4, ("--reshard-after-forward", "2")),
    "llama_bf16": (3, ("--storage-dtype", "f32")),
    "frozen": (3, ("--bucket", "units:2", "--offload", "optimizer")),
    "role_batch_norm": (3, ("--optimizer", "sgd", "--sync-buffers", "broadcast")),
    "role_tied": (3, ("--strategy", "no_shard", "--offload", "all")),
    "role_dropout": (3, ("--remat", r"scope:blocks\.\d+")),
    "role_user_output": (3, ("--keep-output",)),
    "role_chain": (3, ("--schedule", "list")),
    "role_encoder_decoder": (3, ("--schedule", "fsdp2")),
    "role_chain, micro-batches": (3, ("--accumulate", "3:mean", "--grad-scaler", "init_scale=8", "--clip-grad-norm", "0.5")),
    "llama, no_sync": (3, ("--accumulate", "2", "--no-sync", "--reshard-after-backward", "false", "--bucket", "copy:units:2")),
    "llama, decided": (3, ("--auto", "--hardware", "h100", "--evaluations", "200", "--offload", "all", "--accumulate", "2")),
    "gpt2, pieces": (4, ("--auto", "--hardware", "h100", "--evaluations", "200", "--reshard-after-forward", "2", "--budget", "400KiB",
                         "--what-if", "link.node.all_gather.rank_us=30x")),
    "bert, partial": (4, ("--mesh", "2x2", "--accumulate", "2", "--no-all-reduce", "--offload", "params")),
    "frozen, hook": (4, ("--mesh", "2x2", "--load-pass-plugin", str(BUILD / "lib" / "CompressReplicas.so"), "--comm-hook", "compress-replicas")),
    "llama_bf16, hybrid": (4, ("--mesh", "2x2", "--schedule", "fsdp2", "--clip-grad-norm", "0.1:inf")),
    "llama, inner axis": (8, ("--mesh", "replicate=2,shard=2,local=2", "--unit", ".*0: shard=local", "--accumulate", "2", "--no-all-reduce")),
    "role_batch_norm, scaled": (3, ("--sync-buffers", "mean", "--grad-scaler", "default")),
    "role_dropout, scaled": (3, ("--accumulate", "2:mean", "--grad-scaler", "init_scale=4")),
    "gpt2, programs": (3, ("--program", f"long={FIXTURES / 'gpt2.pt2'}", "--accumulate", "2", "--reduce-wait", "use")),
}
ROUND = 1000  # mutants whose plans lie in a folder at a time
COLUMNS = ["tried", "not a plan", "not proved", "not loaded", "same bits"]


def attack(graph, plan, reference, count, seed, folder):
    """Counts by field, and the harmful: what they are and what they leave."""
    folder.mkdir()
    output = succeed("fsdp-mutate-plan", ROOT / "schema" / "plan.fbs", plan, count, seed, folder, timeout=3600).stdout
    lines = [line.split("\t") for line in output.splitlines()]
    accepted = {str(folder / name): (field, what) for field, name, what in (line for line in lines if len(line) == 3)}
    counts = {line[0]: collections.Counter(dict(zip(COLUMNS, map(int, line[1:4])))) for line in lines if len(line) != 3}
    original = str(folder / "original.plan")
    found = [find_bits(graph.partition(",")[0], reference, chaos, [original, *accepted]) for chaos in (0, 1)]
    right = {each[original] for each in found}
    assert len(right) == 1 and len(*right) == 16, right
    harmful = []
    for mutant, (field, what) in accepted.items():
        left = {each[mutant] for each in found}
        if any(each.startswith("rejected: ") for each in left):
            counts[field]["not loaded"] += 1
        elif left == right:
            counts[field]["same bits"] += 1
        else:
            harmful.append(f"{graph}: {what}: {sorted(left)}")
        os.remove(mutant)
    return counts, harmful


@pytest.fixture(scope="module")
def campaign(request, plans, micro_batches, once, tmp_path_factory):
    """campaign(graph): counts by field, and the harmful."""
    total = 10_000 if request.config.getoption("--all-mutants") else 10

    def write(graph, path):
        (ranks, options), name = GRAPHS[graph], graph.partition(",")[0]
        micro = int(options[options.index("--accumulate") + 1].partition(":")[0]) if "--accumulate" in options else 1
        counts, harmful = collections.defaultdict(collections.Counter), []
        for start in range(0, total, ROUND):
            folder = tmp_path_factory.mktemp(graph) / str(start)
            found, bad = attack(graph, plans(name, ranks, *options), micro_batches(name, ranks, micro), min(total, ROUND), SAMPLE + start, folder)
            harmful += bad
            for field, count in found.items():
                counts[field] += count
        path.write_text(json.dumps([counts, harmful]))

    def find(graph):
        counts, harmful = json.loads(once(f"soundness-{graph}.json", lambda path: write(graph, path)).read_text())
        return {field: collections.Counter(count) for field, count in counts.items()}, harmful

    return find


@pytest.mark.parametrize("graph", GRAPHS)
def test_accepted_mutants_leave_the_same_bits(graph, campaign):
    counts, harmful = campaign(graph)
    assert sum(count["tried"] for count in counts.values()) > 0
    assert not harmful, "\n".join(harmful)


def table(first, rows):
    lines = [f"| {first} | " + " | ".join(COLUMNS) + " |", "| --- " + "| ---: " * len(COLUMNS) + "|"]
    lines += [f"| {name} | " + " | ".join(str(count[column]) for column in COLUMNS) + " |" for name, count in rows]
    return "\n".join(lines)


# Every field of the schema that a plan of these graphs has is damaged.
def test_every_field_is_attacked(campaign, request):
    fields, graphs = collections.defaultdict(collections.Counter), {}
    for graph in GRAPHS:
        counts, _ = campaign(graph)
        graphs[graph] = sum(counts.values(), collections.Counter())
        for field, count in counts.items():
            fields[field] += count
    if not request.config.getoption("--all-mutants"):
        return
    tried = sum(count["tried"] for count in graphs.values())
    for field in ("MeshAxis.size", "Communicator.axes", "Launch.args", "Launch.results", "Shape.values", "Buffer.dtype",
                  "Buffer.role", "ReduceScatter.pre", "ReduceScatter.post", "Unit.shards", "Meaning.value"):
        assert fields[field]["tried"] > 100, field
    rows = [(f"{graph}, {GRAPHS[graph][0]} ranks {' '.join(os.path.basename(option) if '/' in option else option for option in GRAPHS[graph][1])}".strip(), count)
            for graph, count in graphs.items()]
    (ROOT / "docs" / "internals" / "soundness.md").write_text(PAGE.format(
        made_on=made_on(), tried=tried, graphs=table("plan", rows), fields=table("field", sorted(fields.items()))))


PAGE = """# Soundness of the proof

{made_on}

The proof (`--plan-verify`, `fsdp-run --verify`, and `fsdp-plan` of each plan that it writes) is attacked with
random mutants: numbers and vectors anywhere in a plan file are changed, one or two at a time, found by the schema alone;
digests and checksum are computed again, as an attacker would. {tried} mutants were tried. What both the
file check and the proof accept is run, three steps, with other data on every rank, also in chaos (a second thread,
random delays, NaN in all memory that is not in use), and its losses, gradients, parameters, states and buffers are
compared with those of the plan itself, bit for bit. No accepted mutant differs.

`scripts/check.sh` tries an eight-hundredth; this page is written by

```
pytest -q test/EndToEnd/test_soundness.py --all-mutants
```

{graphs}

"Not a plan" is what the file check rejects, "not proved" what the proof rejects, "not loaded" what the runtime rejects
before the first step (an operator with arguments that it does not take, and such). What is left changes no
value: the name of a unit, an event that nobody waits for, the order of two independent commands.

By the first field that was damaged:

{fields}

For mutants of schedules and plans as IR, see [mutation.md](mutation.md).
"""
