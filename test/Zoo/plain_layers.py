"""Hand-written modules: recurrence, normalisation, convolution, attention, mixtures of experts, losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, classes, features, images, tokens
from plain import WIDTH, Predictor, plain, regression
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

SEQUENCE = (4, 6, WIDTH)
PICTURE = (4, 3, 12, 12)


# Recurrence.


class Recurrent(Predictor):
    def __init__(self, net: nn.RNNBase) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(net.hidden_size * (1 + net.bidirectional), CLASSES)

    def predict(self, x):
        return self.head(self.net(x)[0][:, -1])


@plain(features(*SEQUENCE))
class LSTM(Recurrent):
    def __init__(self) -> None:
        super().__init__(nn.LSTM(WIDTH, 8, batch_first=True))


@plain(features(*SEQUENCE))
class BidirectionalGRU(Recurrent):
    def __init__(self) -> None:
        super().__init__(nn.GRU(WIDTH, 8, num_layers=2, bidirectional=True, batch_first=True))


@plain(features(*SEQUENCE))
class ElmanRNN(Recurrent):
    def __init__(self) -> None:
        super().__init__(nn.RNN(WIDTH, 8, nonlinearity="relu", batch_first=True))


@plain(features(*SEQUENCE))
class CellLoop(Predictor):
    """Two cells in a loop over time, with a state that starts as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gate, self.head = nn.LSTMCell(WIDTH, 8), nn.GRUCell(8, 8), nn.Linear(8, CLASSES)
        self.start = nn.Parameter(torch.randn(8))

    def predict(self, x):
        h = c = g = self.start.expand(x.shape[0], -1)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            g = self.gate(h, g)
        return self.head(g)


@plain(features(*SEQUENCE), rejected="^capture: ")
class PackedLSTM(Predictor):
    """The lengths are values of the batch, and sizes of the packed one."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.LSTM(WIDTH, 8, batch_first=True), nn.Linear(8, CLASSES)

    def predict(self, x):
        lengths = (x[:, :, 0] > 0).sum(1).clamp(min=1)
        return self.head(self.net(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0][-1])


@plain(features(2, 3, 2, 8, 8))
class ConvLSTM(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Conv2d(2 + 4, 16, 3, padding=1), nn.Linear(4, CLASSES)

    def predict(self, x):
        h = c = x.new_zeros(x.shape[0], 4, *x.shape[3:])
        for t in range(x.shape[1]):
            i, f, o, g = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h.mean((2, 3)))


@plain(features(*SEQUENCE))
class ParallelScan(Predictor):
    """A minimal GRU, whose recurrence is a cumulative log-sum-exp."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.head = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def predict(self, x):
        gate, value = self.gate(x), self.value(x)
        decay = F.logsigmoid(-gate).cumsum(1)
        state = (F.logsigmoid(gate) + F.logsigmoid(value) - decay).logcumsumexp(1)
        return self.head((state + decay).exp()[:, -1])


@plain(features(*SEQUENCE))
class StateSpace(Predictor):
    """A diagonal state-space layer as a convolution over time by FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.log_rate, self.out = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def predict(self, x):
        length = x.shape[1]
        kernel = self.out * torch.exp(-self.log_rate.exp() * torch.arange(length)[:, None])
        y = torch.fft.irfft(torch.fft.rfft(x, 2 * length, dim=1) * torch.fft.rfft(kernel, 2 * length, dim=0), 2 * length, dim=1)
        return self.head(y[:, :length].mean(1))


# Normalisation.


class Normed(Predictor):
    def __init__(self, norm: nn.Module, axes: int) -> None:
        super().__init__()
        kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
        self.conv, self.norm, self.head = kinds[axes](3, 8, 3), norm, nn.Linear(8, CLASSES)

    def predict(self, x):
        return self.head(self.norm(self.conv(x)).relu().flatten(2).mean(2))


@plain(features(4, 3, 12))
class BatchNorm1d(Normed):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(8), 1)


@plain(features(*PICTURE))
class BatchNorm2d(Normed):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(8, momentum=0.3), 2)


@plain(features(2, 3, 6, 6, 6))
class BatchNorm3d(Normed):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm3d(8, affine=False), 3)


@plain(features(*PICTURE))
class BatchNormOfBatch(Normed):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(8, track_running_stats=False), 2)


@plain(features(*PICTURE))
class BatchNormFrozen(Normed):
    """In eval mode inside a module in train mode: its statistics stay."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(8), 2)

    def train(self, mode: bool = True):
        super().train(mode)
        self.norm.eval()
        return self


