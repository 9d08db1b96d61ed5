"""Models for fusion_models.py that were compared when the prediction was done, once, and taught it nothing before that."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class Dense(nn.Module):
    """Convolutions whose outputs are joined to their inputs, batch norm before each, average pooling between."""

    def __init__(self, width=12, growth=8):
        super().__init__()
        self.stem, self.layers = nn.Conv2d(3, width, 3, 2, 1), nn.ModuleList()
        for number in range(3):
            wide = width + number * growth
            self.layers.append(nn.ModuleDict({"norm": nn.BatchNorm2d(wide), "conv": nn.Conv2d(wide, growth, 3, 1, 1, bias=False)}))
        wide = width + 3 * growth
        self.norm, self.less, self.head = nn.BatchNorm2d(wide), nn.Conv2d(wide, wide // 2, 1, bias=False), nn.Linear(wide // 2, 10)

    def forward(self, image, label):
        x = self.stem(image)
        for layer in self.layers:
            x = torch.cat([x, layer["conv"](F.relu(layer["norm"](x)))], 1)
        x = F.avg_pool2d(self.less(F.relu(self.norm(x))), 2)
        return F.cross_entropy(self.head(F.relu(x).mean((2, 3))).float(), label)


class Plain(nn.Module):
    """Convolutions with biases and max pooling, then linear layers with dropout."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(*sizes, 3, padding=1) for sizes in ((3, 16), (16, 32), (32, 32)))
        self.one, self.two = nn.Linear(32 * 4 * 4, 64), nn.Linear(64, 10)

    def forward(self, image, label):
        x = image
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        x = F.dropout(F.relu(self.one(x.flatten(1))), 0.5)
        return F.nll_loss(F.log_softmax(self.two(x).float(), -1), label)


class Sound(nn.Module):
    """Dilated convolutions along time with gates, and a sum of what each layer says."""

    def __init__(self, width=16, levels=32):
        super().__init__()
        self.embedding, self.layers = nn.Embedding(levels, width), nn.ModuleList()
        for number in range(3):
            convs = {"both": nn.Conv1d(width, 2 * width, 2, dilation=2**number), "keep": nn.Conv1d(width, width, 1), "say": nn.Conv1d(width, 24, 1)}
            self.layers.append(nn.ModuleDict(convs))
        self.head = nn.Conv1d(24, levels, 1)

    def forward(self, levels, targets):
        x, said = self.embedding(levels).transpose(1, 2), 0
        for number, layer in enumerate(self.layers):
            value, gate = layer["both"](F.pad(x, (2**number, 0))).chunk(2, 1)
            y = torch.tanh(value) * torch.sigmoid(gate)
            x, said = x + layer["keep"](y), said + layer["say"](y)
        return F.cross_entropy(self.head(F.relu(said)).float(), targets)


