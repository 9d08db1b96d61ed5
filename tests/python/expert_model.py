"""A mixture of experts, one expert a rank, whose tokens travel to the expert that the router picks: how many go where is only
known in the step."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd


class Experts(nn.Module):
    """As many tokens come back as were sent."""

    def __init__(self, width, group):
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        self.router = nn.Linear(width, self.ranks, bias=False)
        self.expert = nn.Linear(width, width, dtype=torch.bfloat16)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat).softmax(-1)
        weight, chosen = scores.max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.zeros(self.ranks, dtype=torch.int64).scatter_add(0, chosen, torch.ones_like(chosen))
        one_each = [1] * self.ranks
        arriving = all_to_all_single(counts, one_each, one_each, self.group)
        sent, received = counts.tolist(), arriving.tolist()
        for size in (*sent, *received):
            torch._check(size >= 0)
        mine = all_to_all_single_autograd(flat[order], received, sent, self.group)
        mine = torch.relu(self.expert(mine))
        back = all_to_all_single_autograd(mine, sent, received, self.group)
        there = torch.zeros_like(flat).index_copy(0, order, back)
        return x + (there * weight.unsqueeze(-1)).reshape(x.shape)


class ExpertModel(nn.Module):
    def __init__(self, width, group, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(13, width)
        self.layers = nn.ModuleList([Experts(width, group) for _ in range(layers)])
        self.head = nn.Linear(width, 13)

    def everywhere(self):
        """The modules that all ranks have, as against the experts."""
        return [self.embedding, self.head, *(layer.router for layer in self.layers)]

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).logsumexp(-1).sum()
