"""Which elements of a buffer a loop reads, as sizes and strides: what tells whether two loops read the same ones.

A dimension of a value is a list of factors (size, stride), the outermost first; most have one, a flattened transposed tensor has
several. A stride is counted in elements of the buffer that is read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

Factor = tuple[int, int]
Dim = tuple[Factor, ...]
Access = tuple[Factor, ...]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return dense(shape, range(len(shape) - 1, -1, -1))


def dense(shape: Sequence[int], order: Iterable[int]) -> tuple[int, ...]:
    """Strides of a buffer without holes, the first dimension of `order` innermost."""
    at, stride = [0] * len(shape), 1
    for k in order:
        at[k] = stride
        stride *= max(shape[k], 1)
    return tuple(at)


def through_view(
    shape: Sequence[int], strides: Sequence[int], base_shape: Sequence[int], base_strides: Sequence[int], read: Sequence[Dim]
) -> tuple[Dim, ...] | None:
    """`read`, by the dimensions of a dense base, as the dimensions of a view of the base (both by strides on one storage) see it.

    None where no sizes and strides say it.
    """
    order = sorted((k for k in range(len(base_shape)) if base_shape[k] > 1), key=lambda k: base_strides[k])
    seen = [_dim(size, stride, order, base_shape, base_strides, read) for size, stride in zip(shape, strides, strict=True)]
    return None if None in seen else tuple(seen)


def _dim(size, stride, order, base_shape, base_strides, read) -> Dim | None:
    if size <= 1 or stride == 0:
        return ((size, 0),)
    found: list[Factor] = []
    for k in order:
        reach = base_strides[k] * base_shape[k]
        if stride >= reach:
            continue
        if stride % base_strides[k]:
            return None
        step = stride // base_strides[k]
        count = min(size, -(-base_shape[k] // step))
        part = _part(read[k], step, count)
        if part is None or size % count:
            return None
        found = [*part, *found]
        size //= count
        if size == 1:
            return tuple(found)
        if base_shape[k] % step:
            return None
        stride = reach
    return None


def _part(dim: Dim, step: int, count: int) -> Dim | None:
    """Every `step`th of the first indices of a dimension, `count` of them."""
    if len(dim) == 1:
        return ((count, dim[0][1] * step),)
    kept: list[Factor] = []
    for size, stride in reversed(dim):
        if count == 1:
            break
        if step % size == 0:
            step //= size  # steps over all of them
            continue
        there = size // step
        if size % step or count % there and there % count:
            return None
        kept.insert(0, (min(there, count), stride * step))
        count, step = max(1, count // there), 1
    return tuple(kept) or ((1, 0),)


def normal(dims: Sequence[Dim]) -> Access:
    """Of loops over `dims`: neighbours that are one loop are merged, what the innermost loops read again is left out."""
    merged: list[Factor] = []
    for size, stride in (factor for dim in dims for factor in dim):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    while merged and merged[-1][1] == 0:
        merged.pop()
    return tuple(merged)


def merged(reads: Sequence[Sequence[Dim]], sizes: Sequence[int]) -> tuple[int, ...]:
    """The loops over dimensions of `sizes`, where neighbours are one loop if every read, given by dimensions, takes them so."""
    loops: list[int] = []
    last: int | None = None
    for k, size in enumerate(sizes):
        if size == 1:
            continue
        if last is not None and all(_collapse(read[last], read[k], size) for read in reads):
            loops[-1] *= size
        else:
            loops.append(size)
        last = k
    return tuple(loops)


def _collapse(outer: Dim, inner: Dim, size: int) -> bool:
    if len(inner) == 1:
        return outer[-1][1] == inner[0][1] * size
    return outer[-1][1] == inner[0][1] * inner[0][0]


def step(dim: Dim) -> int:
    """How far apart in the buffer the next element of a dimension is; 0: the same one, or nobody knows."""
    return max(next((stride for size, stride in reversed(dim) if size > 1), 0), 0)


def innermost_first(steps: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[int]:
    """Dimensions in the order in which loops over them run, the innermost first: of two, the one over which more accesses take the
    shorter step, and that of the later dimension if they are as many. `steps`: of each access, by dimension."""

    def compare(one: int, two: int) -> int:
        if sizes[one] == 1 or sizes[two] == 1:
            return (sizes[one] == 1) - (sizes[two] == 1)
        nearer = sum(each[two] == 0 or each[one] < each[two] for each in steps)
        farther = sum(each[one] == 0 or each[two] < each[one] for each in steps)
        return farther - nearer if farther != nearer else two - one

    return sorted(reversed(range(len(sizes))), key=functools.cmp_to_key(compare))


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of images whose channels are the innermost dimension."""
    _, channels, height, width = shape
    return (height * width * channels, 1, width * channels, channels)


def is_channels_last(dims: Sequence[Dim]) -> bool:
    order = [dims[k] for k in (1, 3, 2, 0) if math.prod([size for size, _ in dims[k]]) > 1]
    if any(len(dim) > 1 for dim in order):
        return False
    return all(inner[0][1] <= outer[0][1] for inner, outer in zip(order, order[1:], strict=False))
