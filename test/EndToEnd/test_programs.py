"""Several captured graphs over one set of parameters: an evaluation, and a second training shape."""

import copy
import json
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import succeed, tool
from safetensors.torch import save_file

import fsdp_mlir


class Normed(torch.nn.Module):
    """Training writes the statistics that an evaluation reads."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)

    def forward(self, x, y):
        return F.cross_entropy(self.head(F.relu(self.norm(self.conv(x))).mean((2, 3))), y)

    @staticmethod
    def data(count, size):
        return torch.randn(count, 3, size, size), torch.randint(0, 4, (count,))


class Tied(torch.nn.Module):
    """Two constants of one value, and one of a value that depends on the length."""

    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, y):
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        h = mask @ torch.tanh(self.body(self.embed(x)))
        return F.cross_entropy(self.head(h * torch.tensor(2.0 if self.training else 3.0)).flatten(0, 1), y.flatten())

    @staticmethod
    def data(count, size):
        return torch.randint(0, 32, (count, size)), torch.randint(0, 32, (count, size))


class Precise(torch.nn.Module):
    """Units of two element types."""

    def __init__(self):
        super().__init__()
        self.narrow, self.norm = torch.nn.Linear(8, 8).bfloat16(), torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.narrow(x.bfloat16()).float()).pow(3).mean()

    @staticmethod
    def data(count, size):
        return (torch.randn(count, size, 8),)


class Rotated(torch.nn.Module):
    """Its positions are a buffer that no checkpoint has, in the dtype of the model."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        self.register_buffer("angles", torch.linspace(0, 3, 8), persistent=False)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x.to(self.angles.dtype))) * torch.cos(self.angles)).square().mean()

    @staticmethod
    def data(count, size):
        return (torch.randn(count, size, 8),)


MODELS = [Normed, Tied, Precise]


@pytest.fixture(scope="module", params=MODELS, ids=lambda kind: kind.__name__)
def graphs(request, tmp_path_factory):
    """A folder with train.pt2, long.pt2 (a larger batch of larger data) and eval.pt2."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    model = request.param()
    (folder / "kind").write_text(request.param.__name__)
    torch.save(model, folder / "model.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, count, size in (("train", 2, 6), ("long", 3, 8), ("eval", 4, 6)):
            model.train(name != "eval")
            program = fsdp_mlir.capture(model, request.param.data(count, size), gradients=name != "eval")
            fsdp_mlir.save(program, folder / f"{name}.pt2")
    return folder


OPTIONS = ["--ranks 2", "--ranks 3 --strategy shard_grad_op", "--ranks 4 --reshard-after-forward 2", "--ranks 2 --strategy no_shard",
           "--ranks 2 --schedule list", "--ranks 2 --schedule fsdp2", "--ranks 2 --optimizer sgd --momentum", "--ranks 1"]


# fsdp-plan writes what it has proved, program by program.
@pytest.mark.parametrize("options", OPTIONS)
def test_each_program_is_proved(graphs, tmp_path, options):
    shown = succeed("fsdp-plan", graphs / "train.pt2", "--program", f"eval={graphs}/eval.pt2", "--program", f"long={graphs}/long.pt2",
                    *options.split(), "-o", tmp_path / "p.plan", "--report", tmp_path / "r.json").stdout
    assert "not proved" not in shown
    assert [row["name"] for row in json.loads((tmp_path / "r.json").read_text())["programs"]] == ["step", "eval", "long"]


def text_of(graphs, tmp_path):
    succeed("fsdp-plan", graphs / "train.pt2", "--program", f"eval={graphs}/eval.pt2", "--program", f"long={graphs}/long.pt2",
            "--ranks", 2, "-o", tmp_path / "p.plan")
    return succeed("fsdp-translate", "--import-plan", tmp_path / "p.plan").stdout


# What programs share has one place; what is a program's own never lies there, nor a loss or an input in another program's way.
@pytest.mark.covers("share_comm_ctx")
def test_shared_memory_is_nobodys_transient(graphs, tmp_path):
    text = "\n".join(line for line in text_of(graphs, tmp_path).splitlines() if " in host at " not in line)  # which has an arena of its own
    used, program = {}, None
    for line in text.splitlines():
        if found := re.match(r"    plan\.program @(\S+)", line):
            program = found[1]
        elif program:
            for value in re.findall(r"%\d+", line):
                used.setdefault(value, set()).add(program)
    places, roots = {}, {}
    for value, role, offset, sizes, kind in re.findall(r"(%\d+) = plan\.buffer (\w+).*? at (\d+).*: tensor<((?:\d+x)*)(\w+)[,>]", text):
        numel = 1
        for size in sizes.split("x")[:-1]:
            numel *= int(size)
        width = {"i1": 1, "i64": 8, "f32": 4, "bf16": 2, "f64": 8}[kind]
        places[value], roots[value] = (int(offset), int(offset) + numel * width), role
    for view, root in re.findall(r"(%\d+) = plan\.view (%\d+)", text):
        used.setdefault(root, set()).update(used.get(view, set()))
    shared = {v for v in places if len(used.get(v, ())) > 1 or roots[v] in ("shard", "optimizer_state", "model_buffer", "input", "loss")}
    assert any(roots[value] == "gradient" for value in shared)  # that of each unit, which two programs reduce
    for value in shared:
        begin, end = places[value]
        for other, (first, last) in places.items():
            assert other == value or begin == end or first == last or last <= begin or end <= first, (value, other)


# A program that does what it must not is named.
def test_an_evaluation_that_trains_is_refuted(graphs, tmp_path):
    text = text_of(graphs, tmp_path)
    shard = re.search(r"(%\d+) = plan\.buffer shard", text)[1]
    changed = text.replace("plan.program @eval {", f"plan.program @eval {{\n      plan.zero {shard} <forward>", 1)
    (tmp_path / "p.mlir").write_text(changed)
    assert "(eval).commands[0]: expected a buffer that Forward commands may write" in tool("fsdp-opt", tmp_path / "p.mlir", "--plan-verify").stderr


@pytest.mark.parametrize("name, sentence", [
    ("step", "expected programs of different names, found a second one that is called 'step'"),
    ("", "--program: expected a name and a file, such as eval=eval.pt2; found '="),
])
def test_names_of_programs(graphs, tmp_path, name, sentence):
    result = tool("fsdp-plan", graphs / "train.pt2", "--program", f"{name}={graphs}/eval.pt2", "--ranks", 2, "-o", tmp_path / "p.plan")
    assert result.returncode == 1 and sentence in result.stderr


# Whatever a program is called, the plan is the same.
@pytest.mark.parametrize("name", ["init", "root", "mesh", "plan", "shard", "step.source"])
def test_no_name_means_anything(graphs, tmp_path, name):
    succeed("fsdp-plan", graphs / "train.pt2", "--program", f"{name}={graphs}/eval.pt2", "--ranks", 2, "-o", tmp_path / "p.plan")


def write_batches(kind, path, batches, count, size):
    """`batches` of the model's inputs, as --data takes them; and the same as a list."""
    every = [kind.data(count, size) for _ in range(batches)]
    save_file({f"in_{i}": torch.stack(tensors) for i, tensors in enumerate(zip(*every))}, path)
    return every


