"""An FX graph of aten operators, as AOTAutograd hands it to a compiler, as a raw graph (proto/GRAPH.md §1)."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

import torch

from . import ops
from .graph import (
    ORDERED,
    SYMBOLIC,
    TAGS,
    VIEW,
    Collective,
    CollectiveKind,
    Direction,
    GraphError,
    Node,
    NodeKind,
    RawGraph,
    ReduceOp,
    Role,
    Slot,
    Tensor,
)
from .memory import memory_bytes
from .mesh import GroupRoles, ranks_per_node, world_size
from .sizes import Hints, is_symbolic
from .step_context import CaptureContext, clean, describe_input
from .tags import META_KEY, flatten, output_slots, tag_joint
from .values import is_nested, value_of

KINDS = ("fw", "bw", "joint")
_INTEGERS = {int}
_ROOT = re.compile(r"[A-Z]\[[^\]]*\](?:\.__closure__\[\d+\]\.cell_contents)?\.?")  # L['self'], G['model']


@dataclass(slots=True)
class Captured:
    raw: RawGraph
    nodes: list[torch.fx.Node]  # by raw id


def capture_graph(gm: torch.fx.GraphModule, context: CaptureContext, kind: str, name: str = "") -> Captured:
    """`kind` is "fw" (inference too), "bw" or "joint". Sizes that change are hints (sizes.Hints). Changes nothing in `gm` but the
    tags of collectives, and those only where none came with the nodes."""
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    return _Capture(gm, context, kind).run(name or kind)


def tag_once(gm: torch.fx.GraphModule, context: CaptureContext, kind: str) -> None:
    """Tags the collectives of a graph that no tags came with."""
    if not any(META_KEY in node.meta for node in gm.graph.nodes):
        tag_joint(gm, context, joint=kind == "joint")


class _Capture:
    def __init__(self, gm: torch.fx.GraphModule, context: CaptureContext, kind: str) -> None:
        self.gm = gm
        self.hints = Hints()
        self.symbolic = False  # the node that is being captured
        self.context = context
        self.kind = kind
        self.fx = list(gm.graph.nodes)
        self.id = {node: number for number, node in enumerate(self.fx)}
        self.nodes: list[Node] = []
        for node in self.fx:
            context.note(node.meta.get("val") if node.op == "placeholder" else None)
        self.groups = GroupRoles(context.meshes)
        tag_once(gm, context, kind)

    def run(self, name: str) -> Captured:
        for node in self.fx:
            self.symbolic = False
            self.nodes.append(self._node(node))
            made = self.nodes[-1]
            made.name = node.name
            made.direction = self._direction(node)
            if self.symbolic:
                made.flags |= SYMBOLIC
            made.memory_bytes = memory_bytes(self.nodes, made)
        self._own_modules()
        groups = self.groups.groups
        raw = RawGraph(name, self.kind, self.nodes, groups, self.context.meshes.dims(groups), world_size())
        raw.gpus_per_node = min(ranks_per_node(), raw.world_size)
        raw.device_type = self.context.meshes.device_type or self.context.device_type or "cpu"
        return Captured(raw, self.fx)

    def _node(self, node: torch.fx.Node) -> Node:
        if node.op == "placeholder":
            return self._placeholder(node)
        if node.op == "output":
            return self._output(node)
        if node.op == "get_attr":
            return Node(NodeKind.GET_ATTR, "get_attr", outputs=self._tensors(node))
        if node.op == "call_function":
            return self._call(node)
        raise GraphError(f"node {node.name} is a {node.op}; an aten-level graph has none", node.name)

    def _placeholder(self, node: torch.fx.Node) -> Node:
        desc = node.meta.get("desc")
        role, parameter = describe_input(desc, self.context)
        if desc is None and self.kind == "bw":
            role = Role.TANGENT if node.name.startswith("tangents") else Role.SAVED
        outputs = self._tensors(node)
        made = Node(NodeKind.PLACEHOLDER, "placeholder", outputs=outputs, role=role, parameter=parameter)
        made.opaque = not outputs
        return made

    def _output(self, node: torch.fx.Node) -> Node:
        made = Node(NodeKind.OUTPUT, "output", inputs=self._ids(node))
        made.slots = [Slot(self.id.get(slot.node), slot.kind, slot.parameter)
                      for slot in output_slots(self.gm, self.context, joint=self.kind == "joint")]
        return made

    def _call(self, node: torch.fx.Node) -> Node:
        op = ops.facts(node.target)
        shared, written = ops.storage(node, op)
        made = Node(NodeKind.CALL, op.name, self._ids(node), self._tensors(node))
        made.alias_of = [self.id[n] for n in shared]
        made.mutates = [self.id[n] for n in written]
        made.module = module_of(node)
        if node.target is operator.getitem and isinstance(node.args[1], int) and node.args[1] >= 0:
            if is_nested(value_of(node.args[0])):
                made.flags = VIEW  # of everything that its source holds
                return made
            made.kind, made.op, made.index = NodeKind.GETITEM, "getitem", node.args[1]
            return made
        if op.collective is not None and len(made.outputs) == 1:
            made.kind = NodeKind.COLLECTIVE
            made.flags = ops.flags(node, op, shared, written) & ORDERED
            made.collective = self._collective(node, op.collective)
            return made
        if op.wait and len(made.inputs) == 1 and self.nodes[made.inputs[0]].kind == NodeKind.COLLECTIVE:
            made.kind = NodeKind.WAIT
            return made
        made.flags = ops.flags(node, op, shared, written)
        made.flops = ops.flops(node, op, self.hints)
        return made

    def _collective(self, node: torch.fx.Node, kind: CollectiveKind) -> Collective:
        group_name = group_name_of(ops.argument(node, "group_name"), node)
        size = ops.argument(node, "group_size", 0)
        reduce_op = str(ops.argument(node, "reduce_op", "") or "").lower()
        if reduce_op and reduce_op not in ops.REDUCE_OPS:
            raise GraphError(f"{node.name} reduces with {reduce_op!r}, which is not known", node.name)
        self._check_sent(node)
        made = Collective(kind, self.groups.index(group_name, size if isinstance(size, int) else 0))
        made.reduce_op = ops.REDUCE_OPS[reduce_op] if reduce_op else ReduceOp.NONE
        tag, made.parameter = node.meta.get(META_KEY, ("", ""))
        made.tag = TAGS[tag] if tag else 0
        return made

    def _check_sent(self, node: torch.fx.Node) -> None:
        """A dtype that another one stands for would share a bucket with that one."""
        values = [value for each in (node, *node.all_input_nodes) for value in flatten(value_of(each))]
        for value in values:
            if isinstance(value, torch.Tensor) and value.dtype not in ops.DTYPES:
                raise GraphError(f"{node.name} sends a tensor of {value.dtype}, which no plan knows", node.name)

    def _ids(self, node: torch.fx.Node) -> list[int]:
        return [self.id[n] for n in node.all_input_nodes]

    def _tensors(self, node: torch.fx.Node) -> list[Tensor]:
        values = flatten(value_of(node))
        return [self._tensor(node, value) for value in values if isinstance(value, torch.Tensor)]

    def _tensor(self, node: torch.fx.Node, value: torch.Tensor) -> Tensor:
        dtype = ops.described(value.dtype)
        if dtype is None:
            raise GraphError(f"node {node.name} has a tensor of {value.dtype}, which is not supported", node.name)
        shape = tuple(value.shape)
        stride = tuple(value.stride()) if value.layout == torch.strided else ()
        if not {*map(type, shape), *map(type, stride)} <= _INTEGERS:
            self.symbolic = self.symbolic or any(map(is_symbolic, shape + stride))
            shape = tuple(self.hints(size) for size in shape)
            stride = tuple(number if type(number) is int else max(1, self.hints(number)) for number in stride)  # 0: expanded
        return Tensor(dtype, shape, stride if value.layout == torch.strided else None)

    def _direction(self, node: torch.fx.Node) -> Direction:
        if self.kind != "joint":
            return Direction.FORWARD if self.kind == "fw" else Direction.BACKWARD
        tag = node.meta.get("partitioner_tag")
        if tag in ("is_backward", "must_be_in_backward") or node.meta.get("autograd_backward"):
            return Direction.BACKWARD
        return Direction.FORWARD if tag in ("is_forward", "must_be_in_forward") else Direction.UNSPECIFIED

    def _own_modules(self) -> None:
        """The chain of a parameter's collective belongs to the module that owns the parameter.

        Stacks cannot tell: a module that gathers parameters is often one object for all of them, and then shows the
        path of the first.
        """
        for start, node in enumerate(self.fx):
            collective = self.nodes[start].collective
            if collective is None or not collective.parameter:
                continue
            owner = collective.parameter.rpartition(".")[0]
            chain, at = [node], node
            if collective.kind == CollectiveKind.ALL_GATHER:
                while len(at.all_input_nodes) == 1 and at.all_input_nodes[0].op == "call_function":
                    at = at.all_input_nodes[0]
                    chain.append(at)
            waits = [u for u in node.users if self.nodes[self.id[u]].kind == NodeKind.WAIT]
            below = [u for w in waits for u in w.users if self._is_cast(u) or self.nodes[self.id[u]].op == "aten.slice.Tensor"]
            while below:
                chain.append(below.pop())
                below.extend(u for u in chain[-1].users if self._is_cast(u))
            for member in chain + waits:
                self.nodes[self.id[member]].module = owner

    def _is_cast(self, node: torch.fx.Node) -> bool:
        return node.op == "call_function" and ops.facts(node.target).cast


def group_name_of(value: Any, node: torch.fx.Node) -> str:
    """A group is given by name, or is a value of the graph that holds a process group."""
    if isinstance(value, torch.fx.Node):
        held = value.meta.get("val")
        value = getattr(held, "real_obj", held)
    if isinstance(value, str):
        return value
    name = getattr(value, "group_name", None)
    if not isinstance(name, str):
        raise GraphError(f"{node.name} runs in a process group that has no name here: {value!r}", node.name)
    return name


def module_of(node: torch.fx.Node) -> str:
    """FQN of the innermost module, by the stack of the forward node that this one is or belongs to."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if stack:
        for entry in reversed(list(stack.values())):
            path = entry[0] if isinstance(entry, (tuple, list)) else entry
            fqn = _module_fqn(path)
            if fqn is not None:
                return fqn
    custom = node.meta.get("custom")
    fqn = custom.get("module_fqn") if isinstance(custom, dict) else None
    return fqn if isinstance(fqn, str) else ""


def _module_fqn(path: str) -> str | None:
    """Of a stack entry such as "L['self'].blocks.0.attn"; None for a module that only wraps or parametrises others."""
    root = _ROOT.match(path)
    parts = clean(path[root.end() :] if root else path).split(".")
    if any(part.startswith("_") or part == "parametrizations" for part in parts):
        return None
    return ".".join(part for part in parts if part)
