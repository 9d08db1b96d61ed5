"""Why a collective exists, found on the joint graph, where the roles of inputs and outputs are known.

A tag is a plain tuple in node.meta: partitioners copy the meta of a node with the node, so the tags ride into the
forward and the backward graph, and onto recomputed copies.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .graph import CollectiveKind, GraphError, Role, SlotKind
from .ops import facts
from .step_context import CaptureContext, base_descriptor, describe_input

META_KEY = "bucketd"  # node.meta[META_KEY] = (a name of graph.TAGS, FQN)


@dataclass(slots=True)
class OutputInfo:
    node: torch.fx.Node | None
    kind: SlotKind
    parameter: str = ""


def flatten(value: Any) -> list[Any]:
    """Depth first, left to right, through tuples and lists; anything else, None too, is one slot."""
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in flatten(part)]
    return [value]


def described_slots(gm: torch.fx.GraphModule) -> list[tuple[Any, Any]]:
    """(slot, its descriptor, None where the graph has none) of every output, flat and in order.

    Graphs that were traced again may nest their outputs and keep a flat list of descriptors; pairing the two as they
    stand would leave gradients out without a word. So both are flattened, and must be of one length.
    """
    output = gm.graph.output_node()
    slots = flatten(output.args[0] if output.args else ())
    described = output.meta.get("desc")
    if described is None:
        return [(slot, None) for slot in slots]
    descriptors = flatten(list(described) if isinstance(described, Sequence) else described)
    if len(slots) != len(descriptors):
        raise GraphError(
            f"the output node has {len(slots)} slots and {len(descriptors)} descriptors; the first that do not belong "
            f"together are at {_first_mismatch(slots, descriptors, _input_values(gm))}",
            output.name,
        )
    return list(zip(slots, descriptors))


def _first_mismatch(slots: list[Any], descriptors: list[Any], inputs: dict[Any, Any]) -> int:
    """Where a gradient is not of its input's form, else where the shorter list ends."""
    for position, (slot, descriptor) in enumerate(zip(slots, descriptors)):
        if _wrong_form(slot, descriptor, inputs, over_mesh=False):
            return position
    return min(len(slots), len(descriptors))


def output_slots(gm: torch.fx.GraphModule, context: CaptureContext, joint: bool = False) -> list[OutputInfo]:
    """The flat output slots with what they hold. GraphError, which names the slot, where descriptors contradict one
    another or the graph: two gradients of one input, the gradient of no input, one of another shape or dtype than its
    input (over a mesh, of another number of dimensions or dtype). A joint graph has all
    its inputs; of the others' gradients only those are compared whose inputs are here.
    """
    pairs = described_slots(gm)
    where, described = gm.graph.output_node().name, gm.graph.output_node().meta.get("desc") is not None
    inputs = _input_values(gm, joint)
    wholes = {whole for whole, _ in inputs}
    gradients: dict[tuple[Any, str], int] = {}
    out = []
    for position, (slot, descriptor) in enumerate(pairs):
        whole, path = base_descriptor(descriptor)
        if type(whole).__name__ == "GradAOTOutput":
            _check_claim(whole, path, position, gradients, context, where)
            if joint and wholes and whole.grad_of not in wholes:
                raise GraphError(f"output slot {position} is the gradient of {whole.grad_of}, which is no input", where)
            if wrong := _wrong_form(slot, descriptor, inputs):
                raise GraphError(f"output slot {position} is {wrong}", where)
        out.append(_slot(slot, whole, context, described))
    return out


def _input_values(gm: torch.fx.GraphModule, unique: bool = False) -> dict[tuple[Any, str], Any]:
    """Value of every described input, by (descriptor of the whole, path of attributes)."""
    values: dict[tuple[Any, str], Any] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder" or node.meta.get("desc") is None:
            continue
        key = base_descriptor(node.meta["desc"])
        if unique and key in values:
            raise GraphError(f"inputs {values[key][0]} and {node.name} have one descriptor, {node.meta['desc']}", node.name)
        values[key] = (node.name, node.meta.get("val"))
    return values