@plain(features(*PICTURE), rejected="^capture: .*Python number is taken from a tensor's value")
class BatchNormCumulative(Normed):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(8, momentum=None), 2)


@plain(features(*PICTURE), rejected="^capture: .*SyncBatchNorm")
class SyncBatchNorm(Normed):
    def __init__(self) -> None:
        super().__init__(nn.SyncBatchNorm(8), 2)


@plain(features(*PICTURE))
class InstanceNorm(Normed):
    def __init__(self) -> None:
        super().__init__(nn.InstanceNorm2d(8, affine=True, track_running_stats=True), 2)


@plain(features(*PICTURE))
class GroupNorm(Normed):
    def __init__(self) -> None:
        super().__init__(nn.GroupNorm(2, 8), 2)


@plain(features(*PICTURE))
class LocalResponseNorm(Normed):
    def __init__(self) -> None:
        super().__init__(nn.LocalResponseNorm(3), 2)


@plain(regression(4, WIDTH))
class RootMeanSquareNorm(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(3))

    def predict(self, x):
        for block in self.blocks:
            x = x + block(x)
        return F.layer_norm(x, (WIDTH,))


# Convolution and pictures.


@plain(features(*PICTURE))
class Convolutions(Predictor):
    """Depthwise, dilated, strided, transposed, with reflected padding."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.ELU(), nn.Conv2d(6, 6, 3, groups=6, dilation=2), nn.Hardswish(),
            nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), nn.PReLU(4), nn.Conv2d(4, 8, 2, stride=2, bias=False), nn.Mish())
        self.head = nn.LazyLinear(CLASSES)
        self.head(self.net(torch.zeros(PICTURE)).flatten(1))

    def predict(self, x):
        return self.head(self.net(x).flatten(1))


@plain(features(*PICTURE))
class Pools(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 5, CLASSES)

    def predict(self, x):
        x = self.conv(x)
        pools = [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.lp_pool2d(x, 2, 3)]
        pools += [F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_max_pool2d(x, 4)]
        return self.head(torch.cat([p.mean((2, 3)) for p in pools], 1))


@plain(features(*PICTURE))
class ChannelsLast(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1))
        self.net.to(memory_format=torch.channels_last)
        self.head = nn.Linear(8, CLASSES)

    def predict(self, x):
        return self.head(self.net(x.contiguous(memory_format=torch.channels_last)).flatten(1))


@plain(regression(2, 3, 16, 16))
class UNet(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)])
        self.up = nn.ModuleList([nn.Conv2d(16 + 8, 8, 3, padding=1), nn.Conv2d(8 + 3, 3, 3, padding=1)])

    def predict(self, x):
        skips = []
        for conv in self.down:
            skips.append(x)
            x = F.max_pool2d(conv(x).relu(), 2)
        for conv, mode in zip(self.up, ["bilinear", "nearest"]):
            x = F.interpolate(x, scale_factor=2, mode=mode)
            x = conv(torch.cat([x, skips.pop()], 1))
        return x


@plain(regression(2, 4, 6, 6, out=(2, 1, 12, 12)))
class PixelShuffle(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def predict(self, x):
        return F.pixel_shuffle(self.conv(x), 2)


@plain(features(*PICTURE))
class SpatialTransformer(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.locate, self.head = nn.Linear(3, 6), nn.Linear(3 * 64, CLASSES)
        with torch.no_grad():
            self.locate.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def predict(self, x):
        grid = F.affine_grid(self.locate(x.mean((2, 3))).view(-1, 2, 3), (x.shape[0], 3, 8, 8), align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False).flatten(1))


@plain(features(*PICTURE))
class Patches(Predictor):
    """Unfold and fold, as patch embeddings were written once."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(3 * 16, 3 * 16), nn.Linear(3, CLASSES)

    def predict(self, x):
        y = self.mix(F.unfold(x, 4, stride=2).transpose(1, 2)).transpose(1, 2)
        return self.head(F.fold(y, x.shape[2:], 4, stride=2).mean((2, 3)))


