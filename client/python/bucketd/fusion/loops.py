"""What Inductor's lowering makes of a graph: loops that compute one buffer each, and calls of kernels that others wrote.

An elementwise result is no buffer at first: its readers compute it again in their own loops. It becomes one where a call, a
collective or the graph's output needs it, where several read it and computing it again costs too much, and where an expression has
grown too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..graph import COMPUTE, POINTWISE, VIEW, DType, Node, NodeKind, Tensor
from .access import Dim, channels_last, contiguous, step
from .operators import ELEMENTWISE, FILLS, INDIRECT, LARGEST_WINDOW, MOVED, REDUCTIONS, RESAMPLED, SCATTERS, WINDOWS
from .reductions import Reductions
from .values import Loop, Lowered, Read, Value, is_indirect, strides_of

# Torch 2.13's limits (torch._inductor.config), for CPUs and for others.
_READS_TO_SHARE = 4
_READS_TO_GROW = {True: 12, False: 8}
_STEPS_TO_GROW = 100
_COMPLEX = frozenset({DType.C64, DType.C128})
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})  # take views as they are


def lower(nodes: Sequence[Node], arguments: Mapping[int, tuple[int, ...]], cpu: bool = True) -> Lowered:
    """`arguments`: what nodes' arguments say that their shapes do not, by node, where it is known: fusion.arguments()."""
    return _Lowering(nodes, arguments, cpu).run()


