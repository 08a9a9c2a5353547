"""Hand-written modules: parameters, buffers, storage, writing in place, indices, dtypes, and what must be rejected."""

from __future__ import annotations

import copy
import random

import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, classes, features, tokens
from plain import WIDTH, Predictor, plain, regression
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

VECTORS = (4, WIDTH)
SEQUENCE = (4, 6, WIDTH)


def mlp(out: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, out))


class Net(Predictor):
    def __init__(self, out: int = WIDTH) -> None:
        super().__init__()
        self.net = mlp(out)

    def predict(self, x):
        return self.net(x)


# Parametrized weights.


@plain(regression(*VECTORS))
class WeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.net[0])
        parametrizations.weight_norm(self.net[2], dim=None)


@plain(regression(*VECTORS))
class OldWeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        weight_norm(self.net[0])


@plain(regression(*VECTORS))
class SpectralNorm(Net):
    """A power iteration writes buffers in every forward."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.net[0])


@plain(regression(*VECTORS))
class OldSpectralNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net[0] = spectral_norm(self.net[0])


@plain(regression(*VECTORS))
class Orthogonal(Net):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.orthogonal(self.net[0], orthogonal_map="cayley")


@plain(regression(*VECTORS))
class LowRankAdapters(Net):
    """LoRA: frozen weights beside trained ones; one factor starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def predict(self, x):
        return self.net(x) + self.up(self.down(x))


@plain(regression(*VECTORS))
class Hypernetwork(Predictor):
    """One network makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.make = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, WIDTH * WIDTH)

    def predict(self, x):
        for weight in self.make(self.code).view(3, WIDTH, WIDTH):
            x = torch.tanh(x @ weight)
        return x


@plain(regression(*VECTORS))
class Quantized(Predictor):
    """Weights rounded in the forward, with a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.tensor(0.1))

    def predict(self, x):
        steps = self.weight / self.scale
        return F.linear(x, (steps + (steps.round().clamp(-8, 7) - steps).detach()) * self.scale)


@plain(regression(*VECTORS))
class Vectorized(Predictor):
    """An ensemble through torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / 4)

    def predict(self, x):
        return torch.func.vmap(lambda w: torch.tanh(x @ w))(self.weights).mean(0)


# Tied, shared, unusual parameters.


@plain(lambda: {"input_ids": tokens(BATCH, 8)})
class TiedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.net, self.head = nn.Embedding(96, WIDTH), mlp(), nn.Linear(WIDTH, 96, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids):
        return F.cross_entropy(self.head(self.net(self.embed(input_ids)))[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


@plain(regression(*VECTORS))
class SharedLayer(Predictor):
    """One module three times, and an autoencoder's transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.block = nn.Linear(WIDTH, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def predict(self, x):
        x = self.code(x)
        for _ in range(3):
            x = self.block(x)
        return F.linear(x, self.code.weight.T)


@plain(regression(*VECTORS), rejected="^capture: .*(storage|memory|tie)")
class TiedThroughData(Predictor):
    """Two parameters over the same memory; a plan would train them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight.data = self.first.weight.data

    def predict(self, x):
        return self.second(self.first(x).tanh())


@plain(regression(*VECTORS))
class Scalars(Net):
    """A parameter without axes, also one that is added to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.offset = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor(0.2))

    def forward(self, x, labels):
        return super().forward(x * self.temperature, labels) + self.offset


@plain(regression(*VECTORS))
class EmptyParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.empty(0, WIDTH))

    def predict(self, x):
        return self.net(torch.cat([x, self.none]))


@plain(regression(*VECTORS))
class ViewedParameter(Net):
    """A parameter that is a view with an offset of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH)[3 : 3 + WIDTH].T)

    def predict(self, x):
        return self.net(x) @ self.weight


@plain(regression(*VECTORS))
class IntegerParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.randperm(WIDTH), requires_grad=False)

    def predict(self, x):
        return self.net(x[:, self.order])


@plain(regression(*VECTORS))
class UnusedParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


@plain(regression(*VECTORS))
class FrozenFirst(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net[0].requires_grad_(False)


@plain(regression(*VECTORS), options=("--wrap", "class:Linear"))
class OddNames(Predictor):
    """Units named like other things of a plan, and characters that no identifier has."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("shard", "init", "loss", "code", "a b", "ß-1"):
            self.add_module(name, nn.Linear(WIDTH, WIDTH))
        self.step = nn.ModuleDict({"source": nn.Linear(WIDTH, WIDTH), "in": nn.Linear(WIDTH, WIDTH)})
        self.root = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("bias", torch.randn(WIDTH))

    def predict(self, x):
        for layer in [*self.children()][:-1] + [*self.step.values()]:
            x = x + layer(x).tanh()
        return x * self.root + self.bias