def eager(model, train, evaluation, ranks):
    """PyTorch's losses of each step, and after each step those of all evaluations: each rank has its own batches and buffers."""
    replicas = [copy.deepcopy(model) for _ in range(ranks)]
    optimizers = [torch.optim.AdamW(replica.parameters(), lr=1e-3) for replica in replicas]
    losses, evaluated = [], []
    for step in range(0, len(train), ranks):
        own = []
        for rank, replica in enumerate(replicas):
            replica.train().zero_grad()
            loss = replica(*train[step + rank])
            loss.backward()
            own.append(loss.item())
        for shared in zip(*(replica.parameters() for replica in replicas)):
            mean = sum(parameter.grad for parameter in shared) / ranks
            for parameter in shared:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(sum(own) / ranks)
        with torch.no_grad():
            found = [replicas[i % ranks].eval()(*batch).item() for i, batch in enumerate(evaluation)]
        evaluated.append(sum(found) / len(found))
    return losses, evaluated


# Losses of both are PyTorch's; and training does not notice that there was an evaluation.
@pytest.mark.covers("_post_forward")
@pytest.mark.parametrize("options", ["--ranks 2", "--ranks 2 --strategy shard_grad_op --schedule fsdp1", "--ranks 1"])
def test_evaluation_between_steps(graphs, tmp_path, options):
    kind = next(kind for kind in MODELS if kind.__name__ == (graphs / "kind").read_text())
    model = torch.load(graphs / "model.pt", weights_only=False)
    ranks = int(options.split()[1])
    torch.manual_seed(2)
    train = write_batches(kind, tmp_path / "train.safetensors", 3 * ranks, 2, 6)
    evaluation = write_batches(kind, tmp_path / "eval.safetensors", 2 * ranks, 4, 6)
    succeed("fsdp-plan", graphs / "train.pt2", "--program", f"eval={graphs}/eval.pt2", *options.split(), "-o", tmp_path / "p.plan")
    command = ["fsdp-run", tmp_path / "p.plan", "--weights", graphs / "train.pt2", "--data", tmp_path / "train.safetensors", "--steps", 3, "--json"]
    alone = [row["loss"] for row in map(json.loads, succeed(*command).stdout.splitlines()) if "loss" in row]
    rows = list(map(json.loads, succeed(*command, "--eval-data", tmp_path / "eval.safetensors", "--eval-every", 1).stdout.splitlines()))
    assert [row["loss"] for row in rows if "loss" in row] == alone
    losses, evaluated = eager(model, train, evaluation, ranks)
    tolerance = 0.02 if kind is Precise else 1e-3  # AdamW enlarges the rounding of gradients that are nearly 0
    assert alone[:3] == pytest.approx(losses, rel=tolerance)
    assert [row["eval_loss"] for row in rows if "eval_loss" in row] == pytest.approx(evaluated, rel=tolerance)


