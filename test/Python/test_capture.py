"""What a captured program says of the module: arguments, sizes, outputs, scopes, and where the backward begins."""

import collections
import warnings

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils.checkpoint import checkpoint

import fsdp_mlir


def metadata(program):
    return program.graph_module.meta["custom"]


def quietly(module, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fsdp_mlir.capture(module, *args, **options)


class Batch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch, square=False, *rest, weight=None, **more):
        y = self.layer(batch["x"]) + batch["parts"][1]
        for other in (*rest, *more.values()):
            y = y * other
        return (y * y if square else y * weight).sum()


@pytest.mark.covers("_pytree")
def test_inputs_have_the_names_of_the_arguments():
    batch = {"x": torch.randn(6, 4), "parts": [3, torch.randn(6, 4)]}
    program = fsdp_mlir.capture(Batch(), (batch, False, torch.randn(6, 4)), {"weight": torch.randn(4), "mask": torch.ones(4)})
    assert metadata(program)["inputs"] == ["batch.x", "batch.parts.1", "rest.0", "weight", "mask"]


def test_sizes_have_the_names_of_their_dimensions():
    size = Dim("batch", max=64)
    shapes = {"batch": {"x": {0: size}, "parts": [None, (size, None)]}, "square": None}
    batch = {"x": torch.randn(6, 4), "parts": [3, torch.randn(6, 4)]}
    program = fsdp_mlir.capture(Batch(), (batch, True), dynamic_shapes=shapes)
    ((name, symbol),) = metadata(program)["symbols"].items()
    assert name == "batch" and symbol in map(str, program.range_constraints)


class Cache:
    """Of no kind that torch.export knows."""


Result = collections.namedtuple("Result", ["loss", "logits"])


@pytest.mark.parametrize(
    ("end", "options", "count"),
    [
        (lambda loss, y: {"loss": loss, "cache": Cache(), "logits": y}, {}, 0),
        (lambda loss, y: {"cache": Cache(), "loss": loss, "logits": y}, {"outputs": ["logits"]}, 1),
        (lambda loss, y: {"loss": loss, "hidden": (y, [y * 2])}, {"outputs": ["hidden"]}, 2),
        (lambda loss, y: (Cache(), loss, y), {"loss_index": 1, "outputs": [2]}, 1),
        (lambda loss, y: Result(loss, y), {"outputs": ["logits"]}, 1),
        (lambda loss, y: [None, loss], {"loss_index": 0}, 0),
    ],
)
def test_outputs_beside_the_loss_come_on_request(end, options, count, agrees):
    class Model(Batch):
        def forward(self, x):
            y = self.layer(x)
            return end(y.square().mean(), y)

    program = quietly(Model(), (torch.randn(2, 4),), **options)
    kinds = [s.kind.name for s in program.graph_signature.output_specs]
    assert kinds.count("USER_OUTPUT") == count and kinds.count("LOSS_OUTPUT") == 1


class Forgetful(Batch):
    def forward(self, x, labels=None):
        y = self.layer(x)
        return y if labels is None else (y - labels).square().mean()


def test_a_loss_that_is_none_asks_for_the_labels():
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(Forgetful(), (torch.randn(2, 4),))
    assert str(caught.value) == (
        "the loss has shape [2, 4]; reduce it to one number, for example with mean(); "
        "the example inputs leave out `labels`, with which the model may return its loss"
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.inner(x)).relu()


class Blocks(nn.Module):
    def __init__(self, region):
        super().__init__()
        self.blocks, self.region = nn.ModuleList([Block(), Block()]), region

    def forward(self, x):
        with self.region():
            for block in self.blocks:
                x = block(x)
        return x.float().square().mean()


