"""One graph of a whole training step: forward, loss and backward together, planned as one.

    step = bucketd.joint_step(model, (tokens, targets))      # the module's forward returns the loss
    for tokens, targets in data:
        loss = step(tokens, targets)                         # gradients are in .grad
        optimizer.step()
        optimizer.zero_grad()

A plan that sees both directions may start a backward's first gather while the forward still runs, which two plans for two
graphs cannot. The step is traced by AOTAutograd without Dynamo: for fixed shapes, once, and control flow as it went then.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from . import as_traced, bucket_ops
from .boxed import boxed
from .capture import Captured, capture_graph
from .errors import GraphRefused
from .graph import Role
from .reshard import copy_module, forward_first, gather_again
from .session import Planned, Session
from .settings import SettingsArgs
from .step_context import CaptureContext, InputInfo, base_descriptor, clean
from .tags import described_slots, flatten
from .torch_backend import aot_eager, has_collectives, named_settings, parameter_names

if TYPE_CHECKING:
    from typing_extensions import Unpack


def joint_step(
    model: torch.nn.Module,
    example_inputs: Sequence[Any],
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    reshard: bool = False,
    split: bool = False,
    param_order: Sequence[str] | None = None,
    on_plan: Callable[[Planned], None] | None = None,
    **settings: Unpack[SettingsArgs],
) -> Callable[..., Any]:
    """A planned training step of `model`. Make it in the same order on every rank.

    example_inputs  of the model: every later call must have their shapes and dtypes, and their numbers and texts, which are constants
    loss_fn         what is differentiated is loss_fn(model(*inputs)); None: the model's own result
    reshard         gather parameters again in the backward instead of keeping them (as FSDP2 does by default)
    split           take the planned graph apart into a forward and a backward: step(*inputs) is then a loss with a
                    gradient function, for autograd as ever. Collectives under way at the border are moved behind it.
    param_order     names of the parameters in eager's registration order; None: the model's
    on_plan         called with the `Planned` graph
    settings        as of bucketd.backend()

    executor="bucketd" has one order of launches, which a step taken apart cannot keep: ValueError with `split`.
    Without `split`, step(*inputs, tangent=None) runs forward and backward, adds the gradients to the parameters' .grad and
    returns the detached loss; `tangent` is the gradient that the loss gets (1, where None), such as a loss scale. Raises
    GraphRefused for a model whose forward writes into its buffers or inputs, or has several results, for parameters with hooks
    (register_hook, register_post_accumulate_grad_hook), which would not run, and for inputs that take gradients; `split` takes all
    four. A step is what was traced: train() or eval(), autocast and hooks of modules are as they were then. It uses the parameters and
    buffers that the model has when it is called: ValueError where they are not like those that it had.
    """
    session = Session(named_settings(model, settings))
    if split and session.settings.executor:
        raise ValueError(f"executor={session.settings.executor!r} launches in the plan's order, which split=True does not keep")
    order = parameter_names(model, param_order)

    def plan(gm: fx.GraphModule, context: CaptureContext) -> fx.GraphModule:
        if not has_collectives(gm):
            return gm
        return session.plan(gm, context, "joint", session.next_ordinal(), order, on_plan)

    if split:
        return _split_step(model, example_inputs, loss_fn, reshard, plan)
    joint = trace_joint(model, example_inputs, loss_fn=loss_fn, reshard=reshard)
    step = _Step(model, joint.module, joint.inputs)  # which refuses what it cannot run before ranks and planner are asked
    step.run_by(plan(joint.module, joint.context))
    step.session = session  # an executor lives as long as that
    return step


def trace_joint(
    model: torch.nn.Module,
    example_inputs: Sequence[Any],
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    reshard: bool = False,
) -> JointGraph:
    """The joint graph of a step, unplanned. The model's parameters may be fake or on the meta device."""
    with contextlib.ExitStack() as stack:
        gm = _export(stack, model, example_inputs, loss_fn).graph_module
    context = _context(example_inputs)
    if reshard:
        gather_again(gm, context)
    return JointGraph(model, gm, context, as_traced.Inputs(tuple(example_inputs)))


