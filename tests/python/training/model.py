"""The smallest model that has what a proof about bits needs: blocks, parameters of a block's own beside its children's,
and sizes that no number of ranks divides. It is the example's Llama without attention."""

from __future__ import annotations

import dataclasses

import llama
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 13
    dim: int = 9
    hidden: int = 14  # tensor parallelism's two parts are 7 each
    layers: int = 2


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.ffn_norm = llama.RMSNorm(config.dim)
        self.feed_forward = llama.FeedForward(config)
        self.ffn_scale = nn.Parameter(torch.ones(config.dim))

    def forward(self, x):
        return x + self.feed_forward(self.ffn_norm(x)) * self.ffn_scale


class Model(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = llama.RMSNorm(config.dim)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)

    def forward(self, tokens, targets):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.output(self.norm(x)).float().flatten(0, 1), targets.flatten())


def build(config: Config) -> Model:
    """The same weights on every rank and in every run."""
    model = Model(config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            start = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(start + parameter.shape[-1] ** -0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def parallelize(model: Model, mesh) -> Model:
    """Tensor parallelism of the feed-forward parts; the rest is whole on every rank."""
    for layer in model.layers:
        parallelize_module(layer.feed_forward, mesh, {
            "w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel(output_layouts=Replicate())})
    return model
