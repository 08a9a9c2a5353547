"""A check is worth what it notices.

Plans with one command changed, which the runtime accepts, must fail the comparison with PyTorch. Schedules and plans with
one mistake of any kind must be rejected by a verifier, or else leave the same bits behind; `--all-mutants` tries all of
them and writes docs/internals/mutation.md.
"""

import collections
import json
import re

import pytest
from conftest import FIXTURES, ROOT, SAMPLE, find_bits, made_on, succeed, tool


def text_of(plan, folder):
    """The plan as text, with its locations."""
    path = folder / "plan.mlir"
    succeed("fsdp-translate", "--import-plan", plan, "--mlir-print-debuginfo", "-o", path)
    return path.read_text()


def plan_of(text, folder):
    (folder / "mutant.mlir").write_text(text)
    succeed("fsdp-translate", "--export-plan", folder / "mutant.mlir", "-o", folder / "mutant.plan")
    return folder / "mutant.plan"


def substitute(pattern, replacement, text):
    """Replaces the first match; there must be one."""
    changed, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1, f"no {pattern} in the plan"
    return changed


def run(plan, graph, ranks, reference):
    return tool("fsdp-run", plan, "--ranks", ranks, "--weights", FIXTURES / f"{graph}.pt2", "--reference", reference)


def check_fails(plan, graph, ranks, reference, sentence):
    """The run is a check that failed, not a rejection and not a crash."""
    result = run(plan, graph, ranks, reference)
    assert result.returncode == 2, result.stdout + result.stderr
    assert re.search(sentence, result.stderr), result.stderr


REDUCE = r"plan\.reduce_scatter @shard_reduce divide <pre = 2, post = [0-9.]+> via f32 (%\d+) to (%\d+) of @([\w.]+) <backward> on reduce"


# Otherwise the tests below would measure the way through text, not their mutation.
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("graph", ["gpt2", "frozen", "role_batch_norm"])
def test_text_round_trip_keeps_every_byte(graph, ranks, plans, references, tmp_path):
    plan = plans(graph, ranks)
    copy = plan_of(text_of(plan, tmp_path), tmp_path)
    assert copy.read_bytes() == plan.read_bytes()
    assert run(copy, graph, ranks, references(graph, ranks)).returncode == 0


# The mistake that equal batches on all ranks would hide: each rank keeps its own gradient.
@pytest.mark.parametrize("ranks", [2, 3])
def test_reduction_without_sum_is_noticed(ranks, plans, references, tmp_path):
    text = text_of(plans("gpt2", ranks), tmp_path)
    source, target, unit = re.search(REDUCE, text).groups()
    shard = re.search(rf"{target} = plan\.buffer gradient .* : (tensor<\d+xf32>)", text)[1]
    # The plan is the same on all ranks, so all of them take the slice of rank 0.
    text = substitute(r"( *)plan\.program @step", rf"\1%slice = plan.view {source} at 0 : {shard}\n\g<0>", text)
    text = substitute(REDUCE, rf"plan.copy %slice to {target} <backward> on reduce", text)
    mutant = plan_of(text, tmp_path)
    check_fails(mutant, "gpt2", ranks, references("gpt2", ranks), rf"grad\.{re.escape(unit)}\.\S+: expected values within")


# A gradient twice as large trains, only worse: nobody would see it without a comparison.
@pytest.mark.covers("mean over all ranks")
@pytest.mark.parametrize("ranks", [2, 3])
def test_wrong_divisor_is_noticed(ranks, plans, references, tmp_path):
    text = text_of(plans("gpt2", ranks), tmp_path)
    unit = re.search(REDUCE, text)[3]
    mutant = plan_of(substitute(r"(plan\.reduce_scatter @shard_reduce divide <pre = )2,", r"\g<1>1,", text), tmp_path)
    check_fails(mutant, "gpt2", ranks, references("gpt2", ranks), rf"grad\.{re.escape(unit)}\.\S+: expected values within")


