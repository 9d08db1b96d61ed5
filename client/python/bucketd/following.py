"""A graph that is compiled again, for other sizes, runs its collectives as all ranks have agreed before.

When a batch changes, some ranks compile again and others do not: only one rank's last batch may be short. Those that do not
go on in the order of the plan that they have, so whoever compiles again keeps that order, of launches and of waits, in the
new graph, and asks nobody. What else is in the graph stands beside them as it stood in the plan.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import defaultdict

from .graph import ORDERED, SYMBOLIC, Graph, NodeKind
from .plan import Plan, Step, StepKind
from .verify import storages

SOURCE = "agreed before"


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What all ranks hold for one graph, under `scope`; `plan` is None where they go without, and `graph` where this rank's was refused."""

    scope: str
    plan: Plan | None = None
    graph: Graph | None = None
    runner: object = None


def follow(agreed: Agreed, graph: Graph, digest: bytes) -> Plan | None:
    """The agreed plan for `graph`, whose digest is `digest`; None if it has other collectives, or its data flow does not allow the
    order. Its predictions are those of the agreed graph. Not verified."""
    new_of = _counterparts(agreed.graph, graph)
    if new_of is None:
        return None
    return _Follower(agreed, graph, new_of).run(digest)


def launch_alike(old: Graph, new: Graph) -> bool:
    """Whether both launch the same, whatever the sizes are."""
    return _counterparts(old, new) is not None


def same_collectives(old: Graph, new: Graph) -> bool:
    """Whether both launch the same, with sizes that agree wherever both are fixed parameters' and gradients'."""
    new_of = _counterparts(old, new)
    return new_of is not None and all(
        _shapes(old, before) == _shapes(new, after) for before, after in new_of.items()
        if old.nodes[before].kind == NodeKind.COLLECTIVE and old.nodes[before].collective.tag)


def _shapes(graph: Graph, start: int):
    """Of what travels; None where a hint stands for it."""
    ends = [graph.nodes[graph.nodes[start].inputs[0]], graph.nodes[start]]
    if any(node.flags & SYMBOLIC for node in ends):
        return None
    return [node.outputs[0].shape for node in ends]


def _counterparts(old: Graph, new: Graph) -> dict[int, int] | None:
    """The new graph's collectives and waits by the old one's; None if the two launch anything different."""
    launches = [_launches(old), _launches(new)]
    if len(launches[0]) != len(launches[1]):
        return None
    new_of = {}
    for (before, waits), (after, new_waits) in zip(*(found.items() for found in launches)):
        if len(waits) != len(new_waits) or _means(old, before) != _means(new, after):
            return None
        new_of[before] = after
        new_of.update(zip(waits, new_waits))
    return new_of


def _launches(graph: Graph) -> dict[int, list[int]]:
    """Collectives in program order, each with its waits."""
    waits: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if node.kind == NodeKind.COLLECTIVE:
            waits[i] = []
        elif node.kind == NodeKind.WAIT:
            waits[node.inputs[0]].append(i)
    return waits


def _means(graph: Graph, start: int):
    """All but the sizes, which may be symbolic in one of two graphs."""
    node = graph.nodes[start]
    c, group = node.collective, graph.groups[node.collective.group]
    result = node.outputs[0]
    return (c.kind, c.reduce_op, c.tag, c.parameter, node.module, result.dtype, len(result.shape), group.mesh_dim, group.lane,
            group.size)


