"""What a step was predicted to take, beside what it has taken: time, exposed communication, and the part of the machine's peak that was used."""

import json
import re

import pytest
from conftest import FIXTURES, ROOT, succeed

GPT2 = FIXTURES / "gpt2.pt2"
PEAK = 2e9  # FLOP/s


@pytest.fixture(scope="module")
def hardware(tmp_path_factory):
    """hardware/cpu.toml with a peak."""
    path = tmp_path_factory.mktemp("hardware") / "machine.toml"
    text = (ROOT / "hardware" / "cpu.toml").read_text()
    path.write_text(re.sub(r"(?m)^vector = .*$", r"\g<0>\npeak = { f64 = 1.0, f32 = 2.0, bf16 = 4.0, f16 = 4.0 }", text, count=1))
    return path


def count_flops(graph: str) -> int:
    """Those that PyTorch counts in a run of a captured graph; half of attention that is causal."""
    import make_rank_reference as maker
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    def forward(q, k, v, dropout_p=0.0, is_causal=False, *_, out_shape=None, **__):
        return sdpa_flop_count(q, k, v) // (1 + is_causal)

    def backward(grad, q, k, v, out, logsumexp, dropout_p=0.0, is_causal=False, *_, out_shape=None, **__):
        return sdpa_backward_flop_count(grad, q, k, v) // (1 + is_causal)

    aten = torch.ops.aten
    known = {aten._scaled_dot_product_flash_attention_for_cpu: forward, aten._scaled_dot_product_flash_attention_for_cpu_backward: backward}
    program = maker.load(FIXTURES / f"{graph}.pt2")
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        maker.run(program, maker.examples(program))
    return counter.get_total_flops()


def flops_of(graph: str, folder, *options) -> int:
    succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", "--ranks", 2, "--hardware", "h100", "--report", folder / "r.json", *options)
    return json.loads((folder / "r.json").read_text())["predicted"]["flops"]


@pytest.mark.parametrize("graph", ["gpt2", "llama_bf16", "bert", "role_channels_last"])
def test_flops_are_those_that_pytorch_counts(graph, tmp_path):
    assert flops_of(graph, tmp_path) == count_flops(graph)


# Of the model: what the backward computes again does not count, and each micro-batch does.
def test_flops_are_those_of_the_model(tmp_path):
    once = flops_of("gpt2", tmp_path)
    assert flops_of("gpt2", tmp_path, "--remat", "scope:.*") == once and flops_of("gpt2", tmp_path, "--accumulate", 3) == 3 * once


@pytest.mark.parametrize("options", ["", "--accumulate 3"])
def test_a_run_says_what_was_predicted_and_what_it_took(options, hardware, references, tmp_path):
    plan, report = tmp_path / "p.plan", tmp_path / "r.json"
    shown = succeed("fsdp-plan", GPT2, "--ranks", 2, "--hardware", hardware, "-o", plan, "--report", report, *options.split()).stdout
    predicted = json.loads(report.read_text())["predicted"]
    at_peak = predicted["flops"] / PEAK
    assert re.search(rf"MFU +{100 * at_peak / (1e-9 * predicted['step_ns']):.1f} %", shown)
    command = [plan, "--weights", GPT2, "--data", references("gpt2", 2), "--steps", 4]
    *steps, last = map(json.loads, succeed("fsdp-run", *command, "--json").stdout.splitlines())
    summary = last["summary"]
    assert summary["predicted"] == {"step_seconds": pytest.approx(1e-9 * predicted["step_ns"], abs=1e-9), "flops": predicted["flops"],
                                    "exposed_seconds": pytest.approx(1e-9 * predicted["exposed_ns"], abs=1e-9)}
    assert summary["mfu"] == pytest.approx(at_peak * len(steps) / summary["seconds"], rel=1e-6)
    assert summary["exposed_seconds"] == pytest.approx(sum(step["exposed_seconds"] for step in steps), abs=1e-8)
    # One thread does all: what it communicates, it does not compute.
    assert all(step["collective_seconds"] <= step["exposed_seconds"] < step["seconds"] for step in steps)
    text = succeed("fsdp-run", *command).stdout
    assert re.search(r"(?m)^predicted \S+ ms a step, took \S+ ms; exposed communication \S+ ms a step, predicted \S+ ms; MFU \d+\.\d %$", text)


# Of a machine that nobody named, and of one whose vendor states no peak, nobody knows what part was used.
def test_nothing_is_said_of_what_is_not_known(plans, references):
    command = ["--weights", GPT2, "--data", references("gpt2", 2), "--steps", 2]
    plain = succeed("fsdp-run", plans("gpt2", 2), *command).stdout
    assert "predicted" not in plain and "MFU" not in plain and "exposed communication" in plain
    timed = succeed("fsdp-run", plans("gpt2", 2, "--hardware", "cpu"), *command).stdout
    assert "predicted" in timed and "MFU" not in timed


# The compute thread waits for the other one.
def test_a_second_thread_exposes_waits_alone(plans, references):
    command = [plans("gpt2", 2), "--weights", GPT2, "--data", references("gpt2", 2), "--steps", 3, "--json", "--overlap"]
    *steps, _ = map(json.loads, succeed("fsdp-run", *command).stdout.splitlines())
    assert all(0 <= step["exposed_seconds"] < step["seconds"] for step in steps)
