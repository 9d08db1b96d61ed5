"""What a graph itself tells of its parameters, for callers who have nothing else: bucketd.plan_pass.

An input is taken for a parameter if an all-gather gathers it and nothing else, or if its gradient comes out of a
reduce-scatter or an all-reduce. It is named by the module that it is used in and by its number, since its own name is
not in the graph.
"""

from __future__ import annotations

import torch

from .capture import CaptureContext, InputInfo, module_of
from .context import base_descriptor
from .graph import CollectiveKind, Role
from .ops import facts
from .tags import described_slots, unary_source


def structural_context(gm: torch.fx.GraphModule) -> CaptureContext:
    modules: dict[int, str] = {}  # number of the input -> module
    only: dict[torch.fx.Node, torch.fx.Node | None] = {}  # the one input that a node is made of; None: none, or several
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            only[node] = node
            continue
        source = unary_source(node)
        only[node] = only.get(source)
        if _kind(node) == CollectiveKind.ALL_GATHER and only[node] is not None:
            _note(modules, only[node].meta.get("desc"), node)
    for slot, descriptor in described_slots(gm):
        whole, _ = base_descriptor(descriptor)
        reduction = _reduction_above(slot) if isinstance(slot, torch.fx.Node) else None
        if type(whole).__name__ == "GradAOTOutput" and reduction is not None:
            _note(modules, whole.grad_of, reduction)
    context = CaptureContext()
    for number in range(1 + max(modules, default=-1)):
        named = number in modules
        name = f"{modules[number]}.input{number}".lstrip(".") if named else ""
        context.inputs.append(InputInfo(Role.PARAMETER if named else Role.INPUT, name))
    return context


def _note(modules: dict[int, str], descriptor, node: torch.fx.Node) -> None:
    plain, _ = base_descriptor(descriptor)
    if type(plain).__name__ == "PlainAOTInput":
        modules.setdefault(plain.idx, module_of(node))


def _reduction_above(node: torch.fx.Node | None) -> torch.fx.Node | None:
    """Through casts, pads' slices and waits."""
    while node is not None and node.op == "call_function":
        if _kind(node) in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE):
            return node
        if not (facts(node.target).wait or len(node.all_input_nodes) == 1):
            return None
        node = unary_source(node)
    return None


def _kind(node: torch.fx.Node):
    return facts(node.target).collective if node.op == "call_function" else None