class _Follower:
    def __init__(self, agreed: Agreed, graph: Graph, new_of: dict[int, int]):
        self.old, self.plan, self.graph, self.new_of = agreed.graph, agreed.plan, graph, new_of
        self.item_of: dict[int, Step] = {}  # of a new node that is a bucket's member or its wait
        for k, bucket in enumerate(self.plan.buckets):
            for member in bucket.members:
                self.item_of[new_of[member]] = Step(StepKind.START, k)
        for old_wait, new_wait in new_of.items():
            node = self.old.nodes[old_wait]
            if node.kind == NodeKind.WAIT and new_of[node.inputs[0]] in self.item_of:
                self.item_of[new_wait] = Step(StepKind.WAIT, self.item_of[new_of[node.inputs[0]]].id)

    def run(self, digest: bytes) -> Plan | None:
        buckets = []
        for bucket in self.plan.buckets:
            members = tuple(self.new_of[m] for m in bucket.members)
            if any(_shapes(self.graph, new) != _shapes(self.old, old) for old, new in zip(bucket.members, members)):
                return None
            buckets.append(dataclasses.replace(bucket, members=members))
        order = self._order()
        if order is None:
            return None
        return dataclasses.replace(self.plan, graph_digest=digest, node_count=len(self.graph.nodes), buckets=tuple(buckets),
                                   order=order, diagnostics=())

    def _item(self, node: int) -> Step:
        return self.item_of.get(node) or Step(StepKind.NODE, node)

    def _order(self) -> tuple[Step, ...] | None:
        """Topological; of what is ready, what stood first in the plan. None: there is a circle."""
        place = self._places()
        after: dict[Step, set[Step]] = defaultdict(set)
        missing: dict[Step, int] = dict.fromkeys(place, 0)
        for before, behind in self._edges():
            if before != behind and behind not in after[before]:
                after[before].add(behind)
                missing[behind] += 1
        ready = [(place[item], item) for item, count in missing.items() if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            _, item = heapq.heappop(ready)
            order.append(item)
            for behind in after[item]:
                missing[behind] -= 1
                if missing[behind] == 0:
                    heapq.heappush(ready, (place[behind], behind))
        return tuple(order) if len(order) == len(place) else None

    def _places(self) -> dict[Step, int]:
        """Where each item stood in the plan. A node that was not there goes where its last input is."""
        at: dict[Step, int] = {}
        stood: dict[tuple, list[int]] = defaultdict(list)  # where nodes of a kind stood, in program order
        places = {step.id: i for i, step in enumerate(self.plan.order) if step.kind == StepKind.NODE}
        for i, node in enumerate(self.old.nodes):
            if i in self.new_of and i in places:
                at[Step(StepKind.NODE, self.new_of[i])] = places[i]
            elif i in places:
                stood[_alike(node)].append(places[i])
        at.update((step, i) for i, step in enumerate(self.plan.order) if step.kind != StepKind.NODE)
        for found in stood.values():
            found.reverse()
        for i, node in enumerate(self.graph.nodes):
            item = self._item(i)
            if item not in at:
                before = stood.get(_alike(node))
                at[item] = before.pop() if before else max((at[self._item(x)] for x in node.inputs), default=-1)
        at[self._item(len(self.graph.nodes) - 1)] = len(self.plan.order)
        return at

    def _edges(self):
        nodes = self.graph.nodes
        for i, node in enumerate(nodes):
            for source in node.inputs:
                yield self._item(source), self._item(i)
        ordered = [i for i, node in enumerate(nodes) if node.flags & ORDERED]
        yield from ((self._item(a), self._item(b)) for a, b in zip(ordered, ordered[1:]))
        yield from self._in_place()
        chain = [step if step.kind != StepKind.NODE else step._replace(id=self.new_of[step.id])
                 for step in self.plan.order if step.kind != StepKind.NODE or step.id in self.new_of]
        yield from zip(chain, chain[1:])

    def _in_place(self):
        """A writer keeps its side of every other user of the storage, and a collective uses what it reads until its waits."""
        nodes = self.graph.nodes
        if not any(node.mutates for node in nodes):
            return
        own, waits = storages(nodes), _launches(self.graph)
        users: dict[int, list[tuple[int, bool]]] = defaultdict(list)  # of a storage: (node, whether it writes)
        for i, node in enumerate(nodes):
            writes = {s for m in node.mutates for s in own[m]}
            for s in {s for source in node.inputs for s in own[source]}:
                users[s].append((i, s in writes))
        for found in users.values():
            if not any(writes for _, writes in found):
                continue
            for at, (late, writes) in enumerate(found):
                ends = (end for early, wrote in found[:at] if writes or wrote for end in (early, *waits.get(early, ())))
                yield from ((self._item(end), self._item(late)) for end in ends if end < late)


def _alike(node) -> tuple:
    return node.kind, node.op, node.module, node.direction
