"""Inductor under a plan: `bucketd.backend(compiler="inductor")`, and its parts for a stack of your own over Inductor.

A graph is planned in Inductor's `inner_compile`, before Inductor makes the key of its cache: the planned graph is the key,
and every process asks for the plan and agrees on it before it looks there. Another plan is another key, and a rank that finds
its code beside one that compiles run the same plan. So caches stay on, but for AOTAutograd's: its key is made of the graph
that Dynamo traced, where there is no plan yet, and what it finds it runs without asking.

What a stack of your own can take:

    planned = bucketd.backend(compiler="inductor", ...)        planned(gm, inputs, ...) where compile_fx(gm, inputs, ...) stood
    bucketd.inductor.compile_fx_inner(gm, inputs, ...)         Inductor's own, for a graph that bucketd.plan_pass planned
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor import compile_fx as inductor
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomPartitionerFn, get_custom_graph_passes
from torch._library.fake_class_registry import FakeScriptObject
from torch._library.opaque_object import is_opaque_reference_type
from torch.multiprocessing.reductions import StorageWeakRef

from . import bucket_ops, fusion, launch_order
from .errors import InductorOrderError
from .once import until_backward
from .step_context import CaptureContext
from .tags import tag_if_it_can_be

log = logging.getLogger("bucketd")
aten = torch.ops.aten

# What would move or merge the plan's collectives once more. Buffers may be reused: Inductor keeps what a collective reads
# until its wait.
_OFF: dict[str, Any] = {
    "reorder_for_peak_memory": False,
    "reorder_for_compute_comm_overlap": False,
    "reorder_for_locality": False,  # of graphs without gradients
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
    "dedup_reduce_scatters": False,
    "aten_distributed_optimizations.enable_overlap_scheduling": False,
    "aten_distributed_optimizations.allow_comms_decompositions": False,
    "_micro_pipeline_tp": False,
    "_fuse_ddp_communication": False,
    "combo_kernels": False,
}
_told: set[str] = set()


def compile_fx_inner(gm: fx.GraphModule, example_inputs: Sequence[Any], *,
                     inner_compile: Callable = inductor.compile_fx_inner, **kwargs: Any) -> Any:
    """torch._inductor.compile_fx.compile_fx_inner for a planned graph: its code launches and waits in the graph's order.

    `gm` is aten-level, as bucketd.plan_pass leaves it or bucketd.backend planned it; it is Inductor's afterwards, which
    changes it. `inner_compile` does the work, with `kwargs`. Raises InductorOrderError if the code launches in another
    order, and warns if it only waits in another one. Settings of Inductor that would reorder a plan are off meanwhile;
    those that were set by hand are named in a warning, once.
    """
    planned = launch_order.of_graph(gm)
    if not planned:
        return inner_compile(gm, example_inputs, **kwargs)
    if kwargs.get("cpp_wrapper") or kwargs.get("fx_wrapper"):
        raise InductorOrderError("cpp_wrapper and fx_wrapper write code whose order cannot be read: leave them off under a plan")
    _tell(_set_by_hand())
    lowerable(gm)
    around = bucket_ops.watcher(gm)
    with config.patch(in_order()), _giving_alone(gm):
        code = inner_compile(gm, [_real(value) for value in example_inputs], **kwargs)
    source = getattr(code, "source_code", None)
    if source is None:
        log.warning("bucketd: nobody checked that the code keeps the plan's order: inner_compile gave a %s, which has no "
                    "source_code", type(code).__name__)
    elif differs := launch_order.check(planned, source):
        log.warning("bucketd: the code waits in another order than the plan, which costs time and changes no result: %s", differs)
    if getattr(code, "current_callable", None) is not None:
        code.current_callable = around(code.current_callable)
    return code


def in_order() -> dict[str, Any]:
    """Inductor's settings under which the code of a planned graph launches and waits in the graph's order."""
    return {**_OFF, "_pre_fusion_custom_pass": launch_order.KeepOrder(config._pre_fusion_custom_pass)}


def compile_step(gm: fx.GraphModule, example_inputs: Sequence[Any], context: CaptureContext, plan: Callable, *,
                 partitioner: Callable | None = None, inner_compile: Callable = inductor.compile_fx_inner,
                 config_patches: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
                 mode: str | None = None, **kwargs: Any) -> Callable:
    """torch._inductor.compile_fx.compile_fx, where plan(part, inputs, "fw" or "bw"), around the compilation of each graph,
    gives (part, whether it has a plan). `context` is of `gm`; `partitioner` None is Inductor's own. `options` and `mode` are
    those of torch.compile."""
    patches = {**torch._TorchCompileInductorWrapper(mode, dict(options or {}), None).config, **(config_patches or {})}
    _tell({name: patches[name] for name in _OFF if name in patches})

    @until_backward
    def inner(part, inputs, **more):
        fusion.note_layouts(part, inputs)
        with plan(part, inputs, "bw" if more.get("is_backward") else "fw") as (part, planned):
            if not planned:
                return inner_compile(part, inputs, **more)
            return compile_fx_inner(part, inputs, inner_compile=inner_compile, **more)

    around = {"joint_custom_pre_pass": (_Tag(context), *get_custom_graph_passes(config.joint_custom_pre_pass))}
    if partitioner is not None:
        around["custom_partitioner_fn"] = _Partitioner(partitioner)
    with torch._functorch.config.patch(enable_autograd_cache=False), config.patch(around):
        return inductor.compile_fx(gm, example_inputs, inner_compile=inner, config_patches=patches, **kwargs)


def lowerable(gm: fx.GraphModule) -> None:
    """Changes split_with_sizes_copy, which Inductor cannot lower behind AOTAutograd, to views and copies that it fuses."""
    graph = gm.graph
    for packed in graph.find_nodes(op="call_function", target=aten.split_with_sizes_copy.default):
        with graph.inserting_before(packed):
            split = _like(graph.call_function(aten.split_with_sizes.default, packed.args, packed.kwargs), packed)
        source = packed.args[0].meta["val"]
        with getattr(source, "fake_mode", contextlib.nullcontext()):
            split.meta["val"] = aten.split_with_sizes.default(source, *packed.args[1:], **packed.kwargs)
        for piece in list(packed.users):
            with graph.inserting_before(piece):
                view = _like(graph.call_function(operator.getitem, (split, piece.args[1])), piece)
                view.meta["val"] = split.meta["val"][piece.args[1]]
                copy = graph.call_function(aten.clone.default, (view,), {"memory_format": torch.contiguous_format})
            piece.replace_all_uses_with(_like(copy, piece))
            graph.erase_node(piece)
        graph.erase_node(packed)
    gm.recompile()


def _like(new: fx.Node, old: fx.Node) -> fx.Node:
    new.meta.update(old.meta)
    return new


@contextlib.contextmanager
def _giving_alone(gm: fx.GraphModule):
    """Inductor writes into what a backward gets of its forward and nobody else holds. PyTorch 2.13 also gives it two tensors on
    one storage: in the order of its own graph it reads one before it writes into the other, in a plan's perhaps not."""
    tracing = torch._guards.TracingContext.try_get()
    told = tracing.fw_metadata if tracing is not None else None
    given = getattr(told, "bw_donated_idxs", None)
    if not given:
        yield
        return
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    storages = [StorageWeakRef(v.untyped_storage()) if isinstance(v, torch.Tensor) else None for v in inputs]
    holders = collections.Counter(storages)
    told.bw_donated_idxs = [i for i in given if i < len(storages) and holders[storages[i]] == 1]
    try:
        yield
    finally:
        told.bw_donated_idxs = given


