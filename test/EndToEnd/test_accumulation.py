"""Steps of several micro-batches: the gradients, trainings and collectives are those of PyTorch, whatever is summed when."""

import json
import re

import pytest
from conftest import FIXTURES, digest, make_reference, succeed, tool

MODELS = ["gpt2", "frozen", "llama", "role_tied", "role_batch_norm", "role_channels_last", "role_unused"]


@pytest.fixture(scope="session")
def accumulated(once):
    """accumulated(graph, ranks, micro, *options): a reference in which a step has `micro` micro-batches."""
    def find(graph, ranks, micro, *options):
        return once(f"{digest(graph, ranks, micro, *options)}.safetensors",
                    lambda path: make_reference(path, graph, ranks, "--micro-batches", micro, *options))

    return find


def plan(graph, tmp_path, *options):
    succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", *options, "-o", tmp_path / "p.plan")
    return tmp_path / "p.plan"


def compare(graph, plan, reference, tolerance, *options):
    return succeed("fsdp-run", plan, "--weights", FIXTURES / f"{graph}.pt2", "--verify", "--reference", reference, "--tolerance", tolerance, *options)


# Each rank and micro-batch has a batch of its own; the proof is run again at load.
@pytest.mark.covers("Accumulates", "_accumulate_sharded_grad", "_finalize_params")
@pytest.mark.parametrize("sync", [[], ["--no-sync"]], ids=["sync", "no_sync"])
@pytest.mark.parametrize("graph, micro", [("gpt2", 2), *((graph, 3) for graph in MODELS)])
def test_gradients_are_the_sum(graph, micro, sync, accumulated, tmp_path):
    made = plan(graph, tmp_path, "--ranks", "2", "--accumulate", micro, *sync)
    compare(graph, made, accumulated(graph, 2, micro), "1e-5", "--overlap", "--chaos", "3")


@pytest.mark.parametrize("sync", [[], ["--no-sync"]], ids=["sync", "no_sync"])
@pytest.mark.parametrize("options", [
    ["--ranks", "1"], ["--ranks", "3"], ["--mesh", "2x2"], ["--mesh", "2x2", "--strategy", "hybrid_shard_zero2"],
    ["--ranks", "3", "--strategy", "no_shard"], ["--ranks", "3", "--strategy", "shard_grad_op", "--schedule", "fsdp1"],
    ["--ranks", "3", "--schedule", "fsdp2"], ["--ranks", "3", "--schedule", "inductor"], ["--ranks", "3", "--schedule", "list"],
    ["--ranks", "4", "--reshard-after-forward", "2", "--remat", "scope:transformer.h.0"], ["--ranks", "3", "--bucket", "merge:units:2"],
    ["--ranks", "4", "--unit", "root: strategy=no_shard"],
    ["--mesh", "shard=2,local=2", "--unit", ".*0: shard=local; root: shard=shard", "--schedule", "fsdp2"],
], ids=" ".join)
def test_options_agree_with_pytorch(options, sync, accumulated, tmp_path):
    ranks = 4 if "--mesh" in options else int(options[1])
    compare("gpt2", plan("gpt2", tmp_path, *options, "--accumulate", 3, *sync), accumulated("gpt2", ranks, 3), "1e-5")


# Each micro-batch reduce-scatters, the last one all-reduces. A unit that only one of the two reduces has nothing in between.
@pytest.mark.covers("set_requires_all_reduce")
@pytest.mark.parametrize("options", [
    [], ["--strategy", "hybrid_shard_zero2"], ["--schedule", "fsdp2"], ["--bucket", "copy:units:2"], ["--bucket", "units:2"], ["--schedule", "list"],
    ["--offload", "all"], ["--remat", "scope:transformer.h.0"], ["--unit", "root: strategy=no_shard; .*1: strategy=full_shard"],
], ids=" ".join)
def test_one_all_reduce(options, accumulated, tmp_path):
    made = plan("gpt2", tmp_path, "--mesh", "2x2", "--accumulate", 3, "--no-all-reduce", *options)
    compare("gpt2", made, accumulated("gpt2", 4, 3), "1e-5", "--overlap", "--chaos", "3")


