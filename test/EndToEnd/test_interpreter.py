"""fsdp-run leaves, bit for bit, what an interpreter of plans leaves that has no arena, no streams and no threads.

Plans of random options; `--all-mutants` draws more of them.
"""

import json
import random

import torch
from conftest import FIXTURES, succeed
from interpreter import Interpreter
from safetensors import safe_open
from safetensors.torch import save_file
from test_mutations import plan_of, substitute, text_of

STEPS = 3
HYPER = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
OPTIONS = {
    "--strategy": ["full_shard", "shard_grad_op", "no_shard"], "--bucket": ["none", "units:2", "copy:units:2", "merge:units:2"],
    "--optimizer": ["adamw", "sgd"], "--backward-prefetch": ["backward_pre", "backward_post", "none"], "--forward-prefetch": ["0", "1"],
    "--limit-all-gathers": ["0", "2"], "--storage-dtype": ["unchanged", "unchanged", "f32"],
    "--no-decay": ["", "dims<3"], "--offload": ["none", "params", "optimizer", "all"], "--clip-grad-norm": ["", "0.5", "0.5:1", "0.01:inf"],
}
GRAPHS = ["gpt2", "bert", "llama", "llama_bf16", "frozen", "role_batch_norm", "role_tied", "role_user_output", "role_chain",
          "role_channels_last", "role_encoder_decoder", "role_unused", "role_dropout", "role_bf16"]
IGNORE = {"gpt2": "bias", "llama": "norm", "frozen": r"h\.0\.mlp"}


def draw(graph, seed):
    """Ranks and options of a plan."""
    choose = random.Random(f"{graph} {seed}")
    options = [word for name, values in OPTIONS.items() for word in [(name, choose.choice(values))] if word[1]]
    ranks = choose.choice([1, 2, 3, 4])
    # A rank's own gradients are in no norm, and only some models have buffers that change.
    if graph in IGNORE and not any(name == "--clip-grad-norm" for name, _ in options):
        options.append(("--ignore", IGNORE[graph]))
    if graph == "role_batch_norm":
        options.append(("--sync-buffers", choose.choice(["none", "broadcast", "mean"])))
    return ranks, [word for option in options for word in option]


def read(graph, ranks, references):
    """The tensors of the model, and inputs with an axis of ranks."""
    program = torch.export.load(FIXTURES / f"{graph}.pt2")
    with safe_open(references(graph, ranks), "pt") as file:
        inputs = {name: file.get_tensor(name) for name in file.keys() if name.startswith("in_")}
    inputs = {name: value if ranks > 1 else value[None] for name, value in inputs.items()}
    return {**program.state_dict, **program.constants}, inputs


def set_inputs(interpreter, inputs):
    for name, value in inputs.items():
        for rank in range(interpreter.ranks):
            interpreter.set_input(rank, int(name.removeprefix("in_")), value[rank])


def find_gradients(interpreter, inputs):
    """What forward and backward leave: the gradients by the names of a reference."""
    set_inputs(interpreter, inputs)
    interpreter.run("step", {"Forward", "Backward"})
    return {f"grad.{name}": value for name, value in interpreter.parameters("gradient").items()}


def check(graph, seed, references, folder):
    ranks, options = draw(graph, seed)
    plan = folder / "drawn.plan"
    succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", "--ranks", ranks, "-o", plan, *options)
    tensors, inputs = read(graph, ranks, references)

    def compare(name, found, count=1, **metadata):
        batches = {name: torch.cat([value] * count) for name, value in inputs.items()}
        save_file({**batches, **found}, folder / name, {key: str(value) for key, value in metadata.items()})
        for extra in ([], ["--overlap", "--chaos", "7"]):
            line = succeed("fsdp-run", plan, "--weights", FIXTURES / f"{graph}.pt2", "--reference", folder / name, "--json",
                           *extra).stdout.splitlines()[-1]
            result = json.loads(line)
            assert result["difference"] == 0, (ranks, options, extra, result)

    interpreter = Interpreter(plan, tensors)
    gradients = find_gradients(interpreter, inputs)
    compare("gradients", {"loss": interpreter.loss(), **gradients})

    interpreter, losses = Interpreter(plan, tensors), []
    for _ in range(STEPS):
        set_inputs(interpreter, inputs)
        interpreter.run("step", {"Forward", "Backward", "Update"}, **HYPER)
        losses.append(interpreter.loss())
    parameters = {f"param.{name}": value for name, value in interpreter.parameters("shard").items()}
    compare("training", {"losses": torch.stack(losses), **parameters}, STEPS, steps=STEPS, ranks=ranks, **HYPER)


def pytest_generate_tests(metafunc):
    if "seed" not in metafunc.fixturenames:
        return
    isFull = metafunc.config.getoption("--all-mutants")
    metafunc.parametrize("graph", GRAPHS if isFull else GRAPHS[::3])
    metafunc.parametrize("seed", range(5) if isFull else range(1))


def test_runtime_leaves_what_the_interpreter_leaves(graph, seed, references, tmp_path):
    torch.set_num_threads(1)
    check(graph, seed, references, tmp_path)


# An opinion that never differs is none: gradients that are not divided before the sum are twice as large.
def test_interpreter_sees_a_wrong_divisor(plans, references, tmp_path):
    plan, (tensors, inputs) = plans("gpt2", 2), read("gpt2", 2, references)
    mutant = plan_of(substitute(r"(plan\.reduce_scatter @shard_reduce divide <pre = )2,", r"\g<1>1,", text_of(plan, tmp_path)), tmp_path)
    right, wrong = (find_gradients(Interpreter(path, tensors), inputs) for path in (plan, mutant))
    damaged = [name for name in right if not torch.equal(right[name], wrong[name])]
    assert damaged and all(torch.equal(2 * right[name], wrong[name]) for name in damaged)
