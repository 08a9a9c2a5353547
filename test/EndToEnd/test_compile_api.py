"""fsdp_mlir.compile and Plan: the same plans as those of the command line, kept, and asked again."""

import json
import os
import re
import subprocess
import sys

import fsdp_mlir
import pytest
import torch
from conftest import BUILD, ROOT, succeed, tool
from fsdp_mlir import Plan, PlanError
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2)])

    def forward(self, x, target):
        return nn.functional.mse_loss(self.blocks(x), target)


def make_model(seed=0):
    torch.manual_seed(seed)
    return Model()


BATCH = {"x": torch.randn(4, 16), "target": torch.randn(4, 16)}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDP_BIN", str(BUILD / "bin"))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "fsdp_mlir"


@pytest.fixture(scope="module")
def plan(cache):
    return fsdp_mlir.compile(make_model(), BATCH, ranks=2)


def test_plan_is_that_of_the_command_line(plan, tmp_path):
    said = succeed("fsdp-plan", plan.model_path, "--ranks", 2, "-o", tmp_path / "step.plan").stdout
    assert (tmp_path / "step.plan").read_bytes() == open(plan.path, "rb").read()
    assert plan.report() == str(plan) == said
    assert plan.ranks == 2 and isinstance(plan.path, str) and isinstance(plan.model_path, str)
    assert "2 ranks (replicate 1, shard 2), full_shard, cpu" in repr(plan)


def test_plan_trains(plan, tmp_path):
    save_file({"in_0": torch.randn(4, 4, 16), "in_1": torch.zeros(4, 4, 16)}, tmp_path / "data.safetensors")
    said = succeed("fsdp-run", plan.path, "--weights", plan.model_path, "--data", tmp_path / "data.safetensors", "--steps", 20, "--json").stdout
    losses = [step["loss"] for step in map(json.loads, said.splitlines()) if "loss" in step]
    assert losses[19] < losses[0]


def test_is_compiled_once(plan, cache):
    before = os.stat(plan.path)
    again = fsdp_mlir.compile(make_model(), tuple(BATCH.values()), ranks=2)  # positional: the same graph
    assert (again.path, again.model_path) == (plan.path, plan.model_path) and os.stat(again.path) == before
    other = fsdp_mlir.compile(make_model(1), BATCH, ranks=2)
    assert other.path == plan.path, "a plan does not depend on the weights"
    assert other.model_path != plan.model_path, "and an archive has its own"
    assert not [path for path in cache.iterdir() if path.name.startswith(".part-")]


def test_options_graphs_and_files_are_part_of_the_key(plan, tmp_path):
    paths = {plan.path}
    paths.add(fsdp_mlir.compile(make_model(), BATCH, ranks=2, strategy="shard_grad_op").path)
    paths.add(fsdp_mlir.compile(make_model(), {name: tensor[:2] for name, tensor in BATCH.items()}, ranks=2).path)
    hardware = tmp_path / "h.toml"
    text = (ROOT / "hardware" / "cpu.toml").read_text()
    for comment in ("", "# again\n"):
        hardware.write_text(text + comment)
        paths.add(fsdp_mlir.compile(make_model(), BATCH, ranks=2, hardware=hardware).path)
    assert len(paths) == 5


def test_processes_compile_at_once(tmp_path):
    program = "import sys, test_compile_api as t, fsdp_mlir; sys.stdin.readline(); p = fsdp_mlir.compile(t.make_model(), t.BATCH, ranks=2); print(p.path)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "test" / "EndToEnd", ROOT / "python-bindings")))}
    running = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for _ in range(3)]
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 3 and len(set(said)) == 1
    cache = tmp_path / "fsdp_mlir"
    assert len(list((cache / "plans").iterdir())) == len(list((cache / "models").iterdir())) == 1
    assert sorted(path.name for path in cache.iterdir()) == ["models", "plans"]


def test_what_is_rejected_is_not_kept(cache):
    kept = set((cache / "plans").iterdir())
    with pytest.raises(PlanError, match=r"^memory peaks at .* and the budget is 1\.00 KiB"):
        fsdp_mlir.compile(make_model(), BATCH, ranks=2, budget="1KiB")
    assert set((cache / "plans").iterdir()) == kept


def test_damaged_cache_is_a_sentence(cache):
    plan = fsdp_mlir.compile(make_model(), BATCH, ranks=5)
    os.remove(plan.path)
    with pytest.raises(PlanError, match="found a damaged one: .*step.plan.*; remove the folder$"):
        fsdp_mlir.compile(make_model(), BATCH, ranks=5)


