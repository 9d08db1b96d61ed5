"""Runs one graph as all its ranks at once, in one process: node by node, collectives across the ranks.

A collective moves its data as late as it may, when it is waited for. With `reuse`, memory is given away the moment that its
last reader has run: what was in it becomes NaN (a whole number's lowest value), so that whoever still reads it shows it.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from bucketd import ops

PREFIX = "_c10d_functional."


def run(gm: fx.GraphModule, inputs: list[list], reuse: str = "") -> list[list]:
    """`inputs` by rank; returns the flat outputs by rank. `reuse`: "", "until wait" or "after last reader"."""
    return _Lockstep(gm, len(inputs), reuse).run(inputs)


class _Lockstep:
    def __init__(self, gm, ranks: int, reuse: str):
        self.nodes = list(gm.graph.nodes)
        self.ranks = range(ranks)
        self.values: dict[fx.Node, list] = {}
        self.dies_at = self._deaths(reuse) if reuse else {}

    def run(self, inputs):
        given = iter(zip(*inputs, strict=True))
        for at, node in enumerate(self.nodes):
            if node.op == "placeholder":
                self.values[node] = [x.clone() for x in next(given)]
            elif node.op == "output":
                return [[self._of(x, r) for x in node.args[0]] for r in self.ranks]
            else:
                self.values[node] = self._call(node)
            for dead in self.dies_at.get(at, ()):
                self._give_away(dead)

    def _of(self, arg, rank):
        return fx.map_arg(arg, lambda n: self.values[n][rank])

    def _call(self, node: fx.Node) -> list:
        op = ops.facts(node.target)
        name = op.name
        if op.wait:
            start, index = node.args[0], None
            if start.target is operator.getitem:
                start, index = start.args[0], start.args[1]
            return self._finish(start, index)
        if name.startswith(PREFIX):
            return [None for _ in self.ranks]  # under way
        if node.target is operator.getitem and ops.facts(node.args[0].target).name.startswith(PREFIX):
            return [None for _ in self.ranks]
        return [node.target(*self._of(node.args, r), **self._of(node.kwargs, r)) for r in self.ranks]

    def _finish(self, start: fx.Node, index) -> list:
        name, world = ops.facts(start.target).name, len(self.ranks)
        own = [self._of(start.args[0], r) for r in self.ranks]
        own = [x if index is None else x[index] for x in own]
        if "all_gather" in name:
            return [torch.cat(own) for _ in self.ranks]
        total = torch.stack(own).sum(0)
        if "reduce_scatter" in name:
            total = total / world if start.args[1] == "avg" else total
            return [piece.clone() for piece in total.chunk(world)]
        return [total.clone() for _ in self.ranks]

    # -- memory

    def _deaths(self, reuse: str) -> dict[int, list[fx.Node]]:
        """Where storages die, each by the node that made it. What goes in or out of the graph does not."""
        place = {node: at for at, node in enumerate(self.nodes)}
        made_by: dict[fx.Node, set[fx.Node]] = {}
        last: dict[fx.Node, int] = {}
        kept: set[fx.Node] = set()
        for node in self.nodes:
            shared = [] if node.op != "call_function" or ops.facts(node.target).wait else ops.storage(node, ops.facts(node.target))[0]
            made_by[node] = {root for s in shared for root in made_by[s]} if shared else {node}
            for root in (r for source in node.all_input_nodes for r in made_by[source]):
                last[root] = max(last.get(root, 0), place[node])
                if node.op == "output":
                    kept.add(root)
            if node.op == "placeholder":
                kept.add(node)
            elif reuse == "until wait" and node.op == "call_function" and ops.facts(node.target).wait:
                start = node.args[0].args[0] if node.args[0].target is operator.getitem else node.args[0]
                for root in (r for source in start.all_input_nodes for r in made_by[source]):
                    last[root] = max(last[root], place[node])
        deaths: dict[int, list[fx.Node]] = {}
        for root, at in last.items():
            if root not in kept:
                deaths.setdefault(at, []).append(root)
        return deaths

    def _give_away(self, node: fx.Node) -> None:
        for value in self.values[node]:
            if isinstance(value, torch.Tensor):
                value.fill_(float("nan") if value.is_floating_point() else torch.iinfo(value.dtype).min)