# Attention.


@plain(regression(2, 6, WIDTH))
class MultiheadAttention(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def predict(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.attention(x, x, x, is_causal=True, attn_mask=mask, need_weights=True)[0]


@plain(regression(2, 6, WIDTH))
class TransformerEncoder(Predictor):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def predict(self, x):
        return self.net(x)


@plain(regression(6, 2, WIDTH))
class Transformer(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0, norm_first=True)

    def predict(self, x):
        return self.net(x, x.flip(0))


@plain(regression(2, 8, WIDTH))
class RelativeBias(Predictor):
    """A learned bias for each distance, as in T5, and attention in plain operations."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Embedding(15, 4)

    def predict(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.shape[1])
        scores = q @ k.mT / 2 + self.bias(place[:, None] - place + 7).permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


@plain(regression(2, 8, WIDTH))
class LinearAttention(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def predict(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bti,btj->btij", k, v).cumsum(1)
        return torch.einsum("bti,btij->btj", q, state) / (q * k.cumsum(1)).sum(-1, keepdim=True)


@plain(regression(2, 8, WIDTH))
class ComplexRotary(Predictor):
    """Rotary embeddings as complex numbers, as Llama was published."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        angles = torch.outer(torch.arange(8.0), 100 ** -(torch.arange(8) / 8))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turn(self, x):
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self.turns).flatten(2)

    def predict(self, x):
        return F.scaled_dot_product_attention(self.turn(self.query(x)), self.turn(self.key(x)), x)


@plain(regression(2, 8, WIDTH))
class SlidingWindow(Predictor):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def predict(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (F.pad(t, (0, 0, 3, 0)).unfold(1, 4, 1) for t in (k, v))
        return torch.einsum("btw,btdw->btd", torch.einsum("btd,btdw->btw", q, k).softmax(-1), v)


# Mixtures of experts.


class Experts(Predictor):
    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)) for _ in range(count))


@plain(regression(8, WIDTH))
class DenseExperts(Experts):
    def predict(self, x):
        return torch.einsum("bed,be->bd", torch.stack([expert(x) for expert in self.experts], 1), self.router(x).softmax(-1))


