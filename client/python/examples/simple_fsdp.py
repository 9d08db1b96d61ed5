"""Sharding parameter by parameter, in a form that a compiler sees whole.

Each parameter becomes a DTensor sharded over dimension 0; reading it redistributes it to all ranks. Traced, that is one
all-gather a parameter in the forward pass and one reduce-scatter a gradient in the backward pass, with casts around them:
`param_dtype` travels in the gathers, `reduce_dtype` in the scatters, which sum.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

# One subclass for each (module type, parameter names). What differs by instance (mesh, dtypes) lives on the instance,
# so models with different settings may share a process.
_sharded_types: dict[tuple, type] = {}


class _Gather:
    def __init__(self, param_dtype, reduce_dtype):
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype

    def __call__(self, parameter):
        whole = parameter.redistribute(
            placements=[Replicate()], forward_dtype=self.param_dtype, backward_dtype=self.reduce_dtype
        )
        return whole.to_local(grad_placements=[Partial("sum")])


def _reader(name: str):
    return property(lambda self: self._gather(self._parameters[name]))


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


def shard(model: nn.Module, mesh: DeviceMesh, param_dtype: torch.dtype, reduce_dtype: torch.dtype) -> nn.Module:
    """Shards `model` in place over the one dimension of `mesh` and returns it. Tied weights are a ValueError."""
    if mesh.ndim != 1:
        raise ValueError(f"the mesh has {mesh.ndim} dimensions, one was expected")
    _refuse_tied(model)
    gather = _Gather(param_dtype, reduce_dtype)
    for module in list(model.modules()):
        names = tuple(name for name, _ in module.named_parameters(recurse=False))
        if not names:
            continue
        for name in names:
            full = module._parameters[name]
            module._parameters[name] = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]), full.requires_grad)
        module._gather = gather
        module.__class__ = _sharded_type(type(module), names)
    return model
