"""What Inductor's lowering makes of a graph: loops that compute one buffer each, and calls of kernels that others wrote.

An elementwise result is no buffer at first: its readers compute it again in their own loops. It becomes one where a call, a
collective or the graph's output needs it, where several read it and computing it again costs too much, and where an expression has
grown too large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..graph import COMPUTE, ITEM_SIZE, POINTWISE, VIEW, Node, NodeKind, Tensor
from ..memory import base_name
from .access import Access, Dim, contiguous, merged, normal, numel, through_view
from .operators import ELEMENTWISE, FILLS, HEAVY, INDIRECT, REDUCTIONS, SCATTERS

# Torch 2.13's limits (torch._inductor.config), for CPUs and for others.
_READS_TO_SHARE = 4
_READS_TO_GROW = {True: 12, False: 8}
_STEPS_TO_SHARE = {True: 50, False: 30}
_STEPS_TO_GROW = 100
_TWO_STEPS = 1024  # elements of a row whose variance is taken in two passes
_UNROLLED = 8  # a reduction over fewer elements is written out


class Storage:
    """What a value and its views stand on: a buffer, or an expression over buffers."""

    __slots__ = ("at", "buffer", "heavy", "node", "parts", "reads", "shape", "steps", "strides", "dtype")

    def __init__(self, node: int, tensor: Tensor):
        self.node = node
        self.shape = tensor.shape
        known = tensor.stride is not None and len(tensor.stride) == len(tensor.shape)
        self.strides = tuple(tensor.stride) if known else contiguous(tensor.shape)
        self.dtype = tensor.dtype
        self.buffer: int | None = None
        self.at = self.strides  # in the buffer, which may be a part of a larger one
        self.reads: dict[tuple[int, object, tuple[Dim, ...]], None] = {}
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
    readers: dict[int, set[int]]  # of each buffer, loops by position


def lower(nodes: Sequence[Node], reduced: Mapping[int, tuple[int, ...]], cpu: bool = True) -> Lowered:
    """`reduced`: the dimensions that a reduction sums over, by node, where they are known."""
    return _Lowering(nodes, reduced, cpu).run()


class _Lowering:
    def __init__(self, nodes, reduced, cpu) -> None:
        self.nodes, self.reduced, self.cpu = nodes, reduced, cpu
        self.users: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for source in dict.fromkeys(node.inputs):
                self.users[source].append(number)
        self.values: dict[int, list[Value | None]] = {}
        self.loops: list[Loop] = []
        self.bytes: dict[int, int] = {}
        self.items: dict[int, int] = {}

    def run(self) -> Lowered:
        outputs: set[int] = set()
        for number, node in enumerate(self.nodes):
            if node.kind == NodeKind.OUTPUT:
                for source in dict.fromkeys(node.inputs):
                    for value in self.values.get(source, ()):
                        if value is not None:
                            outputs.add(self.realize(value.storage))
                continue
            self.values[number] = self.made(number, node)
            self.share(number)
        return self.alive(outputs)

    def alive(self, outputs: set[int]) -> Lowered:
        """Without loops that nobody reads."""
        needed, kept = set(outputs), []
        for loop in reversed(self.loops):
            if loop.is_call or not needed.isdisjoint(loop.writes):
                needed.update(loop.reads)
                kept.append(loop)
        kept.reverse()
        readers: dict[int, set[int]] = {}
        for place, loop in enumerate(kept):
            for buffer in loop.reads:
                readers.setdefault(buffer, set()).add(place)
        return Lowered(kept, self.bytes, self.items, outputs, readers)

    # -- values and buffers

    def buffer(self, storage: Storage) -> int:
        made = len(self.bytes)
        self.bytes[made] = numel(storage.shape) * ITEM_SIZE[storage.dtype]
        self.items[made] = ITEM_SIZE[storage.dtype]
        return made

    def whole(self, number: int, tensor: Tensor) -> Value:
        """A value on a new storage, which is a buffer."""
        storage = Storage(number, tensor)
        storage.buffer = self.buffer(storage)
        return Value(storage, storage.shape, storage.strides)

    def realize(self, storage: Storage) -> int:
        if storage.buffer is None:
            storage.buffer = self.buffer(storage)
            order = sorted(range(len(storage.shape)), key=lambda k: (-storage.strides[k], k))
            self.loop(storage, storage.node, order, len(order), (storage.buffer,))
            storage.reads, storage.parts = {}, frozenset()
        return storage.buffer

    def loop(self, storage: Storage, node: int, order: Sequence[int], outer: int, writes: tuple[int, ...]) -> Loop:
        """Loops over the dimensions of an expression in `order`, of which those behind the first `outer` are reduced."""
        reads: dict[int, list] = {}
        ordered = []
        for source, tag, dims in storage.reads:
            if dims is not None:
                dims = [dims[k] for k in order]
                ordered.append(dims)
            access = (tag, None if dims is None or _is_indirect(dims) else normal(dims))
            if access not in reads.setdefault(source, []):
                reads[source].append(access)
        sizes = [storage.shape[k] for k in order]
        made = [((storage.shape[k], storage.at[k]),) for k in order[:outer]]
        if writes_whole := outer == len(order):
            ordered.append(made)
        rows = merged([read[:outer] for read in ordered], sizes[:outer])
        columns = merged([read[outer:] for read in ordered], sizes[outer:])
        written = normal(made) if writes_whole else _all(numel(rows))
        loop = Loop(node, rows, columns, storage.shape, reads, writes, written, storage.parts, costs=numel(storage.shape) > 0)
        self.loops.append(loop)
        return self.loops[-1]

    def inputs(self, node: Node) -> list[Value]:
        return [value for source in dict.fromkeys(node.inputs) for value in self.values.get(source, ())[:1] if value is not None]

    def seen(self, value: Value, shape: Sequence[int]) -> list[tuple[int, object, tuple[Dim, ...] | None]]:
        """The reads of an expression of `shape` that reads `value`, which may have to be broadcast to it."""
        storage = value.storage
        if storage.buffer is None and numel(shape) > numel(value.shape) and self.too_heavy(storage):
            self.realize(storage)
        own = {(storage.buffer, None, storage.own()): None} if storage.buffer is not None else storage.reads
        found = []
        for source, tag, read in own:
            is_whole = value.shape == storage.shape and value.strides == storage.strides
            dims = read if is_whole or read is None else through_view(value.shape, value.strides, storage.shape, storage.strides, read)
            tag = value.part if value.part is not None else tag
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

    def too_heavy(self, storage: Storage) -> bool:
        return self.cpu and storage.heavy or storage.steps > _STEPS_TO_SHARE[self.cpu]

    def expression(self, number: int, node: Node, tensor: Tensor, reading: Sequence[Value], indirect: bool = False) -> Storage:
        storage = Storage(number, tensor)
        parts = {number}
        steps = 1
        for place, value in enumerate(reading):
            if indirect and place == 0:
                sources = dict.fromkeys(read[0] for read in self.seen(value, value.shape))
                found = [(source, ("at", number), _indirect(storage.shape, value.shape)) for source in sources]
            else:
                found = self.seen(value, storage.shape)
            storage.reads.update(dict.fromkeys(found))
            if value.storage.buffer is None:
                parts |= value.storage.parts
                steps += value.storage.steps
                storage.heavy |= value.storage.heavy
        storage.parts = frozenset(parts)
        storage.steps = min(steps, 2 * len(parts)) + len(storage.reads)
        base = base_name(node.op)
        storage.heavy |= base in HEAVY
        return storage

    def share(self, number: int) -> None:
        """After a node is lowered: whether its value is to be a buffer, by who reads it and how large it has grown."""
        for value in self.values[number]:
            if value is None or value.storage.buffer is not None:
                continue
            storage, users = value.storage, self.users[number]
            sources = len({read[0] for read in storage.reads})
            if len(users) > 1:
                leaves = any(self.nodes[user].kind == NodeKind.OUTPUT for user in users)
                if (leaves and sources) or self.too_heavy(storage) or sources > _READS_TO_SHARE:
                    self.realize(storage)
                    continue
                if len(storage.reads) > 1 and any(self.needs_buffer(user) for user in users):
                    self.realize(storage)
                    continue
            if sources > _READS_TO_GROW[self.cpu] or storage.steps > _STEPS_TO_GROW:
                self.realize(storage)

    def needs_buffer(self, number: int) -> bool:
        node = self.nodes[number]
        return bool(node.flags & COMPUTE) and node.kind == NodeKind.CALL

    # -- nodes

    def made(self, number: int, node: Node) -> list[Value | None]:
        if node.kind in (NodeKind.PLACEHOLDER, NodeKind.GET_ATTR):
            return [self.whole(number, tensor) for tensor in node.outputs]
        if node.kind == NodeKind.GETITEM:
            return self.item(node)
        if node.kind in (NodeKind.COLLECTIVE, NodeKind.WAIT):
            return self.called(number, node, costs=False)
        if not node.outputs:
            return self.called(number, node, costs=False)
        base = base_name(node.op)
        if node.flags & VIEW:
            return self.views(number, node)
        if node.mutates:
            return self.mutated(number, node)
        if base in FILLS:
            return [self.inline(number, node, ())]
        if base in INDIRECT:
            return [self.inline(number, node, self.inputs(node), indirect=True)]
        if base == "inductor_random":
            value = self.inline(number, node, self.inputs(node))
            self.realize(value.storage)
            return [value]
        if base == "cat":
            return self.joined(number, node)
        if base in SCATTERS:
            return self.scattered(number, node)
        if base in REDUCTIONS and node.inputs:
            return self.reduction(number, node)
        if base == "mm" and (user := self.sum_of(number)) is not None and self.product_of(user) == number:
            return [None]
        if base == "convolution" and self.cpu:
            return self.called(number, node, [self.channels_last(number, value) for value in self.inputs(node)])
        if base.startswith("_scaled_dot_product"):
            return self.called(number, node, [self.innermost_last(number, value) for value in self.inputs(node)])
        if (product := self.product_of(number)) is not None:
            made = self.called(product, node, [*self.inputs(self.nodes[product]), *self.inputs(node)])
            self.loops[-1].parts |= {number}
            return made
        if node.flags & POINTWISE or base in ELEMENTWISE:
            return [self.inline(number, node, self.inputs(node))]
        return self.called(number, node)

    def inline(self, number: int, node: Node, reading: Sequence[Value], indirect: bool = False) -> Value:
        storage = self.expression(number, node, node.outputs[0], reading, indirect)
        return Value(storage, storage.shape, storage.strides)

    def item(self, node: Node) -> list[Value | None]:
        held = self.values.get(node.inputs[0], [])
        return [held[node.index]] if node.index < len(held) else [None]

    def views(self, number: int, node: Node) -> list[Value | None]:
        of = next(iter(self.values.get(node.inputs[0], ())), None) if node.inputs else None
        if of is None:
            return [self.whole(number, tensor) for tensor in node.outputs]
        made: list[Value | None] = []
        for place, tensor in enumerate(node.outputs):
            known = tensor.stride is not None and len(tensor.stride) == len(tensor.shape)
            strides = tuple(tensor.stride) if known else contiguous(tensor.shape)
            extent = numel([n for n, s in zip(tensor.shape, strides, strict=True) if s])
            is_part = extent < numel([n for n, s in zip(of.shape, of.strides, strict=True) if s])
            made.append(Value(of.storage, tensor.shape, strides, (number, place) if is_part else of.part))
            grown = numel(tensor.shape) > numel(of.shape)
            if grown and of.storage.buffer is None and self.too_heavy(of.storage):
                self.realize(of.storage)
        return made

    def channels_last(self, number: int, value: Value) -> Value:
        """What a convolution of images reads: a copy, where channels are not the innermost."""
        if len(value.shape) != 4 or value.shape[1] == 1 or value.strides[1] == 1:
            return value
        _, c, h, w = value.shape
        return self.copied(number, value, (c * h * w, 1, w * c, c))

    def innermost_last(self, number: int, value: Value) -> Value:
        """What attention reads: a copy, where the last dimension is not the innermost."""
        if len(value.shape) not in (3, 4) or value.strides[-1] <= min(value.strides):
            return value
        return self.copied(number, value, contiguous(value.shape))

    def copied(self, number: int, value: Value, strides: tuple[int, ...]) -> Value:
        copy = Storage(number, Tensor(value.storage.dtype, value.shape, strides))
        copy.reads = dict.fromkeys(self.seen(value, value.shape))
        copy.parts = frozenset({number}) | value.storage.parts
        return Value(copy, copy.shape, copy.strides)

    def sum_of(self, product: int) -> int | None:
        """The sum that the library call for a matrix product takes along: the only reader, where nothing stands between."""
        users = self.users[product]
        node = self.nodes[users[0]] if len(users) == 1 else None
        if not self.cpu or node is None or node.op != "aten.add.Tensor" or len(node.inputs) != 2 or not node.outputs:
            return None
        if any(len(self.nodes[source].outputs) != 1 or len(self.nodes[source].outputs[0].shape) > 2 for source in node.inputs):
            return None
        made, summed = self.nodes[product].outputs[0], node.outputs[0]
        return users[0] if (made.shape, made.dtype) == (summed.shape, summed.dtype) else None

    def product_of(self, number: int) -> int | None:
        """The matrix product that is taken along with a sum; the second, where both parts are one."""
        products = [source for source in self.nodes[number].inputs if base_name(self.nodes[source].op) == "mm"]
        return next((source for source in reversed(products) if self.sum_of(source) == number), None)

    def called(self, number: int, node: Node, reading: Sequence[Value] | None = None, costs: bool = True) -> list[Value | None]:
        reads: dict[int, list] = {}
        for value in self.inputs(node) if reading is None else reading:
            reads.setdefault(self.realize(value.storage), [None])
        made = [self.whole(number, tensor) for tensor in node.outputs]
        writes = [value.storage.buffer for value in made]
        self.loops.append(Loop(number, (), (), (), reads, tuple(writes), (), frozenset({number}), True, costs=costs))
        return list(made)

    def mutated(self, number: int, node: Node) -> list[Value | None]:
        """Writes into an argument; the result is the argument."""
        target = next(iter(self.values.get(node.mutates[0], ())), None)
        if target is None or base_name(node.op) != "copy_":
            return self.called(number, node)
        reading = [value for value in self.inputs(node) if value.storage is not target.storage]
        value = self.inline(number, node, reading)
        self.realize(value.storage)
        return [value]

    def joined(self, number: int, node: Node) -> list[Value | None]:
        """Each part is written to its place by a loop of its own; the whole costs nothing more."""
        made = self.whole(number, node.outputs[0])
        written, last = [], frozenset({number})
        for source in node.inputs:
            value = next(iter(self.values.get(source, ())), None)
            if value is None:
                continue
            tensor = Tensor(node.outputs[0].dtype, value.shape)
            piece = self.expression(number, node, tensor, [value])
            fresh = value.storage.buffer is None and value.part is None and value.shape == value.storage.shape
            piece.at = made.strides
            self.realize(piece)
            if fresh and len(self.users[source]) > 1 and value.strides == contiguous(value.shape):
                # the others read the part where it stands
                value.storage.buffer, value.storage.at, value.storage.reads = piece.buffer, piece.at, {}
            written.append(piece.buffer)
        reads = {buffer: [None] for buffer in written}
        self.loops.append(Loop(number, (), (), (), reads, (made.storage.buffer,), (), last, True, costs=False))
        return [made]

    def scattered(self, number: int, node: Node) -> list[Value | None]:
        """A copy of what is written into, then a loop over what is written."""
        values = self.inputs(node)
        made = self.whole(number, node.outputs[0])
        same = bool(values) and values[0].shape == node.outputs[0].shape
        start = values[0] if same and base_name(node.op) != "embedding_dense_backward" else None
        rest = values[1:] if start is not None else values
        filled = self.expression(number, node, node.outputs[0], [start] if start is not None else [])
        first = self.realize(filled)
        most = max((value.shape for value in rest), key=numel, default=())
        written = self.expression(number, node, Tensor(node.outputs[0].dtype, most), rest)
        written.reads[(first, ("mutated", number), None)] = None
        self.loop(written, number, range(len(most)), len(most), (made.storage.buffer,)).is_barrier = True
        return [made]

    def reduction(self, number: int, node: Node) -> list[Value | None]:
        value = self.inputs(node)[0]
        dims = self.reduced.get(number)
        if dims is None:
            dims = _missing(value.shape, node.outputs[0].shape)
        inner = numel([value.shape[k] for k in dims])
        outer = numel(value.shape) // max(inner, 1)
        if inner <= 1 or inner < _UNROLLED and outer != 1:
            return [self.unrolled(number, node, tensor, value, dims) for tensor in node.outputs]
        base = base_name(node.op)
        if base == "mean":
            return [self.scaled(number, node, self.reduced_over(number, node.outputs[0], [value], dims))]
        if base != "var_mean":
            return [self.reduced_over(number, tensor, [value], dims) for tensor in node.outputs]
        return list(self.moments(number, node, value, dims))

    def moments(self, number: int, node: Node, value: Value, dims: Sequence[int]) -> tuple[Value, Value]:
        """Variance and mean: the mean first, then what is left without it; of long rows both at once."""
        variance, mean = node.outputs
        rows = numel(variance.shape)
        if not self.cpu or rows == 1 or numel([value.shape[k] for k in dims]) > _TWO_STEPS:
            centre = self.reduced_over(number, mean, [value], dims)
            return self.scaled(number, node, self.reduced_over(number, variance, [value], dims)), centre
        centre = self.scaled(number, node, self.reduced_over(number, mean, [value], dims))
        self.realize(centre.storage)
        kept = tuple(1 if k in dims else size for k, size in enumerate(value.shape))
        steps = contiguous(kept)
        row = Value(centre.storage, kept, steps)
        squares = self.reduced_over(number, variance, [value, row], dims)
        return self.scaled(number, node, squares), centre

    def reduced_over(self, number: int, tensor: Tensor, reading: Sequence[Value], dims: Sequence[int]) -> Value:
        value = reading[0]
        order = sorted((k for k in range(len(value.shape)) if k not in dims), key=lambda k: (-value.strides[k], k))
        rows = len(order)
        order += sorted(dims, key=lambda k: (-value.strides[k], k))
        expression = self.expression(number, self.nodes[number], Tensor(tensor.dtype, value.shape, value.strides), reading)
        made = self.whole(number, tensor)
        self.loop(expression, number, order, rows, (made.storage.buffer,))
        return made

    def scaled(self, number: int, node: Node, value: Value) -> Value:
        """A sum divided by its count: for whoever reads it."""
        tensor = Tensor(node.outputs[0].dtype, value.shape, value.strides)
        storage = self.expression(number, node, tensor, [value])
        return Value(storage, storage.shape, storage.strides)

    def unrolled(self, number: int, node: Node, tensor: Tensor, value: Value, dims) -> Value:
        storage = Storage(number, tensor)
        for source, tag, read in self.seen(value, value.shape):
            if read is None:
                storage.reads[(source, tag, None)] = None
                continue
            kept = [read[k] for k in range(len(read)) if k not in dims]
            if len(tensor.shape) == len(value.shape):
                kept = [((1, 0),) if k in dims else read[k] for k in range(len(read))]
            # One read for each element that is summed: as others read the buffer, none of them is, unless it is the only one.
            summed = numel([value.shape[k] for k in dims])
            tags = [tag] if summed == 1 else [("unrolled", number, tag, k) for k in range(summed)]
            storage.reads.update(dict.fromkeys((source, each, tuple(kept)) for each in tags))
        storage.parts = frozenset({number}) | (value.storage.parts if value.storage.buffer is None else frozenset())
        storage.steps = value.storage.steps + 1
        storage.heavy = value.storage.heavy and value.storage.buffer is None
        return Value(storage, storage.shape, storage.strides)


def _missing(shape: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
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


def _all(count: int) -> Access:
    return ((count, 1),) if count > 1 else ()


def _indirect(shape: Sequence[int], source: Sequence[int]) -> tuple[Dim, ...]:
    """Reads of rows of `source` at indices that are read: what the loops over `shape` know of them. Negative strides are such."""
    lead = len(shape)
    while lead and len(source) > len(shape) - lead + 1 and shape[lead - 1] == source[len(source) - (len(shape) - lead) - 1]:
        lead -= 1
    steps = contiguous(shape[:lead])
    inner = contiguous(shape[lead:])
    dims = [((size, -step),) for size, step in zip(shape[:lead], steps, strict=True)]
    return tuple(dims + [((size, step),) for size, step in zip(shape[lead:], inner, strict=True)])


def _is_indirect(dims: Sequence[Dim]) -> bool:
    return any(stride < 0 for dim in dims for _, stride in dim)
