"""A small model whose parameters are sharded one by one and gathered at use, traced to functional collectives.

Four ranks, CPU, gloo. Only what the vectors need: even, odd and missing shards; a cast below a reduce-scatter; gathers
that the backward repeats; two mesh dimensions; tensor parallelism beside sharding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Case:
    width: int
    hidden: int
    mesh: tuple[tuple[str, int], ...] = (("fsdp", 4),)
    tensor_parallel: bool = False
    recompute: bool = False
    parameter_dtype: torch.dtype = torch.float32


CASES = {
    "fsdp_even": Case(8, 16),
    "fsdp_uneven": Case(6, 7),
    "fsdp_short": Case(3, 5, parameter_dtype=torch.bfloat16, recompute=True),
    "hsdp_uneven": Case(5, 7, mesh=(("replicate", 2), ("shard", 2))),
    "fsdp_tp": Case(6, 10, mesh=(("fsdp", 2), ("tp", 2)), tensor_parallel=True),
}


class Gather(nn.Module):
    """Shard -> whole tensor in bf16; its gradient is summed over the mesh in fp32."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x: DTensor) -> torch.Tensor:
        whole = [Replicate()] * self.mesh.ndim
        full = x.redistribute(placements=whole, forward_dtype=torch.bfloat16, backward_dtype=torch.float32)
        return full.to_local(grad_placements=[Partial("sum")] * self.mesh.ndim)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, tp: DeviceMesh | None) -> None:
        super().__init__()
        share = tp.size() if tp else 1
        self.scale = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, hidden // share)
        self.down = nn.Linear(hidden // share, width, bias=False)
        self.tp = tp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * self.scale
        if self.tp is None:
            return x + self.down(torch.relu(self.up(h)))
        h = DTensor.from_local(h, self.tp, [Replicate()], run_check=False)
        up = DTensor.from_local(self.up.weight, self.tp, [Shard(0)], run_check=False)
        down = DTensor.from_local(self.down.weight, self.tp, [Shard(1)], run_check=False)
        return x + F.linear(torch.relu(F.linear(h, up)), down).redistribute(placements=[Replicate()]).to_local()


class Tiny(nn.Module):
    def __init__(self, case: Case, tp: DeviceMesh | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, case.width)
        self.layers = nn.ModuleList(Block(case.width, case.hidden, tp) for _ in range(2))
        self.head = nn.Linear(case.width, 13, bias=False)
        self.recompute = case.recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x).float().logsumexp(-1).sum()


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    gather = Gather(mesh)
    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    for module in list(model.modules()):
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            module._parameters[name] = nn.Parameter(distribute_tensor(module._parameters[name], mesh, placements))
        if names:
            gathered = {n: property(lambda self, n=n: self._gather(self._parameters[n])) for n in names}
            module.__class__ = type(f"Sharded{type(module).__name__}", (type(module),), gathered)
            object.__setattr__(module, "_gather", gather)
    return model


def build(case: Case) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    names, sizes = zip(*case.mesh)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    tp = mesh["tp"] if case.tensor_parallel else None
    model = Tiny(case, tp).to(case.parameter_dtype)
    shard(model, mesh["fsdp"] if case.tensor_parallel else mesh)
    return model, torch.randint(0, 13, (2, 5))
