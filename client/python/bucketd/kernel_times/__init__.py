"""What kernels took in a trace, for the nodes of the graph that bear their cost.

    python -m bucketd.kernel_times TRACE --graph step.graph.json.gz --out step.measured.json.gz

Graphs that were planned for Inductor say what launches it makes of them (bucketd.fusion), and bucketd.plan_file.save_planned writes
them. A graph that is run operator by operator (aot_eager) launches its calls, in order. trace.py reads the runs of compiled code, match.py
aligns each with the launches. Nothing is matched by guess: a kernel whose launch is not certain is counted, and its time is nobody's.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import statistics
from collections.abc import Container, Sequence

from ..graph import VIEW, GraphError, Launch, NodeKind, RawGraph
from ..memory import base_name
from .match import Matcher
from .trace import INDUCTORS, OPERATORS, Run, TraceError, read_runs

__all__ = ["KernelTimes", "TraceError", "kernel_times"]


@dataclasses.dataclass
class KernelTimes:
    microseconds: list[dict[int, float]]  # of each graph, by node: the median over its runs
    runs: list[int]  # of each graph
    matched: int  # kernels
    dropped: collections.Counter  # kernels that were not, by why


def kernel_times(graphs: Sequence[RawGraph], trace: str | os.PathLike[str]) -> KernelTimes:
    """TraceError where the trace is none; GraphError where a graph has no kernels, or some are Inductor's and others not."""
    graphs = [dataclasses.replace(graph, launches=launches_of(graph)) for graph in graphs]
    inductors = {bool(graph.costs) for graph in graphs}
    if len(inductors) > 1:
        raise GraphError("some graphs were planned for Inductor and others not; expected those of one program")
    for graph in graphs:
        if not graph.launches:
            raise GraphError(f"graph {graph.name}: states no launches; expected one that bucketd.plan_file.save_planned wrote")
    found = KernelTimes([{} for _ in graphs], [0] * len(graphs), 0, collections.Counter())
    samples: list[dict[int, list[float]]] = [collections.defaultdict(list) for _ in graphs]
    matchers = [Matcher(graph) for graph in graphs]
    aligned: dict[tuple[str, ...], tuple[int, list[int | str]] | None] = {}
    by_operator = inductors == {False}
    known = {word for graph in graphs for launch in graph.launches for word in launch.words}
    for run in read_runs(trace, found.dropped, OPERATORS if by_operator else INDUCTORS):
        if by_operator:
            run = _with_views(run, known)
        names = tuple(name for name, _ in run)
        if names not in aligned:
            aligned[names] = _of_graph(matchers, names)
        if aligned[names] is None:
            found.dropped["kernels of a run that is of none of the graphs, or of several alike"] += len(run)
            continue
        which, places = aligned[names]
        found.runs[which] += 1
        for place, (_, took) in zip(places, run, strict=True):
            if isinstance(place, str):
                found.dropped[place] += 1
                continue
            found.matched += 1
            for node, part in _shares(graphs[which], graphs[which].launches[place], took):
                samples[which][node].append(part)
    found.microseconds = [{node: statistics.median(times) for node, times in sorted(nodes.items())} for nodes in samples]
    return found


def _with_views(run: Run, known: Container[str]) -> Run:
    """Without the operators that are no launches, views, which on CPUs take the thread's time as kernels do: a kernel has that of
    the views before it, which made its operands; those behind the last one go to it."""
    kept: Run = []
    waiting = 0.0
    for name, took in run:
        if name.rpartition("::")[2] in known:
            kept.append((name, waiting + took))
            waiting = 0.0
        else:
            waiting += took
    if kept:
        kept[-1] = (kept[-1][0], kept[-1][1] + waiting)
    return kept


def launches_of(graph: RawGraph) -> tuple[Launch, ...]:
    """What Inductor makes of the graph, or what runs where its operators are called one by one."""
    if graph.costs:
        return graph.launches
    return tuple(Launch((number,), (base_name(node.op),), True) for number, node in enumerate(graph.nodes)
                 if node.kind == NodeKind.CALL and not node.flags & VIEW and (node.memory_bytes or node.flops))


def _of_graph(matchers: Sequence[Matcher], names: Sequence[str]) -> tuple[int, list[int | str]] | None:
    """The graph whose run it is, and the launches. None: none has half of the kernels, or two have equally many."""
    aligned = [matcher.align(names) for matcher in matchers]
    counts = [sum(isinstance(place, int) for place in places) for places in aligned]
    most = max(counts)
    if most == 0 or 2 * most < len(names) or counts.count(most) > 1:
        return None
    return counts.index(most), aligned[counts.index(most)]


def _shares(graph: RawGraph, launch: Launch, took: float) -> list[tuple[int, float]]:
    """Kernels that run as one function share its time by the bytes that they move."""
    weights = [max(graph.nodes[node].memory_bytes, 1) for node in launch.nodes]
    return [(node, took * weight / sum(weights)) for node, weight in zip(launch.nodes, weights, strict=True)]