def _wrong_form(slot: Any, descriptor: Any, inputs: dict[tuple[Any, str], Any], over_mesh: bool = True) -> str:
    """What a gradient is instead of being like its input; "": it is, or nothing can be said. `over_mesh`: it may lie there otherwise, and
    have parts of another shape."""
    whole, path = base_descriptor(descriptor)
    if type(whole).__name__ != "GradAOTOutput" or not isinstance(slot, torch.fx.Node):
        return ""
    name, expected = inputs.get((whole.grad_of, path), ("", None))
    value = slot.meta.get("val")
    if not isinstance(expected, torch.Tensor) or not isinstance(value, torch.Tensor):
        return ""
    got, want = (tuple(value.shape), value.dtype), (tuple(expected.shape), expected.dtype)
    if got == want or over_mesh and path and value.dtype == expected.dtype and value.ndim == expected.ndim:
        return ""
    return f"{slot.name}, {list(got[0])} of {got[1]}, and claims to be the gradient of {name}, {list(want[0])} of {want[1]}"


def _check_claim(
    whole: Any, path: str, position: int, seen: dict[tuple[Any, str], int], context: CaptureContext, where: str
) -> None:
    first = seen.setdefault((whole.grad_of, path), position)
    if first != position:
        raise GraphError(f"output slots {first} and {position} both claim to be the gradient of {whole.grad_of}", where)
    source, _ = base_descriptor(whole.grad_of)
    index = getattr(source, "idx", None)
    if type(source).__name__ == "PlainAOTInput" and context.inputs and not 0 <= index < len(context.inputs):
        raise GraphError(
            f"output slot {position} is the gradient of input {index}, but there are {len(context.inputs)} inputs", where
        )


def _slot(slot: Any, whole: Any, context: CaptureContext, described: bool) -> OutputInfo:
    kind = type(whole).__name__
    node = slot if isinstance(slot, torch.fx.Node) else None
    if node is None or (described and whole is None):
        return OutputInfo(node, SlotKind.UNSPECIFIED)
    if kind == "GradAOTOutput":
        role, parameter = describe_input(whole.grad_of, context)
        if role == Role.PARAMETER:
            return OutputInfo(node, SlotKind.PARAMETER_GRADIENT, parameter)
        return OutputInfo(node, SlotKind.INPUT_GRADIENT)
    if kind.startswith("SavedForBackwards"):
        return OutputInfo(node, SlotKind.SAVED)
    return OutputInfo(node, SlotKind.OUTPUT)


def tag_joint(gm: torch.fx.GraphModule, context: CaptureContext, joint: bool = True) -> int:
    """Tags the collectives of parameters; returns how many. Any graph with descriptors will do; a joint one has all, and
    `joint` says that this is one."""
    slots = output_slots(gm, context, joint)
    nodes = list(gm.graph.nodes)
    parameter_of = _only_ancestor(nodes, context)
    gradient_below = _gradient_below(nodes, slots)
    tags: dict[torch.fx.Node, tuple[str, str]] = {}
    for node in nodes:
        kind = kind_of(node)
        if kind is None or len(node.users) != 1:
            continue
        wait = next(iter(node.users))
        if wait.op != "call_function" or not facts(wait.target).wait:
            continue
        if kind == CollectiveKind.ALL_GATHER and parameter_of.get(node):
            tags[node] = ("fsdp_ag", parameter_of[node])
        elif kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE) and gradient_below.get(wait):
            fqn = slots[gradient_below[wait][0]].parameter
            tags[node] = ("fsdp_rs" if kind == CollectiveKind.REDUCE_SCATTER else "ddp_ar", fqn)
    _mark_hsdp(nodes, tags)
    for node, tag in tags.items():
        node.meta[META_KEY] = tag
    return len(tags)


