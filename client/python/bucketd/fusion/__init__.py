"""What a graph costs when Inductor compiles it: kernels that it fuses are priced as one.

A node by itself is priced by the bytes that it reads and writes, and a launch. Inductor computes most elementwise nodes inside the
kernels of those that read them: their bytes never move, and nothing is launched. This predicts its kernels from the graph as it comes
to Inductor, by the rules of torch 2.13 for CPUs; what differs by device is a limit here and there (loops.py). loops.py does as the
lowering does, groups.py as the scheduler.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch._inductor import compile_fx

from .. import ops
from ..capture import Captured
from ..graph import VIEW, Node, NodeKind
from ..memory import base_name
from ..normalize import Normalized
from .groups import Kernel, group
from .launches import launches, word
from .loops import lower
from .operators import MOVED, REDUCTIONS, WINDOWS
from .values import Lowered

__all__ = ["COSTS", "Unit", "arguments", "note_layouts", "predict", "use_inductor_costs"]

COSTS = "inductor"  # of such a graph
_LAID_OUT = "bucketd_laid_out"  # in a node's meta: strides of what comes in, where they are other than the graph says


@dataclasses.dataclass(frozen=True)
class Unit:
    """A kernel that Inductor generates, or a call of another's."""

    node: int  # that stands for it: the last one that it computes
    bytes: int  # read and written
    is_call: bool
    parts: tuple[int, ...]  # nodes that are computed in it


def predict(nodes: Sequence[Node], known: Mapping[int, tuple[int, ...]] | None = None, device: str = "cpu") -> list[Unit]:
    """Of a graph's nodes, whose inputs are positions in `nodes`. `known`: their `arguments()`; what it lacks is told by shapes.
    Depends on nothing else, so that all ranks predict the same."""
    return [unit for _, unit in _predicted(nodes, known or {}, device)[1] if unit is not None]


def use_inductor_costs(normalized: Normalized, captured: Captured) -> list[Unit]:
    """Sets `memory_bytes` of the normalised graph to what Inductor's kernels move: a kernel's bytes stand at the last node that it
    computes, 0 at what it computes besides. Its digest is then another one than that of the graph run node by node, and as
    equal on all ranks: it follows from what the ranks have in common, the dimensions of reductions among it. Returns the kernels."""
    graph = normalized.graph
    of = arguments(captured)
    known = {n: of[raw] for n, raw in enumerate(normalized.raw_ids) if raw in of}
    device = captured.raw.device_type
    lowered, predicted = _predicted(graph.nodes, known, device)
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


def note_layouts(gm: fx.GraphModule, inputs: Sequence[object]) -> None:
    """Notes how a graph's inputs are laid out, and what a convolution's backward then gets: a backward reads what Inductor's forward
    saved, images with their channels innermost, while its graph has the strides of eager mode."""
    is_other = False
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=False):
        said = node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(said, torch.Tensor) and value.shape == said.shape:
            is_other |= _note(node, value) if value.stride() != said.stride() else False
    backwards = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    if is_other and backwards:
        copies: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        graph.output(graph.graph_copy(gm.graph, copies))
        run = fx.GraphModule(gm, graph)
        compile_fx.view_to_reshape(run)
        compile_fx.fake_tensor_prop(run, inputs, force_allow_non_fake_inputs=True)
        for node in backwards:
            _note(node, copies[node.args[0]].meta["val"])


def _note(node: fx.Node, value: torch.Tensor) -> bool:
    strides = tuple(value.stride())
    if all(type(stride) is int for stride in strides):
        node.meta[_LAID_OUT] = strides
        return True
    return False


def arguments(captured: Captured) -> dict[int, tuple[int, ...]]:
    """What nodes' arguments say that their shapes do not, by node: the dimensions that a reduction reduces, a gather reads along, or
    a pad and a turn move; how many elements a pooling's window has; which of its inputs a cat joins, where it joins one twice; the
    strides of an input, where note_layouts() noted them."""
    found = {}
    for number, (raw, node) in enumerate(zip(captured.raw.nodes, captured.nodes, strict=True)):
        if _LAID_OUT in node.meta:
            found[number] = node.meta[_LAID_OUT]
        if raw.kind != NodeKind.CALL or not node.all_input_nodes:
            continue
        base = base_name(raw.op)
        rank = getattr(node.all_input_nodes[0].meta.get("val"), "ndim", 0)
        if base in REDUCTIONS:
            given = ops.argument(node, "dim")
            dims = [given] if isinstance(given, int) else given or range(rank)
            found[number] = tuple(sorted(dim % rank for dim in dims)) if rank else ()
        elif base in ("gather", "index_select") and rank:
            found[number] = (ops.argument(node, "dim") % rank,)
        elif base == "constant_pad_nd":
            pads = ops.argument(node, "pad")
            found[number] = tuple(sorted(rank - 1 - k for k in range(len(pads) // 2) if pads[2 * k] or pads[2 * k + 1]))
        elif base in MOVED:
            found[number] = tuple(sorted(dim % rank for dim in ops.argument(node, "dims") or range(rank)))
        elif base in WINDOWS:
            found[number] = (_area(ops.argument(node, "kernel_size")),)
        elif base == "cat" and len(node.args[0]) > len(raw.inputs):
            place = {each: n for n, each in enumerate(node.all_input_nodes)}
            found[number] = tuple(place[each] for each in node.args[0])
    return found


def _area(sizes: int | Sequence[int]) -> int:
    return sizes * sizes if isinstance(sizes, int) else math.prod(sizes) if len(sizes) > 1 else sizes[0] * sizes[0]


def _predicted(
    nodes: Sequence[Node], known: Mapping[int, tuple[int, ...]], device: str
) -> tuple[Lowered, list[tuple[Kernel, Unit | None]]]:
    """The kernels, without a unit where they cost nothing."""
    lowered = lower(nodes, known, device == "cpu")
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
        count = math.prod(loop.outer) * math.prod(loop.inner)
        for buffer, accesses in loop.reads.items():
            total += min(len(accesses) * count * lowered.items[buffer], lowered.bytes[buffer])
        return total + sum(min(count * lowered.items[buffer], lowered.bytes[buffer]) for buffer in loop.writes)
    inside = set(kernel.loops)
    written = {buffer for loop in loops for buffer in loop.writes}
    kept = {b for b in written if b in lowered.outputs or not inside.issuperset(lowered.readers.get(b, ())) or kernel.is_call}
    read = {buffer for loop in loops for buffer in loop.reads} - (written - kept)
    return sum(lowered.bytes[buffer] for buffer in kept | read)
