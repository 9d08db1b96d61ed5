"""A normalised graph as a bucketd.v1.Graph message."""

from __future__ import annotations

from collections.abc import Callable

from ._wire.proto import graph_pb2
from .graph import Graph, Node, NodeKind

FORMAT_VERSION = 1


def to_proto(graph: Graph) -> graph_pb2.Graph:
    """The same message on every rank but for `node_names`, which are this rank's and not part of the digest."""
    message = graph_pb2.Graph(format_version=FORMAT_VERSION, name=graph.name)
    table = {"": 0}  # text -> its number

    def strings(text: str) -> int:
        return table.setdefault(text, len(table))

    for group in graph.groups:
        message.groups.add(mesh_dim=group.mesh_dim, lane=group.lane, size=group.size)
    add = message.nodes.add
    for node in graph.nodes:
        _fill(add(), node, strings)
    message.strings.extend(table)
    if any(node.name for node in graph.nodes):
        message.node_names.extend(node.name for node in graph.nodes)
    return message


def _fill(out: graph_pb2.Node, node: Node, strings: Callable[[str], int]) -> None:
    out.kind = int(node.kind)
    out.op = strings(node.op)
    out.inputs.extend(node.inputs)
    for tensor in node.outputs:
        out.outputs.add(dtype=int(tensor.dtype), shape=tensor.shape)
    if node.alias_of:
        out.alias_of.extend(node.alias_of)
    if node.mutates:
        out.mutates.extend(node.mutates)
    out.flags = node.flags
    out.flops = node.flops
    out.memory_bytes = node.memory_bytes
    out.direction = int(node.direction)
    out.module = strings(node.module)
    kind = node.kind
    if kind == NodeKind.PLACEHOLDER:
        out.role = int(node.role)
        out.parameter = strings(node.parameter)
    elif kind == NodeKind.GETITEM:
        out.getitem_index = node.index
    elif kind == NodeKind.COLLECTIVE:
        collective = node.collective
        out.collective.kind = int(collective.kind)
        out.collective.group = collective.group
        out.collective.reduce_op = int(collective.reduce_op)
        out.collective.tag = int(collective.tag)
        out.collective.parameter = strings(collective.parameter)
    elif kind == NodeKind.OUTPUT:
        for slot in node.slots:
            out.slots.add(
                node=0 if slot.node is None else slot.node + 1,
                kind=int(slot.kind),
                parameter=strings(slot.parameter),
            )