# AdamW decays weights without any gradient: a frozen parameter inside an interval moves.
def test_update_of_frozen_parameters_is_noticed(plans, tmp_path):
    text = text_of(plans("frozen", 2), tmp_path)
    mutant = plan_of(substitute(r"(plan\.adamw @m\.transformer\.h\.1) \[0, 64, 4288, 12704\]", r"\1 [0, 12704]", text), tmp_path)
    check_fails(mutant, "frozen", 2, FIXTURES / "frozen_train2x5.safetensors",
                r"param\.m\.transformer\.h\.1\.attn\.c_attn\.weight: expected values within")


# Padding goes into norms and checkpoints: it must be 0 although no parameter shows it.
@pytest.mark.covers("_get_reduce_scatter_tensors", "torch.nn.functional")
def test_dirty_padding_of_gradients_is_noticed(plans, references, tmp_path):
    text = text_of(plans("gpt2", 3), tmp_path)
    mutant = plan_of(substitute(r"plan\.zero (%\d+)( <backward>.*\n.*\n.*\n.*@m\.transformer\.h\.1 )",
                                r'plan.launch "fill_.Scalar"(1.0) -> \1\2', text), tmp_path)
    check_fails(mutant, "gpt2", 3, references("gpt2", 3),
                r"unit m\.transformer\.h\.1: expected 0 in element 12704 of its reduced gradient, which is padding, "
                r"found 1 on rank 2$")


# What the same mistake leaves behind after updates.
def test_dirty_padding_of_parameters_is_noticed(plans, tmp_path):
    text = text_of(plans("role_batch_norm", 2), tmp_path)
    mutant = plan_of(substitute(r"plan\.zero (%\d+) <backward>", r'plan.launch "fill_.Scalar"(1.0) -> \1 <backward>', text),
                     tmp_path)
    check_fails(mutant, "role_batch_norm", 2, FIXTURES / "role_batch_norm_train2x5.safetensors",
                r"unit root: expected 0 in element 213 of its flat parameter, which is padding, found \S+ on rank 1$")


# A graph and more if there are two of it, the options of its pipeline, its ranks (a reference has a batch for each), and how many
# mutants there are to one that is tried with --all-mutants.
TRIALS = {
    "gpt2": ("ranks=3 clip-grad-norm=0.5", 3, 1),
    "llama": ("ranks=4 reshard-after-forward=2 bucket=copy:units:2 forward-prefetch=1 clip-grad-norm=0.01:inf no-decay=norm", 4, 1),
    "bert": ("ranks=3 strategy=shard_grad_op offload=all", 3, 10),
    "llama_bf16": ("ranks=3 storage-dtype=f32 remat=scope:m.model.layers.[0-9]+", 3, 10),
    "frozen": ("ranks=3 bucket=units:2 no-decay=dims<2 offload=optimizer", 3, 10),
    "role_batch_norm": ("ranks=3 optimizer=sgd", 3, 10),
    "role_tied": ("ranks=3 strategy=no_shard", 3, 10),
    "role_dropout": ("ranks=3 remat=cheap:blocks.[0-9]+", 3, 10),
    "role_user_output": ("ranks=3 keep-output", 3, 10),
    "role_chain": ("ranks=3 schedule=list hardware=h100", 3, 10),
    "gpt2, partial": ("mesh=2x2 accumulate=2 no-all-reduce reshard-after-backward=false", 4, 20),
    "frozen, no_sync": ("ranks=3 accumulate=3 no-sync reshard-after-backward=false bucket=copy:units:2", 3, 20),
    "role_chain, scaled": ("ranks=3 accumulate=2:mean grad-scaler=init_scale=8 clip-grad-norm=0.5", 3, 20),
    "bert, ignored": ("ranks=3 ignore=bias lr-groups=dims<2", 3, 20),
    "role_batch_norm, mean": ("mesh=2x2 sync-buffers=mean schedule=fsdp2", 4, 10),
    "llama, inner axis": ("mesh=replicate=2,shard=2,local=2 unit='.*0: shard=local; .*1: shard=shard reshard=false' clip-grad-norm=0.5", 8, 40),
    "role_encoder_decoder": ("ranks=3 reduce-wait=next limit-all-gathers=2 offload=params clip-grad-norm=0.5", 3, 10),
}
LEVELS = {"schedule": [], "plan": ["--plan"]}
Mutant = collections.namedtuple("Mutant", "op mutation verdict sentence what")


