"""What a graph itself tells of its parameters, for callers who have nothing else: bucketd.plan_pass.

An input is taken for a parameter if an all-gather gathers it and nothing else, or if its gradient comes out of a
reduce-scatter or an all-reduce. It is named by the module that it is used in and by its number, since its own name is
not in the graph.

A graph that make_fx traced has no descriptors: describe() gives it those that its structure tells. Which output is whose
gradient is told by shapes and by order, which are the inputs' own, as torch.autograd.grad returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from .capture import module_of
from .graph import CollectiveKind, Role
from .ops import facts
from .step_context import CaptureContext, InputInfo, base_descriptor
from .tags import described_slots, flatten, kind_of, unary_source

Node = torch.fx.Node


def structural_context(gm: torch.fx.GraphModule) -> CaptureContext:
    modules: dict[int, str] = {}  # number of the input -> module
    for collective, source in _gathered(gm):
        _note(modules, source.meta.get("desc"), collective)
    for slot, descriptor in described_slots(gm):
        whole, _ = base_descriptor(descriptor)
        if type(whole).__name__ == "GradAOTOutput" and (reductions := _reductions_above(slot)):
            _note(modules, whole.grad_of, reductions[0])
    context = CaptureContext()
    for number in range(1 + max(modules, default=-1)):
        named = number in modules
        name = f"{modules[number]}.input{number}".lstrip(".") if named else ""
        context.inputs.append(InputInfo(Role.PARAMETER if named else Role.INPUT, name))
    return context


def is_described(gm: torch.fx.GraphModule) -> bool:
    return any(node.meta.get("desc") is not None for node in gm.graph.nodes if node.op in ("placeholder", "output"))


def named_inputs(gm: torch.fx.GraphModule, names: Sequence[str | None]) -> CaptureContext:
    """That the first inputs of `gm` are parameters of these names (None: it is none), for a graph without descriptors."""
    inputs = gm.graph.find_nodes(op="placeholder")
    if len(names) > len(inputs):
        raise ValueError(f"parameters= names {len(names)} inputs, the graph has {len(inputs)}")
    context = CaptureContext(by_position=True)
    for node, name in zip(inputs, [*names, *[None] * len(inputs)]):
        value = node.meta.get("val")
        if name is not None and not isinstance(value, torch.Tensor):
            raise ValueError(f"parameters= names {name}, but input {node.name} is {value!r}, no tensor")
        context.inputs.append(InputInfo(Role.INPUT if name is None else Role.PARAMETER, name or ""))
    return context


def describe(gm: torch.fx.GraphModule, context: CaptureContext | None = None) -> None:
    """Gives a joint graph without descriptors those of inputs by their number, and of gradients and other outputs; says which nodes
    are of the backward where the graph does not. `context` is named_inputs(), where somebody knows names."""
    from torch._functorch._aot_autograd import descriptors as d

    inputs, output = gm.graph.find_nodes(op="placeholder"), gm.graph.output_node()
    slots = flatten(output.args[0] if output.args else ())
    named = None if context is None else {node for node, info in zip(inputs, context.inputs) if info.role == Role.PARAMETER}
    gradient_of = _gradients(gm, slots, inputs, named)
    for number, node in enumerate(inputs):
        node.meta["desc"] = d.PlainAOTInput(number)
    output.meta["desc"] = [
        d.GradAOTOutput(gradient_of[position].meta["desc"]) if position in gradient_of else d.PlainAOTOutput(position)
        for position in range(len(slots))]
    _mark_backward(gm, [slot for position, slot in enumerate(slots) if position not in gradient_of], gradient_of)


# -- whose gradient an output is


def _gradients(gm: torch.fx.GraphModule, slots: Sequence[object], inputs: Sequence[Node], named: set[Node] | None) -> dict[int, Node]:
    """The parameter of each output that a reduction makes, by the output's position."""
    gathered = {source for _, source in _gathered(gm)}
    parameters = [node for node in inputs if named is None or node in named]
    forms = {_form(node) for node in parameters}
    scattered = {position: any(kind_of(each) == CollectiveKind.REDUCE_SCATTER for each in above)
                 for position, slot in enumerate(slots) if (above := _reductions_above(slot)) and _form(slot) in forms}

    def alike(position: int, parameter: Node) -> bool:
        return _form(slots[position]) == _form(parameter) and scattered[position] == (parameter in gathered)

    found = _in_order(scattered, parameters, alike)
    return found if len(found) == len(scattered) else _in_any_order(scattered, parameters, alike)


def _in_order(positions: Iterable[int], parameters: list[Node], alike: Callable[[int, Node], bool]) -> dict[int, Node]:
    """Each gradient the first parameter behind that of the gradient before it: finds one for all if there is such a choice."""
    found, at = {}, 0
    for position in positions:
        next_one = next((k for k in range(at, len(parameters)) if alike(position, parameters[k])), None)
        if next_one is not None:
            found[position], at = parameters[next_one], next_one + 1
    return found


def _in_any_order(positions: Iterable[int], parameters: list[Node], alike: Callable[[int, Node], bool]) -> dict[int, Node]:
    left, found = dict.fromkeys(parameters), {}
    for position in positions:
        parameter = next((each for each in left if alike(position, each)), None)
        if parameter is not None:
            found[position] = parameter
            del left[parameter]
    return found


def _form(node: object) -> tuple | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def _gathered(gm: torch.fx.GraphModule) -> list[tuple[Node, Node]]:
    """All-gathers of one input and nothing else, and that input."""
    only: dict[Node, Node | None] = {}  # the one input that a node is made of; None: none, or several
    found = []
    for node in gm.graph.nodes:
        only[node] = node if node.op == "placeholder" else only.get(unary_source(node))
        if kind_of(node) == CollectiveKind.ALL_GATHER and only[node] is not None:
            found.append((node, only[node]))
    return found


def _note(modules: dict[int, str], descriptor, node: Node) -> None:
    plain, _ = base_descriptor(descriptor)
    if type(plain).__name__ == "PlainAOTInput":
        modules.setdefault(plain.idx, module_of(node))


def _reductions_above(node: object) -> list[Node]:
    """Of a gradient, from below: through casts, pads' slices and waits."""
    found = []
    while isinstance(node, Node) and node.op == "call_function":
        if kind_of(node) in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE):
            found.append(node)
        elif not (facts(node.target).wait or len(node.all_input_nodes) == 1):
            break
        node = unary_source(node)
    return found


# -- where the backward begins


def _mark_backward(gm: torch.fx.GraphModule, others: Sequence[object], gradient_of: dict[int, Node]) -> None:
    """As AOTAutograd does: behind the last node that makes one of the `others`, outputs that are no gradients. make_fx leaves nodes in
    the order in which they ran. What of these stands behind a gradient's reduction says nothing: a loss that is summed for the log."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    if any("partitioner_tag" in node.meta or "autograd_backward" in node.meta for node in calls):
        return
    slots = flatten(gm.graph.output_node().args[0])
    reductions = {each for position in gradient_of for each in _reductions_above(slots[position])}
    first = next((at for at, node in enumerate(calls) if node in reductions), len(calls))
    forward = _ancestors(others)
    end = max((at for at, node in enumerate(calls[:first]) if node in forward), default=None)
    if end is not None:
        for at, node in enumerate(calls):
            node.meta["partitioner_tag"] = "is_forward" if at <= end else "is_backward"


def _ancestors(nodes: Iterable[object]) -> set[Node]:
    """With those themselves."""
    found, left = set(), [node for node in nodes if isinstance(node, Node)]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(node.all_input_nodes)
    return found
