"""CPU offload (`--offload`): the same bits from host memory, less memory on the device, and a proof that follows the copies."""

import json
import re

import pytest
from conftest import FIXTURES, succeed, tool
from test_bad_input import rejection
from test_mutations import substitute, text_of

HOW = ["params", "optimizer", "all", "bytes=20KiB"]
OTHERS = ["role_batch_norm", "role_bf16", "role_chain", "role_channels_last", "role_dropout", "role_encoder_decoder", "role_frozen",
          "role_gpt2_renamed", "role_input_grad", "role_tied", "role_tiny", "role_unused", "role_user_output"]
CASES = [
    ("gpt2", 1, ""),
    ("gpt2", 2, "--schedule fsdp1 --clip-grad-norm 0.5"),
    ("gpt2", 2, "--schedule fsdp2 --clip-grad-norm 0.5:1 --no-decay bias"),
    ("gpt2", 2, "--schedule list --hardware h100 --budget 650KiB"),
    ("gpt2", 2, "--auto --hardware h100 --budget 800KiB --clip-grad-norm 0.5"),
    ("llama", 4, "--auto --hardware h100 --mesh 2x2 --evaluations 500"),
    ("gpt2", 2, "--bucket units:2 --limit-all-gathers 0 --reduce-dtype bf16"),
    ("gpt2", 2, "--bucket copy:units:2 --optimizer sgd"),
    ("gpt2", 2, r"--remat scope:transformer\.h\.\d+ --strategy shard_grad_op"),
    ("gpt2", 4, "--mesh 2x2 --reduce-dtype bf16"),
    ("gpt2", 4, "--reshard-after-forward 2 --forward-prefetch 2"),
    ("llama", 4, "--mesh 2x2 --clip-grad-norm 0.1:inf --unit root:strategy=no_shard"),
    ("llama_bf16", 2, "--bucket merge:units:2 --optimizer sgd --momentum"),
    ("frozen", 3, "--strategy no_shard"),
    ("bert", 2, "--schedule inductor --ignore LayerNorm"),
]


# Where a shard lies changes nothing of what is computed with it: losses, gradients, parameters and states of a few steps, also with
# a second thread, random delays, and NaN in all memory that is not in use.
@pytest.mark.covers("CPUOffload", "OffloadPolicy", "CPUOffloadPolicy", "_offload_grad", "Offload", "H2D")
@pytest.mark.parametrize("graph, ranks, options", CASES)
def test_offload_keeps_the_bits(graph, ranks, options, plans, references):
    made = [plans(graph, ranks, *options.split(), *extra) for extra in [[], *(["--offload", how] for how in HOW)]]
    for seed in (0, 1):
        found = succeed("fsdp-bits", FIXTURES / f"{graph}.pt2", references(graph, ranks), seed, *made).stdout
        hashes = [line.split("\t")[1] for line in found.splitlines()]
        assert len(hashes) == len(made) and len(set(hashes)) == 1, found
        assert re.fullmatch("[0-9a-f]{16}", hashes[0]), found


# And so does every other graph.
@pytest.mark.parametrize("graph", OTHERS)
def test_every_graph_keeps_its_bits(graph, plans, references):
    options = ["--keep-output"] if graph == "role_user_output" else []
    made = [plans(graph, 3, *options, "--offload", how) for how in ("none", "optimizer", "all")]
    made += [plans(graph, 3, *options, "--auto", "--hardware", "h100", "--evaluations", 200, "--offload", how) for how in ("params", "all")]
    found = succeed("fsdp-bits", FIXTURES / f"{graph}.pt2", references(graph, 3), 1, *made).stdout
    assert re.fullmatch(r"(?:\S+\t([0-9a-f]{16})\n)(?:\S+\t\1\n){4}", found), found


# Gradients of micro-batches are summed where gradients are; unsharded ones on the device. FSDP would overwrite the ones before.
@pytest.mark.covers("CPUOffload")
@pytest.mark.parametrize("options", ["--accumulate 3", "--accumulate 3 --no-sync", "--accumulate 2 --mesh 2x1 --clip-grad-norm 0.1",
                                     "--accumulate 3 --auto --hardware h100 --what-if link.node.gbytes=0.01x"])
def test_offload_keeps_the_bits_of_several_micro_batches(options, plans, references):
    def train(*extra):
        ran = succeed("fsdp-run", plans("llama", 2, *options.split(), *extra), "--weights", FIXTURES / "llama.pt2",
                      "--data", references("llama", 4), "--steps", 3, "--json")
        *steps, last = map(json.loads, ran.stdout.splitlines())
        return [step["loss"] for step in steps], last["summary"]["parameters"]

    plain = train()
    for how in HOW:
        assert train("--offload", how) == plain, how