@pytest.fixture(scope="module")
def trials(request, once, micro_batches, tmp_path_factory):
    """trials(graph, level): all mutants, and the bits of the original and of those that no verifier rejects."""
    def write(graph, level, path):
        (options, ranks, every), name = TRIALS[graph], graph.partition(",")[0]
        micro = re.search(r"accumulate=(\d+)", options)
        inputs = micro_batches(name, ranks, int(micro[1]) if micro else 1)
        if not request.config.getoption("--all-mutants"):
            every *= 40
        folder = tmp_path_factory.mktemp(f"{graph}-{level}")
        output = succeed("fsdp-mutate", FIXTURES / f"{name}.pt2", "--pipeline", options, *LEVELS[level],
                         "--every", every, "--seed", SAMPLE, "--pairs", 4000 // every, "-o", folder, timeout=3600).stdout
        mutants = [Mutant(*line.split("\t")) for line in output.splitlines()]
        plans = ["original.plan", *sorted({m.verdict for m in mutants if m.verdict.endswith(".plan")})]
        # In order and in chaos; of a sample, each mutant in one of the two.
        chosen = (plans, plans) if request.config.getoption("--all-mutants") else [plans[:1] + plans[1 + seed::2] for seed in (0, 1)]
        found = [find_bits(name, inputs, seed, [folder / plan for plan in some]) for seed, some in enumerate(chosen)]
        found = {plan: sorted({each[str(folder / plan)] for each in found if str(folder / plan) in each}) for plan in plans}
        rejected = {plan for plan in plans if any(each.startswith("rejected: ") for each in found[plan])}
        mutants = [m._replace(verdict="runtime") if m.verdict in rejected else m for m in mutants]
        path.write_text(json.dumps([mutants, found]))

    def find(graph, level):
        mutants, found = json.loads(once(f"{graph}-{level}.json", lambda path: write(graph, level, path)).read_text())
        return [Mutant(*m) for m in mutants], found

    return find


# The oracle of the tests below can tell.
def test_bits_show_a_wrong_divisor(plans, references, tmp_path):
    plan = plans("gpt2", 3)
    mutant = plan_of(substitute(r"(plan\.reduce_scatter @shard_reduce divide <pre = )[0-9.]+,", r"\g<1>1,", text_of(plan, tmp_path)),
                     tmp_path)
    found = find_bits("gpt2", references("gpt2", 3), 0, [plan, mutant])
    assert re.fullmatch("[0-9a-f]{16}", found[str(mutant)]) and found[str(plan)] != found[str(mutant)]


# Whoever gets past all verifiers means the same, whatever the order of what nothing orders.
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("graph", TRIALS)
def test_what_no_verifier_rejects_is_harmless(graph, level, trials):
    mutants, found = trials(graph, level)
    right = found["original.plan"]
    assert len(right) == 1 and re.fullmatch("[0-9a-f]{16}", *right)
    harmful = [f"{m.what}: {found[m.verdict]}" for m in mutants if m.verdict.endswith(".plan") and found[m.verdict] != right]
    assert not harmful, "\n".join(harmful)


def table(columns, rows, cell):
    """A table of Markdown."""
    lines = [["", *columns]] + [[row, *(cell(row, column) for column in columns)] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths)) + " |" for line in lines)


