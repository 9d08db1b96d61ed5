"""Graphs for a planner that need no model: layers of sharded parameters, each gathered and used."""

from __future__ import annotations

from small_graphs import Maker

from bucketd import canonical, wire
from bucketd._wire.proto import planner_pb2
from bucketd.graph import Direction, DType, Role, Tag

MESH = planner_pb2.Mesh(dims=[planner_pb2.MeshDim(name="dp", size=4)], device_type="cpu")


def layers(width: int = 8, count: int = 2):
    """Two parameters a layer, gathered one by one and used in turn."""
    make = Maker()
    parameters = [f"layers.{layer}.{part}" for layer in range(count) for part in ("up", "down")]
    shards = []
    for name in parameters:
        shards.append(make.placeholder((width,), DType.BF16))
        make.nodes[-1].role, make.nodes[-1].parameter = Role.PARAMETER, name
    x = make.placeholder((4 * width,), DType.BF16)
    for name, shard in zip(parameters, shards):
        start = make.gather(shard)
        make.nodes[start].collective.tag, make.nodes[start].collective.parameter = Tag.FSDP_ALL_GATHER, name
        x = make.call(x, make.wait(start), op="aten.mm.default", shape=(4 * width,), dtype=DType.BF16, flags=2,
                      flops=10**9)
    graph = make.done(x)
    graph.groups.pop()
    for node in graph.nodes:
        node.direction, node.module = Direction.FORWARD, "layers"
    return graph


def options(**changes):
    return planner_pb2.PlanOptions(**{**dict(mode="transformer_block", backend="gloo"), **changes})


def ask(to, graph, made_of=options(), **more):
    return to.get_plan(wire.to_proto(graph), canonical.digest(graph), MESH, made_of, **{**dict(deadline=30), **more})
