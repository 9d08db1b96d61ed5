"""More kinds of models that people train, for fusion_models.py: each was compared before the prediction knew of it."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    """Convolutions with batch norm, some strided, and pooling."""

    def __init__(self, width=16):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList()
        for narrow, wide, stride in ((width, width, 1), (width, 2 * width, 2)):
            block = {"one": nn.Conv2d(narrow, wide, 3, stride, 1, bias=False), "two": nn.Conv2d(wide, wide, 3, 1, 1, bias=False)}
            block |= {"norm1": nn.BatchNorm2d(wide), "norm2": nn.BatchNorm2d(wide)}
            if stride > 1:
                block |= {"short": nn.Conv2d(narrow, wide, 1, stride, bias=False), "norm3": nn.BatchNorm2d(wide)}
            self.blocks.append(nn.ModuleDict(block))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, image, label):
        x = F.max_pool2d(F.relu(self.norm(self.stem(image))), 3, 2, 1)
        for block in self.blocks:
            y = block["norm2"](block["two"](F.relu(block["norm1"](block["one"](x)))))
            x = F.relu(y + (block["norm3"](block["short"](x)) if "short" in block else x))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)).float(), label)


class Denoiser(nn.Module):
    """Down and up again with a bridge between: group norm, SiLU, a time embedding, nearest upsampling, concatenation."""

    def __init__(self, width=16):
        super().__init__()
        self.width, self.time = width, nn.Linear(width, 2 * width)
        sizes = {"into": (3, width), "down": (width, 2 * width), "middle": (2 * width, 2 * width), "up": (3 * width, width), "out": (width, 3)}
        self.convs = nn.ModuleDict({k: nn.Conv2d(*v, 3, 2 if k == "down" else 1, 1) for k, v in sizes.items()})
        self.norms = nn.ModuleDict({k: nn.GroupNorm(4, v[0]) for k, v in sizes.items() if k != "into"})

    def part(self, name, x):
        return self.convs[name](F.silu(self.norms[name](x)))

    def forward(self, image, noise, when):
        rate = torch.exp(torch.arange(self.width // 2) * -0.5)
        angle = when[:, None] * rate
        moment = self.time(torch.cat([angle.sin(), angle.cos()], -1).to(image.dtype))
        first = self.convs["into"](image + noise * when.to(image.dtype)[:, None, None, None])
        x = self.part("down", first) + moment[:, :, None, None]
        x = x + self.part("middle", x)
        x = torch.cat([F.interpolate(x, scale_factor=2.0), first], 1)
        return F.mse_loss(self.part("out", self.part("up", x)).float(), noise.float())


class Bert(nn.Module):
    """Embeddings of words, places and segments; masked attention by hand with dropout; a loss over some of the words."""

    def __init__(self, width=48, heads=4, vocab=120, length=20, dropout=0.1):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.words, self.places, self.segments = nn.Embedding(vocab, width), nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm, self.layers = nn.LayerNorm(width), nn.ModuleList()
        for _ in range(2):
            linear = {name: nn.Linear(width, width) for name in "qkvo"} | {"up": nn.Linear(width, 3 * width), "down": nn.Linear(3 * width, width)}
            self.layers.append(nn.ModuleDict({"norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width), **linear}))
        self.turn, self.last, self.bias = nn.Linear(width, width), nn.LayerNorm(width), nn.Parameter(torch.zeros(vocab))

    def drop(self, x):
        return F.dropout(x, self.dropout)

    def forward(self, words, segments, there, targets):
        places = torch.arange(words.shape[1])
        x = self.drop(self.norm(self.words(words) + self.places(places) + self.segments(segments)))
        hidden = (1.0 - there[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            q, k, v = (layer[name](x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for name in "qkv")
            share = self.drop(((q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + hidden).softmax(-1))
            x = layer["norm1"](x + self.drop(layer["o"]((share @ v).transpose(1, 2).flatten(2))))
            x = layer["norm2"](x + self.drop(layer["down"](F.gelu(layer["up"](x)))))
        logits = F.linear(self.last(F.gelu(self.turn(x))), self.words.weight) + self.bias
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)


class StateSpace(nn.Module):
    """A short causal convolution along the sequence, a gate, and a selective scan written out."""

    def __init__(self, width=32, states=4):
        super().__init__()
        self.norm, self.into, self.out = nn.RMSNorm(width), nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.select, self.pace = nn.Linear(width, 2 * states + 2, bias=False), nn.Linear(2, width)
        self.decay, self.direct, self.states = nn.Parameter(torch.rand(width, states)), nn.Parameter(torch.ones(width)), states

    def forward(self, x):
        y, gate = self.into(self.norm(x)).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, pace = self.select(y).split([self.states, self.states, 2], -1)
        pace = F.softplus(self.pace(pace)).float()
        kept = torch.exp(-pace[..., None] * self.decay.float().exp())
        given = (pace * y.float())[..., None] * b.float()[:, :, None]
        state, found = torch.zeros_like(given[:, 0]), []
        for at in range(x.shape[1]):
            state = kept[:, at] * state + given[:, at]
            found.append((state * c[:, at, None].float()).sum(-1))
        y = (torch.stack(found, 1) + self.direct * y).to(x.dtype) * F.silu(gate)
        return (x + self.out(y)).float().square().mean()


class Recurrent(nn.Module):
    """A gated recurrent cell, written out over the sequence."""

    def __init__(self, width=32, vocab=50):
        super().__init__()
        self.embedding, self.into, self.state = nn.Embedding(vocab, width), nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocab)

    def forward(self, words, targets):
        steps, found = self.into(self.embedding(words)).unbind(1), []
        state = torch.zeros_like(steps[0][:, : steps[0].shape[1] // 3])
        for x in steps:
            (r, z, n), (hr, hz, hn) = x.chunk(3, -1), self.state(state).chunk(3, -1)
            z = torch.sigmoid(z + hz)
            state = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * state
            found.append(state)
        return F.cross_entropy(self.head(torch.stack(found, 1)).float().flatten(0, 1), targets.flatten())


class ChosenExperts(nn.Module):
    """Each expert takes the tokens that fit it best; what they say is added where the tokens stand."""

    def __init__(self, width=32, hidden=48, experts=4, taken=10):
        super().__init__()
        self.norm, self.router, self.taken = nn.LayerNorm(width), nn.Linear(width, experts, bias=False), taken
        self.up, self.down = nn.Parameter(torch.randn(experts, width, hidden)), nn.Parameter(torch.randn(experts, hidden, width))

    def forward(self, x):
        y = self.norm(x).flatten(0, 1)
        share = self.router(y).float().softmax(-1)
        best, which = share.t().topk(self.taken, -1)
        inner = F.gelu(torch.bmm(y[which], self.up))
        out = torch.bmm(inner, self.down) * best[..., None].to(y.dtype)
        added = torch.zeros_like(y).index_add(0, which.flatten(), out.flatten(0, 1))
        spread = (share.mean(0) * F.one_hot(share.argmax(-1), share.shape[-1]).float().mean(0)).sum()
        return (x + added.view_as(x)).float().square().mean() + 0.01 * spread


class Grouped(nn.Module):
    """Fewer keys than queries, complex rotation, gated linear units, words that the loss passes over."""

    def __init__(self, width=48, heads=6, groups=2, vocab=150, length=24):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.embedding, self.norm, self.head = nn.Embedding(vocab, width), nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        angle = torch.outer(torch.arange(length).float(), 100.0 ** -torch.linspace(0, 1, self.size // 2))
        self.register_buffer("turns", torch.polar(torch.ones_like(angle), angle))
        self.layers = nn.ModuleList()
        for _ in range(2):
            sizes = {"q": (width, width), "k": (width, groups * self.size), "v": (width, groups * self.size), "o": (width, width)}
            sizes |= {"gate": (width, 2 * width), "up": (width, 2 * width), "down": (2 * width, width)}
            linear = {name: nn.Linear(*of, bias=False) for name, of in sizes.items()}
            self.layers.append(nn.ModuleDict({"norm1": nn.RMSNorm(width), "norm2": nn.RMSNorm(width), **linear}))

    def turned(self, x):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[:, None]).flatten(-2).to(x.dtype)

    def forward(self, words, targets):
        x = self.embedding(words)
        for layer in self.layers:
            y = layer["norm1"](x)
            q = self.turned(layer["q"](y).unflatten(-1, (self.heads, self.size)))
            k = self.turned(layer["k"](y).unflatten(-1, (self.groups, self.size)))
            v = layer["v"](y).unflatten(-1, (self.groups, self.size))
            k, v = (t.repeat_interleave(self.heads // self.groups, 2) for t in (k, v))
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
            x = x + layer["o"](y.transpose(1, 2).flatten(2))
            y = layer["norm2"](x)
            x = x + layer["down"](F.silu(layer["gate"](y)) * layer["up"](y))
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten(), ignore_index=-1)


class Modulated(nn.Module):
    """A diffusion transformer: patches, norms that a condition shifts, scales and gates."""

    def __init__(self, width=32, heads=4, classes=10):
        super().__init__()
        self.heads, self.patches, self.out = heads, nn.Linear(48, width), nn.Linear(width, 48)
        self.places, self.classes, self.layers = nn.Parameter(torch.randn(16, width)), nn.Embedding(classes, width), nn.ModuleList()
        for _ in range(2):
            sizes = {"shifts": (width, 6 * width), "qkv": (width, 3 * width), "o": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
            self.layers.append(nn.ModuleDict({name: nn.Linear(*of) for name, of in sizes.items()}))

    def forward(self, image, noise, label):
        cut = [t.unflatten(2, (4, 4)).unflatten(4, (4, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2) for t in (image, noise)]
        x, c = self.patches(cut[0]) + self.places, self.classes(label)
        for layer in self.layers:
            shift1, scale1, gate1, shift2, scale2, gate2 = layer["shifts"](F.silu(c))[:, None].chunk(6, -1)
            y = F.layer_norm(x, x.shape[-1:]) * (1 + scale1) + shift1
            q, k, v = layer["qkv"](y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + gate1 * layer["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            y = F.layer_norm(x, x.shape[-1:]) * (1 + scale2) + shift2
            x = x + gate2 * layer["down"](F.gelu(layer["up"](y), approximate="tanh"))
        return F.mse_loss(self.out(x).float(), cut[1].float())


class Depthwise(nn.Module):
    """Depthwise convolutions, layer norms over channels, a scale for each residual."""

    def __init__(self, width=24):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = {"conv": nn.Conv2d(width, width, 7, padding=3, groups=width), "norm": nn.LayerNorm(width)}
            self.blocks.append(nn.ModuleDict({**block, "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}))
        self.scales = nn.ParameterList([nn.Parameter(torch.full((width,), 0.1)) for _ in range(2)])

    def forward(self, image, label):
        x = self.stem(image)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            y = block["norm"](block["conv"](x).permute(0, 2, 3, 1))
            x = x + (scale * block["down"](F.gelu(block["up"](y)))).permute(0, 3, 1, 2)
        return F.cross_entropy(self.head(self.norm(x.mean((2, 3)))).float(), label)


class Translator(nn.Module):
    """An encoder and a decoder that attends to it, with a bias by distance that is learnt."""

    def __init__(self, width=32, heads=4, vocab=80):
        super().__init__()
        self.heads, self.embedding, self.bias, self.head = heads, nn.Embedding(vocab, width), nn.Embedding(16, heads), nn.Linear(width, vocab)
        self.parts = nn.ModuleDict()
        for part in ("read", "write", "cross"):
            linear = {name: nn.Linear(width, width, bias=False) for name in "qkvo"}
            linear |= {"up": nn.Linear(width, 64, bias=False), "down": nn.Linear(64, width, bias=False)}
            self.parts[part] = nn.ModuleDict({**linear, "norm1": nn.RMSNorm(width), "norm2": nn.RMSNorm(width)})

    def attend(self, part, x, other, bias):
        q, k, v = (part[name](t).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name, t in zip("qkv", (x, other, other), strict=True))
        share = (q @ k.transpose(-1, -2) + bias).float().softmax(-1).to(q.dtype)
        return part["o"]((share @ v).transpose(1, 2).flatten(2))

    def block(self, name, x, other, bias):
        part = self.parts[name]
        y = part["norm1"](x)
        x = x + self.attend(part, y, y if other is None else other, bias)
        return x + part["down"](F.relu(part["up"](part["norm2"](x))))

    def forward(self, words, given, targets):
        at = torch.arange(words.shape[1])
        bias = self.bias((at[None] - at[:, None]).abs().clamp(max=15)).permute(2, 0, 1)[None]
        read = self.block("read", self.embedding(words), None, bias)
        after = torch.full((len(at), len(at)), float("-inf")).triu(1).to(bias.dtype)
        x = self.block("write", self.embedding(given), None, bias + after)
        x = self.block("cross", x, read, 0.0)
        return F.cross_entropy(self.head(x).float().flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=0.1)


class Ranking(nn.Module):
    """Tables of features, their products in pairs, two stacks of linear layers, a yes or no."""

    def __init__(self, width=16, tables=4, rows=60):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + tables * (tables + 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, sparse, clicked):
        x = self.bottom(dense.log1p())
        rows = torch.stack([x, *(table(sparse[:, n]).sum(1) for n, table in enumerate(self.tables))], 1)
        row, column = torch.tril_indices(rows.shape[1], rows.shape[1], -1)
        pairs = (rows @ rows.transpose(1, 2))[:, row, column]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([x, pairs], 1))[:, 0].float(), clicked)


class Contrast(nn.Module):
    """Two towers whose rows are normalised and compared, each with all others."""

    def __init__(self, width=32, vocab=70):
        super().__init__()
        self.words, self.left = nn.Embedding(vocab, width), nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.right = nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, width))
        self.heat = nn.Parameter(torch.tensor([2.0]))

    def forward(self, words, image):
        left, right = F.normalize(self.left(self.words(words).mean(1)), dim=-1), F.normalize(self.right(image), dim=-1)
        logits = (self.heat.exp() * (left @ right.t())).float()
        same = torch.arange(len(logits))
        return (F.cross_entropy(logits, same) + F.cross_entropy(logits.t(), same)) / 2


class Squeezed(nn.Module):
    """Inverted bottlenecks: depthwise convolutions, batch norm, hardswish, channels that a small net weighs."""

    def __init__(self, width=16):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList()
        for _ in range(2):
            wide = 3 * width
            convs = {"up": nn.Conv2d(width, wide, 1, bias=False), "deep": nn.Conv2d(wide, wide, 5, 1, 2, groups=wide, bias=False)}
            convs |= {"less": nn.Conv2d(wide, 8, 1), "more": nn.Conv2d(8, wide, 1), "down": nn.Conv2d(wide, width, 1, bias=False)}
            norms = {f"norm_{name}": nn.BatchNorm2d(width if name == "down" else wide) for name in ("up", "deep", "down")}
            self.blocks.append(nn.ModuleDict({**convs, **norms}))

    def forward(self, image, label):
        x = F.hardswish(self.norm(self.stem(image)))
        for block in self.blocks:
            y = F.hardswish(block["norm_up"](block["up"](x)))
            y = F.hardswish(block["norm_deep"](block["deep"](y)))
            y = y * F.hardsigmoid(block["more"](F.relu(block["less"](F.adaptive_avg_pool2d(y, 1)))))
            x = x + block["norm_down"](block["down"](y))
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), label)


class Variational(nn.Module):
    """Convolutions to a mean and a spread, a draw, and transposed convolutions back."""

    def __init__(self, width=16, latent=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(), nn.Conv2d(width, 2 * latent, 4, 2, 1))
        self.up = nn.Sequential(nn.ConvTranspose2d(latent, width, 4, 2, 1), nn.LeakyReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1))

    def forward(self, image):
        mean, spread = self.down(image).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        lost = F.binary_cross_entropy_with_logits(self.up(drawn).float(), image.float().sigmoid())
        return lost - 0.5 * (1 + spread - mean.square() - spread.exp()).float().mean()