# Few mutants, or mistakes that no verifier meets, would prove little.
def test_every_kind_of_mistake_is_tried(trials, request):
    isFull = request.config.getoption("--all-mutants")
    runs = {(graph, level): trials(graph, level)[0] for graph in TRIALS for level in LEVELS}
    mutants = [m for made in runs.values() for m in made if m.verdict != "parser"]
    unparsed = sum(map(len, runs.values())) - len(mutants)
    tried = collections.Counter((m.op, m.mutation) for m in mutants)
    harmless = collections.Counter((m.op, m.mutation) for m in mutants if m.verdict == "same" or m.verdict.endswith(".plan"))
    names = ["delete", "duplicate", "swap", "move", "operand", "group", "divisor", "phase", "offset", "event", "stream", "unit", "spelling", "type", "two"]
    assert {m.mutation for m in mutants} == set(names)
    # Of steps, not of the models that they are made from.
    assert {"fsdp.async.unshard", "fsdp.async.reduce_scatter", "fsdp.measure", "fsdp.adamw"} <= {m.op for m in mutants}

    def cell(op, mutation):
        count, left = tried[op, mutation], harmless[op, mutation]
        return f"{count - left} of {count}" if count else ""

    by_mistake = table(names, sorted({m.op for m in mutants}), cell)
    rejected = collections.Counter((m.verdict, graph, level) for (graph, level), made in runs.items() for m in made)
    verifiers = ["MLIR", "scheduled", "futures", "order", "equivalence", "lowering", "plan file", "plan-verify", "runtime"]
    by_verifier = table([*verifiers, "same plan", "same bits"], [f"{graph}, {level}" for graph, level in runs],
                        lambda row, column: str(sum(
                            count for (verdict, graph, level), count in rejected.items() if row == f"{graph}, {level}"
                            and column == ("same plan" if verdict == "same" else "same bits" if verdict.endswith(".plan") else
                                           verdict))))
    by_trial = "\n".join(f"- {graph}: `{options}`, {'all' if every == 1 else f'one in {every}'}"
                         for graph, (options, _, every) in TRIALS.items())
    print(f"\n{len(mutants)} mutants, and {unparsed} that do not parse\n\n{by_mistake}\n\n{by_verifier}")
    assert len(mutants) >= (20000 if isFull else 1000)
    if isFull:
        (ROOT / "docs" / "internals" / "mutation.md").write_text(PAGE.format(
            made_on=made_on(), count=len(mutants), unparsed=unparsed, by_mistake=by_mistake, by_verifier=by_verifier,
            harmless=sum(harmless.values()), by_trial=by_trial))


PAGE = """# Mutation tests of the verifiers

{made_on}

`scripts/check.sh` tries a fortieth of this, evenly of every operation and kind. This page is written by
`scripts/check.sh --all`, which tries all of them, or by

```
pytest -q -s test/EndToEnd/test_mutations.py --all-mutants
```

A valid schedule and a valid plan of each line below are mutated in one place. An operation is deleted, duplicated, swapped with its
neighbour, or moved; it takes another operand, or exchanges one with the next of its kind; its group, divisor, phase, offset,
event, stream or unit changes; a word of one of its attributes or types changes; or two of these at once. Each of the {count} mutants goes through all verifiers
({unparsed} more do not parse: an operand is used ahead of its definition).

What no verifier rejects must be harmless, and is run to show it: {harmless} mutants are the same plan as the original, or
leave the same bits behind (losses, gradients, parameters, states and buffers of three steps, other data on every rank,
also in chaos: with a second thread, random delays, and NaN in all memory that is not in use). Most of those move an operation that nothing depends on, or compute an unused value twice.

The graphs, the options of `--fsdp-pipeline`, and how many of all mutants are tried, beside 4,000 pairs of each (400 where not all are):

{by_trial}

Rejected of all tried, by the operation that was damaged and how:

{by_mistake}

Which verifier rejected it, the first in the order of a compilation; "same plan" and "same bits" are not rejected:

{by_verifier}

`MLIR` is the verifier of each operation, which quotes its constraints; `scheduled`, `futures`, `order` and `equivalence`
are the passes `--fsdp-verify-*`; `plan file` is the check that every plan file goes through when it is written and read;
`plan-verify` is the proof of what the plan computes; `runtime` is what the runtime does not load (an operator with
arguments that it does not take).
"""
