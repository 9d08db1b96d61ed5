"""Legal plans of every shape for a graph, by chance: what the client must be able to verify and apply."""

from __future__ import annotations

import heapq
import random

from bucketd._wire.proto import plan_pb2
from bucketd.graph import ITEM_SIZE, ORDERED, CollectiveKind, Graph, NodeKind

MERGED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


def any_plan(graph: Graph, digest: bytes, seed: int, pack=MERGED, group=MERGED) -> plan_pb2.Plan:
    """Merges by chance, in an order by chance. `pack` and `group` say which kinds may be merged in which form."""
    chance = random.Random(seed)
    plan = plan_pb2.Plan(format_version=1, graph_digest=digest, node_count=len(graph.nodes))
    plan.provenance.planner = f"any plan {seed}"
    buckets: list[tuple[list[int], int]] = []
    for members in _candidates(graph, chance):
        kind = graph.nodes[members[0]].collective.kind
        modes = [plan_pb2.BUCKET_MODE_PACKED] * (kind in pack) + [plan_pb2.BUCKET_MODE_GROUPED] * (kind in group)
        if modes and _order(graph, [b for b, _ in buckets] + [members], random.Random(seed)) is not None:
            buckets.append((members, chance.choice(modes)))
    for members, mode in buckets:
        _fill(plan.buckets.add(), graph, members, mode)
    plan.order.extend(_order(graph, [b for b, _ in buckets], chance))
    return plan


def _candidates(graph: Graph, chance: random.Random):
    by_key: dict[tuple, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if node.kind == NodeKind.COLLECTIVE and node.collective.kind in MERGED:
            c = node.collective
            by_key.setdefault((c.kind, c.group, c.reduce_op, node.outputs[0].dtype), []).append(i)
    for members in by_key.values():
        chance.shuffle(members)
        while len(members) > 1:
            size = chance.randint(2, max(2, len(members) // 2))
            yield members[:size]
            del members[:size]


def _fill(bucket, graph: Graph, members: list[int], mode: int) -> None:
    first = graph.nodes[members[0]]
    group = graph.groups[first.collective.group]
    bucket.members.extend(members)
    bucket.mode = mode
    bucket.copies = plan_pb2.COPY_STREAM_COMPUTE
    bucket.kind, bucket.reduce_op = int(first.collective.kind), int(first.collective.reduce_op)
    bucket.mesh_dim, bucket.lane, bucket.group_size = group.mesh_dim, group.lane, group.size
    bucket.dtype = int(first.outputs[0].dtype)
    for member in members:
        node = graph.nodes[member]
        gathers = node.collective.kind == CollectiveKind.ALL_GATHER
        slice_of = graph.nodes[node.inputs[0]] if gathers else node
        whole = node if gathers else graph.nodes[node.inputs[0]]
        bucket.offsets.append(bucket.slice_bytes)
        bucket.slice_bytes += slice_of.outputs[0].elements * ITEM_SIZE[bucket.dtype]
        bucket.bytes += whole.outputs[0].bytes


def _order(graph: Graph, buckets: list[list[int]], chance: random.Random):
    """A topological order of what is left, by chance; None if the buckets close a cycle."""
    item = {}  # node -> what it is in the order: 4 * id, or a bucket's token
    for k, members in enumerate(buckets):
        for member in members:
            item[member] = 4 * k + 1
            for i, node in enumerate(graph.nodes):
                if node.kind == NodeKind.WAIT and node.inputs == [member]:
                    item[i] = 4 * k + 2
    of = [item.get(i, 4 * i) for i in range(len(graph.nodes))]
    after: dict[int, set[int]] = {i: set() for i in of}
    last_ordered = None
    for i, node in enumerate(graph.nodes):
        for source in node.inputs:
            if of[source] == of[i]:
                return None
            after[of[source]].add(of[i])
        if node.flags & ORDERED:
            if last_ordered is not None:
                after[of[last_ordered]].add(of[i])
            last_ordered = i
    for k in range(len(buckets)):
        after[4 * k + 1].add(4 * k + 2)
    missing = dict.fromkeys(after, 0)
    for users in after.values():
        for user in users:
            missing[user] += 1
    ready = [(chance.random(), i) for i in after if missing[i] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for user in sorted(after[i]):
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (chance.random(), user))
    return order if len(order) == len(after) else None
