"""Steps of PyTorch's own FSDP1 and FSDP2 on gloo, and of a plan: the first gradients, all losses, the final parameters.

`oracle/cases.py` says what is trained: a table in which every two values of two features meet, of which twelve rows run
for each commit, for 8 steps, and all of them with --all-pairs, for 20 steps. `oracle/train.py` trains with PyTorch, all cases of a run at once.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SAMPLE, digest, succeed, tool
from safetensors import safe_open

ORACLE = Path(__file__).parent / "oracle"
sys.path.insert(0, str(ORACLE))

import cases  # noqa: E402
import models  # noqa: E402

import fsdp_mlir  # noqa: E402

ROWS = 60
TABLE = {cases.name(index, case): case for index, case in enumerate(cases.table(ROWS))}


def some(names: list[str], count: int) -> list[str]:
    """As many, from another one on for each commit."""
    first = SAMPLE % len(names)
    return [*names[first:], *names[:first]][:count]


# Cases in f32, whose tolerance is small, and others.
ALWAYS = [*some([name for name in TABLE if not cases.is_low(TABLE[name])], 8), *some([name for name in TABLE if cases.is_low(TABLE[name])], 4)]


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        names = list(TABLE) if metafunc.config.option.all_pairs else ALWAYS
        metafunc.parametrize("case", [{**TABLE[name], "name": name[:2]} for name in names], ids=names)


@pytest.fixture(scope="session")
def pytorch(once, request):
    """The folder with what PyTorch makes of the cases that were chosen."""
    here = [item for item in request.session.items if item.path == Path(__file__)]
    chosen = [item.callspec.params["case"] for item in here if hasattr(item, "callspec") and "case" in item.callspec.params]
    steps = 20 if request.config.option.all_pairs else 8

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "cases.json").write_text(json.dumps(chosen))
        with open(folder / "log", "w+") as log:
            command = [sys.executable, ORACLE / "train.py", folder / "cases.json", folder, str(steps)]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(120 + 20 * len(chosen))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # the ranks, too
                    process.wait()
            log.seek(0)
            assert code == 0, log.read()[-5000:]

    return once(f"pytorch-{digest(chosen, steps)}", make)


@pytest.fixture(scope="session")
def archives(once):
    """archives(case): the captured model."""

    def find(case: dict) -> Path:
        def make(path: Path) -> None:
            policy = models.precision(case)
            options = {"mixed_precision": {"": policy, models.units(case): policy}} if case["param_dtype"] != "f32" else {}
            program = fsdp_mlir.capture(models.build(case), models.batches(1)[0], **options)
            fsdp_mlir.save(program, path, verify=False)  # what follows compares it with PyTorch

        names = ["model", "tied", "frozen", "dropout"] + (["param_dtype", "reduce_dtype", "sharding", "wrap"] if case["param_dtype"] != "f32" else [])
        return once(f"oracle-{digest(*(case[name] for name in names))}.pt2", make)

    return find


def plan_options(case: dict) -> list[str]:
    schedule = case["schedule"]
    mesh = "2x2" if cases.has_mesh(case) else "shard=2,local=2" if cases.has_inner_axis(case) else f"1x{case['world']}" if case["axis_of_one"] else ""
    options = ["--mesh", mesh] if mesh else ["--ranks", str(case["world"])]
    if not cases.is_fsdp2(case):
        options += ["--strategy", case["sharding"]]
    elif schedule != "auto":
        options += ["--reshard-after-forward", case["sharding"].split()[1]]
    keeps = case["sharding"] in ("shard_grad_op", "hybrid_shard_zero2", "reshard false")
    own = [f"reshard={str(keeps).lower()}"] if case["first_block"] == "reshard" else []
    own += ["shard=local"] if cases.has_inner_axis(case) else []
    own += ["reduce=bf16"] if case["reduce_dtype"].endswith("block") else []
    options += ["--unit", rf"{models.first_block(case)}(\..*)?: {' '.join(own)}"] if own else []
    count, *late = case["accumulate"].split()
    options += ["--accumulate", count, *("--" + word.replace("_", "-") for word in late)] if count != "1" else []
    options += ["--reshard-after-backward", "false"] if not case["reshard_after_backward"] else []
    options += ["--no-decay", case["no_decay"]] if case["no_decay"] != "none" else []
    options += ["--clip-grad-norm", case["clip"]] if case["clip"] != "none" else []
    options += ["--wrap", {"blocks": "auto", "parts": f"scope:{models.units(case)}", "size": "size:5000"}[case["wrap"]]]
    options += {"backward_post": ["--backward-prefetch", "backward_post"], "no_prefetch": ["--backward-prefetch", "none"],
                "forward_prefetch": ["--forward-prefetch", "1"], "no_limit": ["--limit-all-gathers", "0"], "backward_pre": [],
                "auto": ["--auto", "--hardware", "h100", "--evaluations", "500"]}.get(schedule, ["--schedule", schedule])
    if schedule not in [*cases.PRESETS, "auto"]:
        options += ["--bucket", case["bucket"], "--reduce-wait", case["reduce_wait"]]
    if case["remat"] != "none":
        options += ["--remat", f"{'scope' if case['remat'] == 'blocks' else 'cheap'}:{models.BLOCKS[case['model']]}"]
    options += ["--chunk-loss", case["chunk_loss"]]  # the same sums in another order
    if case["reduce_dtype"] == "bf16" and case["param_dtype"] == "f32":  # else the archive says so
        options += ["--reduce-dtype", "bf16"]
    options += ["--offload", case["offload"]] if case["offload"] != "none" else []
    return options + {"adamw": [], "sgd": ["--optimizer", "sgd"], "momentum": ["--optimizer", "sgd", "--momentum"]}[case["optimizer"]]


def differences(plan: Path, weights: Path, reference: Path, case: dict) -> dict[str, float]:
    """The largest absolute difference of each tensor. What is allowed is decided here, so exit code 2 is welcome."""
    run = {"plain": [], "overlap": ["--overlap"], "chaos": ["--chaos", "1"]}[case["run"]]
    result = tool("fsdp-run", plan, "--verify", "--weights", weights, "--reference", reference, "--json", *run)
    assert result.returncode in (0, 2) and result.stdout, result.stderr
    return json.loads(result.stdout)["differences"]


def largest(reference: Path) -> dict[str, float]:
    with safe_open(reference, "pt") as file:
        return {name: file.get_tensor(name).abs().max().item() for name in file.keys()}


@pytest.mark.covers(
    "FullyShardedDataParallel", "fully_shard", "FULL_SHARD", "SHARD_GRAD_OP", "DDP", "BackwardPrefetch", "Gradients",
    "reduce_dtype", "param_dtype", "MixedPrecision", "AC", "CustomPolicy", "_or_policy", "size_based_auto_wrap_policy", "frozen and trainable parameters in one unit",
    "parameters without gradient", "reshard_after_forward=True", "reshard_after_forward=N", "set_modules_to_forward_prefetch",
    "torch.distributed", "clip_grad_norm_", "CPUOffload", "OffloadPolicy", "set_requires_all_reduce", "set_reshard_after_backward",
    "CPUOffloadPolicy")
@pytest.mark.filterwarnings("ignore::fsdp_mlir.CaptureWarning")  # BERT's bias that only a tie uses
def test_training_is_that_of_pytorch(case, pytorch, archives, tmp_path):
    error = pytorch / f"{case['name']}.error"
    assert not error.exists(), error.read_text()
    weights, plan = archives(case), tmp_path / "step.plan"
    succeed("fsdp-plan", weights, *plan_options(case), "-o", plan)
    # Then as torch.testing.assert_close. What is not synchronised is summed in the reduce dtype, as in FSDP2; FSDP1 has f32 there.
    low = cases.is_low(case) * (2 if "no_" in case["accumulate"] else 1)
    found, wrong = {}, {}
    for kind in "step", "training":
        reference = pytorch / f"{case['name']}.{kind}.safetensors"
        found[kind], size = differences(plan, weights, reference, case), largest(reference)
        for name, difference in found[kind].items():
            if kind == "training":
                is_zero = re.search(models.ZERO_GRADIENT[case["model"]], name)
                allowed = 20 * 2e-3 if is_zero else 1e-5 + 1.6e-2 * low * size[name]
            else:
                allowed = 1e-7 + max(1.6e-2 * low, 1e-5) * size[name]
            if not difference <= allowed:
                wrong[f"{kind} {name}"] = f"off by {difference:g}, allowed {allowed:g}"
    parameters = {name for name, _ in models.build(case).named_parameters()}
    assert {name for name in found["training"]} == {"losses"} | {f"param.{name}" for name in parameters}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


# A table that lost a pair would hide what it was to find.
def test_every_pair_of_values_is_in_the_table():
    assert len(TABLE) >= ROWS and all(cases.is_possible(case) for case in TABLE.values())
    assert set(cases.possible_pairs()) <= set().union(*map(cases.pairs, TABLE.values()))
