"""Where Inductor puts the elements of a buffer, if not in the order in which it reads: images of a graph that has convolutions keep
their channels innermost, views and outputs take a buffer as the graph has it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph import VIEW, NodeKind, Tensor
from .access import Dim, channels_last, contiguous, dense, is_channels_last
from .values import Buffers, Storage, Value

_RESHAPES = frozenset({"view", "reshape", "_unsafe_view"})
_ENDS = frozenset({"bmm"})  # whose operands are no images, even in front of a convolution


class Layouts(Buffers):
    """Buffers of a graph, with the strides that their readers ask for."""

    def __init__(self, nodes, cpu) -> None:
        super().__init__(nodes, cpu)
        self.now = 0  # the node that is lowered
        self.convolves = any(base == "convolution" for base in self.bases)
        self.images = self._images() if self.convolves else frozenset()

    def _images(self) -> frozenset[int]:
        """Nodes that come before a convolution, and their readers before the last one: their channels are innermost."""
        last = max(number for number, base in enumerate(self.bases) if base == "convolution")
        found: set[int] = set()
        for number in range(len(self.nodes) - 1, -1, -1):
            base = self.bases[number]
            if base == "convolution" or base not in _ENDS and not found.isdisjoint(self.users[number]):
                found.add(number)
        for number in range(last):
            if number in found:
                found.update(user for user in self.users[number] if self.bases[user] not in _ENDS)
        return frozenset(found)

    def image(self, number: int) -> tuple[int, ...] | None:
        """The strides of a node's value, if it is one of the images."""
        tensor = self.nodes[number].outputs[0] if self.nodes[number].outputs else None
        return channels_last(tensor.shape) if number in self.images and len(tensor.shape) == 4 and _is_dense(tensor) else None

    def asked(self, number: int) -> tuple[int | None, tuple[int, ...] | None]:
        """The first reader of a node's value that asks for strides, and what it asks for; None: the buffer is written as it is read."""
        tensor = self.nodes[number].outputs[0]
        for user in self.users[number]:
            if self.nodes[user].kind == NodeKind.OUTPUT or self.bases[user] == "as_strided":
                return user, self.image(number) or tensor.stride
        for user in self.users[number]:
            base = self.bases[user]
            if user <= self.now:
                continue
            if base == "cat":
                whole = self.nodes[user].outputs[0]
                return user, contiguous(whole.shape) if whole.dtype == tensor.dtype and not self.convolves else None
            if base in _RESHAPES:
                return user, contiguous(tensor.shape)
            if self.nodes[user].flags & VIEW:
                return user, None
            if self.convolves and base == "convolution" and len(tensor.shape) == 4:
                return user, channels_last(tensor.shape)
        return None, None

    def settle(self, storage: Storage, filled: tuple[int, ...]) -> tuple[int, ...]:
        """The strides of a buffer that would be written with strides `filled`."""
        user, strides = self.asked(storage.node) if self.nodes[storage.node].outputs else (None, None)
        if strides is not None and len(strides) == len(storage.shape):
            storage.part_of = user if self.bases[user] == "cat" else None
            return tuple(strides)
        storage.is_free = True
        return filled

    def place(self, storage: Storage) -> tuple[int, ...]:
        return self.settle(storage, self.filled(storage))

    def copied(self, number: int, value: Value, strides: Sequence[int]) -> Value:
        copy = Storage(number, Tensor(value.storage.dtype, value.shape, strides))
        copy.reads = dict.fromkeys(self.seen(value, value.shape))
        copy.parts = frozenset({number}) | value.storage.parts
        self.realize(copy, strides)
        return Value(copy, copy.shape, copy.strides)

    def standing_alone(self, value: Value) -> Value:
        """What a collective or another's kernel reads: a view of an expression is computed as the view has it, for that reader alone."""
        return value if value.storage.buffer is not None or value.is_whole else self.computed(value)

    def packed(self, value: Value) -> Value:
        """What a collective reads, which wants its elements in order."""
        value = self.standing_alone(value)
        read = self.elements(value)
        return value if read is None or _is_in_order(value, read, range(len(read) - 1, -1, -1)) else self.computed(value)

    def computed(self, value: Value) -> Value:
        return self.copied(value.storage.node, value, contiguous(value.shape))

    def with_channels_last(self, number: int, value: Value) -> Value:
        """What a convolution of images reads: a copy, where channels are not the innermost."""
        if len(value.shape) != 4 or math.prod(value.shape) < 2:
            return value
        if value.storage.buffer is None and value.is_whole:
            self.realize(value.storage, channels_last(value.shape))
        read = self.elements(value)
        return value if read is not None and is_channels_last(read) else self.copied(number, value, channels_last(value.shape))

    def has_channels_last(self, value: Value) -> bool:
        """Whether a buffer's channels are innermost, and not by having one row of one element alone."""
        read = self.elements(value)
        return read is not None and is_channels_last(read) and value.shape[1] > 1 and math.prod(value.shape[2:]) > 1

    def as_it_leaves(self, number: int, value: Value) -> Value:
        """A result of the graph that is one of the images: a copy, if another's kernel has laid it out otherwise."""
        if number not in self.images or self.nodes[number].kind == NodeKind.PLACEHOLDER or len(self.nodes[number].outputs) != 1:
            return value
        leaves = any(self.nodes[user].kind == NodeKind.OUTPUT for user in self.users[number])
        return self.with_channels_last(number, value) if leaves and self.image(number) else value

    def in_order(self, number: int, value: Value, strides: Sequence[int]) -> Value:
        """What a call reads that wants its dimensions in the order of `strides`: a copy, where they are in another."""
        if math.prod(value.shape) < 2:
            return value
        order = sorted(range(len(strides)), key=lambda k: (strides[k], -k))
        if value.storage.buffer is None and value.is_whole:
            self.realize(value.storage, dense(value.shape, order))
        read = self.elements(value)
        return value if read is not None and _is_in_order(value, read, order) else self.copied(number, value, dense(value.shape, order))

    def elements(self, value: Value):
        """By dimensions, the elements of the one buffer that a value is a view of; None: it is computed, or nobody knows."""
        return self.seen(value, value.shape)[0][2] if value.storage.buffer is not None else None


def _is_in_order(value: Value, read: Sequence[Dim], order: Sequence[int]) -> bool:
    """Whether the dimensions of `value`, whose elements are `read`, stand in `order`, the innermost first."""
    steps = [read[k][0][1] if len(read[k]) == 1 else -1 for k in order if value.shape[k] > 1]
    return steps == sorted(steps) and -1 not in steps


def _is_dense(tensor: Tensor) -> bool:
    if tensor.stride is None or len(tensor.stride) != len(tensor.shape):
        return False
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True
