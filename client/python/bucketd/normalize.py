"""From what one rank captured to what every rank of the mesh has: proto/GRAPH.md §2.

Conditions look at the raw graph; changes are collected and applied in one pass, so the result does not depend on the
order in which collectives are met.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from .graph import POINTWISE, SYMBOLIC, VIEW, CollectiveKind, Graph, Node, NodeKind, RawGraph, Slot, Tensor
from .memory import CASTS, memory_bytes

_FIELDS = operator.attrgetter(*(field.name for field in dataclasses.fields(Node)))  # dataclasses.replace() takes five times as long
_PAD = "aten.constant_pad_nd.default"
_SLICE = "aten.slice.Tensor"
_CAT = "aten.cat.default"


@dataclass(slots=True)
class Normalized:
    graph: Graph
    raw_ids: list[int]  # canonical id -> raw id; -1: inserted, stands for nothing on this rank

    def as_raw(self, raw: RawGraph) -> RawGraph:
        """What files hold of it; `raw` is what it was made of. Normalising it again changes nothing."""
        graph = self.graph
        return dataclasses.replace(
            raw, nodes=graph.nodes, groups=graph.groups, costs=graph.costs, launches=graph.launches, weak_words=graph.weak_words
        )


def normalize(raw: RawGraph) -> Normalized:
    return _Normalizer(raw.nodes).run(raw)


def is_cast(nodes: list[Node], node_id: int) -> bool:
    node = nodes[node_id]
    if node.kind != NodeKind.CALL or node.op not in CASTS or len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    source = nodes[node.inputs[0]]
    if (node.flags | source.flags) & SYMBOLIC:
        return False  # hints are no shapes
    return len(source.outputs) == 1 and source.outputs[0].shape == node.outputs[0].shape


class _Normalizer:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.shapes: dict[int, tuple[int, ...]] = {}  # raw id -> the shape it gets
        self.hanging: dict[int, tuple[int, ...]] = {}  # what hangs below an uneven reduce-scatter: raw id -> the shape that it gets
        self.pad_before: set[int] = set()  # all-gathers in front of which a pad is inserted
        self.slice_after: set[int] = set()  # waits behind which a slice is inserted
        self.users: list[list[int]] = [[] for _ in nodes]
        for node_id, node in enumerate(nodes):
            for source in node.inputs:
                self.users[source].append(node_id)
        self.out: list[Node] = []
        self.raw_ids: list[int] = []
        self.place: list[int] = [-1] * len(nodes)  # raw id -> canonical id of what its readers read; -1: it went
        self.stale: set[int] = set()  # canonical ids of nodes that were inserted or have a new shape

    def run(self, raw: RawGraph) -> Normalized:
        for node_id, node in enumerate(self.nodes):
            if node.kind != NodeKind.COLLECTIVE:
                continue
            if node.collective.kind == CollectiveKind.ALL_GATHER:
                self._gather(node_id)
            elif node.collective.kind == CollectiveKind.REDUCE_SCATTER:
                self._scatter(node_id)
        nodes, raw_ids = self._rebuild()
        return Normalized(Graph(raw.name, nodes, list(raw.groups)), raw_ids)

    def _waits(self, start: int) -> Iterable[int]:
        return (user for user in self.users[start] if self.nodes[user].kind == NodeKind.WAIT)

    def _shape(self, node_id: int) -> tuple[int, ...] | None:
        outputs = self.nodes[node_id].outputs
        return outputs[0].shape if len(outputs) == 1 else None

    def _is_plain(self, start: int) -> bool:
        """Of one input, and static."""
        node = self.nodes[start]
        return len(node.inputs) == 1 and not (node.flags | self.nodes[node.inputs[0]].flags) & SYMBOLIC

    def _gather(self, start: int) -> None:
        nodes = self.nodes
        if not self._is_plain(start):
            return
        at = nodes[start].inputs[0]
        target = self._shape(at)
        chain = []
        padded = nodes[at].op == _PAD and nodes[at].kind == NodeKind.CALL and len(nodes[at].inputs) == 1
        if padded:
            chain.append(at)
            at = nodes[at].inputs[0]
        while is_cast(nodes, at):
            chain.append(at)
            at = nodes[at].inputs[0]
        if nodes[at].kind != NodeKind.PLACEHOLDER or nodes[at].opaque or target is None or self._shape(at) is None:
            return
        if nodes[at].flags & SYMBOLIC:
            return
        if not padded and not any(self._is_cut(wait) for wait in self._waits(start)):
            return
        chain.append(at)
        for member in chain:
            self.shapes[member] = target
        if not padded:
            self.pad_before.add(start)

    def _is_cut(self, wait: int) -> bool:
        """Whether a slice reads the wait and drops rows of its end."""
        whole = self._shape(wait)
        for user in self.users[wait]:
            part = self._shape(user) if self._is_slice(user) else None
            if whole is None or part is None or len(part) != len(whole) or part == whole:
                continue
            if all(p <= w for p, w in zip(part, whole)):
                return True
        return False

    def _is_slice(self, node_id: int) -> bool:
        return self.nodes[node_id].op == _SLICE and not self.nodes[node_id].flags & SYMBOLIC

    def _scatter(self, start: int) -> None:
        nodes = self.nodes
        if not self._is_plain(start):
            return
        cat = nodes[nodes[start].inputs[0]]
        if cat.op != _CAT or not any(nodes[i].op == _PAD for i in cat.inputs):
            return
        target = self._shape(start)
        for wait in self._waits(start):
            slices = [u for u in self.users[wait] if self._is_slice(u)]
            if slices:
                below = list(slices)
                for piece in slices:
                    self.shapes[piece] = target
            else:
                self.slice_after.add(wait)
                below = [wait]
            self._hang(below, target)

    def _hang(self, below: list[int], target: tuple[int, ...]) -> None:
        """`below` and what is computed of it element by element."""
        self.hanging.update(dict.fromkeys(below, target))
        while below:
            for user in self.users[below.pop()]:
                if user not in self.hanging and (is_cast(self.nodes, user) or self._combines(user, target)):
                    self.shapes[user] = self.hanging[user] = target
                    below.append(user)

    def _combines(self, user: int, target: tuple[int, ...]) -> bool:
        """An elementwise call of nothing but such values, as of two gradients of one parameter. It is met once by each of them,
        so by the last one."""
        node = self.nodes[user]
        if node.kind != NodeKind.CALL or not node.flags & POINTWISE or node.flags & SYMBOLIC:
            return False
        return all(self.hanging.get(i) == target and self._shape(i) == self._shape(user) is not None for i in node.inputs)

    def _rebuild(self) -> tuple[list[Node], list[int]]:
        for raw_id, node in enumerate(self.nodes):
            if node.kind == NodeKind.PLACEHOLDER and (node.opaque or not node.outputs):
                continue
            copy = self._copy(node)
            if raw_id in self.pad_before:
                copy.inputs = [self._emit(self._pad(raw_id, copy), -1, True)]
            shape = self.shapes.get(raw_id)
            changed = shape is not None and shape != node.outputs[0].shape
            if shape is not None:  # without strides, as a rank has them whose shape is another
                copy.outputs = [Tensor(node.outputs[0].dtype, shape)]
            self.place[raw_id] = self._emit(copy, raw_id, changed)
            if raw_id in self.slice_after:
                # From here on, whoever reads the wait reads the slice.
                self.place[raw_id] = self._emit(self._slice(node, self.place[raw_id]), -1, True)
        return self.out, self.raw_ids

    def _emit(self, node: Node, raw_id: int, changed: bool) -> int:
        if changed or (self.stale and not self.stale.isdisjoint(node.inputs)):
            node.memory_bytes = memory_bytes(self.out, node, strides=False)
        if changed:
            self.stale.add(len(self.out))
        self.out.append(node)
        self.raw_ids.append(raw_id)
        return len(self.out) - 1

    def _copy(self, node: Node) -> Node:
        copy = Node(*_FIELDS(node))
        copy.inputs, copy.alias_of, copy.mutates = self._ids(node.inputs), self._ids(node.alias_of), self._ids(node.mutates)
        copy.slots = [self._slot(slot) for slot in node.slots]
        return copy

    def _ids(self, raw_ids: list[int]) -> list[int]:
        """Canonical ids, without those of nodes that went."""
        place = self.place
        return [place[i] for i in raw_ids if place[i] >= 0]

    def _slot(self, slot: Slot) -> Slot:
        node = -1 if slot.node is None else self.place[slot.node]
        return Slot(None) if node < 0 else Slot(node, slot.kind, slot.parameter)

    def _pad(self, raw_gather: int, gather: Node) -> Node:
        source = self.nodes[raw_gather].inputs[0]
        shape = Tensor(self.nodes[source].outputs[0].dtype, self.shapes[source])
        return Node(
            NodeKind.CALL, _PAD, list(gather.inputs), [shape], module=gather.module, direction=gather.direction
        )

    @staticmethod
    def _slice(wait: Node, at: int) -> Node:
        shape = Tensor(wait.outputs[0].dtype, wait.outputs[0].shape)
        piece = Node(NodeKind.CALL, _SLICE, [at], [shape], [at], module=wait.module, direction=wait.direction)
        piece.flags = VIEW
        return piece