class Messages(nn.Module):
    """Nodes of a graph that read their neighbours, each by a weight of its own."""

    def __init__(self, width=24, heads=3):
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, width, bias=False), nn.Linear(width, 5)
        self.left, self.right, self.norm = nn.Parameter(torch.randn(heads, width // heads)), nn.Parameter(torch.randn(heads, width // heads)), nn.LayerNorm(width)

    def forward(self, x, start, end, label):
        y = self.into(x).unflatten(-1, (self.heads, -1))
        score = F.leaky_relu((y * self.left).sum(-1)[start] + (y * self.right).sum(-1)[end], 0.2).float()
        weight = (score - score.max()).exp()
        total = torch.zeros(len(x), self.heads).index_add(0, end, weight)
        said = y[start] * (weight / (total[end] + 1e-6))[..., None]
        read = torch.zeros_like(y).index_add(0, end, said)
        return F.cross_entropy(self.out(F.elu(self.norm(x + read.flatten(1)))).float(), label)


class Shifted(nn.Module):
    """Each word mixed with the one before it, keys that weigh values by a running sum, gates by sigmoids."""

    def __init__(self, width=32, vocab=90):
        super().__init__()
        self.embedding, self.head, self.layers = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False), nn.ModuleList()
        for _ in range(2):
            linear = {name: nn.Linear(width, width, bias=False) for name in "kvro"} | {"up": nn.Linear(width, 64), "down": nn.Linear(64, width)}
            self.layers.append(nn.ModuleDict({**linear, "norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width)}))
        self.mix = nn.Parameter(torch.rand(4, width))

    def forward(self, words, targets):
        x = self.embedding(words)
        for layer in self.layers:
            y = layer["norm1"](x)
            before = F.pad(y, (0, 0, 1, -1))
            k, v, r = (layer[name](torch.lerp(before, y, self.mix[n].to(y.dtype))) for n, name in enumerate("kvr"))
            weight = k.float().clamp(max=8).exp()
            read = (weight * v.float()).cumsum(1) / (weight.cumsum(1) + 1e-6)
            x = x + layer["o"](torch.sigmoid(r) * read.to(r.dtype))
            y = layer["norm2"](x)
            x = x + layer["down"](F.relu(layer["up"](torch.lerp(F.pad(y, (0, 0, 1, -1)), y, self.mix[3].to(y.dtype)))).square())
        return F.cross_entropy(self.head(x).float().flatten(0, 1), targets.flatten())


class Windows(nn.Module):
    """Attention within windows of an image, which the second layer shifts; a bias by place, patches merged at the end."""

    def __init__(self, width=24, heads=3):
        super().__init__()
        self.heads, self.patch, self.layers = heads, nn.Conv2d(3, width, 2, 2), nn.ModuleList()
        for _ in range(2):
            linear = {"qkv": nn.Linear(width, 3 * width), "o": nn.Linear(width, width), "up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)}
            self.layers.append(nn.ModuleDict({**linear, "norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width)}))
        self.bias, self.merge, self.head = nn.Parameter(torch.zeros(heads, 16, 16)), nn.Linear(4 * width, width), nn.Linear(width, 10)

    def forward(self, image, label):
        x = self.patch(image).permute(0, 2, 3, 1)
        for number, layer in enumerate(self.layers):
            y = torch.roll(layer["norm1"](x), (-2 * number, -2 * number), (1, 2))
            n, h, w, width = y.shape
            y = y.view(n, h // 4, 4, w // 4, 4, width).transpose(2, 3).reshape(-1, 16, width)
            q, k, v = layer["qkv"](y).view(-1, 16, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            share = (q * 0.35 @ k.transpose(-1, -2) + self.bias).softmax(-1)
            y = layer["o"]((share @ v).transpose(1, 2).reshape(-1, 16, width))
            y = y.view(n, h // 4, w // 4, 4, 4, width).transpose(2, 3).reshape(n, h, w, width)
            x = x + torch.roll(y, (2 * number, 2 * number), (1, 2))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x))))
        x = torch.cat([x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)], -1)
        return F.cross_entropy(self.head(self.merge(x).mean((1, 2))).float(), label)


class Sharper(nn.Module):
    """Images made larger: parametric ReLU, instance norm, channels that become pixels, an absolute loss."""

    def __init__(self, width=16):
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 12, 3, 1, 1)
        self.deep, self.bends = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(2)), nn.ModuleList(nn.PReLU(width) for _ in range(2))

    def forward(self, small, large):
        x = first = self.into(small)
        for conv, bend in zip(self.deep, self.bends, strict=True):
            x = x + bend(F.instance_norm(conv(x)))
        made = F.pixel_shuffle(self.out(x + first), 2) + F.interpolate(small, scale_factor=2.0, mode="bilinear", align_corners=False)
        return F.l1_loss(made.float(), large.float())


class Latents(nn.Module):
    """A few vectors that are learnt read a long input, by einsum; a gated feed-forward part; a Huber loss."""

    def __init__(self, width=32, heads=4, latents=6):
        super().__init__()
        self.heads, self.latents = heads, nn.Parameter(torch.randn(latents, width))
        self.linear = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in "qkvo"})
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.head = nn.Linear(width, 128), nn.Linear(64, width), nn.Linear(width, 1)

    def forward(self, x, there, wanted):
        z = self.latents.expand(len(x), -1, -1)
        y = self.norm1(x)
        q, k, v = (self.linear[name](t).unflatten(-1, (self.heads, -1)) for name, t in zip("qkv", (self.norm2(z), y, y), strict=True))
        score = torch.einsum("bihd,bjhd->bhij", q, k) * 0.35
        share = score.masked_fill(~there[:, None, None], -1e4).softmax(-1)
        z = z + self.linear["o"](torch.einsum("bhij,bjhd->bihd", share, v).flatten(2))
        value, gate = self.up(self.norm3(z)).chunk(2, -1)
        z = z + self.down(value * F.gelu(gate))
        return F.huber_loss(self.head(z.mean(1))[:, 0].float(), wanted)
