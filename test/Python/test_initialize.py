"""initialize() against PyTorch: the model made on the CPU with the same seed, and FSDP1's own materialisation."""

import contextlib

import fsdp_mlir
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp._init_utils import _materialize_meta_module, _materialize_with_param_init_fn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.outer(self.inner(self.norm(x)).relu())


class Model(nn.Module):
    """Layers of several kinds, in blocks; buffers that are saved."""

    def __init__(self, blocks=3, width=16):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.conv, self.norm, self.head = nn.Conv1d(1, 3, 3), nn.LayerNorm(width), nn.Linear(width, 11)

    def forward(self, ids, target):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x) + self.conv(x.unsqueeze(1)).mean()
        return nn.functional.cross_entropy(self.head(x), target)


def meta(make, *arguments, **options):
    with torch.device("meta"):
        return make(*arguments, **options)


def assert_is(path, expected):
    found = load_file(path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=lambda m: f"{name}: {m}")


@pytest.mark.covers("Materialize", "meta-device modules")
def test_values_are_those_of_the_model_made_on_the_cpu(tmp_path):
    model = meta(Model)
    before = torch.get_rng_state()
    fsdp_mlir.initialize(model, tmp_path / "init.safetensors", seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(t.is_meta for t in [*model.parameters(), *model.buffers()])
    torch.manual_seed(7)
    assert_is(tmp_path / "init.safetensors", Model().state_dict())
    with safe_open(tmp_path / "init.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "init": "from-module", "seed": "7"}


class Random(nn.Module):
    """Three tensors of its own, drawn by a function of FSDP's contract."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.empty(5, 3))
        self.b = nn.Parameter(torch.empty(7, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("c", torch.empty((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.a)
        nn.init.uniform_(self.b)
        self.c.random_(100)


# In one level of children FSDP1's order, breadth first, is that of modules().
@pytest.mark.covers("Materialize", "Run")
def test_values_are_those_that_fsdp1_makes(tmp_path):
    with torch.device("meta"):
        model = nn.Sequential(Random(), nn.Linear(3, 5), nn.GroupNorm(1, 4), nn.ReLU(), Random())
        theirs = nn.Sequential(Random(), nn.Linear(3, 5), nn.GroupNorm(1, 4), nn.ReLU(), Random())
    fsdp_mlir.initialize(model, tmp_path / "init.safetensors", seed=3)
    torch.manual_seed(3)
    _materialize_meta_module(theirs, torch.device("cpu"), set(), None)
    assert_is(tmp_path / "init.safetensors", theirs.state_dict())


@pytest.mark.covers("param_init_fn", "Run")
def test_a_function_initialises_each_module_once(tmp_path):
    with torch.device("meta"):
        model, theirs = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), Block(4)), nn.Sequential(nn.Linear(3, 5), nn.ReLU(), Block(4))
    seen = []

    def init(module):
        seen.append(module)
        module.to_empty(device="cpu", recurse=False)  # as FSDP1 needs it
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            tensor.detach().fill_(tensor.numel())

    fsdp_mlir.initialize(model, tmp_path / "init.safetensors", param_init_fn=init)
    owners = [m for m in model.modules() if m._parameters or m._buffers]
    assert seen == [m for m in owners if any(t is not None for t in [*m._parameters.values(), *m._buffers.values()])]
    _materialize_with_param_init_fn(theirs, init, set())
    assert_is(tmp_path / "init.safetensors", theirs.state_dict())


class Live(TorchDispatchMode):
    """The most bytes of tensors that were in memory at once, of those made while it is on."""

    def __init__(self):
        super().__init__()
        self.storages, self.most = {}, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in tree_leaves((arguments, result)):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self.storages[storage._cdata] = torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes()
        self.storages = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.most = max(self.most, sum(bytes for _, bytes in self.storages.values()))
        return result


# The model is 40 times what may be in memory.
@pytest.mark.covers("Materialize")
def test_one_module_is_in_memory_at_a_time(tmp_path):
    layer = 256 * 256 * 4
    model = meta(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)) for _ in range(40)]))
    with Live() as live:
        fsdp_mlir.initialize(model, tmp_path / "init.safetensors")
    assert layer < live.most < 2 * layer
    assert (tmp_path / "init.safetensors").stat().st_size > 80 * layer


def test_what_has_content_keeps_it(tmp_path):
    model = meta(Model, blocks=1)
    model.norm = nn.LayerNorm(16)
    model.norm.weight.data.fill_(3)
    table = torch.arange(4.0)
    model.head.register_buffer("table", table)
    model.head.register_buffer("scratch", torch.ones(2), persistent=False)
    fsdp_mlir.initialize(model, tmp_path / "init.safetensors")
    found = load_file(tmp_path / "init.safetensors")
    assert found["norm.weight"].eq(3).all() and torch.equal(found["head.table"], table) and "head.scratch" not in found
    assert model.head.table is table and model.head.weight.is_meta


# A buffer that is not saved is the capture's business.
def test_buffers_that_are_not_saved_are_left_out(tmp_path):
    model = meta(Model, blocks=1)
    model.norm.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    model.register_buffer("mask", torch.empty(3, device="meta"), persistent=False)
    fsdp_mlir.initialize(model, tmp_path / "init.safetensors")
    assert load_file(tmp_path / "init.safetensors").keys() == Model(blocks=1).state_dict().keys()


# A tie is one tensor, with the values of the last module that owns it, as if each had been reset in turn.
def test_tied_parameters_are_written_once(tmp_path):
    def make():
        model = Model(blocks=1)
        model.head.weight = model.embed.weight
        return model

    fsdp_mlir.initialize(meta(make), tmp_path / "init.safetensors", seed=5)
    expected = make()
    torch.manual_seed(5)
    for module in expected.modules():
        with contextlib.suppress(AttributeError):
            module.reset_parameters()
    state = expected.state_dict()
    del state["head.weight"]
    assert_is(tmp_path / "init.safetensors", state)


# A layout other than row-major is filled in the order of its memory, and written in that of its elements.
def test_strides_are_kept_for_the_draws(tmp_path):
    fsdp_mlir.initialize(meta(lambda: nn.Conv2d(3, 8, 5).to(memory_format=torch.channels_last)), tmp_path / "init.safetensors", seed=1)
    expected = nn.Conv2d(3, 8, 5).to(memory_format=torch.channels_last)
    torch.manual_seed(1)
    expected.reset_parameters()
    assert_is(tmp_path / "init.safetensors", expected.state_dict())


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))


class Partial(Bare):
    def reset_parameters(self):
        nn.init.ones_(self.weight[:2])


class Failing(Bare):
    def reset_parameters(self):
        raise RuntimeError("no scale")


class Wrong(Bare):
    def reset_parameters(self):
        self.weight = nn.Parameter(torch.ones(4))


@pytest.mark.covers("param_init_fn")
@pytest.mark.parametrize("model, options, sentence", [
    (nn.Sequential(Bare()), {}, "module `0` (Bare) has tensors on the meta device and no reset_parameters(); give param_init_fn, which "
     "initialises one module"),
    (Bare(), {}, "the module (Bare) has tensors on the meta device and no reset_parameters(); give param_init_fn, which initialises one module"),
    (nn.Sequential(Partial()), {}, "`0.weight` has elements that its module's initialisation did not set, or set to NaN"),
    (nn.Sequential(Failing()), {}, "module `0` (Failing) cannot be initialised: reset_parameters() says: no scale"),
    (nn.Sequential(Bare()), {"param_init_fn": lambda module: module.scale}, "module `0` (Bare) cannot be initialised: param_init_fn says: "
     "'Bare' object has no attribute 'scale'"),
    (nn.Sequential(Wrong()), {}, "`0.weight` should be torch.float32 [3] on the CPU after its module is initialised, not torch.float32 [4] on cpu"),
    (Bare(), {"param_init_fn": 3}, "param_init_fn must be a function of a module, not a int"),
    (Bare(), {"seed": -1}, "seed must be an integer from 0 to 9223372036854775807, not -1"),
    (nn.ReLU(), {}, "the module has no parameters or buffers; there is nothing to initialise"),
    (3, {}, "initialize takes a torch.nn.Module, not a int"),
    (nn.LazyLinear(3, device="meta"), {}, "`weight` has no shape before the module has run once; run it, or make its layers with their sizes"),
], ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None)
def test_what_cannot_be_initialised_is_rejected(model, options, sentence, tmp_path):
    if isinstance(model, nn.Module):
        model = model if isinstance(model, nn.LazyLinear) else model.to("meta")
    with pytest.raises(fsdp_mlir.CaptureError) as caught:
        fsdp_mlir.initialize(model, tmp_path / "init.safetensors", **options)
    assert str(caught.value) == sentence
    assert not list(tmp_path.iterdir())


def test_the_file_has_its_suffix(tmp_path):
    with pytest.raises(fsdp_mlir.CaptureError, match=r"`init.pt2` should end in .safetensors"):
        fsdp_mlir.initialize(meta(Bare), tmp_path / "init.pt2")
    with pytest.raises(FileNotFoundError):
        fsdp_mlir.initialize(meta(Bare), tmp_path / "none" / "init.safetensors", param_init_fn=lambda m: m.weight.zero_())


def test_names_are_those_without_compile(tmp_path):
    def model():
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    plain, compiled = model(), model()
    compiled.load_state_dict(plain.state_dict())
    compiled[0] = torch.compile(compiled[0])
    for name, module in (("plain", plain), ("compiled", torch.compile(compiled))):
        fsdp_mlir.initialize(module, tmp_path / f"{name}.safetensors")
    assert (tmp_path / "plain.safetensors").read_bytes() == (tmp_path / "compiled.safetensors").read_bytes()
