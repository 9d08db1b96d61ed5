"""Canonical encoding and digest of a normalised graph: proto/GRAPH.md §4, version 1."""

from __future__ import annotations

import hashlib

from .graph import Graph, Node, NodeKind

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


def digest(graph: Graph) -> bytes:
    """SHA-256 of the canonical encoding, 32 bytes."""
    return hashlib.sha256(encode(graph)).digest()