# A second shape trains the same shards, with the same states.
@pytest.mark.covers("register_fsdp_forward_method")
def test_a_second_shape_trains(graphs, tmp_path):
    kind = next(kind for kind in MODELS if kind.__name__ == (graphs / "kind").read_text())
    model = torch.load(graphs / "model.pt", weights_only=False)
    train = write_batches(kind, tmp_path / "long.safetensors", 4, 3, 8)
    succeed("fsdp-plan", graphs / "train.pt2", "--program", f"long={graphs}/long.pt2", "--ranks", 2, "-o", tmp_path / "p.plan")
    rows = map(json.loads, succeed("fsdp-run", tmp_path / "p.plan", "--weights", graphs / "train.pt2", "--program", "long",
                                   "--data", tmp_path / "long.safetensors", "--steps", 2, "--json").stdout.splitlines())
    found = [row["loss"] for row in rows if "loss" in row][:2]
    losses, _ = eager(model, train, [train[0]], 2)
    assert found == pytest.approx(losses, rel=0.02 if kind is Precise else 1e-3)


# The compute dtype belongs to the gather: two programs over the same f32 shards compute in different ones. What a model derives from
# its dtype and no checkpoint has (positions) is each program's own.
@pytest.mark.covers("Disjointly", "Force")
@pytest.mark.parametrize("options", ["", "--reduce-dtype f32", "--strategy shard_grad_op --schedule fsdp2"])
def test_training_in_bf16_and_evaluation_in_f32(tmp_path, options):
    torch.manual_seed(0)
    model = Rotated()
    evaluation = write_batches(Rotated, tmp_path / "eval.safetensors", 4, 2, 6)
    for name, captured in (("f32", model), ("bf16", copy.deepcopy(model).bfloat16())):
        fsdp_mlir.save(fsdp_mlir.capture(captured, Rotated.data(2, 6)), tmp_path / f"{name}.pt2")
    fsdp_mlir.save(fsdp_mlir.capture(model.eval(), Rotated.data(2, 6), gradients=False), tmp_path / "eval.pt2")
    succeed("fsdp-plan", tmp_path / "bf16.pt2", "--program", f"eval={tmp_path}/eval.pt2", "--ranks", 2, "--storage-dtype", "f32", *options.split(),
            "-o", tmp_path / "p.plan")
    rows = map(json.loads, succeed("fsdp-run", tmp_path / "p.plan", "--weights", tmp_path / "f32.pt2", "--data", tmp_path / "eval.safetensors", "--lr", 0,
                                   "--weight-decay", 0, "--eval-data", tmp_path / "eval.safetensors", "--eval-every", 1, "--steps", 1, "--json").stdout.splitlines())
    found = next(row["eval_loss"] for row in rows if "eval_loss" in row)
    with torch.no_grad():
        assert found == pytest.approx(sum(model(*batch).item() for batch in evaluation) / 4, rel=1e-6)


class Counting(torch.nn.Module):
    """Training changes a buffer that no checkpoint has; an evaluation derives from it what looks like a constant."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.register_buffer("count", torch.ones(8), persistent=False)

    def forward(self, x):
        if self.training:
            self.count.add_(1.0)
            return self.body(x).square().mean()
        return (self.body(x) * (3 * self.count - 1)).square().mean()

    @staticmethod
    def data(count, size):
        return (torch.randn(count, size, 8),)


# What one program changes is no constant for another.
def test_an_evaluation_reads_what_training_counts(tmp_path):
    torch.manual_seed(0)
    model = Counting()
    program = fsdp_mlir.capture(model, Counting.data(2, 6))
    fsdp_mlir.save(program, tmp_path / "train.pt2")
    fsdp_mlir.save(fsdp_mlir.capture(model.eval(), Counting.data(2, 6), gradients=False), tmp_path / "eval.pt2")
    train = write_batches(Counting, tmp_path / "train.safetensors", 6, 2, 6)
    evaluation = write_batches(Counting, tmp_path / "eval.safetensors", 2, 2, 6)
    succeed("fsdp-plan", tmp_path / "train.pt2", "--program", f"eval={tmp_path}/eval.pt2", "--ranks", 2, "-o", tmp_path / "p.plan")
    rows = list(map(json.loads, succeed("fsdp-run", tmp_path / "p.plan", "--weights", tmp_path / "train.pt2", "--data", tmp_path / "train.safetensors",
                                        "--steps", 3, "--json", "--eval-data", tmp_path / "eval.safetensors", "--eval-every", 1).stdout.splitlines()))
    losses, evaluated = eager(model, train, evaluation, 2)
    assert [row["loss"] for row in rows if "loss" in row] == pytest.approx(losses, rel=1e-5)
    assert [row["eval_loss"] for row in rows if "eval_loss" in row] == pytest.approx(evaluated, rel=1e-5)
