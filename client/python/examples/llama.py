"""A small Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU, tied to nothing.

Nothing in it knows of sharding. Sizes are free: any of them may be odd, or indivisible by the number of ranks.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    vocab: int = 256
    dim: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden: int = 160
    rope_base: float = 10000.0
    # One learnt factor a channel on each residual branch, owned by the block itself: a module with both parameters
    # and children, for which "children first" and "parents first" are different parameter orders.
    branch_scale: bool = False

    def __post_init__(self):
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary embedding turns pairs, so it must be even")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def rotate(x, cos, sin):
    """Turns the pairs (x[i], x[i + head_dim / 2]); x is [batch, heads, positions, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.wq = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x, cos, sin):
        batch, positions, _ = x.shape
        q = self.wq(x).view(batch, positions, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(batch, positions, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(batch, positions, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, positions, self.heads * self.head_dim))


class FeedForward(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config.dim)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim)
        self.feed_forward = FeedForward(config)
        self.scaled = config.branch_scale
        if self.scaled:
            self.attention_scale = nn.Parameter(torch.ones(config.dim))
            self.ffn_scale = nn.Parameter(torch.ones(config.dim))

    def forward(self, x, cos, sin):
        branch = self.attention(self.attention_norm(x), cos, sin)
        x = x + (branch * self.attention_scale if self.scaled else branch)
        branch = self.feed_forward(self.ffn_norm(x))
        return x + (branch * self.ffn_scale if self.scaled else branch)


class Llama(nn.Module):
    """forward(tokens, targets) is the mean cross-entropy of the next tokens."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)

    def angles(self, positions: int):
        half = self.config.head_dim // 2
        frequency = self.config.rope_base ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
        return angle.cos(), angle.sin()

    def forward(self, tokens, targets):
        cos, sin = self.angles(tokens.shape[1])
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def build(config: LlamaConfig, seed: int = 0) -> Llama:
    """The same weights on every rank and in every run, whatever was drawn before."""
    model = Llama(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "_scale")):
                parameter.copy_(1.0 + 0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    return model
