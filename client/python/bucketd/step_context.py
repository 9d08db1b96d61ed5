"""What the compiler knew before it lowered a step: parameters by name, roles of inputs, device meshes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .graph import GraphError, Role
from .mesh import Meshes

# Wrappers that put a module under an attribute of their own; their names are not part of a parameter's.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_CONTAINER = re.compile(r"\._(?:modules|parameters|buffers)\[")
_STEP = re.compile(r"\._(modules|parameters|buffers)\['([^']*)'\]|\['([^']*)'\]|\[(\d+)\]|\.([A-Za-z_]\w*)")


def clean(path: str) -> str:
    """A dotted name without the wrappers in it."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def parse_source(source: str) -> tuple[str, str, Role]:
    """(prefix, name, role) of a Dynamo source name.

    L['self']._modules['blocks']._modules['0']._parameters['weight'] is the parameter blocks.0.weight under the prefix
    L['self']; a source that runs through no module is an input, and has no name.
    """
    match = _CONTAINER.search(source)
    if match is None:
        return source, "", Role.INPUT
    parts, role = [], Role.INPUT
    for container, item, key, index, attribute in _STEP.findall(source[match.start() :]):
        parts.append(item or key or index or attribute)
        role = {"parameters": Role.PARAMETER, "buffers": Role.BUFFER}.get(container, Role.INPUT)
    return source[: match.start()], clean(".".join(parts)), role


@dataclass(slots=True)
class InputInfo:
    """Of one input of the step, as the compiler front end saw it, before tensor subclasses were taken apart."""

    role: Role
    parameter: str = ""  # FQN of a parameter or buffer


@dataclass
class CaptureContext:
    inputs: list[InputInfo] = field(default_factory=list)
    meshes: Meshes = field(default_factory=Meshes)
    device_type: str = ""
    model_prefixes: frozenset[str] = frozenset()
    by_position: bool = False  # `inputs` are those of the aten-level graph, one by one
    fault: GraphError | None = None  # why the joint graph could not be tagged

    @classmethod
    def from_dynamo(cls, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> CaptureContext:
        """From the graph that a torch.compile backend is called with. Each placeholder carries its source."""
        context = cls()
        prefixes: dict[int, str] = {}
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        for position, node in enumerate(placeholders):
            value = node.meta.get("example_value")
            if value is None and position < len(example_inputs):
                value = example_inputs[position]
            info, prefix = _input_info(node, value)
            if info.parameter:
                prefixes[position] = prefix
            context.inputs.append(info)
            context.note(value)
        context.model_prefixes = frozenset(prefixes.values())
        if len(context.model_prefixes) > 1:  # several models: their names must not meet
            for position, prefix in prefixes.items():
                context.inputs[position].parameter = f"{_plain(prefix)}.{context.inputs[position].parameter}"
        return context

    def note(self, value: Any) -> None:
        """Learns meshes and the device from a value of the graph."""
        value = getattr(value, "real_obj", value)  # a script object that stands for a mesh
        if isinstance(value, torch.Tensor):
            device = value.device.type
            if device != "meta" and (not self.device_type or self.device_type == "cpu"):
                self.device_type = device
            self.meshes.add(getattr(value, "device_mesh", None))
        elif type(value).__name__ == "DeviceMesh":
            self.meshes.add(value)


def _plain(prefix: str) -> str:
    return ".".join(re.findall(r"\w+", prefix)[1:]) or prefix


def _input_info(node: torch.fx.Node, value: Any) -> tuple[InputInfo, str]:
    grapharg = node.meta.get("grapharg")
    source = getattr(getattr(grapharg, "source", None), "name", "")
    source = source() if callable(source) else source
    prefix, name, role = parse_source(source)
    if role == Role.INPUT and name and isinstance(value, torch.nn.Parameter):
        role = Role.PARAMETER
    if role == Role.INPUT:
        name = ""
    return InputInfo(role, name), prefix


def base_descriptor(desc: Any) -> tuple[Any, str]:
    """Strips the layers of tensor subclasses: the descriptor of the whole tensor and the path of attributes."""
    path = []
    while type(desc).__name__.startswith("Subclass") and hasattr(desc, "base"):
        path.append(desc.attr if hasattr(desc, "attr") else f"{type(desc).__name__}[{desc.idx}]")
        desc = desc.base
    return desc, ".".join(reversed(path))


def describe_input(desc: Any, context: CaptureContext) -> tuple[Role, str]:
    """(role, FQN) behind an AOTAutograd input descriptor."""
    desc, _ = base_descriptor(desc)
    kind = type(desc).__name__
    if kind == "ParamAOTInput":
        return Role.PARAMETER, clean(desc.target)
    if kind == "BufferAOTInput":
        return Role.BUFFER, clean(desc.target)
    if kind == "TangentAOTInput":
        return Role.TANGENT, ""
    if kind == "PlainAOTInput":
        if 0 <= desc.idx < len(context.inputs):
            info = context.inputs[desc.idx]
            return info.role, info.parameter
        return Role.INPUT, ""
    if kind in ("ViewBaseAOTInput", "SyntheticBaseAOTInput"):
        return describe_input(desc.base_of, context)
    return (Role.UNSPECIFIED if desc is None else Role.INPUT), ""


def parameter_order(model: torch.nn.Module) -> list[str]:
    """Names of all parameters in eager FSDP2's registration order.

    Post-order over modules (children in registration order, then the module's own parameters in registration order);
    modules and parameters that were met before are skipped, so a shared parameter has its first name.
    """
    order: list[str] = []
    modules: set[int] = set()
    parameters: set[int] = set()

    def visit(module: torch.nn.Module, prefix: str) -> None:
        if id(module) in modules:
            return
        modules.add(id(module))
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.")
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in parameters:
                parameters.add(id(parameter))
                order.append(clean(f"{prefix}{name}"))

    visit(model, "")
    return order