# An evaluation gathers the same shards.
def test_programs_share_what_is_offloaded(references, tmp_path):
    def train(*extra):
        plan = tmp_path / "p.plan"
        succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--program", f"eval={FIXTURES / 'gpt2.pt2'}", "--ranks", 2, "-o", plan, *extra)
        ran = succeed("fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors",
                      "--eval-data", FIXTURES / "gpt2_train2x5.safetensors", "--eval-every", 2, "--steps", 4, "--json")
        return [{key: row[key] for key in row if "loss" in key} for row in map(json.loads, ran.stdout.splitlines())]

    assert train("--offload", "all") == train()


def report(folder, *options):
    succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "-o", folder / "p.plan", "--report", folder / "r.json", *options)
    return json.loads((folder / "r.json").read_text())


# The peak of the device is less by what persists elsewhere, to the byte; what is copied there is free again at the peak.
@pytest.mark.covers("CPUOffload", "OffloadPolicy", "CPUOffloadPolicy")
@pytest.mark.parametrize("how, persistent, elsewhere", [("params", 1, 1), ("optimizer", 2, 4), ("all", 3, 4)])
def test_memory_moves_to_the_host(how, persistent, elsewhere, tmp_path):
    before, after = report(tmp_path)["memory"], report(tmp_path, "--offload", how)["memory"]
    shard = next(row["bytes"] for row in before["persistent"] if row["what"] == "parameter shards")
    # At the peak, two blocks may be on their way: their copies live until their gathers are done.
    for bytes in "arena_bytes", "scheduled_bytes":
        copied = persistent * shard - (before[bytes] - after[bytes])
        assert 0 <= copied <= 2 * 4 * 6352 + 64, bytes
    assert before["pinned_bytes"] == 0 and before["offloaded"] == []
    held = sum(row["bytes"] for row in after["offloaded"])
    assert held == elsewhere * shard
    assert after["host_bytes"] - before["host_bytes"] - held in range(64 * 9)  # alignment


# Each shard once for each gather, each gradient once; with updates elsewhere, the shard comes and goes once more.
@pytest.mark.covers("CPUOffload")
@pytest.mark.parametrize("how, to_device, to_host", [("none", 0, 0), ("params", 8, 3), ("optimizer", 3, 6), ("all", 5, 3)])
def test_report_counts_copies(how, to_device, to_host, tmp_path):
    found = report(tmp_path, "--offload", how)
    blocks, root = 2 * 4 * 6352, 4 * 2592
    # The root is gathered once.
    expected = {"to device": {8: 3 * blocks + 2 * root, 5: 2 * blocks + root, 3: blocks + root}, "to host": {6: 2 * (blocks + root), 3: blocks + root}}
    rows = {row["copied"]: (row["calls"], row["bytes"]) for row in found["host_copies"]}
    assert rows == {name: (count, expected[name][count]) for name, count in (("to device", to_device), ("to host", to_host)) if count}