@plain(regression(*VECTORS))
class ParameterLists(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(WIDTH, WIDTH) / 4 for _ in range(3)])
        self.scales = nn.ParameterDict({"in": torch.randn(WIDTH), "out": torch.randn(WIDTH)})

    def predict(self, x):
        x = x * self.scales["in"]
        for weight in self.weights:
            x = (x @ weight).relu()
        return x * self.scales["out"]


# Buffers and memory.


@plain(regression(*VECTORS))
class RunningMean(Net):
    """A buffer updated in the forward, and used."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def predict(self, x):
        self.count += 1
        self.seen.lerp_(x.detach().mean(0), 0.1)
        return self.net(x - self.seen) / self.count


@plain(regression(*VECTORS))
class RingBuffer(Net):
    """The newest batch goes to the front of a queue, as in MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(12, WIDTH))

    def predict(self, x):
        y = self.net(x)
        self.queue.copy_(torch.cat([y.detach(), self.queue[:-4]]))
        return y + (y @ self.queue.T).softmax(-1) @ self.queue


@plain(regression(*VECTORS))
class SwappedBuffers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.randn(WIDTH))
        self.register_buffer("b", torch.randn(WIDTH))

    def predict(self, x):
        y = self.net(x + self.a)
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(a)
        return y


@plain(regression(*VECTORS))
class VectorQuantized(Net):
    """The nearest code, straight through, and codes that follow what chose them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(6, WIDTH))

    def predict(self, x):
        y = self.net(x)
        chosen = ((y[:, None] - self.codes) ** 2).sum(-1).argmin(-1)
        hot = F.one_hot(chosen, 6).to(y.dtype)
        self.codes.lerp_((hot.T @ y.detach()) / (hot.sum(0)[:, None] + 1), 0.1)
        return y + (self.codes[chosen] - y).detach()


@plain(regression(*VECTORS))
class Teacher(Net):
    """A frozen copy of the net that follows it: its buffers take the parameters' average."""

    def __init__(self) -> None:
        super().__init__()
        for name, parameter in self.net.named_parameters():
            self.register_buffer(f"mean_{name.replace('.', '_')}", parameter.detach().clone())

    def predict(self, x):
        means = {name: getattr(self, f"mean_{name.replace('.', '_')}") for name, _ in self.net.named_parameters()}
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                means[name].mul_(0.9).add_(parameter, alpha=0.1)
        return self.net(x) + torch.func.functional_call(self.net, means, (x,))


# Writing in place, and indices.


@plain(regression(*SEQUENCE))
class SliceWrites(Net):
    def predict(self, x):
        y, out = self.net(x), torch.zeros_like(x)
        out[:, 1:] = y[:, :-1]
        out[:, 0] = y[:, -1]
        out[:, 1:3, 2:4] = y[:, 3:5, 2:4].transpose(1, 2)
        out[0, 0] += 1
        return out


@plain(regression(*SEQUENCE))
class InPlace(Net):
    def predict(self, x):
        y = self.net(x).mul_(2).relu_() + x
        y.masked_fill_(x > 1, 0.5)
        y[..., ::2].add_(x[..., 1::2])
        y.view(-1)[:5].zero_()
        y[torch.arange(4), torch.arange(4)] = x[:, 0]
        y.transpose(0, 1)[2].copy_(x[0, 0])
        return y


@plain(lambda: {"input_ids": tokens(BATCH, 8)})
class ShiftedTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(96, WIDTH, padding_idx=0), nn.Linear(WIDTH, 96)

    def forward(self, input_ids):
        shifted = input_ids.new_zeros(input_ids.shape)
        shifted[:, 1:] = input_ids[:, :-1].clone()
        shifted[:, 0] = 2
        shifted.masked_fill_(shifted == 5, 0)
        return F.cross_entropy(self.head(self.embed(shifted)).flatten(0, 1), input_ids.flatten())


@plain(regression(*SEQUENCE, out=(4, 6)))
class Indices(Net):
    def predict(self, x):
        y = self.net(x)
        order = x[..., 0].argsort(-1)
        y = y.gather(1, order[..., None].expand_as(y)) + torch.take_along_dim(y, order[..., None], 1) + y[torch.arange(4)[:, None], order]
        rows, columns = torch.triu_indices(6, 6, 1)
        pairs = (y @ y.mT)[:, rows, columns].index_select(1, torch.tensor([0, 2, 4, 14]))
        y = torch.zeros(4, 6).scatter_add(1, order[:, :4], pairs).scatter_reduce(1, order[:, 1:], y[:, 1:, 0], "amax")
        return y.index_fill(1, torch.tensor([3]), 0.1).roll(1, 1).flip(0).where(x[..., 1] > -1, x[..., 2])


