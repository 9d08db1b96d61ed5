"""Which elements of a buffer a loop reads, as sizes and strides: what tells whether two loops read the same ones.

A dimension of a value is a list of factors (size, stride), the outermost first; most have one, a flattened transposed tensor has
several. A stride is counted in elements of the buffer that is read.
"""

from __future__ import annotations

from collections.abc import Sequence

Factor = tuple[int, int]
Dim = tuple[Factor, ...]
Access = tuple[Factor, ...]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


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
    if step == 1:
        kept: list[Factor] = []
        for size, stride in reversed(dim):
            if count == 1:
                break
            if count % size and size % count:
                return None
            kept.insert(0, (min(size, count), stride))
            count = max(1, count // size)
        return tuple(kept) or ((1, 0),)
    return None


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
