"""Models whose steps Inductor compiles, sharded over a fake group of four: name -> a function from a mesh to a step.

OURS are the suite's models and what was looked at while the prediction was written; OTHERS were compared when it was done, and taught it more.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "training"), str(HERE.parent / "data" / "vectors"), str(HERE.parents[1] / "client" / "python" / "examples")]

import fusion_kinds as kinds  # noqa: E402
import fusion_kinds_later as later  # noqa: E402
import llama  # noqa: E402
import model as proof_model  # noqa: E402
import simple_fsdp  # noqa: E402
import tiny_step  # noqa: E402
from checkpointed_model import CheckpointedModel  # noqa: E402
from sharded_model import sharded_model  # noqa: E402

Step = Callable[[], torch.Tensor]
F32, BF16 = torch.float32, torch.bfloat16


def tokens(vocab: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocab, shape)


def step(mesh, model: nn.Module, dtype: torch.dtype, *inputs: torch.Tensor) -> Step:
    sharded = simple_fsdp.shard(model, mesh, dtype, F32)
    return lambda: sharded(*inputs)


class Feedforward(nn.Module):
    """Residual blocks of a norm and two linear layers; gated: three, act(gate) * up between them."""

    def __init__(self, norm, act, gated=False, width=40, hidden=96, layers=3):
        super().__init__()
        self.act, self.gated = act, gated
        names = ("gate", "up", "down") if gated else ("up", "down")
        self.layers = nn.ModuleList()
        for _ in range(layers):
            linear = {name: nn.Linear(hidden, width) if name == "down" else nn.Linear(width, hidden) for name in names}
            self.layers.append(nn.ModuleDict({"norm": norm(width), **linear}))

    def forward(self, x):
        for layer in self.layers:
            y = layer["norm"](x)
            inner = self.act(layer["gate"](y)) * layer["up"](y) if self.gated else self.act(layer["up"](y))
            x = x + layer["down"](inner)
        return x.float().square().mean()


class Blocks(nn.Module):
    """Transformer blocks: layer norm, one projection for queries, keys and values, GELU."""

    def __init__(self, width=32, heads=4, layers=2, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            linear = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
            block = {name: nn.Linear(*sizes) for name, sizes in linear.items()}
            self.blocks.append(nn.ModuleDict({"norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width), **block}))

    def forward(self, x, causal=True):
        for block in self.blocks:
            batch, length, width = x.shape
            q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in block["qkv"](block["norm1"](x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(batch, length, width)
            x = x + F.dropout(block["out"](y), self.dropout)
            x = x + F.dropout(block["down"](F.gelu(block["up"](block["norm2"](x)))), self.dropout)
        return x


class Gpt(nn.Module):
    def __init__(self, width=32, vocab=64, **blocks):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab, width), nn.Parameter(torch.randn(16, width))
        self.blocks, self.norm, self.head = Blocks(width, **blocks), nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, words, targets):
        x = self.norm(self.blocks(self.embedding(words) + self.positions))
        return F.cross_entropy(self.head(x).float().flatten(0, 1), targets.flatten())


class VisionTransformer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.blocks, self.norm, self.head = Blocks(width, heads=3), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image, label):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions
        return F.cross_entropy(self.head(self.norm(self.blocks(x, causal=False))[:, 0]).float(), label)


class Rotary(nn.Module):
    """Attention with rotated pairs; the softmax by hand, or the library's attention."""

    def __init__(self, by_hand: bool, width=64, heads=4, length=24):
        super().__init__()
        self.by_hand, self.heads = by_hand, heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        turns = 10000 ** -(torch.arange(0, width // heads, 2) * heads / width)
        angle = torch.outer(torch.arange(length, dtype=F32), turns).repeat_interleave(2, -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def turned(self, x):
        other = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        return (x * self.cos + other * self.sin).to(x.dtype)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.turned(q), self.turned(k)
        if self.by_hand:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            y = ((q @ k.transpose(-1, -2)) * 0.25).masked_fill(later, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (x + self.out(y.transpose(1, 2).reshape(batch, length, width))).float().square().mean()


class Experts(nn.Module):
    """Every token through every expert, weighted by the two that it chose."""

    def __init__(self, width=32, hidden=64, experts=4):
        super().__init__()
        self.norm, self.router = nn.RMSNorm(width), nn.Linear(width, experts, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(experts, width, hidden)), nn.Parameter(torch.randn(experts, hidden, width))

    def forward(self, x):
        y = self.norm(x).flatten(0, 1)
        share = self.router(y).float().softmax(-1)
        best, which = share.topk(2, -1)
        weight = torch.zeros_like(share).scatter(1, which, best / best.sum(-1, keepdim=True)).to(y.dtype)
        out = torch.einsum("teh,ehw->tew", F.silu(torch.einsum("tw,ewh->teh", y, self.up)), self.down)
        return (x + (out * weight[..., None]).sum(1).view_as(x)).float().square().mean() + share.mean(0).square().sum()


class LargeVocabulary(nn.Module):
    def __init__(self, width=32, vocab=5003, smoothing=0.0):
        super().__init__()
        self.smoothing = smoothing
        self.embedding, self.norm, self.head = nn.Embedding(vocab, width), nn.LayerNorm(width), nn.Linear(width, vocab)

    def forward(self, words, targets):
        logits = self.head(self.norm(self.embedding(words))).float().flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), label_smoothing=self.smoothing)


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.layers(x)).float().sigmoid().mean()


class Mixer(nn.Module):
    """Linear layers over positions, then over channels."""

    def __init__(self, length=16, width=32):
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(2):
            sizes = {"t1": (length, 24), "t2": (24, length), "c1": (width, 64), "c2": (64, width)}
            linear = {name: nn.Linear(*of) for name, of in sizes.items()}
            self.blocks.append(nn.ModuleDict({"n1": nn.LayerNorm(width), "n2": nn.LayerNorm(width), **linear}))

    def forward(self, x):
        for block in self.blocks:
            x = x + block["t2"](F.gelu(block["t1"](block["n1"](x).transpose(1, 2)))).transpose(1, 2)
            x = x + block["c2"](F.gelu(block["c1"](block["n2"](x))))
        return F.mse_loss(x.float(), torch.zeros_like(x, dtype=F32))


class Parallel(nn.Module):
    """Attention with linear biases, by hand, beside the feed-forward part."""

    def __init__(self, width=64, heads=4, vocab=97):
        super().__init__()
        self.heads, self.embedding, self.head = heads, nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList()
        for _ in range(2):
            linear = {name: nn.Linear(width, width, bias=False) for name in "qkvo"}
            linear |= {"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}
            self.blocks.append(nn.ModuleDict({"norm": nn.LayerNorm(width), **linear}))

    def forward(self, words, targets):
        x, length = self.embedding(words), words.shape[1]
        bias = -0.1 * (torch.arange(length)[:, None] - torch.arange(length)[None]).abs()
        for block in self.blocks:
            y = block["norm"](x)
            q, k, v = (block[name](y).view(len(y), length, self.heads, -1).transpose(1, 2) for name in "qkv")
            share = (q @ k.transpose(-1, -2) / 4 + bias.to(q.dtype)).float().softmax(-1).to(q.dtype)
            x = x + block["o"]((share @ v).transpose(1, 2).reshape(x.shape)) + block["down"](F.gelu(block["up"](y), approximate="tanh"))
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


class Images(nn.Module):
    """Convolutions and group norms."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm1, self.norm2, self.head = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16), nn.Linear(16, 10)

    def forward(self, image, label):
        x = F.silu(self.norm1(self.first(image)))
        x = x + F.silu(self.norm2(self.second(x)))
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), label)


class Gates(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.RMSNorm(width), "up": nn.Linear(width, 2 * width), "down": nn.Linear(width, width)}) for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            value, gate = layer["up"](layer["norm"](x)).chunk(2, -1)
            x = x + layer["down"](torch.tanh(value) * torch.sigmoid(gate))
        return F.smooth_l1_loss(x.float(), torch.ones(()).expand_as(x))


class Tied(nn.Module):
    """One embedding for words and logits; the loss has a term for the logits' size."""

    def __init__(self, width=32, vocab=200):
        super().__init__()
        self.embedding, self.inner, self.norm = nn.Embedding(vocab, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, words, targets):
        x = self.norm(F.relu(self.inner(self.embedding(words))))
        logits = F.linear(x, self.embedding.weight).float().flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten()) + 1e-4 * logits.logsumexp(-1).square().mean()


def _llama(dtype=BF16, length=32, **sizes):
    config = llama.LlamaConfig(**sizes)
    return lambda mesh: step(mesh, llama.build(config), dtype, tokens(config.vocab, 2, length), tokens(config.vocab, 2, length))


def _tiny(name):
    def made(mesh):
        model, words = tiny_step.build(tiny_step.CASES[name])
        return lambda: model(words)

    return made


def _sharded(mesh):
    model, words = sharded_model(mesh, 8, 24), tokens(13, 2, 5)
    return lambda: model(words)


def _checkpointed(mesh):
    model, words = CheckpointedModel(16), tokens(13, 6)
    return lambda: model(words)


def _of(make, dtype, *inputs):
    return lambda mesh: step(mesh, make(), dtype, *(each() for each in inputs))


def _floats(*shape, dtype=F32):
    return lambda: torch.randn(*shape, dtype=dtype)


def _words(vocab, *shape):
    return lambda: tokens(vocab, *shape)


OURS = {
    "llama": _llama(layers=2),
    "llama_odd": _llama(F32, layers=2, dim=24, head_dim=6, hidden=40, vocab=50),
    "llama_scaled": _llama(layers=1, branch_scale=True, kv_heads=4),
    "llama_wide": _llama(layers=1, dim=256, head_dim=64, hidden=640, vocab=1000),
    **{f"vectors_{name}": _tiny(name) for name in tiny_step.CASES},
    "sharded": _sharded,
    "checkpointed": _checkpointed,
    "proof": _of(lambda: proof_model.build(proof_model.Config()), BF16, _words(13, 2, 6), _words(13, 2, 6)),
    "mlp_layer_norm": _of(lambda: Feedforward(nn.LayerNorm, F.relu, width=48, hidden=100), F32, _floats(4, 16, 48)),
    "mlp_rms_norm": _of(lambda: Feedforward(nn.RMSNorm, F.gelu, width=48, hidden=100), BF16, _floats(4, 16, 48, dtype=BF16)),
    "gpt": _of(Gpt, BF16, _words(64, 2, 16), _words(64, 2, 16)),
    "gpt_dropout": _of(lambda: Gpt(dropout=0.1), F32, _words(64, 2, 16), _words(64, 2, 16)),
}
OTHERS = {
    "vision": _of(VisionTransformer, F32, _floats(2, 3, 32, 32), _words(10, 2)),
    "vision_half": _of(VisionTransformer, BF16, _floats(2, 3, 32, 32, dtype=BF16), _words(10, 2)),
    "swiglu_rms_norm": _of(lambda: Feedforward(nn.RMSNorm, F.silu, gated=True), BF16, _floats(4, 12, 40, dtype=BF16)),
    "geglu_layer_norm": _of(lambda: Feedforward(nn.LayerNorm, F.gelu, gated=True), F32, _floats(4, 12, 40)),
    "rotary_by_hand": _of(lambda: Rotary(True), F32, _floats(2, 24, 64)),
    "rotary": _of(lambda: Rotary(False), BF16, _floats(2, 24, 64, dtype=BF16)),
    "experts": _of(Experts, BF16, _floats(2, 20, 32, dtype=BF16)),
    "large_vocabulary": _of(LargeVocabulary, BF16, _words(5003, 2, 24), _words(5003, 2, 24)),
    "label_smoothing": _of(lambda: LargeVocabulary(smoothing=0.1), BF16, _words(5003, 2, 24), _words(5003, 2, 24)),
    "encoder": _of(Encoder, F32, _floats(3, 14, 32)),
    "mixer": _of(Mixer, F32, _floats(3, 16, 32)),
    "parallel": _of(Parallel, BF16, _words(97, 2, 16), _words(97, 2, 16)),
    "images": _of(Images, F32, _floats(2, 3, 16, 16), _words(10, 2)),
    "gates": _of(Gates, BF16, _floats(4, 8, 32, dtype=BF16)),
    "tied": _of(Tied, BF16, _words(200, 3, 12), _words(200, 3, 12)),
}
# More kinds, compared before anything was done for them.
KINDS = {
    "residual": _of(kinds.Residual, F32, _floats(2, 3, 32, 32), _words(10, 2)),
    "denoiser": _of(kinds.Denoiser, F32, _floats(2, 3, 16, 16), _floats(2, 3, 16, 16), _floats(2)),
    "bert": _of(kinds.Bert, BF16, _words(120, 2, 20), _words(2, 2, 20), lambda: torch.ones(2, 20), _words(120, 2, 20)),
    "state_space": _of(kinds.StateSpace, BF16, _floats(2, 10, 32, dtype=BF16)),
    "recurrent": _of(kinds.Recurrent, F32, _words(50, 3, 8), _words(50, 3, 8)),
    "chosen_experts": _of(kinds.ChosenExperts, BF16, _floats(2, 20, 32, dtype=BF16)),
    "grouped": _of(kinds.Grouped, BF16, _words(150, 2, 24), _words(150, 2, 24)),
    "modulated": _of(kinds.Modulated, F32, _floats(2, 3, 16, 16), _floats(2, 3, 16, 16), _words(10, 2)),
    "depthwise": _of(kinds.Depthwise, BF16, _floats(2, 3, 32, 32, dtype=BF16), _words(10, 2)),
    "translator": _of(kinds.Translator, F32, _words(80, 2, 12), _words(80, 2, 12), _words(80, 2, 12)),
    "ranking": _of(kinds.Ranking, F32, lambda: torch.rand(16, 13), lambda: tokens(60, 16, 4, 3), lambda: torch.rand(16).round()),
    "contrast": _of(kinds.Contrast, F32, _words(70, 12, 6), _floats(12, 48)),
    "squeezed": _of(kinds.Squeezed, F32, _floats(2, 3, 32, 32), _words(10, 2)),
    "variational": _of(kinds.Variational, F32, _floats(2, 3, 16, 16)),
}
# Compared once, when the prediction was done.
LATER = {
    "dense": _of(later.Dense, F32, _floats(2, 3, 16, 16), _words(10, 2)),
    "plain": _of(later.Plain, F32, _floats(2, 3, 32, 32), _words(10, 2)),
    "sound": _of(later.Sound, F32, _words(32, 2, 20), _words(32, 2, 20)),
    "messages": _of(later.Messages, F32, _floats(20, 24), _words(20, 60), _words(20, 60), _words(5, 20)),
    "shifted": _of(later.Shifted, BF16, _words(90, 2, 12), _words(90, 2, 12)),
    "windows": _of(later.Windows, F32, _floats(2, 3, 16, 16), _words(10, 2)),
    "sharper": _of(later.Sharper, F32, _floats(2, 3, 8, 8), _floats(2, 3, 16, 16)),
    "latents": _of(later.Latents, BF16, _floats(3, 20, 32, dtype=BF16), lambda: torch.rand(3, 20) > 0.2, _floats(3)),
}
