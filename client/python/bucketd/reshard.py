"""Resharding after the forward pass, in a joint graph: the backward gathers parameters again instead of keeping them."""

from __future__ import annotations

import operator

from torch import fx

from . import ops
from .graph import VIEW
from .step_context import CaptureContext
from .tags import META_KEY, tag_joint


def gather_again(gm: fx.GraphModule, context: CaptureContext) -> None:
    """Gives the backward of the joint graph `gm` a gather of its own for every parameter that it reads.

    What is repeated is the way from the parameter to what the backward reads: cast, pad, all-gather, wait, and views and
    casts of the whole. It stands in front of its first reader. Tags and other metadata ride along. Changes `gm`.
    """
    tag_joint(gm, context)
    whole = _whole_parameters(gm)
    again = _Again(gm.graph)
    for node in list(gm.graph.nodes):
        if is_backward(node):
            for source in node.all_input_nodes:
                if source in whole:
                    node.replace_input_with(source, again.copy(source, before=node))
    gm.graph.lint()
    gm.recompile()


def is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward" or bool(node.meta.get("autograd_backward"))


def _whole_parameters(gm: fx.GraphModule) -> set[fx.Node]:
    """Of the forward: gathered parameters, and what only shows them in another form."""
    whole: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op != "call_function" or is_backward(node):
            continue
        if node.meta.get(META_KEY, ("",))[0] == "fsdp_ag":
            whole.add(node)
        elif node.all_input_nodes and node.all_input_nodes[0] in whole and _same_in_another_form(node):
            whole.add(node)
    return whole


def _same_in_another_form(node: fx.Node) -> bool:
    if len(node.all_input_nodes) != 1:
        return False
    op = ops.facts(node.target)
    if node.target is operator.getitem or op.wait or op.cast:
        return True
    shared, written = ops.storage(node, op)
    return bool(ops.flags(node, op, shared, written) & VIEW)


class _Again:
    """Copies of forward nodes, each made once, together with what it is made of; inputs of the graph are shared."""

    def __init__(self, graph: fx.Graph):
        self.graph = graph
        self.made: dict[fx.Node, fx.Node] = {}

    def copy(self, node: fx.Node, before: fx.Node) -> fx.Node:
        if node.op in ("placeholder", "get_attr"):
            return node
        if node not in self.made:
            sources = {source: self.copy(source, before) for source in node.all_input_nodes}
            with self.graph.inserting_before(before):
                made = self.graph.node_copy(node, lambda source: sources[source])
            made.meta.update(partitioner_tag="is_backward", autograd_backward=True)
            self.made[node] = made
        return self.made[node]


def forward_first(gm: fx.GraphModule) -> None:
    """Moves all of the forward in front of all of the backward, each in its own order, so that no collective is under way
    where the two are taken apart. The forward never reads the backward, so the order stays legal. Changes `gm`."""
    behind: set[fx.Node] = set()
    forward: list[fx.Node] = []
    backward: list[fx.Node] = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if is_backward(node) or not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
            backward.append(node)
        else:
            forward.append(node)
    end = gm.graph.output_node()
    for node in forward + backward:
        end.prepend(node)
    gm.graph.lint()



def copy_module(gm: fx.GraphModule) -> fx.GraphModule:
    """A module with nodes of its own. The calling convention is the flat one of the graph."""
    graph, new = fx.Graph(), {}
    for node in gm.graph.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    return fx.GraphModule(gm, graph)