class JointGraph:
    """A traced step of a model."""

    def __init__(self, model: torch.nn.Module, module: fx.GraphModule, context: CaptureContext, inputs: as_traced.Inputs):
        self.model, self.module, self.context, self.inputs = model, module, context, inputs

    def capture(self, name: str = "joint") -> Captured:
        """For bucketd.save_graph and `bucketctl`."""
        return capture_graph(self.module, self.context, "joint", name)

    def step(self, module: fx.GraphModule | None = None) -> _Step:
        """The step as a function, by `module`: this graph, planned (None: as it is)."""
        module = self.module if module is None else module
        step = _Step(self.model, module, self.inputs)
        step.run_by(module)
        return step

    def split(self, module: fx.GraphModule | None = None) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward, as torch's default partitioner takes `module` apart."""
        from torch._functorch.partitioners import default_partition

        module = copy_module(self.module if module is None else module)
        forward_first(module)
        return default_partition(module, (), num_fwd_outputs=_forward_outputs(module))


class _WithLoss(torch.nn.Module):
    def __init__(self, model, loss_fn):
        super().__init__()
        self._orig_mod = model  # a wrapper's name, which is no part of a parameter's
        self.loss_fn = loss_fn

    def forward(self, *inputs):
        return self.loss_fn(self._orig_mod(*inputs))


def _export(stack, model, example_inputs, loss_fn):
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    traced = model if loss_fn is None else _WithLoss(model, loss_fn)
    joint = aot_export_joint_with_descriptors(stack, traced, tuple(example_inputs))
    _check_layouts(joint, {clean(name): p for name, p in model.named_parameters(remove_duplicate=False)})
    return joint


def _check_layouts(joint, parameters: dict[str, torch.nn.Parameter]) -> None:
    """A parameter's gradient must be laid out over the mesh as the parameter is."""
    subclasses = joint._aot_graph_capture.maybe_subclass_meta
    if subclasses is None:
        return
    slots = described_slots(joint.graph_module)[_forward_outputs(joint.graph_module):]
    for made in subclasses.grad_input_metas or ():
        if not isinstance(getattr(made, "original_subclass", None), DTensor):
            continue
        gradient, _ = base_descriptor(slots[made.flat_tensor_start_idx][1])
        source, _ = base_descriptor(gradient.grad_of)
        held = parameters.get(clean(getattr(source, "target", "")))
        if isinstance(held, DTensor) and tuple(made.meta[0]) != tuple(held.placements):
            raise GraphRefused(
                f"over the mesh the gradient of {source.target} is {made.meta[0]}, the parameter {held.placements}")


def _context(example_inputs) -> CaptureContext:
    """Parameters have their names in their descriptors; other inputs are counted."""
    return CaptureContext(inputs=[InputInfo(Role.INPUT) for _ in pytree.tree_leaves(tuple(example_inputs))])


def _forward_outputs(gm: fx.GraphModule) -> int:
    kinds = [type(base_descriptor(descriptor)[0]).__name__ for _, descriptor in described_slots(gm)]
    return kinds.index("GradAOTOutput") if "GradAOTOutput" in kinds else len(kinds)


