"""Canonical encoding and digest of a normalised graph: proto/GRAPH.md §4, version 1."""

from __future__ import annotations

import hashlib

from .graph import Collective, Graph, Group, Node, NodeKind, Slot, Tensor

_MAGIC = b"BKTG\x01"


class _Encoder:
    def __init__(self) -> None:
        self.out = bytearray(_MAGIC)
        self._seen: dict[str, int] = {}

    def varint(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"a negative number, {value}, has no canonical encoding")
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def string(self, text: str) -> None:
        number = self._seen.get(text)
        if number is not None:
            self.varint(1 + number)
            return
        self._seen[text] = len(self._seen)
        data = text.encode("utf-8")
        self.varint(0)
        self.varint(len(data))
        self.out += data

    def back_references(self, node_id: int, ids: list[int]) -> None:
        self.varint(len(ids))
        for other in ids:
            if other >= node_id:
                raise ValueError(f"node {node_id} refers to node {other}, which does not come before it")
            self.varint(node_id - other)

    def node(self, node_id: int, node: Node) -> None:
        out, varint = self.out, self.varint
        out.append(node.kind)
        self.string(node.op)
        self.back_references(node_id, node.inputs)
        varint(len(node.outputs))
        for tensor in node.outputs:
            out.append(tensor.dtype)
            varint(len(tensor.shape))
            for size in tensor.shape:
                varint(size)
        self.back_references(node_id, node.alias_of)
        self.back_references(node_id, node.mutates)
        varint(node.flags)
        varint(node.flops)
        varint(node.memory_bytes)
        out.append(node.direction)
        self.string(node.module)
        kind = node.kind
        if kind == NodeKind.PLACEHOLDER:
            out.append(node.role)
            self.string(node.parameter)
        elif kind == NodeKind.GETITEM:
            varint(node.index)
        elif kind == NodeKind.COLLECTIVE:
            collective = node.collective
            out.append(collective.kind)
            varint(collective.group)
            out.append(collective.reduce_op)
            out.append(collective.tag)
            self.string(collective.parameter)
        elif kind == NodeKind.OUTPUT:
            varint(len(node.slots))
            for slot in node.slots:
                varint(0 if slot.node is None else 1 + slot.node)
                out.append(slot.kind)
                self.string(slot.parameter)


def encode(graph: Graph) -> bytes:
    encoder = _Encoder()
    encoder.varint(len(graph.groups))
    for group in graph.groups:
        encoder.string(group.mesh_dim)
        encoder.varint(group.lane)
        encoder.varint(group.size)
    encoder.varint(len(graph.nodes))
    for node_id, node in enumerate(graph.nodes):
        encoder.node(node_id, node)
    return bytes(encoder.out)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, len(_MAGIC)
        self._seen: list[str] = []

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte <= 0x7F:
                return value

    def string(self) -> str:
        number = self.varint()
        if number == 0:
            size = self.varint()
            self.at += size
            self._seen.append(self.data[self.at - size : self.at].decode())
        return self._seen[number - 1]

    def back_references(self, node_id: int) -> list[int]:
        return [node_id - self.varint() for _ in range(self.varint())]

    def tensor(self) -> Tensor:
        return Tensor(self.byte(), tuple(self.varint() for _ in range(self.varint())))

    def slot(self) -> Slot:
        node, kind, parameter = self.varint() - 1, self.byte(), self.string()
        return Slot(None if node < 0 else node, kind, parameter)

    def node(self, node_id: int) -> Node:
        node = Node(self.byte(), self.string(), self.back_references(node_id))
        node.outputs = [self.tensor() for _ in range(self.varint())]
        node.alias_of, node.mutates = self.back_references(node_id), self.back_references(node_id)
        node.flags, node.flops, node.memory_bytes = self.varint(), self.varint(), self.varint()
        node.direction, node.module = self.byte(), self.string()
        if node.kind == NodeKind.PLACEHOLDER:
            node.role, node.parameter = self.byte(), self.string()
        elif node.kind == NodeKind.GETITEM:
            node.index = self.varint()
        elif node.kind == NodeKind.COLLECTIVE:
            node.collective = Collective(self.byte(), self.varint(), self.byte(), self.byte(), self.string())
        elif node.kind == NodeKind.OUTPUT:
            node.slots = [self.slot() for _ in range(self.varint())]
        return node


def decode(data: bytes) -> Graph:
    """What was encoded, without the names of the graph and its nodes; ValueError for anything else."""
    if not data.startswith(_MAGIC):
        raise ValueError("no canonical encoding of version 1")
    decoder = _Decoder(data)
    try:
        groups = [Group(decoder.string(), decoder.varint(), decoder.varint()) for _ in range(decoder.varint())]
        nodes = [decoder.node(node_id) for node_id in range(decoder.varint())]
    except IndexError:
        raise ValueError(f"a canonical encoding that ends at byte {len(data)}, in the middle") from None
    if decoder.at != len(data):
        raise ValueError(f"{len(data) - decoder.at} bytes behind the end of a canonical encoding")
    return Graph("", nodes, groups)


def digest(graph: Graph) -> bytes:
    """SHA-256 of the canonical encoding, 32 bytes."""
    return hashlib.sha256(encode(graph)).digest()
