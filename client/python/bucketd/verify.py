"""Is this plan one for my graph, and does it keep what the step computes?

The client asks this itself, of its own graph, before it touches a node: a planner may be of another version, a cache may
hold another graph's plan, bytes may be damaged. Linear in nodes and edges.
"""

from __future__ import annotations

from .errors import PlanRejected
from .graph import ITEM_SIZE, ORDERED, SYMBOLIC, CollectiveKind, DType, Graph, Node, NodeKind, ReduceOp
from .plan import Bucket, Plan, StepKind

_BUCKETED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


def check_plan(graph: Graph, digest: bytes, plan: Plan) -> dict[int, int]:
    """PlanRejected, with what and where, unless the plan is legal for `graph`, whose digest is `digest`.

    Returns the wait of every bucket member, by member.
    """
    if plan.graph_digest != digest:
        raise PlanRejected(f"it is for graph {plan.graph_digest.hex()[:12] or '(none)'}, this is {digest.hex()[:12]}")
    if plan.node_count != len(graph.nodes):
        raise PlanRejected(f"it is for {plan.node_count} nodes, this graph has {len(graph.nodes)}")
    return _Check(graph, plan).run()


def slice_bytes(graph: Graph, member: int) -> int:
    """Bytes of a collective in one rank's slice of a packed bucket's buffer."""
    node = graph.nodes[member]
    if node.collective.kind == CollectiveKind.ALL_GATHER:
        return graph.nodes[node.inputs[0]].outputs[0].bytes
    return node.outputs[0].bytes