@plain(regression(8, WIDTH))
class MaskedExperts(Experts):
    """The two best experts by a mask: every expert sees every token."""

    def predict(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y = y + expert(x) * (weights * (chosen == number)).sum(-1, keepdim=True)
        return y


@plain(regression(8, WIDTH))
class SortedExperts(Experts):
    """Tokens sorted by expert, each expert with a fixed capacity."""

    def predict(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        y = torch.cat([expert(part) for expert, part in zip(self.experts, x[order].chunk(len(self.experts)))])
        return torch.zeros_like(x).index_add(0, order, y * weight[order, None])


@plain(regression(8, WIDTH))
class CapacityExperts(Experts):
    """The dispatch of Switch Transformers: one-hot places, tokens beyond the capacity dropped."""

    def predict(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        hot = F.one_hot(chosen, len(self.experts))
        place = (hot.cumsum(0) * hot).sum(-1) - 1
        dispatch = (hot[:, :, None] * F.one_hot(place.clamp(max=2), 3)[:, None] * (place < 3)[:, None, None]).to(x.dtype)
        parts = torch.einsum("nd,nec->ecd", x, dispatch)
        y = torch.stack([expert(part) for expert, part in zip(self.experts, parts)])
        return torch.einsum("ecd,nec->nd", y, dispatch * weight[:, None, None])


@plain(regression(8, WIDTH), rejected="^capture: .*depends on a tensor's value.*pad to a fixed size")
class GatheredExperts(Experts):
    """Each expert gets as many tokens as chose it."""

    def predict(self, x):
        chosen = self.router(x).argmax(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            y = y.index_add(0, rows, expert(x[rows]))
        return y


@plain(regression(8, WIDTH))
class BatchedExperts(Predictor):
    """Weights of all experts in one parameter, picked by index."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weight = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 4)

    def predict(self, x):
        score, chosen = self.router(x).topk(2)
        return (torch.einsum("bd,bkde->bke", x, self.weight[chosen]) * score.sigmoid()[..., None]).sum(1)


# Losses.


class Scored(nn.Module):
    def __init__(self, out: int = CLASSES) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, out))


@plain(lambda: {"x": torch.randn(8, 3, WIDTH), "labels": classes(4, 3, 4) + 1})
class ConnectionistTemporal(Scored):
    def forward(self, x, labels):
        return F.ctc_loss(self.net(x).log_softmax(-1), labels, torch.full((3,), 8), torch.full((3,), 4))


@plain(lambda: {"a": torch.randn(4, WIDTH), "b": torch.randn(4, WIDTH)})
class Contrastive(Scored):
    def forward(self, a, b):
        a, b = F.normalize(self.net(a), dim=-1), F.normalize(self.net(b), dim=-1)
        return F.cross_entropy(10 * a @ b.T, torch.arange(4)) + F.cosine_embedding_loss(a, b, torch.ones(4))


@plain(lambda: {"x": torch.randn(6, WIDTH)})
class Distances(Scored):
    def forward(self, x):
        y = self.net(x)
        return torch.cdist(y, self.net[2].weight[:, :CLASSES]).mean() + torch.pdist(y).mean() + F.triplet_margin_loss(y[:2], y[2:4], y[4:])


@plain(lambda: {"x": torch.randn(4, WIDTH), "p": torch.randn(4, CLASSES).softmax(-1), "hot": torch.rand(4, CLASSES).round()})
class Divergences(Scored):
    def forward(self, x, p, hot):
        y = self.net(x)
        distances = F.huber_loss(y, p) + F.smooth_l1_loss(y, hot)
        return F.kl_div(y.log_softmax(-1), p, reduction="batchmean") + F.binary_cross_entropy_with_logits(y, hot) + distances


@plain(lambda: {"x": torch.randn(4, WIDTH), "labels": torch.tensor([0, -100, 3, 1])[torch.randperm(4)]})
class SmoothedLabels(Scored):
    def forward(self, x, labels):
        return F.cross_entropy(self.net(x), labels, weight=torch.arange(1.0, 6), ignore_index=-100, label_smoothing=0.1)


@plain(lambda: {"x": torch.randn(4, WIDTH)})
class GaussianProcess(Scored):
    """A marginal likelihood: Cholesky factor, triangular solve, log determinant."""

    def forward(self, x):
        y = self.net(x)
        covariance = y @ y.T + torch.eye(4)
        factor = torch.linalg.cholesky(covariance)
        fit = torch.linalg.solve_triangular(factor, y, upper=False).square().sum()
        return fit + covariance.logdet() + torch.linalg.solve(covariance, y).sum()


@plain(lambda: {"x": torch.randn(4, WIDTH), "labels": torch.randn(4)})
class Quantiles(Scored):
    def forward(self, x, labels):
        error = labels[:, None] - self.net(x).sort(-1).values
        level = torch.linspace(0.1, 0.9, CLASSES)
        spread = self.net(x).median(-1).values.var() + torch.logsumexp(error, 0).std()
        return torch.maximum(level * error, (level - 1) * error).mean() + spread


@plain(lambda: {"input_ids": tokens(BATCH, 8), "labels": classes()})
class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.convs = nn.Embedding(96, WIDTH, padding_idx=0), nn.ModuleList(nn.Conv1d(WIDTH, 8, k) for k in (2, 3, 4))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids).transpose(1, 2)
        return F.cross_entropy(self.head(torch.cat([F.relu(conv(x)).max(-1).values for conv in self.convs], -1)), labels)


@plain(lambda: {"input_ids": tokens(BATCH, 8), "labels": classes()})
class CommonPeriods(nn.Module):
    """Integers beside the network: where the cycles of a token and of its position meet."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(96, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, labels):
        positions = torch.arange(1, 9)
        period = torch.lcm(input_ids + 1, positions) // torch.gcd(input_ids + 1, positions) % 96
        return F.cross_entropy(self.head((self.embed(input_ids) * self.embed(period)).mean(1)), labels)


@plain(features(2, 6, WIDTH, target=lambda: torch.randn(6, 2, CLASSES)))
class TransposedActivations(Predictor):
    """Their gradients have other strides than what the kernels return."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))

    def predict(self, x):
        log, soft, smooth = (net(x) for net in self.nets)
        return log.log_softmax(-1).transpose(0, 1) + soft.softmax(-1).transpose(0, 1) + F.gelu(smooth).transpose(0, 1)