def _split_step(model, example_inputs, loss_fn, reshard, plan):
    from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors
    from torch._functorch.partitioners import default_partition

    context = _context(example_inputs)

    def partition(gm, *args, **kwargs):
        if reshard:
            gather_again(gm, context)
        module = copy_module(plan(gm, context))
        forward_first(module)
        return default_partition(module, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        traced = _export(stack, model, example_inputs, loss_fn)
        call = aot_compile_joint_with_descriptors(
            traced, partition_fn=partition, fw_compiler=aot_eager, bw_compiler=aot_eager)
    parameters, buffers = as_traced.Tensors(model, "parameter"), as_traced.Tensors(model, "buffer")
    traced_for = as_traced.Inputs(tuple(example_inputs))

    def step(*inputs):
        traced_for.leaves(inputs)
        return call(*parameters.now().values(), *buffers.now().values(), *inputs)

    return step


class _Step:
    """Runs a joint graph on the model's own tensors. The graph speaks of plain tensors: parts of DTensors go in, and come
    out as gradients of the parameters' layout."""

    def __init__(self, model: torch.nn.Module, module: fx.GraphModule, inputs: as_traced.Inputs):
        self.traced_for = inputs
        self.tensors = [as_traced.Tensors(model, kind) for kind in ("parameter", "buffer")]
        self._look()
        self.inputs = [self._source(n) for n in module.graph.nodes if n.op == "placeholder"]
        self.outputs = [self._target(slot, descriptor) for slot, descriptor in described_slots(module)]
        if [what for what, _ in self.outputs].count("result") != 1:
            raise GraphRefused("the step must have one result, its loss; loss_fn= makes it of several")
        if taken := [name for what, name in self.outputs if what == "input"]:
            raise GraphRefused(f"input {taken[0]} takes a gradient, which a step in one graph does not give: detach it, or say split=True")

    def run_by(self, module: fx.GraphModule) -> None:
        """The graph that this was made of, or the same planned."""
        self.module, self.forward = module, bucket_ops.watcher(module)(boxed(module))

    def __call__(self, *inputs, tangent: torch.Tensor | float | None = None) -> torch.Tensor:
        leaves = self.traced_for.leaves(inputs)
        self._look()
        loss, given = None, collections.defaultdict(list)
        with torch.no_grad():
            outputs = self.forward([read(leaves, tangent) for read in self.inputs])
            for (what, name), value in zip(self.outputs, flatten(outputs)):
                if what == "result":
                    loss = value
                elif what == "gradient":
                    self._add(self.parameters[name], value, given)
        return loss

    def _look(self) -> None:
        """At the tensors that the model has now."""
        self.parameters, self.buffers = ({clean(name): held for name, held in each.now().items()} for each in self.tensors)
        if name := as_traced.hooked(self.parameters):
            raise GraphRefused(f"parameter {name} has hooks, which a step in one graph does not run: split=True does")

    # -- in

    def _source(self, node: fx.Node) -> Callable[[list, Any], Any]:
        whole, path = base_descriptor(node.meta.get("desc"))
        kind = type(whole).__name__
        if kind in ("ParamAOTInput", "BufferAOTInput"):
            held = "parameters" if kind == "ParamAOTInput" else "buffers"
            name = clean(whole.target)
            return lambda leaves, tangent: _part(getattr(self, held)[name], path)
        if kind == "PlainAOTInput":
            return lambda leaves, tangent: _part(leaves[whole.idx], path)
        if kind == "TangentAOTInput":
            like = node.meta["val"]
            return lambda leaves, tangent: _tangent(like, tangent)
        raise GraphRefused(f"input {node.name} is {node.meta.get('desc')}, which a step in one graph cannot be given")

    # -- out

    def _target(self, slot, descriptor) -> tuple[str, str]:
        if slot is None:
            return "nothing", ""  # the gradient of an input that needs none
        whole, path = base_descriptor(descriptor)
        kind = type(whole).__name__
        if kind == "PlainAOTOutput" and not path:
            return "result", ""
        if kind == "GradAOTOutput":
            source, _ = base_descriptor(whole.grad_of)
            if type(source).__name__ != "ParamAOTInput":
                return "input", str(getattr(source, "idx", source))
            parameter = self.parameters[clean(source.target)]
            if not path or path == "_local_tensor" and isinstance(parameter, DTensor):
                return "gradient", clean(source.target)
            return "nothing", ""  # the mesh of a DTensor, say
        raise GraphRefused(f"output {slot} is {descriptor}, which a step in one graph cannot do: no forward may write into "
                           "its buffers or inputs (of BatchNorm, say), but with split=True it may")

    @staticmethod
    def _add(parameter: torch.nn.Parameter, local: torch.Tensor, given: dict[int, list[tuple[int, int]]]) -> None:
        """As autograd accumulates: a gradient has its parameter's strides, and memory that no other one has. `given`: where this call's
        gradients lie, by storage."""
        if parameter.grad is None:
            part = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
            begin, others = local.data_ptr(), given[local.untyped_storage().data_ptr()]
            end = begin + local.nbytes
            if local.stride() != part.stride() or any(begin < last and first < end for first, last in others):
                local = torch.empty_like(part, dtype=local.dtype).copy_(local)
            else:
                others.append((begin, end))
        gradient = local
        if isinstance(parameter, DTensor):
            gradient = DTensor.from_local(local, parameter.device_mesh, parameter.placements, run_check=False,
                                          shape=parameter.shape, stride=parameter.stride())
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient


def _part(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value


def _tangent(like: torch.Tensor, given: torch.Tensor | float | None) -> torch.Tensor:
    if given is None:
        return torch.ones(like.shape, dtype=like.dtype, device=like.device)
    return torch.as_tensor(given, dtype=like.dtype, device=like.device).expand(like.shape)