def test_model_on_the_meta_device():
    with torch.device("meta"):
        model = Model()
    with pytest.warns(fsdp_mlir.CaptureWarning):
        large = fsdp_mlir.compile(model, BATCH, mesh=(8, 8), device="cuda", hardware="h100")
    assert large.ranks == 64 and large.summary["device"] == "cuda" and large.summary["predicted"]["step_ns"] > 0


# ---- Options -----------------------------------------------------------------


def test_options_are_those_of_the_command_line(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # narrower, long values are wrapped, too
    table = fsdp_mlir.options()
    text = succeed("fsdp-plan", "--help").stdout
    shown = "".join(text.split())  # wrapped, between words and after a |
    for option in table.values():
        for name in filter(None, (option.flag, option.alias)):
            assert f"--{name.lstrip('-').replace('_', '-')}{''.join(option.values.split())}" in shown, name
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == ["Common", "Sharding", "Training", "Schedule and memory", "Search and costs", "Reports", "Expert"]
    assert all(len(line) <= 100 for line in text.splitlines())
    assert all(option.help.endswith(".") and option.name.isidentifier() for option in table.values())
    assert table["strategy"].choices == ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "zero2", "zero3")
    assert table["reduce_dtype"].choices == ("f16", "bf16", "f32", "f64", "unchanged")
    assert table["remat"].choices == () and table["ranks"].default == "1"


@pytest.mark.parametrize("option, value, argument", [
    ("strategy", ShardingStrategy.SHARD_GRAD_OP, "--strategy=shard_grad_op"),
    ("strategy", ShardingStrategy._HYBRID_SHARD_ZERO2, "--strategy=hybrid_shard_zero2"),
    ("backward_prefetch", BackwardPrefetch.BACKWARD_POST, "--backward-prefetch=backward_post"),
    ("reduce_dtype", torch.bfloat16, "--reduce-dtype=bf16"),
    ("mesh", (2, 4), "--mesh=2x4"),
    ("mesh", {"replicate": 4, "shard": 8, "local": 8}, "--mesh=replicate=4,shard=8,local=8"),
    ("mesh", "shard=8,local=8", "--mesh=shard=8,local=8"),
    ("budget", 1 << 30, "--budget=1073741824"),
    ("reshard_after_forward", False, "--reshard-after-forward=false"),
    ("reshard_after_forward", 2, "--reshard-after-forward=2"),
    ("clip_grad_norm", 0.5, "--clip-grad-norm=0.5"),
    ("ignore", re.compile(r"h\.0"), r"--ignore=h\.0"),
    ("no_sync", True, "--no-sync"),
    ("strategy", "zero2", "--strategy=zero2"),
    ("activation_checkpoint", "budget:1GiB", "--remat=budget:1GiB"),
    ("hardware", "h100-500w", "--hardware=h100-500w"),
    ("profile", "p.json", f"--profile={os.getcwd()}/p.json"),
])
def test_values_are_spelled(option, value, argument):
    from fsdp_mlir import _options

    assert _options.arguments({option: value, "momentum": False, "wrap": None}) == [argument]


@pytest.mark.parametrize("options, sentence", [
    ({"stratgy": "full_shard"}, "stratgy: there is no such option of compile(); did you mean strategy?"),
    ({"zzz": 1}, "zzz: there is no such option of compile(); fsdp_mlir.options() has all of them"),
    ({"strategy": "ful_shard"}, "strategy: expected one of full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, zero2, zero3; "
                                "found 'ful_shard'; did you mean 'full_shard'?"),
    ({"reduce_dtype": torch.int8}, "reduce_dtype: expected one of f16, bf16, f32, f64, unchanged; found 'torch.int8'"),
    ({"no_sync": 1}, "no_sync: expected True or False, found 1"),
    ({"forward_prefetch": True}, "forward_prefetch: expected N, found True"),
    ({"wrap": [Model]}, "wrap: expected auto|scope:REGEX|class:NAME|size:N, found ["),
    ({"budget": "lots"}, "--budget: expected bytes, or a decimal number with KiB, MiB, GiB, KB, MB or GB; found 'lots'"),
    ({"no_sync": True}, "--no-sync: expected --accumulate K of several micro-batches"),
    ({"mesh": (3, 2)}, "--mesh: expected the 2 of --ranks, found '3x2'"),
    ({"mesh": {"shard": 3, "local": 2}}, "--mesh: expected the 2 of --ranks, found 'shard=3,local=2'"),
    ({"mesh": (2, 2, 2)}, "mesh: expected RxS|NAME=SIZE,...|auto, found (2, 2, 2)"),
    ({"auto": True, "decisions": "d.toml"}, "decisions: expected none beside auto=True"),
    ({"world": 4}, "compile: expected ranks=N, or world=N for a dry run, found both; leave one out"),
    ({"ranks": None}, "compile: expected ranks=N, mesh=(replicate, shard) or {axis: size}, or world=N for a dry run, found none"),
    ({"batches": [BATCH]}, "compile: expected example_batch or batches, found both"),
])
def test_bad_options(options, sentence):
    with pytest.raises(PlanError) as error:
        fsdp_mlir.compile(make_model(), BATCH, **{"ranks": 2, **options})
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


