"""A model whose attention is checkpointed, so that the backward runs it again with the generator's saved state.

Its parameters are plain tensors, a row of shards each, gathered by functional collectives: PyTorch 2.13 itself fails on such
checkpoints where parameters are DTensors (it takes the mesh for a tensor that was saved).
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class GatheredLinear(nn.Module):
    def __init__(self, inputs, outputs, group):
        super().__init__()
        self.group = group
        shape = (outputs // group.size(), inputs)
        self.shard = nn.Parameter(torch.arange(shape[0] * inputs, dtype=torch.float32).sin().view(shape) / 8)

    def forward(self, x):
        return F.linear(x, functional.all_gather_tensor_autograd(self.shard, 0, self.group))


class Attention(nn.Module):
    def __init__(self, width, group):
        super().__init__()
        self.qkv = GatheredLinear(width, 3 * width, group)
        self.out = GatheredLinear(width, width, group)

    def attention(self, x):
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)[:, 0]

    def forward(self, x):
        return x + self.out(checkpoint(self.attention, x, use_reentrant=False))


class CheckpointedModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(13, width)
        self.layers = nn.ModuleList([Attention(width, dist.group.WORLD) for _ in range(3)])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x.logsumexp(-1).sum()
