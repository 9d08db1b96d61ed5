"""A small traced graph with what a planner would be told of it, and plans for it that are made by hand."""

from __future__ import annotations

import random

from any_plan import _fill, _order
from torch import fx

from bucketd import apply, canonical, capture, normalize, plan
from bucketd._wire.proto import plan_pb2
from bucketd.graph import NodeKind

PACKED, GROUPED = plan_pb2.BUCKET_MODE_PACKED, plan_pb2.BUCKET_MODE_GROUPED


class Plannable:
    def __init__(self, builder, gm, kind="fw"):
        self.gm = gm
        self.captured = capture.capture_graph(gm, builder.context, kind)
        self.normalized = normalize.normalize(self.captured.raw)
        self.graph = self.normalized.graph
        self.digest = canonical.digest(self.graph)

    @property
    def starts(self):
        """Of collectives."""
        return [i for i, n in enumerate(self.graph.nodes) if n.kind == NodeKind.COLLECTIVE]

    def node(self, i):
        """Of this rank."""
        return self.captured.nodes[self.normalized.raw_ids[i]]

    def wait_of(self, start):
        return next(i for i, n in enumerate(self.graph.nodes) if n.kind == NodeKind.WAIT and n.inputs == [start])

    def merge(self, members, mode=PACKED):
        """A plan that merges `members`, in that order, and nothing else: the bucket starts where the first of its members'
        inputs allow, and waits where the first member's wait stood."""
        made = plan_pb2.Plan(format_version=1, graph_digest=self.digest, node_count=len(self.graph.nodes))
        _fill(made.buckets.add(), self.graph, members, mode)
        made.order.extend(_order(self.graph, [members], random.Random(0)))
        return made

    def apply(self, made):
        """A module that runs by the plan; the case's own stays as it is."""
        return applied(self.gm, self.captured, self.normalized, self.digest, made)


def applied(gm, captured, normalized, digest, made):
    """A copy of `gm`, which `captured` speaks of, by a plan message."""
    copies = {}
    copy = fx.GraphModule(gm, fx.Graph(tracer_cls=gm.graph._tracer_cls))
    for node in gm.graph.nodes:
        copies[node] = copy.graph.node_copy(node, copies.__getitem__)
    copy.graph.set_codegen(gm.graph._codegen)
    own = capture.Captured(captured.raw, [copies[node] for node in captured.nodes])
    apply.prepare(copy, own, normalized, digest, plan.parse(made.SerializeToString())).apply()
    copy.graph.lint()
    copy.recompile()
    return copy
