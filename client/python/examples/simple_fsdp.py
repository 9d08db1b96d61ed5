"""Data parallelism parameter by parameter, in a form that a compiler sees whole.

Each parameter becomes a DTensor over the mesh of the data-parallel ranks; reading it redistributes it to all of them.
Traced, that is, for every parameter by itself and with casts around it,

  FSDP  [Shard(0)]               an all-gather in the forward pass, a reduce-scatter of the gradient in the backward pass
  HSDP  [Replicate(), Shard(0)]  the same over the second dimension; gradients are all-reduced over the first one before
  DDP   [Replicate()]            an all-reduce of the gradient

`param_dtype` travels in the gathers, `reduce_dtype` in the reductions, which sum. A model that tensor parallelism has
taken apart already (parallelize_module) is welcome: what is sharded is then each rank's own part of a parameter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn as nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

FSDP = (Shard(0),)
HSDP = (Replicate(), Shard(0))
DDP = (Replicate(),)

# One subclass for each (module type, parameter names). What differs by instance (mesh, dtypes) lives on the instance,
# so models with different settings may share a process.
_sharded_types: dict[tuple, type] = {}


@dataclasses.dataclass(frozen=True)
class _Inner:
    """How tensor parallelism had laid a parameter out: what its readers expect to get."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]


class _Gather:
    def __init__(self, dims: int, param_dtype: torch.dtype, reduce_dtype: torch.dtype):
        self.everywhere, self.summed = [Replicate()] * dims, [Partial("sum")] * dims
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype

    def __call__(self, parameter: DTensor, inner: _Inner | None):
        whole = parameter.redistribute(
            placements=self.everywhere, forward_dtype=self.param_dtype, backward_dtype=self.reduce_dtype
        )
        whole = whole.to_local(grad_placements=self.summed)
        if inner is None:
            return whole
        return DTensor.from_local(whole, inner.mesh, inner.placements, shape=inner.shape, stride=inner.stride)


def _reader(name: str):
    return property(lambda self: self._gather(self._parameters[name], self._inner.get(name)))


def _sharded_type(module_type: type, names: tuple[str, ...]) -> type:
    key = (module_type, names)
    if key not in _sharded_types:
        body = {name: _reader(name) for name in names}
        _sharded_types[key] = type(f"Sharded{module_type.__name__}", (module_type,), body)
    return _sharded_types[key]


def _refuse_tied(model: nn.Module) -> None:
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = owners.setdefault(id(parameter), name)
        if first != name:
            raise ValueError(
                f"{name} and {first} are one parameter: sharding gives each its own copy, and they would train "
                "apart. Untie the weights first."
            )


def shard(
    model: nn.Module,
    mesh: DeviceMesh,
    param_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    placements: Sequence[Placement] = FSDP,
) -> nn.Module:
    """Shards `model` in place over `mesh`, whose dimensions `placements` speaks of, and returns it. Modules in it that
    were sharded before keep what they were told then. Tied weights are a ValueError."""
    if mesh.ndim != len(placements):
        raise ValueError(f"the mesh has {mesh.ndim} dimensions, {len(placements)} were expected")
    _refuse_tied(model)
    gather = _Gather(mesh.ndim, param_dtype, reduce_dtype)
    for module in list(model.modules()):
        names = tuple(name for name, _ in module.named_parameters(recurse=False))
        if not names or "_gather" in vars(module):
            continue
        inner = {}
        for name in names:
            full = module._parameters[name]
            part = full
            if isinstance(full, DTensor):
                inner[name] = _Inner(full.device_mesh, full.placements, full.shape, full.stride())
                part = full.to_local()
            sharded = distribute_tensor(part.detach(), mesh, placements)
            module._parameters[name] = nn.Parameter(sharded, full.requires_grad)
        module._gather, module._inner = gather, inner
        module.__class__ = _sharded_type(type(module), names)
    return model