@plain(lambda: {"ids": tokens(12), "offsets": torch.tensor([0, 3, 7, 9]), "labels": classes(CLASSES, 4)})
class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(96, WIDTH, mode="mean"), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids, offsets, labels):
        return F.cross_entropy(self.head(self.bag(ids, offsets)), labels)


@plain(lambda: {"x": torch.randn(5, WIDTH), "edges": torch.randint(5, (2, 9)), "labels": classes(CLASSES, 5)})
class GraphAttention(nn.Module):
    """Messages along a list of edges: softmax over the edges of a node by scattering."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.score, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edges, labels):
        source, target = edges
        h = self.lin(x)
        score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)))[:, 0]
        weight = (score - torch.full((5,), -1e9).scatter_reduce(0, target, score, "amax").detach()[target]).exp()
        weight = weight / torch.zeros(5).index_add(0, target, weight)[target]
        return F.cross_entropy(self.head(torch.zeros_like(h).index_add(0, target, weight[:, None] * h[source])), labels)


@plain(regression(*VECTORS))
class Splines(Predictor):
    """A layer of piecewise linear functions: bucketize and gather."""

    def __init__(self) -> None:
        super().__init__()
        self.knots = nn.Parameter(torch.randn(WIDTH, 9))
        self.register_buffer("edges", torch.linspace(-2, 2, 9))

    def predict(self, x):
        place = torch.bucketize(x, self.edges).clamp(1, 8)
        left, right = (self.knots.expand(4, -1, -1).gather(2, p[..., None])[..., 0] for p in (place - 1, place))
        return left + (right - left) * (x - self.edges[place - 1]) / 0.5


@plain(regression(*VECTORS))
class ManyForms(Net):
    """Stacks, splits, repeats, diagonals, Kronecker products and other ways to move numbers."""

    def predict(self, x):
        a, b, c = self.net(x).split([4, 8, 4], -1)
        d = torch.stack([a, c]).mean(0).repeat(1, 4) + a.repeat_interleave(4, 1) + torch.kron(a, torch.ones(1, 4)) + torch.tile(c, (4,))
        e = torch.diag_embed(b[:, :4]).flatten(1) + torch.outer(b[0], b[1])[:2, :].reshape(1, -1)
        e = e + (a.unsqueeze(-1) * c.unsqueeze(1)).flatten(1)
        return d + e + torch.hstack([b.unfold(1, 2, 2).sum(-1)] * 4) + torch.tril(b @ b.T).diagonal()[:, None] + torch.cummax(d, 1).values


# Dtypes.


BF16 = dict(tolerance=3e-2, reason="bf16 has 8 bits of mantissa, and sums over ranks round otherwise")


@plain(lambda: {"x": torch.randn(*VECTORS).bfloat16(), "labels": torch.randn(*VECTORS).bfloat16()}, **BF16)
class BFloat16(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()


@plain(lambda: {"x": torch.randn(*VECTORS).double(), "labels": torch.randn(*VECTORS).double()})
class Float64(Net):
    def __init__(self) -> None:
        super().__init__()
        self.double()


@plain(regression(*VECTORS), **BF16)
class TwoDtypes(Net):
    """A unit with parameters of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].bfloat16()
        self.norm = nn.LayerNorm(24)

    def predict(self, x):
        return self.net[2](self.norm(self.net[0](x.bfloat16()).float()).relu())


@plain(features(*SEQUENCE), **BF16)
class Autocast(Predictor):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
        self.net, self.head = nn.ModuleList(copy.deepcopy(layer) for _ in range(2)), nn.Linear(WIDTH, CLASSES)

    def predict(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.net:
                x = layer(x)
            return self.head(x.mean(1)).float()


@plain(features(4, 3, 8, 8), **BF16)
class AutocastBatchNorm(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8),
                                 nn.Flatten(), nn.Linear(128, CLASSES))

    def predict(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x)


@plain(regression(*VECTORS))
class Spectrum(Predictor):
    """Filters in the frequency domain; the parameter is a pair of real numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, 2))

    def predict(self, x):
        y = torch.fft.rfft(x) * torch.view_as_complex(self.filter)
        return torch.fft.irfft(y) + y.abs().sum(-1, keepdim=True) + (y * y.conj()).real.mean() + y.angle().cos().mean()


@plain(regression(*VECTORS), rejected="complex")
class ComplexParameter(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))

    def predict(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


# Structure.


@plain(regression(*VECTORS))
class Checkpointed(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(mlp() for _ in range(3))

    def predict(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


@plain(regression(*VECTORS))
class FixedPoint(Net):
    """A deep equilibrium: iterations without gradient, then one with."""

    def predict(self, x):
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(5):
                z = self.net(z).tanh() + x
        return self.net(z).tanh() + x


@plain(lambda: {"t": torch.rand(4, 1), "x": torch.randn(*VECTORS), "noise": torch.randn(*VECTORS)})
class Diffusion(nn.Module):
    """The loss of a denoising model; chance comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.net = nn.Linear(8, WIDTH), nn.ModuleList(mlp() for _ in range(2))

    def forward(self, t, x, noise):
        angle = t * 2.0 ** torch.arange(4)
        y = t.sqrt() * noise + (1 - t).sqrt() * x + self.time(torch.cat([angle.sin(), angle.cos()], -1))
        for block in self.net:
            y = y + block(y)
        return F.mse_loss(y, noise)