def tag_if_it_can_be(gm: torch.fx.GraphModule, context: CaptureContext) -> None:
    """tag_joint() where nobody could say that there is no plan: a graph of which nothing can be known is refused as it is planned."""
    try:
        tag_joint(gm, context)
    except GraphError as error:
        context.fault = error


def kind_of(node: torch.fx.Node) -> CollectiveKind | None:
    return facts(node.target).collective if node.op == "call_function" else None


def _only_ancestor(nodes: list[torch.fx.Node], context: CaptureContext) -> dict[torch.fx.Node, str]:
    """FQN of a node's one ancestor placeholder, for nodes that have exactly one, a parameter."""
    none, many = object(), object()
    ancestor: dict[torch.fx.Node, Any] = {}
    for node in nodes:
        if node.op == "placeholder":
            ancestor[node] = node
            continue
        found = none
        for source in node.all_input_nodes:
            other = ancestor.get(source, none)
            if other is none or other is found:
                continue
            found = other if found is none else many
        ancestor[node] = found
    out = {}
    for node, source in ancestor.items():
        if isinstance(source, torch.fx.Node):
            role, fqn = describe_input(source.meta.get("desc"), context)
            if role == Role.PARAMETER:
                out[node] = fqn
    return out


def unary_source(node: torch.fx.Node) -> torch.fx.Node | None:
    """The one node that `node` is made of.

    A pad in front of a collective is one step although it takes many nodes: split, the pieces, a pad of the short one
    (or of new zeros), cat.
    """
    inputs = node.all_input_nodes
    if len(inputs) == 1:
        return inputs[0]
    if node.op != "call_function" or facts(node.target).name != "aten.cat.default":
        return None
    sources = {_split_of(piece) for piece in inputs}
    return sources.pop() if len(sources) == 1 else None


def _split_of(piece: torch.fx.Node) -> torch.fx.Node | None:
    for _ in range(4):  # pad, zeros, getitem, split
        if piece.op != "call_function" or len(piece.all_input_nodes) != 1:
            return None
        if piece.target is operator.getitem:
            return piece.all_input_nodes[0]
        piece = piece.all_input_nodes[0]
    return None


def _gradient_below(nodes: list[torch.fx.Node], slots: list[OutputInfo]) -> dict[torch.fx.Node, tuple[int, ...]]:
    """The lowest parameter-gradient slot that a node reaches, if all its ways down are unary; (): it reaches none."""
    lowest: dict[torch.fx.Node, int] = {}
    for position, slot in enumerate(slots):
        if slot.node is not None and slot.kind == SlotKind.PARAMETER_GRADIENT:
            lowest.setdefault(slot.node, position)
    below: dict[torch.fx.Node, tuple[int, ...]] = {}
    for node in reversed(nodes):
        reached = [lowest[node]] if node in lowest else []
        for user in node.users:
            if user.op == "output":
                continue
            if user not in below or not (len(user.all_input_nodes) == 1 or unary_source(user) is not None):
                break
            reached.extend(below[user])
        else:
            below[node] = (min(reached),) if reached else ()
    return below


def _mark_hsdp(nodes: list[torch.fx.Node], tags: dict[torch.fx.Node, tuple[str, str]]) -> None:
    """An all-reduce on the unary chain of a tagged reduce-scatter, above or below it, is HSDP's."""
    scatter_above: dict[torch.fx.Node, bool] = {}
    for node in nodes:
        source = unary_source(node)
        scatter_above[node] = source is not None and (
            scatter_above.get(source, False) or tags.get(source, ("",))[0] == "fsdp_rs"
        )
    scatter_below: dict[torch.fx.Node, bool] = {}
    for node in reversed(nodes):
        scatter_below[node] = any(
            unary_source(user) is not None
            and (scatter_below.get(user, False) or tags.get(user, ("",))[0] == "fsdp_rs")
            for user in node.users
        )
    for node, (name, fqn) in tags.items():
        if name == "ddp_ar" and (scatter_above[node] or scatter_below[node]):
            tags[node] = ("hsdp_ar", fqn)
