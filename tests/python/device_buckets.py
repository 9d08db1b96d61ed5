"""A few buckets, as a graph and its plan, for runners of an executor without a planner."""

import types

from bucketd.graph import Collective, CollectiveKind, DType, Graph, Group, Node, NodeKind, ReduceOp, Tensor
from bucketd.plan import Step, StepKind


def graph_and_plan(ranks: int, group: str = "", lanes: int = 1):
    """Buckets: all-gathers, packed; a reduce-scatter, packed, its copies beside its wire; an all-reduce of two, grouped. All of them
    start, then all end. With two lanes the reduce-scatter is on the second."""
    nodes = []

    def collective(kind, rows, columns, dtype=DType.F32):
        shape = (rows, columns)
        nodes.append(Node(NodeKind.PLACEHOLDER, "placeholder", outputs=[Tensor(dtype, shape)]))
        out = {CollectiveKind.ALL_GATHER: (rows * ranks, columns), CollectiveKind.REDUCE_SCATTER: (rows // ranks, columns)}.get(kind, shape)
        op = ReduceOp.NONE if kind == CollectiveKind.ALL_GATHER else ReduceOp.SUM
        lane = lanes - 1 if kind == CollectiveKind.REDUCE_SCATTER else 0
        nodes.append(Node(NodeKind.COLLECTIVE, kind.name.lower(), [len(nodes) - 1], [Tensor(dtype, out)], collective=Collective(kind, lane, op)))
        return len(nodes) - 1

    members = [
        (True, [collective(CollectiveKind.ALL_GATHER, 3, 5), collective(CollectiveKind.ALL_GATHER, 7, 2)]),
        (True, [collective(CollectiveKind.REDUCE_SCATTER, 4 * ranks, 3, DType.BF16)]),
        (False, [collective(CollectiveKind.ALL_REDUCE, 6, 6), collective(CollectiveKind.ALL_REDUCE, 1, 9)]),
    ]
    buckets = [types.SimpleNamespace(name=f"b{k}", group_size=ranks, members=of, packed=packed, copies="comm" if k == 1 else "compute",
                                     start_ps=0, end_ps=0)
               for k, (packed, of) in enumerate(members)]
    order = [Step(kind, k) for kind in (StepKind.START, StepKind.WAIT) for k in range(len(buckets))]
    prediction = types.SimpleNamespace(exposed_ps=0, peak_bytes=0)
    plan = types.SimpleNamespace(data=b"a plan of the tests", backend="nccl", buckets=buckets, order=order, prediction=prediction)
    return Graph("buckets", nodes, [Group("dp", lane, ranks, group, tuple(range(ranks))) for lane in range(lanes)]), plan


def shapes(graph, plan, bucket: int) -> list:
    """Of each member: its dtype, and its shapes in and out."""
    return [(graph.nodes[m].outputs[0].dtype, graph.nodes[graph.nodes[m].inputs[0]].outputs[0].shape, graph.nodes[m].outputs[0].shape)
            for m in plan.buckets[bucket].members]
