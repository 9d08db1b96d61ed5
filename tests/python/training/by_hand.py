"""Data parallelism without compiler, planner or DTensor: the reference for merged reductions; and PyTorch's own.

Every rank holds whole parameters and the gradient of its own batch, and reduces that itself, in flat buffers of given
parameters in a given order. It then takes the optimizer's step on whole parameters, which is element by element.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist
import training
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel


@dataclasses.dataclass(frozen=True)
class Buffers:
    """Names of parameters, by the flat buffer that they share; a parameter in none has one of its own."""

    all_reduce: tuple[tuple[str, ...], ...] = ()
    reduce_scatter: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, plans: list[dict]) -> Buffers:
        """Of plans as the worker describes them. Each member of a grouped bucket has a buffer of its own."""
        found = {"all_reduce": [], "reduce_scatter": []}
        for bucket in (bucket for plan in plans for bucket in plan["buckets"]):
            if bucket["kind"] in found and bucket["packed"]:
                found[bucket["kind"]].append(tuple(bucket["parameters"]))
        return cls(**{kind: tuple(buffers) for kind, buffers in found.items()})


def _filled(buffers, names) -> list[tuple[str, ...]]:
    shared = {name for buffer in buffers for name in buffer}
    assert shared <= set(names), f"{sorted(shared - set(names))} are no parameters"
    return [*buffers, *((name,) for name in names if name not in shared)]


def all_reduce(gradients: dict, buffers, group) -> dict:
    reduced = {}
    for names in _filled(buffers, gradients):
        flat = torch.cat([gradients[name].reshape(-1) for name in names])
        dist.all_reduce(flat, group=group)
        pieces = flat.split([gradients[name].numel() for name in names])
        reduced.update({name: piece.view(gradients[name].shape) for name, piece in zip(names, pieces)})
    return reduced


def reduce_scatter(gradients: dict, buffers, group) -> dict:
    """The sum of all ranks' shards, put together again: whole gradients."""
    world = group.size()
    reduced = {}
    for names in _filled(buffers, gradients):
        rows = [_padded(gradients[name], world).view(world, -1) for name in names]
        whole = torch.cat(rows, dim=1)
        own = whole.new_empty(whole.shape[1])
        dist.reduce_scatter_single(own, whole.reshape(-1), group=group)
        everyone = whole.new_empty(whole.numel())
        dist.all_gather_single(everyone, own, group=group)
        columns = everyone.view(world, -1).split([row.shape[1] for row in rows], dim=1)
        for name, column in zip(names, columns):
            shape = gradients[name].shape
            reduced[name] = column.reshape(-1, *shape[1:])[: shape[0]]
    return reduced


def _padded(tensor, world: int):
    missing = -tensor.shape[0] % world
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])


class ByHand(training.Training):
    """`replicate` and `shard` are the groups to reduce over, in this order; None: there is none."""

    def __init__(self, name, model, data, param_dtype, reduce_dtype, replicate, shard, buffers: Buffers):
        super().__init__(name, model, self._loss, data)
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype
        self.replicate, self.shard, self.buffers = replicate, shard, buffers

    def _loss(self, tokens, targets):
        cast = {name: parameter.to(self.param_dtype) for name, parameter in self.model.named_parameters()}
        return functional_call(self.model, cast, (tokens, targets))

    def _forward_backward(self) -> None:
        super()._forward_backward()
        # A gradient has the values of the parameters' dtype: this cast loses nothing that the compiled step keeps.
        gradients = {name: p.grad.to(self.reduce_dtype) for name, p in self.model.named_parameters()}
        if self.replicate is not None:
            gradients = all_reduce(gradients, self.buffers.all_reduce, self.replicate)
        if self.shard is not None:
            gradients = reduce_scatter(gradients, self.buffers.reduce_scatter, self.shard)
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients[name].to(parameter.dtype)

    def _update(self):
        gradients = [self._own(parameter.grad) for parameter in self.parameters]
        super()._update()
        return lambda: training.digest(gradients + self._weights())

    def result(self) -> training.Result:
        return dataclasses.replace(super().result(), weights=training.over_all_ranks(training.digest(self._weights())))

    def _weights(self):
        return [self._own(parameter) for parameter in self.parameters]

    def _own(self, tensor):
        """This rank's shard over dimension 0."""
        if self.shard is None:
            return tensor
        rows = -(-tensor.shape[0] // self.shard.size())
        return tensor[self.shard.rank() * rows :][:rows]


class _Cast(torch.nn.Module):
    def __init__(self, model, dtype: torch.dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, tokens, targets):
        cast = {name: parameter.to(self.dtype) for name, parameter in self.model.named_parameters()}
        return functional_call(self.model, cast, (tokens, targets))


class Reducer(training.Training):
    """DistributedDataParallel, which averages: of 4 ranks' sum a quarter, without rounding. Gradients are put right again.

    After the first step it rebuilds its buckets in the order in which gradients come, unless parameters may be unused.
    """

    def __init__(self, name, model, data, param_dtype, reduce_dtype, rebuilds: bool):
        assert reduce_dtype == torch.float32, "what DDP reduces has the parameters' own dtype"
        call = DistributedDataParallel(_Cast(model, param_dtype), find_unused_parameters=not rebuilds)
        super().__init__(name, model, call, data)

    def _forward_backward(self) -> None:
        super()._forward_backward()
        for parameter in self.parameters:
            parameter.grad.mul_(dist.get_world_size())
