"""What a training asked of Dynamo, and what came of its graphs: for comparing one with a plan to one without."""

from __future__ import annotations

import contextlib

from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics


class Compilations:
    """Guards, on sizes too, and graph breaks of what was compiled while this watched. Trainings that take turns have one each."""

    def __init__(self):
        self.guards = self.graph_breaks = 0

    @contextlib.contextmanager
    def watching(self):
        clear_compilation_metrics()
        counters["graph_break"].clear()
        yield
        self.guards += sum((made.guard_count or 0) + (made.shape_env_guard_count or 0) for made in get_compilation_metrics())
        self.graph_breaks += sum(counters["graph_break"].values())


def planned_graph(planned) -> dict:
    """Its collectives, those of parameters and gradients, and its buckets by kind, mesh and members."""
    nodes, groups = planned.normalized.graph.nodes, planned.normalized.graph.groups
    collectives = [node.collective for node in nodes if node.collective is not None]
    buckets = [[bucket.kind, groups[nodes[bucket.members[0]].collective.group].mesh_dim, len(bucket.members)]
               for bucket in planned.plan.buckets]
    return dict(collectives=len(collectives), tagged=sum(bool(each.tag) for each in collectives), buckets=buckets)