class Partly(nn.Module):
    """Inside autocast, without a gradient through one of its two ways."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.inner(x)
            with torch.no_grad():
                z = self.inner(y)
                with torch.enable_grad():
                    z = z + self.inner(y) * 2
            return (y * z).float().sum()


# torch.export forgets regions inside of autocast: gradients would be those of both ways.
def test_no_grad_inside_autocast(agrees):
    agrees(Partly(), (torch.randn(8, 4),), tolerance=2e-2)
    agrees(Autocast(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))), (torch.randn(8, 4),), tolerance=2e-2)


class Autocast(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float().square().sum()


def test_scopes_survive_autocast(agrees):
    program = agrees(Blocks(lambda: torch.autocast("cpu", torch.bfloat16)), (torch.randn(2, 4),), tolerance=2e-2)
    scopes = collections.Counter()
    for node in program.graph.nodes:
        stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        scopes.update([(stack[1], node.meta["custom"]["phase"])] if len(stack) > 1 else [])
    assert all(scopes[f"blocks.{i}", phase] > 5 for i in range(2) for phase in ("fw", "bw"))


@pytest.mark.covers("scalar parameters")
def test_scalar_parameters_beside_the_loss(agrees):
    class Shifted(Batch):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.layer(x).sum() + self.a + self.b

    program = agrees(Shifted(), (torch.randn(2, 4),))
    assert metadata(program)["gradient_seed"] in [n.name for n in program.graph.nodes]


@pytest.mark.covers("FSDP_WRAPPED_MODULE", "Cleans")
@pytest.mark.parametrize("name", ["a b", "a-b", "ä/ö", "1", "a_b", "weight'", "in_0", "full_default", "class", 'q"q', "a\nb", "a\\b"])
def test_odd_names_of_modules(name, agrees):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({name: nn.Linear(4, 4), "a": nn.ModuleDict({"b": nn.Linear(4, 4)})})

        def forward(self, x):
            return self.parts["a"]["b"](self.parts[name](x)).square().sum()

    agrees(Odd(), (torch.randn(2, 4),))


def test_names_that_torch_fx_has_for_itself(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.code, self.seen, self.model = nn.Linear(4, 4), nn.Parameter(torch.ones(4)), nn.Linear(4, 4)
            self.register_buffer("graph", torch.ones(4))

        def forward(self, x):
            return (self.model(self.code(x)) * self.seen + self.graph).square().sum()

    program = fsdp_mlir.capture(Odd(), (torch.randn(2, 4),))
    assert {"code.weight", "seen", "model.bias", "graph"} <= program.state_dict.keys()
    fsdp_mlir.save(program, tmp_path / "odd.pt2")  # compares with eager PyTorch
    torch.export.load(tmp_path / "odd.pt2")
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        program.module()
    assert str(caught.value) == (
        "torch.fx needs the name of `code.weight` for itself, so the program has no module(); verify() runs it"
    )


@pytest.mark.covers("meta-device modules")
def test_models_without_content_become_archives_without_weights(tmp_path):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.forward = lambda x: model[1](model[0](x)).square().mean()
    for example in (torch.randn(3, 4), torch.empty(3, 4, device="meta")):
        program = fsdp_mlir.capture(model, (example,))
        assert {n.meta["val"].device.type for n in program.graph.nodes if n.op == "placeholder"} == {"cpu"}
        with pytest.warns(fsdp_mlir.CaptureWarning, match="not compared with eager PyTorch: `0.weight` has no content"):
            fsdp_mlir.save(program, tmp_path / "model.pt2")
    assert model[0].weight.is_meta
    model[0].register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.capture(model, (example,))
    assert str(caught.value) == (
        "buffer `0.table` has no content, and no checkpoint has it (persistent=False); make it on the CPU before capture"
    )


@pytest.mark.covers("CheckpointWrapper")
def test_checkpointing_points_to_remat():
    class Model(Blocks):
        def forward(self, x):
            return checkpoint(self.blocks[0], x, use_reentrant=False).sum() + self.blocks[1](x).sum()

    with pytest.warns(fsdp_mlir.CaptureWarning) as caught:
        fsdp_mlir.capture(Model(None), (torch.randn(2, 4),))
    assert [str(w.message) for w in caught] == [
        "the model itself uses activation checkpointing, which the graph does not keep; choose what is recomputed with "
        "fsdp-plan --remat"
    ]


class Routed(nn.Module):
    """As models do that leave parts out where they are compiled, and convert modules to types that they have."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask=None):
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(4)
        self.layer = self.layer.to(x.dtype)
        return (self.layer(x) * mask[None]).square().sum()


def test_parts_that_models_leave_out_where_they_are_compiled(agrees):
    agrees(Routed(), (torch.randn(2, 4),))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        self.calls.add_(1)
        return self.inner(x).relu() + self.calls


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Counting(), Counting()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def compiled_inside():
    model = Stack()
    model.blocks[1] = torch.compile(model.blocks[1])
    return model


def compiled_in_place():
    model = Stack()
    model.blocks[0].compile()
    model.compile()
    return model


class CompiledMethod(Stack):
    @torch.compile
    def forward(self, x):
        return super().forward(x)


COMPILED = {
    "the model": lambda: torch.compile(Stack()),
    "the model and a submodule": lambda: torch.compile(compiled_inside()),
    "a submodule": compiled_inside,
    "in place": compiled_in_place,
    "a method": CompiledMethod,
}


@pytest.mark.parametrize("kind", COMPILED)
def test_of_what_is_compiled_the_original_is_captured(kind, tmp_path):
    model, x = COMPILED[kind](), torch.randn(2, 4)
    names = list(model.state_dict())
    program = fsdp_mlir.capture(model, (x,))
    plain = fsdp_mlir.capture(Stack(), (x,))
    assert sorted(program.state_dict) == sorted(Stack().state_dict())
    assert str(program.graph) == str(plain.graph)
    assert list(model.state_dict()) == names
    fsdp_mlir.save(program, tmp_path / "model.pt2")
    fsdp_mlir.verify(model, program, (torch.randn(2, 4),))
    next(n for n in program.graph.nodes if n.target == torch.ops.aten.relu.default).target = torch.ops.aten.tanh.default
    with pytest.raises(fsdp_mlir.CaptureError, match="the graph does not compute what the model does"):
        fsdp_mlir.verify(model, program, (torch.randn(2, 4),))


def test_a_tensor_that_is_passed_twice_is_two_inputs():
    class Distance(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, target, more=None):
            return (self.inner(x) - target).square().mean() + (self.inner(more) * target).sum()

    model, x = Distance(), torch.randn(2, 4)
    program = fsdp_mlir.capture(model, (x, x), {"more": x})
    assert program.graph_module.meta["custom"]["inputs"] == ["x", "target", "more"]
    fsdp_mlir.verify(model, program, (torch.randn(2, 4), torch.randn(2, 4)), {"more": torch.randn(2, 4)})