def test_batch_of_another_kind():
    with pytest.raises(PlanError, match="^compile: expected a batch that is a dict, a tuple or a tensor, found a int$"):
        fsdp_mlir.compile(make_model(), 7, ranks=2)


# ---- Where the tools are -----------------------------------------------------


def test_no_tool_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("FSDP_BIN", str(tmp_path))
    with pytest.raises(PlanError, match=f"^fsdp-plan: expected it in {tmp_path}, the folder of FSDP_BIN, found none; correct FSDP_BIN, or unset it$"):
        fsdp_mlir.compile(make_model(), BATCH, ranks=2)


def test_cache_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PlanError, match="cannot be made: Not a directory; name a folder for caches in XDG_CACHE_HOME$"):
        fsdp_mlir.compile(make_model(), BATCH, ranks=2)


# ---- Plans -------------------------------------------------------------------


def test_dry_run_for_many_ranks(cache):
    kept = set((cache / "plans").iterdir())
    dry = fsdp_mlir.compile(make_model(), BATCH, world=1024)
    assert dry.ranks == 1024 and dry.summary["proved"] and "dry run" in dry.report() and "dry run" in repr(dry)
    assert "predicted step" in dry.explain()
    with pytest.raises(PlanError, match=r"expected a plan, found a dry run \(world=1024\), of which none is kept; compile with ranks=1024"):
        dry.path
    with pytest.raises(PlanError, match="found a dry run"):
        dry.save("folder")
    assert set((cache / "plans").iterdir()) == kept
    hybrid = fsdp_mlir.compile(make_model(), BATCH, world=8, mesh=(2, 4))
    assert hybrid.summary["mesh"] == {"replicate": 2, "shard": 4} and hybrid.summary["strategy"] == "hybrid_shard"
    axes = {"replicate": 2, "shard": 2, "local": 2}
    assert fsdp_mlir.compile(make_model(), BATCH, world=8, mesh=axes, unit="blocks.0: shard=local").summary["mesh"] == axes


def test_batches_are_programs():
    short = {name: tensor[:2] for name, tensor in BATCH.items()}
    both = fsdp_mlir.compile(make_model(), batches=[BATCH, short], ranks=2)
    assert [program["name"] for program in both.summary["programs"]] == ["step", "step_1"]
    assert both.compare().rows[0]["bytes"] > 0  # asked again with both


def test_explain(plan):
    text = plan.explain()
    assert text.startswith("predicted step ") and "memory per rank" in text and "alive at the peak" in text and "proved" not in text
    assert plan.explain("h100") != text
    timed = fsdp_mlir.compile(make_model(), BATCH, ranks=2, hardware="h100")
    assert timed.explain() in timed.report() and timed.explain() == plan.explain("h100")
    with pytest.raises(PlanError, match="^abacus: cannot open: No such file or directory$"):
        plan.explain("abacus")


def test_compare(plan):
    found = plan.compare({"schedule": "fsdp2", "remat": r"scope:blocks\.\d+"}, hardware="h100")
    names = [row["name"] for row in found.rows]
    assert names[:6] == ["fsdp1", "fsdp2", "manual-block", "inductor", "list", "auto"] and len(names) == 7
    assert all(row["bytes"] > 0 and row["nanoseconds"] > 0 for row in found.rows)
    assert str(found).startswith("schedule ") and r"scope:blocks" in str(found)
    own = fsdp_mlir.compile(make_model(), BATCH, ranks=2, schedule="fsdp2", clip_grad_norm=1.0).compare()
    assert [row["name"] for row in own.rows][6:] == ["--schedule=fsdp2"]


def test_page(plan, tmp_path):
    page = plan.html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page and page.startswith("<!DOCTYPE html>")
    frame = plan._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;') and frame.endswith("</iframe>") and frame.count("<") == 2


def test_remarks(plan):
    assert any(line.startswith("fsdp-assign-units: ") and "'blocks.0' has 2 parameters" in line for line in plan.remarks())
    assert all(line.startswith("fsdp-shard: ") for line in plan.remarks("fsdp-shard"))
    with pytest.raises(PlanError, match="^--remarks-filter: "):
        plan.remarks("(")