# One arena for each memory: what runs needs what the plan says.
def test_run_reports_both_arenas(plans):
    summaries = []
    for extra in [], ["--offload", "all"]:
        ran = succeed("fsdp-run", plans("gpt2", 2, *extra), "--weights", FIXTURES / "gpt2.pt2",
                      "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 1, "--verbose")
        summaries.append(re.search(r"memory of a rank: (\S+ \S+) planned, .*; (\S+ \S+) on the host", ran.stdout).groups())
    assert summaries[0][1] == "64 B" and summaries[0][0] != summaries[1][0]
    assert summaries[1][1].endswith("KiB")


# As few units as it takes, the largest ones.
def test_bytes_offload_the_largest_units(tmp_path):
    def units(size):
        succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--offload", f"bytes={size}", "-o", tmp_path / "p.plan")
        return set(re.findall(r"plan\.buffer shard @(\S+) in pinned", text_of(tmp_path / "p.plan", tmp_path)))

    unit = 4 * 4 * 6352  # shard, gradient, two states
    assert units(1) == units(unit) == {"m.transformer.h.0"}
    assert units(unit + 1) == units(2 * unit) == {"m.transformer.h.0", "m.transformer.h.1"}
    assert units(2 * unit + 1) == {"m.transformer.h.0", "m.transformer.h.1", "root"}


# Prefetch moves a copy with its gather, and the compute stream waits for neither.
@pytest.mark.covers("H2D", "_offload_grad")
def test_copies_are_prefetched_like_gathers(tmp_path):
    text = succeed("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "--offload", "all", "--forward-prefetch", 1, "-o", tmp_path / "p.plan") and \
        text_of(tmp_path / "p.plan", tmp_path)
    lines = text.splitlines()
    gathers = [i for i, line in enumerate(lines) if "plan.all_gather" in line]
    copies = [i for i, line in enumerate(lines) if re.search(r"plan\.copy .* on copy", line)]
    assert len(gathers) == 5 and len(copies) == 5 + 3  # and three gradients
    for gather, following in zip(gathers, gathers[1:]):
        own = [i for i in copies if i < gather][-1]
        assert not any("plan.launch" in line for line in lines[own:gather])
    # The gather of the next block stands ahead of the first launch that reads this block.
    assert any("plan.launch" in line for line in lines[gathers[2]:gathers[3]])
    assert re.search(r"plan\.adamw @root .*%\d+", text)


# Every copy is followed: without it, or with another shard, the plan means something else.
@pytest.mark.covers("_offload_grad", "H2D")
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_missing_copies_are_refuted(phase, plans, tmp_path):
    text = text_of(plans("gpt2", 2, "--offload", "all"), tmp_path)
    copy = rf"plan\.copy (%\d+) to (%\d+) <{phase}> on copy"
    first, second = list(re.finditer(copy, text))[1:3]
    wrong = {
        "gone": text.replace(first[0], f"plan.copy {second[1]} to {second[2]} <{phase}> on copy"),
        "another": text.replace(first[0], f"plan.copy {second[1]} to {first[2]} <{phase}> on copy"),
    }
    for name, mutant in wrong.items():
        (tmp_path / f"{name}.mlir").write_text(mutant)
        result = tool("fsdp-opt", tmp_path / f"{name}.mlir", "--plan-verify", "-o", tmp_path / "out.mlir")
        assert result.returncode == 1 and "error" in result.stderr, name


# What nobody waits for may still be on its way.
def test_missing_events_are_refuted(plans, tmp_path):
    text = text_of(plans("gpt2", 2, "--offload", "all"), tmp_path)
    record = re.search(r"plan\.copy .* on copy.*\n *(%\d+) = plan\.record <backward> on copy", text)[1]
    mutant = substitute(rf" *plan\.wait {record} .*\n", "", text)
    (tmp_path / "m.mlir").write_text(mutant)
    result = tool("fsdp-opt", tmp_path / "m.mlir", "--plan-verify", "-o", tmp_path / "out.mlir")
    assert result.returncode == 1 and "error" in result.stderr


# Kernels and the network touch device memory alone, and an update has all its states in one memory.
@pytest.mark.parametrize("pattern, replacement, sentence", [
    (r"(plan\.adamw @root \[0, 5184\] )%\d+", r"\g<1>{shard}", "expected host memory, where its states are, found"),
    (r"(plan\.reduce_scatter .* to )%\d+( of @root)", r"\g<1>{gradient}\2", "expected device memory, found"),
])
def test_memory_of_commands_is_checked(pattern, replacement, sentence, plans, tmp_path):
    text = text_of(plans("gpt2", 2, "--offload", "optimizer"), tmp_path)
    values = {role: re.search(rf"(%\d+) = plan\.buffer {role} @root", text)[1] for role in ("shard", "gradient")}
    (tmp_path / "m.mlir").write_text(substitute(pattern, replacement.format(**values), text))
    result = tool("fsdp-translate", "--export-plan", tmp_path / "m.mlir", "-o", tmp_path / "m.plan")
    assert result.returncode == 1 and sentence in result.stderr, result.stderr[:500]


# Nobody pays for what is not asked for.
def test_none_is_the_default(plans):
    plan = plans("gpt2", 2)
    assert plans("gpt2", 2, "--offload", "none").read_bytes() == plan.read_bytes()


@pytest.mark.covers("CPUOffload")
def test_what_cannot_be_offloaded_is_said(tmp_path):
    def reject(*options):
        return rejection("fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "-o", tmp_path / "p.plan", *options)

    machine = tmp_path / "m.toml"
    cpu = (FIXTURES.parents[1] / "hardware" / "cpu.toml").read_text()
    machine.write_text(re.sub(r"\[host\]\n(.+\n)+", "", cpu))
    assert "offload: expected hardware with host memory, found none in 'cpu'; give it a [host] table, or leave --offload out" in \
        reject("--offload", "all", "--schedule", "list", "--hardware", machine)
    for how in "all", "auto":
        assert "offload: expected hardware with host memory, found none in 'cpu'; give it a [host] table, or leave --offload out" in \
            reject("--offload", how, "--auto", "--hardware", machine)
    assert "offload: expected at most 239.00 KiB, which is all that shards, gradients and states take on a rank; found 1.00 MiB" in \
        reject("--offload", "bytes=1MiB")
    assert not (tmp_path / "p.plan").exists()