def nested():
    more = {"scale": torch.rand(2, 1), "mask": torch.rand(2, 5) > 0.3}
    return {"pictures": [torch.randn(2, 8), torch.randn(2, 8)], "more": more, "power": 2}


@plain(nested)
class NestedInputs(nn.Module):
    """Lists and dictionaries of tensors, and a Python number, as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, 5)

    def forward(self, pictures, more, power=1):
        y = self.net(torch.cat(pictures, -1)) * more["scale"] ** power
        return y.masked_fill(~more["mask"], -1e4).softmax(-1).square().mean()


@plain(features(*VECTORS))
class SeveralOutputs(Net):
    def __init__(self) -> None:
        super().__init__(CLASSES)

    def forward(self, x, labels):
        logits = self.predict(x)
        return {"logits": logits, "loss": F.cross_entropy(logits, labels), "hidden": [logits * 2], "cache": object()}


@plain(regression(*VECTORS))
class Deep(Predictor):
    """Forty layers, and one that every one of them shares."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(40)), nn.LayerNorm(WIDTH)

    def predict(self, x):
        for block in self.blocks:
            x = x + 0.1 * block(self.norm(x)).sin()
        return x


@plain(regression(*VECTORS))
class PythonBranches(Net):
    """Branches on sizes, modes and constants, which every batch takes alike."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool))

    def predict(self, x):
        y = self.net(x) if self.training and x.shape[0] > 2 else x
        if torch.ones(3).sum() > 2:
            y = y * 2
        return y if self.mask.all() else y.relu()


# What a plan cannot be.


@plain(regression(*VECTORS))
class Dropout(Net):
    def predict(self, x):
        return F.dropout(self.net(x), 0.1, self.training)


@plain(regression(*VECTORS))
class RandomNoise(Net):
    def predict(self, x):
        return self.net(x) + 0.1 * torch.randn_like(x)


@plain(regression(*VECTORS), rejected="^capture: .*random")
class PythonRandom(Net):
    def predict(self, x):
        return self.net(x) * (1 + random.random())


@plain(regression(*VECTORS), rejected="^capture: .*calls")
class PythonCounter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def predict(self, x):
        self.calls += 1
        return self.net(x) * self.calls


@plain(regression(*VECTORS), rejected="^capture: .*seen")
class TensorAttribute(Net):
    """A tensor that is no buffer, updated in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(WIDTH)

    def predict(self, x):
        self.seen.mul_(0.9).add_(x.detach().mean(0))
        return self.net(x - self.seen)


@plain(regression(*VECTORS), rejected="^capture: .*branch depends on a tensor's value")
class DataBranch(Net):
    def predict(self, x):
        return self.net(x) if x.sum() > 0 else x - self.net(x)


@plain(regression(*VECTORS), rejected="^capture: .*depends on a tensor's value.*pad to a fixed size")
class DataSize(Net):
    def forward(self, x, labels):
        return self.net(x)[labels > 0].square().mean()


@plain(regression(*VECTORS))
class ReentrantCheckpoint(Net):
    def predict(self, x):
        return checkpoint(self.net, x.requires_grad_(), use_reentrant=True)


@plain(regression(*VECTORS), rejected="^capture: .*differentiates inside its forward")
class GradientPenalty(Net):
    def forward(self, x, labels):
        x = x.detach().requires_grad_()
        y = self.net(x)
        return F.mse_loss(y, labels) + torch.autograd.grad(y.sum(), x, create_graph=True)[0].square().mean()


class Step(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.sign()

    @staticmethod
    def backward(context, gradient):
        return gradient


@plain(regression(*VECTORS))
class CustomFunction(Net):
    def predict(self, x):
        return Step.apply(self.net(x))


@plain(lambda: {"input_ids": tokens(BATCH, 8), "labels": classes()}, rejected="^capture: .*writes to its parameter")
class RenormalizedEmbedding(nn.Module):
    """`max_norm` writes to the weight in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(96, WIDTH, max_norm=1.0), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, labels):
        return F.cross_entropy(self.head(self.embed(input_ids).mean(1)), labels)
