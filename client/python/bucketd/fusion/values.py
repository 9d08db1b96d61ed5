"""What values stand on while a graph is lowered: buffers, or expressions over buffers, which every reader computes again; and the
loops that write buffers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from ..graph import ITEM_SIZE, Node, Tensor
from ..memory import base_name
from .access import Access, Dim, contiguous, dense, innermost_first, merged, normal, step, through_view
from .operators import HEAVY

# Torch 2.13's limit on how long an expression gets before others share its value (torch._inductor.config), for CPUs and for others.
_STEPS_TO_SHARE = {True: 50, False: 30}

Read = tuple[int, object, tuple[Dim, ...] | None]  # of a buffer: which part of it, and the elements by dimensions, if they are known


def strides_of(tensor: Tensor) -> tuple[int, ...]:
    """As the graph states them; of a buffer in order where it does not."""
    known = tensor.stride is not None and len(tensor.stride) == len(tensor.shape)
    return tuple(tensor.stride) if known else contiguous(tensor.shape)


class Storage:
    """What a value and its views stand on. `strides` are the graph's: by them views are told. `at` are Inductor's, in the buffer."""

    __slots__ = (
        "at", "buffer", "dtype", "heavy", "is_constant", "is_free", "node", "part_of", "parts", "reads", "shape", "steps", "strides"
    )  # fmt: skip

    def __init__(self, node: int, tensor: Tensor):
        self.node = node
        self.shape = tensor.shape
        self.strides = strides_of(tensor)
        self.dtype = tensor.dtype
        self.buffer: int | None = None
        self.at = self.strides
        self.is_free = False  # a buffer whose place nobody has asked for yet
        self.is_constant = False  # a buffer that is made of nothing: whoever reads it computes it again
        self.part_of: int | None = None  # the cat in whose place it stands
        self.reads: dict[Read, None] = {}
        self.parts: frozenset[int] = frozenset()  # nodes that are computed in it
        self.steps = 0
        self.heavy = False

    def own(self) -> tuple[Dim, ...]:
        return tuple(((size, stride),) for size, stride in zip(self.shape, self.at, strict=True))


@dataclasses.dataclass(slots=True)
class Value:
    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    part: object = None  # a view of a part: which one

    @property
    def is_whole(self) -> bool:
        return self.shape == self.storage.shape and self.strides == self.storage.strides


@dataclasses.dataclass(slots=True)
class Loop:
    """Computes one buffer, or is a call. `reads` are of buffers, with the elements that they are of."""

    node: int
    outer: tuple[int, ...]  # sizes of the loops
    inner: tuple[int, ...]  # sizes of the loops inside them, which reduce; none: an elementwise loop
    shape: tuple[int, ...]  # of what it computes
    reads: dict[int, list[Access | object]]
    writes: tuple[int, ...]
    written: Access  # of the elements that it writes
    parts: frozenset[int]
    is_call: bool = False
    is_barrier: bool = False  # its writes are no plain writes of its own loop: others have to wait for them
    costs: bool = True


@dataclasses.dataclass(slots=True)
class Lowered:
    loops: list[Loop]
    bytes: dict[int, int]  # of each buffer
    items: dict[int, int]  # bytes of one element
    outputs: set[int]  # buffers that leave the graph
    readers: dict[int, list[int]]  # of each buffer, loops by position


class Buffers:
    """Values, and the buffers and loops that they are made of. Who lowers nodes says where a buffer's elements go (`place`)."""

    def __init__(self, nodes: Sequence[Node], cpu: bool) -> None:
        self.nodes, self.cpu = nodes, cpu
        self.bases = [base_name(node.op) for node in nodes]
        self.users: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for source in dict.fromkeys(node.inputs):
                self.users[source].append(number)
        self.values: dict[int, list[Value | None]] = {}
        self.loops: list[Loop] = []
        self.kept: set[int] = set()  # buffers that others see: they are written whether or not a loop reads them
        self.bytes: dict[int, int] = {}
        self.items: dict[int, int] = {}

    def place(self, storage: Storage) -> tuple[int, ...]:
        raise NotImplementedError

    def lowered(self, outputs: set[int]) -> Lowered:
        """Without loops that nobody reads."""
        needed, kept = set(outputs), []
        for loop in reversed(self.loops):
            if loop.is_call or not needed.isdisjoint(loop.writes):
                needed.update(loop.reads)
                kept.append(loop)
        kept.reverse()
        readers: dict[int, list[int]] = {}
        for place, loop in enumerate(kept):
            for buffer in loop.reads:
                readers.setdefault(buffer, []).append(place)
        return Lowered(kept, self.bytes, self.items, outputs, readers)

    def buffer(self, storage: Storage) -> int:
        made = len(self.bytes)
        self.bytes[made] = math.prod(storage.shape) * ITEM_SIZE[storage.dtype]
        self.items[made] = ITEM_SIZE[storage.dtype]
        return made

    def whole(self, number: int, tensor: Tensor, at: Sequence[int] | None = None) -> Value:
        """A value on a new storage, which is a buffer."""
        storage = Storage(number, tensor)
        storage.at = tuple(at) if at is not None else storage.strides
        storage.buffer = self.buffer(storage)
        return Value(storage, storage.shape, storage.strides)

    def realize(self, storage: Storage, at: Sequence[int] | None = None) -> int:
        """The buffer of a storage, which is made if there is none yet: with strides `at`, else where its readers want it."""
        if storage.buffer is None:
            storage.at = tuple(at) if at is not None else self.place(storage)
            storage.buffer = self.buffer(storage)
            self.loop(storage, storage.node, range(len(storage.shape)), (), (storage.buffer,))
            storage.is_constant = not storage.reads
            storage.reads, storage.parts = {}, frozenset()
        return storage.buffer

    def filled(self, storage: Storage) -> tuple[int, ...]:
        """The strides of a buffer that is written in the order in which most of its reads run."""
        steps = [[step(dim) for dim in dims] for _, _, dims in storage.reads if dims is not None]
        return dense(storage.shape, innermost_first(steps, storage.shape)) if steps else contiguous(storage.shape)

    def loop(self, storage: Storage, node: int, rows: Sequence[int], columns: Sequence[int], writes: tuple[int, ...],
             made: Value | None = None) -> Loop:
        """Loops over the dimensions `rows` of an expression and, inside them, over `columns`, which are reduced to `made`."""
        known = [dims for _, _, dims in storage.reads if dims is not None]
        steps = [[step(dim) for dim in dims] for dims in known]
        own = storage.at if made is None else _spread(made.storage.at, len(storage.shape), columns)
        rows = self.ordered(rows, [own, *steps], storage.shape)
        columns = self.ordered(columns, steps, storage.shape)
        order = [*rows, *columns]
        reads: dict[int, list] = {}
        for source, tag, dims in storage.reads:
            access = (tag, None if dims is None or is_indirect(dims) else normal([dims[k] for k in order]))
            if access not in reads.setdefault(source, []):
                reads[source].append(access)
        wrote = [((storage.shape[k], own[k]),) for k in rows]
        outer = [[read[k] for k in rows] for read in known] + [wrote]
        sizes = merged(outer, [storage.shape[k] for k in rows])
        inner = merged([[read[k] for k in columns] for read in known], [storage.shape[k] for k in columns])
        self.loops.append(Loop(node, sizes, inner, storage.shape if made is None else made.shape, reads, writes, normal(wrote),
                               storage.parts, costs=math.prod(storage.shape) > 0))
        return self.loops[-1]

    @staticmethod
    def ordered(dims: Sequence[int], steps: Sequence[Sequence[int]], shape: Sequence[int]) -> list[int]:
        """`dims` as loops, the outermost first: by what most accesses step over."""
        if len(dims) < 2:
            return list(dims)
        innermost = innermost_first([[each[k] for k in dims] for each in steps] or [[0] * len(dims)], [shape[k] for k in dims])
        return [dims[k] for k in reversed(innermost)]

    def inputs(self, node: Node) -> list[Value]:
        return [value for source in dict.fromkeys(node.inputs) for value in self.values.get(source, ())[:1] if value is not None]

    def seen(self, value: Value, shape: Sequence[int]) -> list[Read]:
        """The reads of an expression of `shape` that reads `value`, which may have to be broadcast to it."""
        storage = value.storage
        if 0 in value.shape:
            return []
        if storage.buffer is None and math.prod(shape) > math.prod(value.shape) and self.too_heavy(storage):
            self.realize(storage)
        is_read = storage.buffer is not None and not storage.is_constant
        own = {(storage.buffer, None, storage.own()): None} if is_read else storage.reads
        found = []
        for source, tag, read in own:
            whole = value.is_whole or read is None
            dims = read if whole else through_view(value.shape, value.strides, storage.shape, storage.strides, read)
            tag = value.part if tag is None else (value.part, tag) if value.part is not None else tag
            if dims is None:
                found.append((source, ("of", storage.node, value.strides), None))
                continue
            lead = len(shape) - len(dims)
            if lead < 0 or any(n not in (1, shape[lead + k]) for k, n in enumerate(value.shape)):
                found.append((source, ("in", value.shape), None))
                continue
            spread = [((shape[k], 0),) for k in range(lead)]
            spread += [((shape[lead + k], 0),) if value.shape[k] == 1 else dims[k] for k in range(len(dims))]
            found.append((source, tag, tuple(spread)))
        return found

    @staticmethod
    def is_costly(storage: Storage) -> bool:
        """Whether it reads more than one element at an index that changes: if so, who has to have a buffer gets it at once."""
        loads = 0
        for _, _, dims in storage.reads:
            loads += dims is None or any(stride and size > 1 for dim in dims for size, stride in dim)
        return loads > 1

    def too_heavy(self, storage: Storage) -> bool:
        return self.cpu and storage.heavy or storage.steps > _STEPS_TO_SHARE[self.cpu]

    def expression(self, number: int, tensor: Tensor, reading: Sequence[Value],
                   reads: Mapping[int, Sequence[Read]] | None = None) -> Storage:
        """Of the values in `reading`; `reads`: how those at some places of it are read, where that is not one by one."""
        storage = Storage(number, tensor)
        parts = {number}
        steps = 1
        for place, value in enumerate(reading):
            found = (reads or {}).get(place)
            storage.reads.update(dict.fromkeys(self.seen(value, storage.shape) if found is None else found))
            if value.storage.buffer is None:
                parts |= value.storage.parts
                steps += value.storage.steps
                storage.heavy |= value.storage.heavy
        storage.parts = frozenset(parts)
        storage.steps = min(steps, 2 * len(parts)) + len(storage.reads)
        storage.heavy |= self.bases[number] in HEAVY
        return storage


def is_indirect(dims: Sequence[Dim]) -> bool:
    """Whether elements are read at indices that are read: negative strides are such."""
    return any(stride < 0 for dim in dims for _, stride in dim)


def _spread(strides: Sequence[int], rank: int, columns: Sequence[int]) -> list[int]:
    """The strides of what a reduction writes, by the dimensions of what it reads."""
    if len(strides) == rank:
        return [0 if k in columns else strides[k] for k in range(rank)]
    kept = iter(strides)
    return [0 if k in columns else next(kept, 0) for k in range(rank)]