def test_decisions(plan):
    searched = fsdp_mlir.compile(make_model(), BATCH, ranks=2, auto=True, budget="1MiB", hardware="h100")
    assert set(searched.decisions()["programs"]["step"]["units"]) == {"blocks.0", "blocks.1"}
    again = fsdp_mlir.compile(make_model(), BATCH, ranks=2, auto=True, budget="1MiB", hardware="h100")
    assert again.decisions() == searched.decisions()
    assert "predicted step" in searched.explain("a100-80")
    assert searched.compare().rows[5]["name"] == "auto"
    # Options that were decided, too, stay as they were decided.
    decided = fsdp_mlir.compile(make_model(), BATCH, ranks=4, auto=True, mesh="auto", offload="auto", chunk_loss="auto", accumulate=2, hardware="h100")
    assert {f"--mesh={decided.summary['search']['mesh']}", "--offload=none", "--chunk-loss=1"} <= set(decided._arguments)
    assert decided.decisions()["resident"] == decided.summary["search"]["resident"]
    assert "predicted step" in decided.explain("a100-80") and decided.compare().rows[5]["name"] == "auto"
    for value in "4MiB", "600KiB":
        decided = fsdp_mlir.compile(make_model(), BATCH, ranks=32, auto=True, mesh="auto", unit=".*: shard=auto", reshard_after_forward="auto", hardware="h100",
                                    budget=value, what_if="link.network.node_us=30x")
        search = decided.summary["search"]
        assert search["unit_axes"] and search["reshard_after_forward"] and not any("auto" in argument for argument in decided._arguments if argument != "--auto")
        assert "predicted step" in decided.explain("a100-80")
    with pytest.raises(PlanError, match="^expected a plan of auto=True, .* compile with auto=True$"):
        plan.decisions()


def test_saved_plan(plan, tmp_path, cache):
    plan.save(tmp_path / "saved")
    loaded = Plan.load(tmp_path / "saved")
    assert loaded.path == str(tmp_path / "saved" / "step.plan") and loaded.model_path == str(tmp_path / "saved" / "model.pt2")
    assert open(loaded.path, "rb").read() == open(plan.path, "rb").read() and loaded.report() == plan.report()
    assert loaded.explain() == plan.explain()
    with pytest.raises(PlanError, match="expected a new folder, found one that is there"):
        plan.save(tmp_path / "saved")
    with pytest.raises(PlanError, match=r"expected a folder of Plan.save\(\), found no step.plan in it"):
        Plan.load(tmp_path)
    for name, content in (("report.json", "{"), ("arguments.json", None), ("model.pt2", None)):
        damaged = tmp_path / name
        plan.save(damaged)
        (damaged / name).unlink()
        if content:
            (damaged / name).write_text(content)
        with pytest.raises(PlanError, match=r"expected a plan of compile\(\) or save\(\), found a damaged one: .*; remove the folder$"):
            Plan.load(damaged)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


# It is captured for the GPU, on a machine that need not have one; on a CPU it is one sentence.
def test_a_plan_for_gpus_keeps_what_only_they_have(tmp_path):
    from fsdp_mlir._demo import Llama

    ids = torch.arange(32).view(2, 16)
    made = fsdp_mlir.compile(Llama(32, 48, 2, 2, 64, 16), {"ids": ids}, ranks=1, device="cuda")
    assert "aten::_fused_rms_norm x5, aten::_fused_rms_norm_backward x5" in made.report() and "proved: " in made.report()
    succeed("fsdp-plan", made.model_path, "--ranks", 1, "-o", tmp_path / "cpu.plan")
    save_file({"in_0": ids[None]}, tmp_path / "d.safetensors")
    result = tool("fsdp-run", tmp_path / "cpu.plan", "--weights", made.model_path, "--data", tmp_path / "d.safetensors", "--steps", 1)
    assert result.returncode == 1 and re.search(
        r"error: program step, command \d+: aten::_fused_rms_norm_backward: has no kernel for cpu; capture the model for that device\n$", result.stderr)


def test_tables(plan):
    from fsdp_mlir import _table
    from rich.console import Console

    console = Console(record=True, width=120, file=open(os.devnull, "w"))
    _table.show(plan, console)
    text = console.export_text()
    assert re.search(r"blocks\.0 +│ +2 +│ +272 ", text) and re.search(r"all_gather +│ shard", text) and "arena" in text


def test_show_is_text_where_there_is_no_terminal(plan, capsys):
    plan.show()
    assert capsys.readouterr().out == plan.report()


def test_types_of_options_are_those_of_the_tool():
    result = subprocess.run([sys.executable, ROOT / "scripts" / "generate_options.py", "--check"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