@pytest.mark.covers("set_requires_all_reduce")
@pytest.mark.parametrize("types, kept, tolerance", [
    ([], "bf16", "4e-2"), (["--reduce-dtype", "f32"], "f32", "2e-2"), (["--storage-dtype", "f32", "--reduce-dtype", "bf16"], "bf16", "4e-2"),
])
def test_partial_sums_are_in_the_reduce_type(types, kept, tolerance, accumulated, tmp_path):
    made = plan("llama_bf16", tmp_path, "--mesh", "2x2", "--accumulate", 3, "--no-all-reduce", *types)
    sums = re.findall(r"plan\.buffer accumulator @\S+ (\S+) .*: tensor<\d+x(\w+)>", succeed("fsdp-translate", "--import-plan", made).stdout)
    assert sums and set(sums) == {('"partial_gradient"', kept)}
    compare("llama_bf16", made, accumulated("llama_bf16", 4, 3), tolerance)


# The first micro-batch gathers, and what it has gathered is there for the others.
@pytest.mark.covers("set_reshard_after_backward")
@pytest.mark.parametrize("options, gathers", [
    ([], 0), (["--no-sync"], 0), (["--strategy", "shard_grad_op"], 0), (["--reshard-after-forward", "true"], 0), (["--schedule", "fsdp2"], 0),
    (["--schedule", "manual-block"], 0), (["--backward-prefetch", "backward_post", "--forward-prefetch", "1"], 0), (["--bucket", "units:2"], 0),
    (["--schedule", "list"], 0), (["--offload", "all"], 0), (["--remat", "scope:transformer.h.0"], 0), (["--strategy", "no_shard"], 0),
    (["--unit", "root: strategy=no_shard"], 0), (["--unit", ".*0: reshard-after-backward=true"], 2), (["--mesh", "1x2"], 0),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_gathered_once(options, gathers, accumulated, tmp_path):
    made = plan("gpt2", tmp_path, "--ranks", "2", "--accumulate", 3, "--reshard-after-backward", "false", *options)
    found = collectives(made)
    assert found["middle"][0] == found["last"][0] == gathers <= found["first"][0]
    compare("gpt2", made, accumulated("gpt2", 2, 3), "1e-5", "--overlap", "--chaos", "3")


# A decision for some units, and parameters that are gathered in the type in which they compute.
def test_one_unit_is_gathered_once(accumulated, tmp_path):
    made = plan("llama_bf16", tmp_path, "--ranks", "2", "--accumulate", 2, "--storage-dtype", "f32", "--unit", ".*0: reshard-after-backward=false")
    text = succeed("fsdp-translate", "--import-plan", made).stdout
    assert re.findall(r"plan\.buffer unsharded @(\S+) .*: tensor<\d+x(\w+)>", text) == [("m.model.layers.0", "bf16")]
    found = collectives(made)
    assert found["first"][0] == found["last"][0] + 1
    compare("llama_bf16", made, accumulated("llama_bf16", 2, 2), "4e-2")


# Another program gathers for itself; the memory of what stays is nobody else's.
def test_kept_parameters_are_of_the_step(tmp_path):
    options, reports = ["--ranks", "2", "--accumulate", 2, "--program", f"long={FIXTURES / 'gpt2.pt2'}"], []
    for own in (["--reshard-after-backward", "true"], ["--reshard-after-backward", "false"]):
        made = plan("gpt2", tmp_path, *options, *own, "--report", tmp_path / "r.json")
        reports.append(json.loads((tmp_path / "r.json").read_text()))
    assert collectives(made)["long"][0] == 3 and collectives(made)["last"][0] == 0
    sizes = [int(size) for size in re.findall(r"plan\.buffer unsharded .* : tensor<(\d+)xf32>", succeed("fsdp-translate", "--import-plan", made).stdout)]
    freed, kept = (report["memory"]["persistent_bytes"] for report in reports)
    assert len(sizes) == 3 and kept - freed == 4 * sum(sizes)


# In the reduce type, as FSDP2's sums; what is stored in bf16 is rounded after each sum of shards.
@pytest.mark.parametrize("types, tolerance", [([], "4e-2"), (["--reduce-dtype", "f32"], "2e-2"), (["--storage-dtype", "f32", "--reduce-dtype", "f32"], "1e-2")])
@pytest.mark.parametrize("sync", [[], ["--no-sync"]], ids=["sync", "no_sync"])
def test_low_precision(types, tolerance, sync, accumulated, tmp_path):
    compare("llama_bf16", plan("llama_bf16", tmp_path, "--ranks", "2", "--accumulate", 3, *types, *sync), accumulated("llama_bf16", 2, 3), tolerance)


@pytest.mark.covers("gradients accumulate in the reduce dtype")
def test_unsharded_sums_are_in_the_reduce_type(tmp_path):
    made = plan("llama_bf16", tmp_path, "--ranks", "2", "--accumulate", 2, "--no-sync", "--reduce-dtype", "f32")
    sums = re.findall(r"plan\.buffer accumulator @\S+ (\S+) .*: tensor<\d+x(\w+)>", succeed("fsdp-translate", "--import-plan", made).stdout)
    assert sums and set(sums) == {('"unsharded_gradient"', "f32")}


# The loss of each micro-batch is divided, as people do by hand.
@pytest.mark.parametrize("sync", [[], ["--no-sync"]], ids=["sync", "no_sync"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_mean(ranks, sync, accumulated, tmp_path):
    made = plan("role_tied", tmp_path, "--ranks", ranks, "--accumulate", "4:mean", *sync)
    compare("role_tied", made, accumulated("role_tied", ranks, 4, "--mean"), "1e-5")


# Five updates, with buffers that every micro-batch changes. Of SGD: AdamW enlarges the rounding of gradients that are nearly 0.
@pytest.mark.parametrize("sync", [[], ["--no-sync"]], ids=["sync", "no_sync"])
@pytest.mark.parametrize("graph", ["gpt2", "role_batch_norm"])
def test_training(graph, sync, accumulated, tmp_path):
    made = plan(graph, tmp_path, "--ranks", "2", "--accumulate", 3, "--optimizer", "sgd", "--momentum", *sync)
    compare(graph, made, accumulated(graph, 2, 3, "--steps", "5", "--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9"), "1e-4")


# Batch (t * K + k) * R + r is that of rank r in micro-batch k of step t; bits do not depend on schedules.
def test_data_and_bits(accumulated, tmp_path):
    file = accumulated("gpt2", 2, 3, "--steps", "5")
    two, four = ["--ranks", "2"], ["--mesh", "2x2", "--no-all-reduce"]
    ways = {"sync": two, "no_sync": [*two, "--no-sync"], "fsdp1": [*two, "--no-sync", "--schedule", "fsdp1"], "list": [*two, "--no-sync", "--schedule", "list"],
            "kept": [*two, "--reshard-after-backward", "false"], "kept list": [*two, "--reshard-after-backward", "false", "--schedule", "list"],
            "auto": [*two, "--auto", "--hardware", "h100"],  # what stays gathered is one of its decisions
            "partial": four, "partial auto": [*four, "--auto", "--hardware", "h100"], "partial fsdp2": [*four, "--schedule", "fsdp2"], "partial offload": [*four, "--offload", "all"]}
    found = {}
    for name, options in ways.items():
        made, steps = plan("gpt2", tmp_path, "--accumulate", 3, *options), 5 if options[:2] == two else 2
        command = ["--weights", FIXTURES / "gpt2.pt2", "--data", file, "--steps", steps, "--json"]
        for extra in ([], ["--overlap", "--chaos", "7"]):
            rows = list(map(json.loads, succeed("fsdp-run", made, *command, *extra).stdout.splitlines()))
            found.setdefault(name, []).append(([row["loss"] for row in rows[:steps]], rows[-1]["summary"]["parameters"]))
    assert all(row == rows[0] for rows in found.values() for row in rows)
    assert found["no_sync"][0] == found["fsdp1"][0] == found["list"][0]
    assert found["sync"][0] == found["kept"][0] == found["kept list"][0] == found["auto"][0]
    assert found["partial"][0] == found["partial fsdp2"][0] == found["partial offload"][0] == found["partial auto"][0]
    assert found["sync"][0][0] == pytest.approx(found["no_sync"][0][0], rel=1e-5)


def collectives(made, *kinds):
    """How many there are of each kind in each program, [all-gathers, reduce-scatters] by default."""
    text = succeed("fsdp-translate", "--import-plan", made).stdout
    parts = re.split(r"plan\.program @(\w+)", text)[1:]
    return {name: [body.count(f"plan.{kind}") for kind in kinds or ("all_gather", "reduce_scatter")] for name, body in zip(parts[::2], parts[1::2])}


# Steps without synchronisation reduce nothing; the one that synchronises reduces the sum once.
@pytest.mark.covers("set_requires_gradient_sync", "set_is_last_backward")
def test_collectives(tmp_path):
    synchronised = collectives(plan("gpt2", tmp_path, "--ranks", "2", "--accumulate", 3))
    assert synchronised == {name: [5, 3] for name in ("first", "middle", "last")} | {key: [0, 0] for key in synchronised if key == "init"}
    unsharded = collectives(plan("gpt2", tmp_path, "--ranks", "2", "--accumulate", 3, "--no-sync"))
    assert [unsharded[name] for name in ("first", "middle", "last")] == [[5, 0], [5, 0], [5, 3]]
    # And one all-reduce of the loss.
    partial = collectives(plan("gpt2", tmp_path, "--mesh", "2x2", "--accumulate", 3, "--no-all-reduce"), "reduce_scatter", "all_reduce")
    assert [partial[name] for name in ("first", "middle", "last")] == [[3, 1], [3, 1], [3, 4]]


# A step of one micro-batch is what it was.
def test_one_micro_batch_is_a_step(tmp_path):
    assert plan("gpt2", tmp_path, "--ranks", "2").read_bytes() == plan("gpt2", tmp_path, "--ranks", "2", "--accumulate", "1").read_bytes()


@pytest.mark.parametrize("options, sentence", [
    (["--accumulate", "0"], "--accumulate: expected a number of micro-batches of at least 1, alone or with :mean; found '0'"),
    (["--accumulate", "2:sum"], "--accumulate: expected a number of micro-batches"),
    (["--no-sync"], "--no-sync: expected --accumulate K of several micro-batches, between which nothing is reduced; found '1'"),
    (["--reshard-after-backward", "false"], "--reshard-after-backward: expected --accumulate K of several micro-batches, between which parameters stay "
                                            "gathered; found '1'"),
    (["--unit", ".*: reshard-after-backward=false"], "--reshard-after-backward: expected --accumulate K of several micro-batches"),
    (["--reshard-after-backward", "maybe", "--accumulate", "2"], "--reshard-after-backward: expected true or false; found 'maybe'"),
    (["--reshard-after-backward", "false", "--accumulate", "2", "--reshard-after-forward", "2"],
     "--reshard-after-backward: --reshard-after-forward '2' frees what is to stay gathered until the step ends; give one of the two"),
    (["--no-all-reduce"], "--no-all-reduce: expected --accumulate K of several micro-batches, between which nothing is all-reduced; found '1'"),
    (["--no-all-reduce", "--accumulate", "2", "--no-sync"], "--no-all-reduce: --no-sync already reduces nothing between micro-batches; give one of the two"),
    (["--no-all-reduce", "--accumulate", "2"], "no-all-reduce: expected a unit that is sharded and replicated, whose all-reduce can wait for the last"),
    (["--accumulate", "2:mean"], "expected an archive that says where the backward starts"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_usage(options, sentence, tmp_path):
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", "2", *options, "-o", tmp_path / "p.plan")
    assert result.returncode == 1 and sentence in result.stderr and result.stderr.count("\n") == 1, result.stderr


# A reference of another number of micro-batches is rejected before the first step.
def test_another_reference_is_rejected(accumulated, tmp_path):
    made = plan("gpt2", tmp_path, "--ranks", "2", "--accumulate", 3)
    result = tool("fsdp-run", made, "--weights", FIXTURES / "gpt2.pt2", "--reference", accumulated("gpt2", 2, 2))
    assert result.returncode == 1 and "in_0: expected 3x2x2x16xi64 or 2x16xi64, found 2x2x2x16xi64" in result.stderr, result.stderr


# What the first micro-batch gathers is what the others read, all of it, and of nobody else; and each has a batch of its own.
@pytest.mark.parametrize("program, pattern, replacement, sentence", [
    ("first", r"\n *plan\.all_gather @\S+ \S+ to %\S+ of @m\.transformer\.h\.1 .*", "", "to be written before it is read"),
    ("first", r"(plan\.all_gather @\S+) \S+ (to \S+ of @m\.transformer\.h\.1 .*)", r"\1 OTHER \2", "expected the loss of the model"),
    ("middle", r"(plan\.program @middle .*\{)", r"\1\n      plan.zero KEPT <forward>", "expected the first micro-batch alone to write what it gathers"),
    ("long", r"(plan\.program @long .*\{)", r"\1\n      plan.copy KEPT to OWN <forward>", "expected parts of a step to read what one gathers"),
    ("last", r"BATCH\b", "OLD", "expected inputs, outputs and losses of its own program, found"),
])
def test_what_parts_share_is_checked(program, pattern, replacement, sentence, tmp_path):
    made = plan("gpt2", tmp_path, "--ranks", "2", "--accumulate", 3, "--reshard-after-backward", "false", "--program", f"long={FIXTURES / 'gpt2.pt2'}")
    text = succeed("fsdp-translate", "--import-plan", made).stdout
    owners = {"KEPT": "unsharded @m.transformer.h.1", "OTHER": "shard @m.transformer.h.0", "OWN": "unsharded @m.transformer.h.0",
              "BATCH": "input @last", "OLD": "input @first"}
    for word, owner in owners.items():
        name = re.search(rf"(%\S+) = plan\.buffer {owner} ", text)[1]
        pattern, replacement = pattern.replace(word, name), replacement.replace(word, name)
    begin = text.index(f"plan.program @{program} ")
    changed, count = re.subn(pattern, replacement, text[begin:], count=1)
    assert count == 1
    (tmp_path / "p.mlir").write_text(text[:begin] + changed)
    result = tool("fsdp-opt", tmp_path / "p.mlir", "--plan-verify")
    assert result.returncode != 0 and sentence in result.stderr and "cannot prove" not in result.stderr, result.stderr


SCHEDULED = ["--fsdp-verify-scheduled", "--fsdp-verify-futures", "--fsdp-verify-order", "--fsdp-verify-equivalence"]


def scheduled(tmp_path, *options):
    mesh = "mesh=2x2 strategy=hybrid_shard" if "no-all-reduce" in options else "ranks=2"
    succeed("fsdp-translate", "--import-pt2", FIXTURES / "gpt2.pt2", "-o", tmp_path / "aten.mlir")
    return succeed("fsdp-opt", tmp_path / "aten.mlir", "--fsdp-assign-units", f"--fsdp-shard={mesh}", f"--fsdp-accumulate={' '.join(options)}",
                   "--fsdp-insert-optimizer", "--fsdp-async", "--fsdp-prefetch", "--fsdp-apply-schedule", *SCHEDULED).stdout


def part(text, name):
    """Where the program of that part begins and ends in the text."""
    begin = text.index(f"func.func @{name}(")
    return begin, text.index("\n  }\n", begin)


def change(text, name, pattern, replacement):
    begin, end = part(text, name)
    changed, count = re.subn(pattern, replacement, text[begin:end], count=1)
    assert count == 1, pattern
    return text[:begin] + changed + text[end:]


UNIT = r"@m\.transformer\.h\.1"


# A part that forgets what was before it, adds it twice, or reduces what is to stay unsharded.
@pytest.mark.parametrize("options, name, pattern, replacement, sentence", [
    (["accumulate=3"], "middle", rf"(%\S+) = fsdp\.accumulate {UNIT} (%\S+), (%\S+) : (.*)", r"\1 = fsdp.accumulate @m.transformer.h.1 \3, \3 : \4",
     "expected an argument with what unit @m.transformer.h.1 has accumulated"),
    (["accumulate=3"], "middle", rf"(%\S+) = fsdp\.accumulate {UNIT} (%\S+), (%\S+) : (.*)",
     r"%twice = fsdp.accumulate @m.transformer.h.1 \3, \2 : \4\n    \1 = fsdp.accumulate @m.transformer.h.1 \2, %twice : \4",
     "expected to add to #fsdp.state<@m.transformer.h.1, sharded_gradient> once, found twice"),
    (["accumulate=3", "no-sync"], "last", rf"(fsdp\.async\.reduce_scatter {UNIT} .*post =) 1", r"\1 2",
     "expected the gradient of unit 'm.transformer.h.1' to be divided by 2, found a division by 4"),
    (["accumulate=3", "no-sync"], "middle", rf"(%\S+) = (fsdp\.accumulate {UNIT} %\S+, )(%\S+) : (tensor<(\d+)xf32>)",
     r"%f = fsdp.async.reduce_scatter @m.transformer.h.1 over ["
     r'"shard"] divide <pre = 2, post = 1> via f32 \3 : \4 -> !fsdp.future<!fsdp.shard<\5xf32, 2>>\n'
     r"    %r = fsdp.async.wait %f : !fsdp.future<!fsdp.shard<\5xf32, 2>> -> !fsdp.shard<\5xf32, 2>\n    \1 = \2\3 : \4",
     "expected a micro-batch whose gradients stay unsharded to reduce none, found @m.transformer.h.1"),
    (["accumulate=3", "no-all-reduce"], "first", rf"(fsdp\.async\.reduce_scatter {UNIT} .*pre =) 2", r"\1 4",
     "expected the gradient of unit 'm.transformer.h.1' to be divided by 2, found a division by 4"),
    (["accumulate=3", "no-all-reduce"], "last", rf"(fsdp\.async\.all_reduce {UNIT} .*post =) 2", r"\1 4",
     "expected the gradient of unit 'm.transformer.h.1' to be divided by 2, found a division by 4"),
])
def test_wrong_parts_are_rejected(options, name, pattern, replacement, sentence, tmp_path):
    (tmp_path / "scheduled.mlir").write_text(change(scheduled(tmp_path, *options), name, pattern, replacement))
    result = tool("fsdp-opt", tmp_path / "scheduled.mlir", *SCHEDULED)
    assert result.returncode != 0 and sentence in result.stderr, result.stderr


# The plan file stands for itself: each of these is another sum.
@pytest.mark.parametrize("options", [["--ranks", "2"], ["--ranks", "2", "--no-sync"], ["--mesh", "2x2", "--no-all-reduce"]], ids=["sync", "no_sync", "no_all_reduce"])
@pytest.mark.parametrize("name", ["middle", "last"])
def test_other_sums_are_refuted(name, options, tmp_path):
    made = plan("gpt2", tmp_path, "--accumulate", 3, *options)
    text = succeed("fsdp-translate", "--import-plan", made).stdout
    begin = text.index(f"plan.program @{name} ")
    adds = list(re.finditer(r"\n *plan\.accumulate (@\S+) (%\S+) to (%\S+) .*", text[begin:]))[:3]
    first = adds[0][0]
    mutants = {
        "dropped": (first, ""),
        "twice": (first, first + first),
        "exchanged": (f" {adds[0][2]} to {adds[0][3]}", f" {adds[0][3]} to {adds[0][2]}"),
    }
    for what, (old, new) in mutants.items():
        (tmp_path / "p.mlir").write_text(text[:begin] + text[begin:].replace(old, new, 1))
        result = tool("fsdp-opt", tmp_path / "p.mlir", "--plan-verify")
        assert result.returncode != 0 and "expected" in result.stderr and "cannot prove" not in result.stderr, (what, result.stderr)


# The report has a row for each program, and a step is the first, the middle one for all between, and the last.
@pytest.mark.parametrize("options, micro_batches", [([], 2), ([], 5), (["--no-sync"], 3), (["--mesh", "2x2", "--no-all-reduce"], 4)], ids=str)
def test_the_report_adds_the_programs_of_a_step(options, micro_batches, tmp_path):
    ways = options if "--mesh" in options else ["--ranks", 2, *options]
    shown = succeed("fsdp-plan", FIXTURES / "gpt2.pt2", *ways, "--accumulate", micro_batches, "--hardware", "h100", "--program", f"long={FIXTURES / 'gpt2.pt2'}",
                    "-o", tmp_path / "step.plan", "--report", tmp_path / "report.json").stdout
    report = json.loads((tmp_path / "report.json").read_text())
    rows = {row["name"]: row for row in report["programs"]}
    runs = {"first": 1, "last": 1, "long": 0} | ({"middle": micro_batches - 2} if micro_batches > 2 else {})
    assert {name: row["runs"] for name, row in rows.items()} == runs
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "step.plan").stdout
    for name, row in rows.items():
        body = re.search(rf"plan\.program @{name} .*?\n    }}", text, re.DOTALL)[0]
        assert row["collectives"] == len(re.findall(r"plan\.(?:all_gather|reduce_scatter|all_reduce) ", body))
        assert row["launches"] == body.count("plan.launch ") and row["predicted_ns"] > 0
    total = {key: sum(row["runs"] * row[key] for row in rows.values()) for key in ("launches", "copies", "collectives", "bytes")}
    assert total == {key: report[key] for key in ("launches", "copies")} | {
        "collectives": sum(row["calls"] for row in report["collectives"]), "bytes": sum(row["bytes"] for row in report["collectives"])}
    assert sum(unit["gathers"] for unit in report["units"]) == sum(row["calls"] for row in report["collectives"] if row["kind"] == "all_gather")
    assert report["memory"]["lower_bound_bytes"] == max(row["lower_bound_bytes"] for row in rows.values())
    step, exposed = (sum(row["runs"] * row[key] for row in rows.values()) / 1e6 for key in ("predicted_ns", "exposed_ns"))
    assert re.search(rf"a step +{total['launches']} +{total['collectives']} .* {step:.2f} ms +{exposed:.2f} ms\n", shown), shown


# What other programs keep counts: the memory of the optimizer is there in the first micro-batch, too.
def test_a_budget_counts_what_other_programs_keep(tmp_path):
    def needs(*options):
        succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, *options, "-o", tmp_path / "step.plan", "--report", tmp_path / "report.json")
        return json.loads((tmp_path / "report.json").read_text())["memory"]

    memory = needs("--accumulate", 2)
    assert memory["scheduled_bytes"] == memory["value_bytes"]
    assert not any(row["what"] == "reduced gradients" for row in memory["persistent"])
    result = tool("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--accumulate", 2, "--budget", memory["scheduled_bytes"] - 1, "-o", tmp_path / "less.plan")
    assert result.returncode == 1 and "memory peaks at" in result.stderr, result.stderr


# The mean of three is not that of seven, although no command says how many there are.
@pytest.mark.parametrize("count", [2, 4, 7])
def test_another_number_of_micro_batches_is_refuted(count, tmp_path):
    succeed("fsdp-plan", FIXTURES / "role_chain.pt2", "--ranks", 2, "--accumulate", "3:mean", "-o", tmp_path / "step.plan")
    text = succeed("fsdp-translate", "--import-plan", tmp_path / "step.plan").stdout
    other, changed = re.subn("micro_batches = 3", f"micro_batches = {count}", text)
    assert changed == 1
    (tmp_path / "other.mlir").write_text(other)
    result = tool("fsdp-opt", "--plan-verify", tmp_path / "other.mlir", "-o", "/dev/null")
    assert result.returncode == 1 and "micro" in result.stderr, result.stderr
