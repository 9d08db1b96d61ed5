"""A model of a few blocks, sharded parameter by parameter: small, with biases and a scale, of any width."""

import torch
import torch.nn as nn
from simple_fsdp import shard


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.scale = nn.Parameter(1 + torch.arange(width) / 16)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x * self.scale)))


class Model(nn.Module):
    def __init__(self, width, hidden, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(13, width)
        self.blocks = nn.ModuleList([Block(width, hidden) for _ in range(blocks)])
        self.head = nn.Linear(width, 13)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).float().logsumexp(-1).sum()


def sharded_model(mesh, width, hidden, blocks=2):
    torch.manual_seed(0)
    return shard(Model(width, hidden, blocks), mesh, torch.bfloat16, torch.float32)