class _Lowering(Reductions):
    def __init__(self, nodes, arguments, cpu) -> None:
        super().__init__(nodes, cpu)
        self.arguments = arguments

    def run(self) -> Lowered:
        outputs = self.kept
        for number, node in enumerate(self.nodes):
            self.now = number
            if node.kind == NodeKind.OUTPUT:
                for source in dict.fromkeys(node.inputs):
                    for value in self.values.get(source, ()):
                        if value is not None:
                            outputs.add(self.realize(value.storage))
                continue
            self.values[number] = self.made(number, node)
            self.share(number)
        return self.lowered(outputs)

    def share(self, number: int) -> None:
        """After a node is lowered: whether its value is to be a buffer, by who reads it and how large it has grown."""
        for place, value in enumerate(self.values[number]):
            if value is None:
                continue
            if value.storage.buffer is not None:
                self.values[number][place] = self.as_it_leaves(number, value)
                continue
            storage, users, loads = value.storage, self.users[number], len(value.storage.reads)
            if len(users) > 1:
                leaves = any(self.nodes[user].kind == NodeKind.OUTPUT for user in users)
                if leaves and loads:
                    self.realize(storage)
                    continue
                if self.too_heavy(storage) or loads > _READS_TO_SHARE:
                    self.realize(storage, self.image(number))
                    continue
                if self.is_costly(storage) and any(self.needs_buffer(user) for user in users):
                    self.realize(storage)
                    continue
            if loads > _READS_TO_GROW[self.cpu] or storage.steps > _STEPS_TO_GROW:
                self.realize(storage, self.image(number))

    def needs_buffer(self, number: int) -> bool:
        node = self.nodes[number]
        return bool(node.flags & COMPUTE) and node.kind == NodeKind.CALL

    # -- nodes

    def made(self, number: int, node: Node) -> list[Value | None]:
        if node.kind in (NodeKind.PLACEHOLDER, NodeKind.GET_ATTR):
            return [self.whole(number, tensor, self.arguments.get(number)) for tensor in node.outputs]
        if node.kind == NodeKind.GETITEM:
            return self.item(node)
        if node.kind == NodeKind.COLLECTIVE:
            return self.called(number, node, [self.packed(value) for value in self.inputs(node)], costs=False)
        if node.kind == NodeKind.WAIT or not node.outputs:
            return self.called(number, node, costs=False)
        base = self.bases[number]
        if self.is_complex(node):
            return self.called(number, node, [self.standing_alone(value) for value in self.inputs(node)])
        if node.flags & VIEW:
            return self.views(number, node)
        if node.mutates:
            return self.mutated(number, node)
        if base in FILLS:
            return [self.inline(number, node, ())]
        if base == "inductor_random":
            value = self.inline(number, node, self.inputs(node))
            self.realize(value.storage)
            return [value]
        if base == "cat":
            return self.joined(number, node)
        if base in INDIRECT:
            return [self.looked_up(number, node)]
        if base in RESAMPLED or base in WINDOWS and self.arguments.get(number, (9,))[0] <= LARGEST_WINDOW:
            return self.resampled(number, node, self.arguments.get(number, (9,))[0] if base in WINDOWS else 1)
        if base in MOVED:
            return [self.moved(number, node)]
        if base in SCATTERS:
            return self.scattered(number, node)
        if base in REDUCTIONS and node.inputs:
            return self.reduction(number, node, self.arguments.get(number))
        if base in ("convolution", "convolution_backward") and self.cpu:
            return self.convolved(number, node)
        if base == "mm" and (user := self.sum_of(number)) is not None and self.product_of(user) == number:
            return [None]
        if base.startswith("_scaled_dot_product"):
            return self.called(number, node, [self.innermost_last(number, value) for value in self.inputs(node)])
        if (product := self.product_of(number)) is not None:
            made = self.called(product, node, [*self.inputs(self.nodes[product]), *self.inputs(node)])
            self.loops[-1].parts |= {number}
            return made
        if node.flags & POINTWISE or base in ELEMENTWISE:
            return [self.inline(number, node, self.inputs(node))]
        if base in _PRODUCTS:
            return self.called(number, node)
        return self.called(number, node, [self.standing_alone(value) for value in self.inputs(node)])

    def is_complex(self, node: Node) -> bool:
        """Whether a node has to do with complex numbers, of which no loops are written."""
        tensors = [*node.outputs, *(tensor for source in node.inputs for tensor in self.nodes[source].outputs)]
        return any(tensor.dtype in _COMPLEX for tensor in tensors)

    def inline(self, number: int, node: Node, reading: Sequence[Value], reads: Mapping[int, Sequence[Read]] | None = None) -> Value:
        storage = self.expression(number, node.outputs[0], reading, reads)
        return Value(storage, storage.shape, storage.strides)

    def item(self, node: Node) -> list[Value | None]:
        """Of several results, of which a node may lack some: the one at the index, or else the one of its shape."""
        held = self.values.get(node.inputs[0], [])
        shape = node.outputs[0].shape if node.outputs else None
        there = [held[node.index]] if node.index < len(held) else []
        return [next((value for value in [*there, *held] if value is not None and value.shape == shape), None)]

    def views(self, number: int, node: Node) -> list[Value | None]:
        of = next(iter(self.values.get(node.inputs[0], ())), None) if node.inputs else None
        if of is None:
            return [self.whole(number, tensor) for tensor in node.outputs]
        if self.bases[number] == "as_strided":
            self.realize(of.storage)
        of.storage.is_free = False
        made: list[Value | None] = []
        for place, tensor in enumerate(node.outputs):
            strides = strides_of(tensor)
            extent = math.prod([n for n, s in zip(tensor.shape, strides, strict=True) if s])
            is_part = extent < math.prod([n for n, s in zip(of.shape, of.strides, strict=True) if s])
            made.append(Value(of.storage, tensor.shape, strides, (number, place) if is_part else of.part))
            grown = math.prod(tensor.shape) > math.prod(of.shape)
            if grown and of.storage.buffer is None and self.too_heavy(of.storage):
                self.realize(of.storage)
        return made

    def looked_up(self, number: int, node: Node) -> Value:
        """A read at indices that are read."""
        reading = self.inputs(node)
        if not reading:
            return self.inline(number, node, ())
        first = reading[0]
        if self.bases[number] in ("gather", "index_select") and len(first.shape) == len(node.outputs[0].shape):
            found = self.along(number, first, node.outputs[0].shape)
            return self.inline(number, node, reading, {0: found})
        shape = node.outputs[0].shape
        dims = _indirect(shape, first.shape)
        sources = dict.fromkeys(read[0] for read in self.seen(first, first.shape))
        reads: dict[int, list[Read]] = {0: [(source, ("at", number), dims) for source in sources]}
        lead = sum(is_indirect((dim,)) for dim in dims)
        tail: tuple[Dim, ...] = tuple(((size, 0),) for size in shape[lead:])
        for place, value in enumerate(reading[1:], 1):
            reads[place] = [(source, tag, None if at is None else (*at, *tail)) for source, tag, at in self.seen(value, shape[:lead])]
        return self.inline(number, node, reading, reads)

    def along(self, number: int, value: Value, shape: Sequence[int]) -> list[Read]:
        """The reads of `value` at indices of one dimension, the others as they are."""
        given = self.arguments.get(number) or [k for k, size in enumerate(value.shape) if size != shape[k]] or [len(shape) - 1]
        dim, found = given[0], []
        for source, tag, dims in self.seen(value, value.shape):
            if dims is None:
                found.append((source, ("at", number), None))
                continue
            is_known = all(stride == 0 or size == 1 for size, stride in dims[dim])
            there: Dim = ((shape[dim], 0 if is_known else -1),)
            found.append((source, tag if is_known else ("at", number), (*dims[:dim], there, *dims[dim + 1 :])))
        return found

    def moved(self, number: int, node: Node) -> Value:
        """Reads the elements of some dimensions at other places than it writes them, so that loops over them stand by themselves."""
        value, shape = self.inputs(node)[0], node.outputs[0].shape
        dims = self.arguments.get(number, tuple(k for k, size in enumerate(value.shape) if size != shape[k]))
        found: list[Read] = []
        for source, tag, read in self.seen(value, value.shape):
            if read is not None:
                read = tuple(((shape[k], -max(step(dim), 1)),) if k in dims else dim for k, dim in enumerate(read))
            found.append((source, tag, read))
        return self.inline(number, node, [value], {0: found})

    def resampled(self, number: int, node: Node, window: int) -> list[Value | None]:
        """Images that read `window` elements of others for each of theirs, at indices that are computed from theirs."""
        value = self.inputs(node)[0]
        if value.storage.buffer is None and self.is_costly(value.storage):
            self.realize(value.storage)
        made: list[Value | None] = []
        for tensor in node.outputs:
            lead = len(tensor.shape) - 2
            found: list[Read] = []
            for source, tag, dims in self.seen(value, value.shape):
                there = dims
                if dims is not None:
                    resized = zip(tensor.shape[lead:], dims[lead:], strict=True)
                    there = (*dims[:lead], *(((size, step(dim)),) for size, dim in resized))
                found += [(source, ("window", number, at, tag), there) for at in range(window)]
            storage = self.expression(number, tensor, [value], {0: found})
            made.append(Value(storage, storage.shape, storage.strides))
        return made

    def convolved(self, number: int, node: Node) -> list[Value | None]:
        """A call that asks for images and kernels in one order of dimensions."""
        reading = self.inputs(node)
        is_backward = self.bases[number] == "convolution_backward"
        of_tensors = reading[:3] if is_backward else reading[:2]
        is_images = all(len(value.shape) == 4 for value in of_tensors)
        inner = is_images and (self.convolves or is_backward and any(map(self.has_channels_last, of_tensors[1:])))
        if is_images and is_backward and not self.convolves:
            ready = self.convolved_back(number, node, of_tensors, inner)
        elif inner:
            ready = [self.with_channels_last(number, value) for value in of_tensors]
        else:
            ready = [self.in_order(number, value, contiguous(value.shape)) for value in of_tensors]
        made = self.called(number, node, [*ready, *reading[len(ready):]])
        for value in made:
            if inner and value is not None and len(value.shape) == 4:
                value.storage.at = channels_last(value.shape)
        return made

    def convolved_back(self, number: int, node: Node, of_tensors: Sequence[Value], inner: bool) -> list[Value]:
        """Gradient, images and kernels: the gradient as the graph has it, then all in the orders of what is made of them."""
        gradient, images, kernels = of_tensors
        laid_out = channels_last if inner else contiguous
        if number in self.arguments:
            gradient = self.in_order(number, gradient, self.arguments[number])
        order = laid_out(kernels.shape)
        gradient, images = self.in_order(number, gradient, order), self.in_order(number, images, order)
        if node.outputs[0].shape == images.shape:
            order = laid_out(images.shape)
            gradient, kernels = self.in_order(number, gradient, order), self.in_order(number, kernels, order)
        return [gradient, images, kernels]

    def innermost_last(self, number: int, value: Value) -> Value:
        """What attention reads: a copy, where the last dimension is not the innermost."""
        if len(value.shape) not in (3, 4) or value.strides[-1] <= min(value.strides):
            return value
        return self.copied(number, value, contiguous(value.shape))

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
        products = [source for source in self.nodes[number].inputs if self.bases[source] == "mm"]
        return next((source for source in reversed(products) if self.sum_of(source) == number), None)

    def called(self, number: int, node: Node, reading: Sequence[Value] | None = None, costs: bool = True) -> list[Value | None]:
        reads: dict[int, list] = {}
        for value in self.inputs(node) if reading is None else reading:
            reads.setdefault(self.realize(value.storage), [None])
        made = [self.whole(number, tensor) for tensor in node.outputs]
        writes = tuple(value.storage.buffer for value in made)
        self.loops.append(Loop(number, (), (), (), reads, writes, (), frozenset({number}), True, costs=costs))
        return list(made)

    def mutated(self, number: int, node: Node) -> list[Value | None]:
        """Writes into an argument; the result is the argument. What is copied is a buffer first."""
        target = next(iter(self.values.get(node.mutates[0], ())), None)
        if target is None or self.bases[number] != "copy_":
            return self.called(number, node)
        reading = [value for value in self.inputs(node) if value.storage is not target.storage]
        for value in reading:
            if value.is_whole:
                self.realize(value.storage)
        value = self.inline(number, node, reading)
        self.kept.add(self.realize(value.storage, target.storage.at if target.is_whole else None))
        return [value]

    def joined(self, number: int, node: Node) -> list[Value | None]:
        """Each part is written to its place by a loop of its own; the whole costs nothing more."""
        tensor = node.outputs[0]
        parts = [next(iter(self.values.get(source, ())), None) for source in self.pieces(number, node)]
        made = self.whole(number, tensor, self.joined_strides(number, [value for value in parts if value is not None], tensor))
        written = [self.put(number, value, made) for value in parts if value is not None]
        reads: dict[int, list] = {buffer: [None] for buffer in written}
        self.loops.append(Loop(number, (), (), (), reads, (made.storage.buffer,), (), frozenset({number}), True, costs=False))
        return [made]

    def pieces(self, number: int, node: Node) -> list[int]:
        """The nodes that a cat joins: some several times."""
        given = self.arguments.get(number, ())
        return [node.inputs[place] for place in given] if given and max(given) < len(node.inputs) else list(node.inputs)

    def joined_strides(self, number: int, parts: Sequence[Value], tensor: Tensor) -> tuple[int, ...]:
        if len(tensor.shape) == 4:
            buffers = [value for value in parts if value.storage.buffer is not None]
            for value in buffers:
                fixed = value.is_whole and not value.storage.is_free
                if fixed and value.storage.at == channels_last(value.shape):
                    return channels_last(tensor.shape)
        return contiguous(tensor.shape)

    def put(self, number: int, value: Value, whole: Value) -> int:
        """Writes a part into the whole; whoever else reads the part then reads it there, if it is a value of its own."""
        storage = value.storage
        is_same = value.is_whole and value.part is None and storage.dtype == whole.storage.dtype
        if is_same and storage.buffer is not None and storage.part_of == number and storage.at == whole.storage.at:
            storage.part_of = None
            return storage.buffer
        if is_same and storage.buffer is not None and storage.is_free:
            storage.at, storage.is_free = whole.storage.at, False
            return storage.buffer
        piece = self.expression(number, Tensor(whole.storage.dtype, value.shape), [value])
        is_own = is_same and storage.buffer is None
        self.realize(piece, whole.storage.at)
        if is_own:
            storage.buffer, storage.at, storage.reads, storage.is_constant = piece.buffer, piece.at, {}, piece.is_constant
        return piece.buffer

    def scattered(self, number: int, node: Node) -> list[Value | None]:
        """A copy of what is written into, then a loop over what is written."""
        values = self.inputs(node)
        made = self.whole(number, node.outputs[0])
        same = bool(values) and values[0].shape == node.outputs[0].shape
        start = values[0] if same and self.bases[number] != "embedding_dense_backward" else None
        rest = values[1:] if start is not None else values
        filled = self.expression(number, node.outputs[0], [start] if start is not None else [])
        first = self.realize(filled, made.storage.at)
        most = max((value.shape for value in rest), key=math.prod, default=())
        written = self.expression(number, Tensor(node.outputs[0].dtype, most), rest)
        written.reads[(first, ("mutated", number), None)] = None
        self.loop(written, number, range(len(most)), (), (made.storage.buffer,)).is_barrier = True
        return [made]


def _indirect(shape: Sequence[int], source: Sequence[int]) -> tuple[Dim, ...]:
    """Reads of rows of `source` at indices that are read: what the loops over `shape` know of them. Negative strides are such."""
    lead = len(shape)
    while lead and len(source) > len(shape) - lead + 1 and shape[lead - 1] == source[len(source) - (len(shape) - lead) - 1]:
        lead -= 1
    steps = contiguous(shape[:lead])
    inner = contiguous(shape[lead:])
    dims = [((size, -step),) for size, step in zip(shape[:lead], steps, strict=True)]
    return tuple(dims + [((size, step),) for size, step in zip(shape[lead:], inner, strict=True)])
