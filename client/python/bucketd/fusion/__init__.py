"""What a graph costs when Inductor compiles it: kernels that it fuses are priced as one.

A node by itself is priced by the bytes that it reads and writes, and a launch. Inductor computes most elementwise nodes inside the
kernels of those that read them: their bytes never move, and nothing is launched. This predicts its kernels from the graph as it comes
to Inductor, by the rules of torch 2.13 for CPUs; what differs by device is a limit here and there (loops.py). loops.py does as the
lowering does, groups.py as the scheduler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .. import ops
from ..capture import Captured
from ..graph import VIEW, Node, NodeKind
from ..memory import base_name
from ..normalize import Normalized
from .access import numel
from .groups import Kernel, group
from .launches import launches, word
from .loops import Lowered, lower
from .operators import REDUCTIONS

__all__ = ["COSTS", "Unit", "predict", "reductions", "use_inductor_costs"]

COSTS = "inductor"  # of such a graph


@dataclasses.dataclass(frozen=True)
class Unit:
    """A kernel that Inductor generates, or a call of another's."""

    node: int  # that stands for it: the last one that it computes
    bytes: int  # read and written
    is_call: bool
    parts: tuple[int, ...]  # nodes that are computed in it


def predict(nodes: Sequence[Node], reduced: Mapping[int, tuple[int, ...]] | None = None, device: str = "cpu") -> list[Unit]:
    """Of a graph's nodes, whose inputs are positions in `nodes`. `reduced` holds the dimensions that a reduction sums over, by
    node; those it lacks are told by shapes. Depends on nothing else, so that all ranks predict the same."""
    return [unit for _, unit in _predicted(nodes, reduced or {}, device)[1] if unit is not None]


def use_inductor_costs(normalized: Normalized, captured: Captured) -> list[Unit]:
    """Sets `memory_bytes` of the normalised graph to what Inductor's kernels move: a kernel's bytes stand at the last node that it
    computes, 0 at what it computes besides. Its digest is then another one than that of the graph run node by node, and as
    equal on all ranks: it follows from what the ranks have in common, the dimensions of reductions among it. Returns the kernels."""
    graph = normalized.graph
    of = reductions(captured)
    reduced = {n: of[raw] for n, raw in enumerate(normalized.raw_ids) if raw in of}
    device = captured.raw.device_type
    lowered, predicted = _predicted(graph.nodes, reduced, device)
    units = [unit for _, unit in predicted if unit is not None]
    for node in graph.nodes:
        node.memory_bytes = 0
    for unit in units:
        # One byte where nothing is moved: a node with neither bytes nor FLOPs would cost no launch.
        graph.nodes[unit.node].memory_bytes += max(unit.bytes, 1)
    graph.costs = COSTS
    words = [word(captured.nodes[raw]) if raw >= 0 else "" for raw in normalized.raw_ids]
    graph.launches, graph.weak_words = launches(graph.nodes, lowered, predicted, words.__getitem__, device == "cpu")
    return units


def reductions(captured: Captured) -> dict[int, tuple[int, ...]]:
    """The dimensions that each reduction of a captured graph reduces over, by its arguments."""
    found = {}
    for number, (raw, node) in enumerate(zip(captured.raw.nodes, captured.nodes, strict=True)):
        if raw.kind == NodeKind.CALL and base_name(raw.op) in REDUCTIONS and node.all_input_nodes:
            rank = getattr(node.all_input_nodes[0].meta.get("val"), "ndim", 0)
            given = ops.argument(node, "dim")
            dims = [given] if isinstance(given, int) else given or range(rank)
            found[number] = tuple(sorted(dim % rank for dim in dims)) if rank else ()
    return found


def _predicted(
    nodes: Sequence[Node], reduced: Mapping[int, tuple[int, ...]], device: str
) -> tuple[Lowered, list[tuple[Kernel, Unit | None]]]:
    """The kernels, without a unit where they cost nothing."""
    lowered = lower(nodes, reduced, device == "cpu")
    taken: set[int] = set()
    found = []
    for kernel in group(lowered):
        costs = any(lowered.loops[n].costs for n in kernel.loops)
        found.append((kernel, _unit(nodes, lowered, kernel, taken) if costs else None))
    return lowered, found


def _unit(nodes: Sequence[Node], lowered: Lowered, kernel: Kernel, taken: set[int]) -> Unit:
    loops = [lowered.loops[n] for n in kernel.loops]
    parts = sorted({part for loop in loops for part in loop.parts} | {loop.node for loop in loops})
    node = _stands_for(nodes, [loop.node for loop in loops], parts, taken)
    taken.add(node)
    return Unit(node, _bytes(lowered, kernel), kernel.is_call, tuple(parts))


def _stands_for(nodes: Sequence[Node], own: list[int], parts: list[int], taken: set[int]) -> int:
    """The last node of the kernel that can bear a cost and bears none yet."""
    for candidates in (own, parts):
        free = [n for n in candidates if n not in taken and nodes[n].kind == NodeKind.CALL and not nodes[n].flags & VIEW]
        if free:
            return max(free)
    return max(own)


def _bytes(lowered: Lowered, kernel: Kernel) -> int:
    loops = [lowered.loops[n] for n in kernel.loops]
    total = 0
    if len(loops) == 1 and not kernel.is_call:
        loop = loops[0]
        count = numel(loop.outer) * numel(loop.inner)
        for buffer, accesses in loop.reads.items():
            total += min(len(accesses) * count * lowered.items[buffer], lowered.bytes[buffer])
        return total + sum(min(count * lowered.items[buffer], lowered.bytes[buffer]) for buffer in loop.writes)
    inside = set(kernel.loops)
    written = {buffer for loop in loops for buffer in loop.writes}
    kept = {b for b in written if b in lowered.outputs or not lowered.readers.get(b, set()) <= inside or kernel.is_call}
    read = {buffer for loop in loops for buffer in loop.reads} - (written - kept)
    return sum(lowered.bytes[buffer] for buffer in kept | read)
