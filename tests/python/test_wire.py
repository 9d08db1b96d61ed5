"""Normalised graphs as bucketd.v1.Graph messages."""

from bucketd import wire
from bucketd._wire.proto import graph_pb2, planner_pb2
from bucketd.canonical import digest
from bucketd.files import load_graph
from bucketd.graph import Collective, Graph, Group, Node, NodeKind, Slot, Tensor
from bucketd.normalize import normalize


def from_proto(message):
    """The inverse of to_proto, for the test alone."""
    text = message.strings
    nodes = []
    for index, m in enumerate(message.nodes):
        node = Node(m.kind, text[m.op], list(m.inputs), [Tensor(t.dtype, tuple(t.shape)) for t in m.outputs])
        node.alias_of, node.mutates, node.flags = list(m.alias_of), list(m.mutates), m.flags
        node.flops, node.memory_bytes, node.direction = m.flops, m.memory_bytes, m.direction
        node.module, node.role, node.parameter, node.index = text[m.module], m.role, text[m.parameter], m.getitem_index
        if m.HasField("collective"):
            c = m.collective
            node.collective = Collective(c.kind, c.group, c.reduce_op, c.tag, text[c.parameter])
        node.slots = [Slot(s.node - 1 if s.node else None, s.kind, text[s.parameter]) for s in m.slots]
        node.name = message.node_names[index] if message.node_names else ""
        nodes.append(node)
    return Graph(message.name, nodes, [Group(g.mesh_dim, g.lane, g.size) for g in message.groups])


def test_a_message_holds_everything_that_the_digest_covers(vectors):
    for path, expected in vectors:
        graph = normalize(load_graph(path)).graph
        message = graph_pb2.Graph.FromString(wire.to_proto(graph).SerializeToString())
        assert message.format_version == 1 and message.strings[0] == ""
        assert len(set(message.strings)) == len(message.strings)
        back = from_proto(message)
        assert digest(back).hex() == expected
        assert [n.name for n in back.nodes] == [n.name for n in graph.nodes]
        assert back.nodes[-1].kind == NodeKind.OUTPUT


def test_without_names_all_ranks_send_the_same_bytes(vectors):
    sent = {}
    for path, _ in vectors:
        graph = normalize(load_graph(path)).graph
        message = wire.to_proto(graph)
        message.ClearField("node_names")
        sent.setdefault(path.name.split(".rank")[0], set()).add(message.SerializeToString(deterministic=True))
    assert sent and all(len(found) == 1 for found in sent.values())


def test_stubs_live_inside_the_package():
    import sys

    assert planner_pb2.__name__ == "bucketd._wire.proto.planner_pb2"
    assert not any(name == "proto" or name.startswith("proto.graph") for name in sys.modules)
