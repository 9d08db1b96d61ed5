"""A plan of one graph, followed in another one that has the same collectives and other sizes."""

import copy
import dataclasses
import random

import pytest
from any_plan import any_plan
from small_graphs import two_gathers

from bucketd import canonical, plan, verify
from bucketd.files import load_graph
from bucketd.following import Agreed, follow, same_collectives
from bucketd.graph import SYMBOLIC, Graph, Node, NodeKind, Tensor
from bucketd.normalize import normalize
from bucketd.plan import StepKind


def for_other_sizes(graph: Graph, seed: int) -> tuple[Graph, list[int]]:
    """With sizes computed in the graph and symbolic sizes in what no collective touches, and where each node went."""
    chance = random.Random(seed)
    touched = {i for i, node in enumerate(graph.nodes) if node.collective} | {x for n in graph.nodes if n.collective for x in n.inputs}
    nodes, where = [], []
    for i, node in enumerate(graph.nodes):
        made = copy.deepcopy(node)
        for field in ("inputs", "alias_of", "mutates"):
            setattr(made, field, [where[x] for x in getattr(node, field)])
        made.slots = [s if s.node is None else dataclasses.replace(s, node=where[s.node]) for s in node.slots]
        if node.kind == NodeKind.CALL and i not in touched and node.outputs and chance.random() < 0.4:
            made.flags |= SYMBOLIC
            made.outputs = [Tensor(t.dtype, tuple(chance.randint(1, 9) for _ in t.shape)) for t in node.outputs]
        if node.kind == NodeKind.CALL and chance.random() < 0.2:
            inputs = [where[x] for x, n in enumerate(graph.nodes[:i]) if n.kind == NodeKind.PLACEHOLDER]
            nodes.append(Node(NodeKind.CALL, "aten.sym_size.int", [chance.choice(inputs)] if inputs else []))
            if not made.mutates:
                made.inputs.append(len(nodes) - 1)
        where.append(len(nodes))
        nodes.append(made)
    return Graph(graph.name, nodes, graph.groups), where


def launches(graph: Graph, made: plan.Plan, where=None):
    """Starts and waits in the plan's order, of single collectives too."""
    where = where or range(len(graph.nodes))
    return [(step.kind, step.id if step.kind != StepKind.NODE else where[step.id]) for step in made.order
            if step.kind != StepKind.NODE or graph.nodes[step.id].kind in (NodeKind.COLLECTIVE, NodeKind.WAIT)]


def agreed(graph: Graph, seed: int) -> Agreed:
    made = any_plan(graph, canonical.digest(graph), seed)
    return Agreed("0/fw", plan.parse(made.SerializeToString()), graph)


@pytest.mark.parametrize("name", ["rules.synthetic", "fsdp_uneven.bw.rank0", "hsdp_uneven.fw.rank3", "fsdp_tp.joint.rank0"])
def test_launches_and_waits_keep_their_order_and_the_rest_is_legal(data, name):
    graph = normalize(load_graph(data / "vectors" / f"{name}.json.gz")).graph
    for seed in range(6):
        known = agreed(graph, seed)
        other, where = for_other_sizes(graph, seed)
        digest = canonical.digest(other)
        followed = follow(known, other, digest)
        verify.check_plan(other, digest, followed)
        assert launches(other, followed) == launches(graph, known.plan, where)
        assert followed.sha256 == known.plan.sha256 and len(followed.buckets) == len(known.plan.buckets)


def test_the_same_graph_keeps_the_whole_order(data):
    graph = normalize(load_graph(data / "vectors" / "fsdp_even.joint.rank0.json.gz")).graph
    for seed in range(3):
        known = agreed(graph, seed)
        assert follow(known, graph, canonical.digest(graph)).order == known.plan.order


def test_other_collectives_are_not_followed():
    def change(what):
        graph = two_gathers()
        what(graph.nodes)
        return graph

    def symbolic_member(nodes):
        nodes[2].flags |= SYMBOLIC

    def another_dtype(nodes):
        for i in (1, 5, 6):
            nodes[i].outputs = [Tensor(7, t.shape) for t in nodes[i].outputs]

    def another_parameter(nodes):
        nodes[2].collective.tag, nodes[2].collective.parameter = 1, "w"

    graph = two_gathers()
    known = Agreed("0/fw", next(p for p in (agreed(graph, seed).plan for seed in range(50)) if p.buckets), graph)
    assert follow(known, graph, canonical.digest(graph)) is not None and same_collectives(graph, graph)
    for what in (symbolic_member, another_dtype, another_parameter):
        other = change(what)
        assert follow(known, other, canonical.digest(other)) is None, what
    assert not same_collectives(graph, change(another_parameter))


def test_data_flow_that_forbids_the_order_is_not_followed():
    """The agreed plan gathers both at once; here one is gathered of what the other gave."""
    graph = two_gathers()
    known = Agreed("0/fw", next(p for p in (agreed(graph, seed).plan for seed in range(50)) if p.buckets), graph)
    other = two_gathers()
    second = max(i for i, node in enumerate(other.nodes) if node.collective)
    first_wait = next(i for i, node in enumerate(other.nodes) if node.kind == NodeKind.WAIT)
    other.nodes[second].inputs.append(first_wait)
    assert follow(known, other, canonical.digest(other)) is None