class _Check:
    def __init__(self, graph: Graph, plan: Plan):
        self.nodes = graph.nodes
        self.graph = graph
        self.plan = plan
        self.bucket_of = [-1] * len(self.nodes)  # of a member or a member's wait
        self.wait_of: dict[int, int] = {}
        self.place: list[int] = []

    def run(self) -> dict[int, int]:
        users = self._collective_users()
        for k, bucket in enumerate(self.plan.buckets):
            self._bucket(k, bucket, users)
        self._order()
        self._edges()
        self._ordered()
        self._in_place(users)
        return self.wait_of

    def _describe(self, node: int) -> str:
        name = self.nodes[node].name
        return f"%{node} ({name})" if name else f"%{node}"

    # -- buckets

    def _collective_users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {i: [] for i, n in enumerate(self.nodes) if n.kind == NodeKind.COLLECTIVE}
        for i, node in enumerate(self.nodes):
            for source in node.inputs:
                if source in users:
                    users[source].append(i)
        return users

    def _bucket(self, k: int, bucket: Bucket, users) -> None:
        where = f"bucket {k}"
        if len(bucket.members) < 2:
            raise PlanRejected(f"{len(bucket.members)} members, expected two or more", where)
        for member in bucket.members:
            self._member(member, k, where, users)
        self._agree(bucket, where)
        if bucket.packed:
            self._layout(bucket, where)

    def _member(self, member: int, k: int, where: str, users) -> None:
        if not 0 <= member < len(self.nodes):
            raise PlanRejected(f"there is no node {member}", where)
        node = self.nodes[member]
        if node.kind != NodeKind.COLLECTIVE:
            raise PlanRejected(f"{self._describe(member)} is no collective", where)
        if self.bucket_of[member] >= 0:
            raise PlanRejected(f"{self._describe(member)} is in bucket {self.bucket_of[member]} already", where)
        if len(node.inputs) != 1 or len(node.outputs) != 1 or node.mutates:
            raise PlanRejected(f"{self._describe(member)} is no plain collective of one tensor", where)
        if (node.flags | self.nodes[node.inputs[0]].flags) & SYMBOLIC:
            raise PlanRejected(f"{self._describe(member)} has a symbolic size; a bucket's layout is one for all steps", where)
        reads = users[member]
        if len(reads) != 1 or self.nodes[reads[0]].kind != NodeKind.WAIT:
            raise PlanRejected(f"{self._describe(member)} must be read by one wait, and by nothing else", where)
        self.wait_of[member] = reads[0]
        self.bucket_of[member] = self.bucket_of[reads[0]] = k

    def _agree(self, bucket: Bucket, where: str) -> None:
        first = self._key(bucket.members[0])
        if first[0] not in _BUCKETED:
            raise PlanRejected(f"{self._describe(bucket.members[0])} is of a kind that no bucket takes", where)
        for member in bucket.members[1:]:
            if self._key(member) != first:
                raise PlanRejected(
                    f"{self._describe(bucket.members[0])} and {self._describe(member)} differ in kind, group, reduce "
                    f"op or dtype", where)
        kind, group_index, reduce_op, dtype = first
        group = self.graph.groups[group_index]
        own = (CollectiveKind(kind).name.lower(), group.mesh_dim, group.lane, group.size,
               ReduceOp(reduce_op).name.lower() if reduce_op else "", DType(dtype).name.lower())
        said = (bucket.kind, bucket.mesh_dim, bucket.lane, bucket.group_size, bucket.reduce_op, bucket.dtype)
        if own != said:
            raise PlanRejected(f"it says {said}, its members are {own}", where)

    def _key(self, member: int):
        node = self.nodes[member]
        c = node.collective
        return c.kind, c.group, c.reduce_op, node.outputs[0].dtype

    def _layout(self, bucket: Bucket, where: str) -> None:
        item = ITEM_SIZE[self.nodes[bucket.members[0]].outputs[0].dtype]
        offset, expected = 0, []
        for member in bucket.members:
            expected.append(offset)
            offset += slice_bytes(self.graph, member)
        if tuple(expected) != bucket.offsets or offset != bucket.slice_bytes or offset % item:
            raise PlanRejected(
                f"offsets {list(bucket.offsets)} in {bucket.slice_bytes} bytes, its members back to back have "
                f"{expected} in {offset}", where)

    # -- order

    def _order(self) -> None:
        starts, waits, seen = {}, {}, {}
        kinds = {StepKind.NODE: seen, StepKind.START: starts, StepKind.WAIT: waits}
        for at, step in enumerate(self.plan.order):
            where = f"order[{at}]"
            limit = len(self.nodes) if step.kind == StepKind.NODE else len(self.plan.buckets)
            what = "node" if step.kind == StepKind.NODE else "bucket"
            if step.id >= limit:
                raise PlanRejected(f"there is no {what} {step.id}", where)
            if step.kind == StepKind.NODE and self.bucket_of[step.id] >= 0:
                raise PlanRejected(f"{self._describe(step.id)} is inside bucket {self.bucket_of[step.id]}", where)
            if step.id in kinds[step.kind]:
                raise PlanRejected(f"{step.kind.name.lower()} {step.id} stands twice", where)
            kinds[step.kind][step.id] = at
        for k in range(len(self.plan.buckets)):
            if k not in starts or k not in waits:
                raise PlanRejected(f"{'start' if k not in starts else 'wait'} of bucket {k} is missing", "order")
        self.place = [-1] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            k = self.bucket_of[i]
            if k >= 0:
                self.place[i] = starts[k] if node.kind == NodeKind.COLLECTIVE else waits[k]
            elif i in seen:
                self.place[i] = seen[i]
            else:
                raise PlanRejected(f"{self._describe(i)} is missing", "order")

    def _edges(self) -> None:
        for i, node in enumerate(self.nodes):
            for source in node.inputs:
                if self.place[source] >= self.place[i]:
                    raise PlanRejected(f"{self._describe(i)} runs before its input {self._describe(source)}", "order")

    def _ordered(self) -> None:
        last = None
        for i, node in enumerate(self.nodes):
            if not node.flags & ORDERED:
                continue
            if last is not None and self.place[i] < self.place[last]:
                raise PlanRejected(
                    f"{self._describe(i)} runs before {self._describe(last)}; random, effectful and "
                    f"host-synchronising ops keep their order", "order")
            last = i

    # -- in place: a writer keeps its side of every other user of the storage

    def _in_place(self, users) -> None:
        if not any(node.mutates for node in self.nodes):
            return
        own = storages(self.nodes)
        written = {s for node in self.nodes for m in node.mutates for s in own[m]}
        used: dict[int, tuple[int, int]] = {}  # storage -> (latest use so far, whose)
        wrote: dict[int, tuple[int, int]] = {}
        for i, node in enumerate(self.nodes):
            writes = {s for m in node.mutates for s in own[m]}
            touched = {s for source in node.inputs for s in own[source]} & written
            for s in touched:
                self._keeps_side(i, wrote.get(s))
                if s in writes:
                    self._keeps_side(i, used.get(s))
                    wrote[s] = max(wrote.get(s, (-1, -1)), (self._end(i, users), i))
            if node.kind == NodeKind.WAIT:  # what the program itself writes before it, it writes while the collective runs
                touched |= {s for source in self.nodes[node.inputs[0]].inputs for s in own[source]} & written
            for s in touched:
                used[s] = max(used.get(s, (-1, -1)), (self.place[i], i))

    def _keeps_side(self, node: int, before: tuple[int, int] | None) -> None:
        if before is not None and self.place[node] < before[0]:
            raise PlanRejected(
                f"{self._describe(node)} changed sides with {self._describe(before[1])}, and one of them writes in "
                f"place what the other uses", "order")

    def _end(self, node: int, users) -> int:
        """A collective uses its tensors until its wait."""
        waits = [u for u in users.get(node, ()) if self.nodes[u].kind == NodeKind.WAIT]
        return max([self.place[node], *(self.place[w] for w in waits)])


def storages(nodes: list[Node]) -> list[frozenset[int]]:
    """For each node the storages that its result may stand on, named by the node that made them."""
    found: list[frozenset[int]] = []
    for i, node in enumerate(nodes):
        own = not node.alias_of or node.kind == NodeKind.COLLECTIVE
        if len(node.alias_of) == 1 and not own:
            found.append(found[node.alias_of[0]])
        else:
            sets = [found[a] for a in node.alias_of]
            found.append(frozenset().union([i] if own else [], *sets))
    return found
