"""Sums and their like: loops of their own, which are as many as it takes to find a mean and what is left without it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph import Node, Tensor
from .access import Dim, contiguous, dense, innermost_first, step
from .layouts import Layouts
from .values import Storage, Value

_TWO_STEPS = 1024  # elements of a row whose variance is taken in two passes
_UNROLLED = 8  # a reduction over fewer elements is written out


class Reductions(Layouts):
    def reduction(self, number: int, node: Node, dims: Sequence[int] | None) -> list[Value | None]:
        value = self.inputs(node)[0]
        if dims is None:
            dims = missing(value.shape, node.outputs[0].shape)
        inner = math.prod([value.shape[k] for k in dims])
        outer = math.prod(value.shape) // max(inner, 1)
        if inner <= 1 or inner < _UNROLLED and outer != 1:
            return [self.unrolled(number, tensor, value, dims) for tensor in node.outputs]
        base = self.bases[number]
        if base == "mean":
            return [self.scaled(number, node, self.reduced_over(number, node.outputs[0], [value], dims))]
        if base != "var_mean":
            return [self.reduced_over(number, tensor, [value], dims) for tensor in node.outputs]
        return list(self.moments(number, node, value, dims))

    def moments(self, number: int, node: Node, value: Value, dims: Sequence[int]) -> tuple[Value, Value]:
        """Variance and mean: the mean first, then what is left without it; of long rows both at once."""
        variance, mean = node.outputs
        rows = math.prod(variance.shape)
        if not self.cpu or rows == 1 or math.prod([value.shape[k] for k in dims]) > _TWO_STEPS:
            centre = self.reduced_over(number, mean, [value], dims)
            return self.scaled(number, node, self.reduced_over(number, variance, [value], dims)), centre
        centre = self.scaled(number, node, self.reduced_over(number, mean, [value], dims))
        self.realize(centre.storage)
        kept = tuple(1 if k in dims else size for k, size in enumerate(value.shape))
        row = Value(centre.storage, kept, contiguous(kept))
        squares = self.reduced_over(number, variance, [value, row], dims)
        return self.scaled(number, node, squares), centre

    def reduced_over(self, number: int, tensor: Tensor, reading: Sequence[Value], dims: Sequence[int]) -> Value:
        value = reading[0]
        rows = [k for k in range(len(value.shape)) if k not in dims]
        expression = self.expression(number, Tensor(tensor.dtype, value.shape, value.strides), reading)
        kept = range(len(tensor.shape)) if len(tensor.shape) == len(value.shape) else rows
        made = self.whole(number, tensor)
        filled = _filled(expression, tensor.shape, kept, dims)
        is_result = len(self.nodes[number].outputs) == 1 and self.bases[number] != "mean"
        made.storage.at = self.settle(made.storage, filled) if is_result else filled
        self.loop(expression, number, rows, list(dims), (made.storage.buffer,), made)
        return made

    def scaled(self, number: int, node: Node, value: Value) -> Value:
        """A sum divided by its count: for whoever reads it."""
        tensor = Tensor(node.outputs[0].dtype, value.shape, value.strides)
        storage = self.expression(number, tensor, [value])
        return Value(storage, storage.shape, storage.strides)

    def unrolled(self, number: int, tensor: Tensor, value: Value, dims: Sequence[int]) -> Value:
        storage = Storage(number, tensor)
        for source, tag, read in self.seen(value, value.shape):
            if read is None:
                storage.reads[(source, tag, None)] = None
                continue
            kept: list[Dim] = [read[k] for k in range(len(read)) if k not in dims]
            if len(tensor.shape) == len(value.shape):
                kept = [((1, 0),) if k in dims else read[k] for k in range(len(read))]
            for offset in _offsets([read[k] for k in dims]):
                storage.reads[(source, tag if offset == 0 else ("at", offset, tag), tuple(kept))] = None
        storage.parts = frozenset({number}) | (value.storage.parts if value.storage.buffer is None else frozenset())
        storage.steps = value.storage.steps + 1
        storage.heavy = value.storage.heavy and value.storage.buffer is None
        return Value(storage, storage.shape, storage.strides)


def _offsets(dims: Sequence[Dim]) -> list[int]:
    """Where in the buffer the elements are that a reduction which is written out reads, for each that it makes."""
    found = [0]
    for dim in dims:
        for size, stride in dim:
            found = [at + k * stride for at in found for k in range(size)]
    return found


def _filled(expression: Storage, shape: Sequence[int], kept: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """The strides of what a reduction makes, by the order in which it reads; its dimensions are `kept` of what it reads."""
    steps = [[0 if k in dims else step(read[k]) for k in kept] for _, _, read in expression.reads if read is not None]
    return dense(shape, innermost_first(steps, shape)) if steps else contiguous(shape)


def missing(shape: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of `shape` that are 1 in `result`, or not there: the last ones, where several are alike."""
    if len(shape) == len(result):
        return tuple(k for k in range(len(shape)) if shape[k] != result[k])
    found, at = [], 0
    for k, size in enumerate(shape):
        if at < len(result) and result[at] == size:
            at += 1
        else:
            found.append(k)
    return tuple(found)