def _real(value: Any) -> Any:
    """A device mesh by itself, not what AOTAutograd wraps it into: of that one, Inductor takes all that the mesh holds for its
    key, a hash among it that is another in every process; of a mesh only which inputs are the same one."""
    if isinstance(value, FakeScriptObject) and is_opaque_reference_type(type(value.real_obj)):
        return value.real_obj
    return value


def _set_by_hand() -> dict[str, Any]:
    """What is neither as it comes nor as a plan wants it. Set by hand to its default it looks as it comes."""
    held = {name: functools.reduce(getattr, name.split("."), config) for name in _OFF}
    return {name: value for name, value in held.items() if value != config._config[name].default}


def _tell(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value != _OFF[name] and name not in _told:
            _told.add(name)
            log.warning("bucketd: Inductor's %s=%r is %r where a graph runs by a plan", name, value, _OFF[name])


class _Tag(CustomGraphPass):
    """Tags the joint graph's collectives, before the partitioner takes inputs and outputs apart. Changes no code."""

    def __init__(self, context: CaptureContext):
        self.context = context

    def __call__(self, graph: fx.Graph) -> None:
        tag_if_it_can_be(graph.owning_module, self.context)

    def uuid(self):
        return "bucketd.tag"


class _Partitioner(CustomPartitionerFn):
    """A partitioner such as AOTAutograd takes. What it makes is in Inductor's key, what it is need not be."""

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, gm, joint_inputs, compiler=None, **kwargs):
        return self.function(gm, joint_inputs, **kwargs)

    def uuid(self):
        return "bucketd.partitioner"
