"""torchtitan's graph trainer with bucketd's plan in the place of its own bucketing.

    import bucketd.torchtitan

    bucketd.torchtitan.configure(address="planner:9460")     # or nothing: a private planner

and `--compile.pass_pipeline bucketd`. All other passes of torchtitan run as ever, but for that of
enable_fsdp_dense_region_overlap. In compile.mode "aot_fx_trace" one graph of
forward, loss and backward is planned; in "jit" torch.compile's backend is bucketd's.
"""

from __future__ import annotations

import difflib
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import needs_torchtitan
from .agreement import distributed
from .errors import BucketdError, GraphRefused
from .graph import Role
from .session import Planned, Session
from .settings import Settings, SettingsArgs
from .step_context import CaptureContext, InputInfo, parameter_order
from .tags import flatten
from .torch_backend import Pass, backend, has_collectives

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torchtitan.experiments.graph_trainer.trainer import GraphTrainer
    from typing_extensions import Unpack

log = logging.getLogger("bucketd")

PIPELINE = "bucketd"

# What a plan stands for: which collectives share a launch, and when each is launched.
_REPLACED = ("joint_transformer_block_bucketing_reordering_pass", "schedule_fsdp_comms_to_dense_regions_pass")
# What puts nodes into another order than the plan's, afterwards.
_REORDERS = ("ep_overlap_schedule_pass",)
# Options of bucketd.backend() that say what happens around the plan, which torchtitan's own list does in aot_fx_trace.
_AROUND = ("compiler", "passes", "partitioner")


def configure(
    *,
    param_order: Sequence[str] | None = None,
    on_plan: Callable[[Planned], None] | None = None,
    compiler: Literal["aot_eager", "inductor"] | Callable[[fx.GraphModule, Sequence[object]], Callable] | None = None,
    passes: Sequence[Literal["plan"] | Pass] | None = None,
    partitioner: Literal["default", "min_cut"] | Callable | None = None,
    **settings: Unpack[SettingsArgs],
) -> None:
    """The arguments of bucketd.backend() that every trainer made from now on plans with; call it alike on every rank. TypeError
    for an unknown one, ValueError for a value that cannot be. `compiler` is torchtitan's compile.backend where it is left
    out; `compiler`, `passes` and `partitioner` are of compile.mode "jit" alone."""
    global _asked
    if "model" in settings:
        raise TypeError("model= is the trainer's own here: leave it out")
    own = {"param_order": param_order, "on_plan": on_plan, "compiler": compiler, "passes": passes, "partitioner": partitioner}
    asked = _Asked({**settings, **{name: value for name, value in own.items() if value is not None}})
    Settings.of(**asked.settings)
    _asked = asked


class _Asked:
    """Arguments of configure(), and the session of all graphs that are planned by them."""

    def __init__(self, options: dict[str, Any] | None = None):
        self.configured = options is not None
        self.options = options or {}
        self.settings = {name: value for name, value in self.options.items() if name not in ("param_order", "on_plan", *_AROUND)}

    @functools.cached_property
    def session(self) -> Session:
        return Session(Settings.of(**self.settings))


_asked = _Asked()
_trainers: list[tuple[Any, weakref.ref, _Asked]] = []  # config, model, and what was asked when it was made


def _trainer_of(config: Any) -> tuple[torch.nn.Module, _Asked]:
    for held, model, asked in reversed(_trainers):
        if held is config and (found := model()) is not None:
            return found, asked
    raise BucketdError(f"no trainer with this config was made while compile.pass_pipeline was {PIPELINE!r}")


# -- what torchtitan calls


def _pipeline(traced: Any, config: Any, *, parallel_dims: Any = None) -> list[Callable]:
    """torchtitan's own list, with one pass that plans where its bucketing was."""
    from torchtitan.experiments.graph_trainer.passes import construct_default_graph_passes

    model, asked = _trainer_of(config)
    around = [name for name in _AROUND if name in asked.options]
    if around:
        raise ValueError(f"{', '.join(around)}: only compile.mode='jit' reads that; with 'aot_fx_trace' torchtitan compiles the graph")
    passes = construct_default_graph_passes(traced, config, parallel_dims=parallel_dims)
    names = [_name(each) for each in passes]
    if config.compile.precompile_artifact_dir:
        _warn(f"the graph of {config.compile.precompile_artifact_dir} was compiled before: it runs as it was made, without a plan")
        return passes
    if _REPLACED[0] not in names:
        raise BucketdError(f"torchtitan {needs_torchtitan.version()} has no pass {_REPLACED[0]}, which a plan stands for: "
                           f"bucketd was tried with {needs_torchtitan.TRIED}")
    for late in set(names[names.index(_REPLACED[0]):]).intersection(_REORDERS):
        _warn(f"torchtitan's {late} comes after the plan and moves what the plan has put in order")

    def bucketd_plan_pass(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
        whole = config.compile.inductor_compilation == "full"
        gm = _plan(gm, describe(gm, traced, model), model, asked, inductor=whole)
        if whole:
            _mark(gm)
        return gm

    at = names.index(_REPLACED[0])
    kept = [each for each, name in zip(passes, names) if name not in _REPLACED]
    return [*kept[:at], bucketd_plan_pass, *kept[at:]]


def _after_init(trainer: GraphTrainer) -> None:
    """Remembers the trainer's model; in mode "jit" compiles it with bucketd's backend."""
    config = trainer.config
    for model in trainer.model_parts:
        _trainers[:] = [each for each in _trainers if each[1]() is not None]
        _trainers.append((config, weakref.ref(model), _asked))
        if config.compile.mode == "jit" and model._compiled_call_impl is not None:
            if config.compile.passes:
                raise ValueError(f"compile.passes={config.compile.passes} and compile.pass_pipeline={PIPELINE!r}: one or the other buckets")
            options = {"compiler": config.compile.backend, **_asked.options}
            model.compile(backend=backend(model=model, **options), fullgraph=True)


# -- the plan


def _plan(gm: fx.GraphModule, context: CaptureContext, model: torch.nn.Module, asked: _Asked, inductor: bool) -> fx.GraphModule:
    if not has_collectives(gm):
        return gm
    order = asked.options.get("param_order")
    order = parameter_order(model) if order is None else list(order)
    # Not `fused`: Inductor has yet to take operations of this graph apart, so which kernels it makes cannot be told.
    ordinal = asked.session.next_ordinal(inductor=inductor)
    return asked.session.plan(gm, context, "joint", ordinal, order, asked.options.get("on_plan"))


def _mark(gm: fx.GraphModule) -> None:
    """For torchtitan's full_inductor_compilation_pass, which comes last and would let Inductor move every reduce-scatter to the
    end: it leaves nodes alone that are marked already, with settings of their own."""
    from . import inductor

    inductor.lowerable(gm)
    settings = {"inductor_configs": inductor.in_order()}
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "output"):
            node.meta["custom"] = {**node.meta.get("custom", {}), "compile_with_inductor": settings}


def describe(gm: fx.GraphModule, traced: Any, model: torch.nn.Module) -> CaptureContext:
    """Says in `gm`, a graph of `traced` (torchtitan's TracedResult), what its inputs and outputs are, as AOTAutograd does in
    meta["desc"]. make_fx leaves nothing of the kind: the trace knows the names of the model's state, and how many inputs each
    of its tensors became. GraphRefused where the graph has other inputs or outputs than the trace says."""
    from torch._functorch._aot_autograd import descriptors as d

    parameters = dict(model.named_parameters(remove_duplicate=False))
    state = [d.ParamAOTInput(name) if name in parameters else d.BufferAOTInput(name) for name in traced.state_fqns]
    others = [d.PlainAOTInput(number) for number in range(traced.num_flat_inputs - len(state))]
    inputs = _parts([*state, *others], traced.input_subclass_layouts, d.SubclassGetAttrAOTInput)
    gradients = [d.GradAOTOutput(d.ParamAOTInput(name)) for name, each in parameters.items() if each.requires_grad]
    outputs = _parts([d.PlainAOTOutput(0), *gradients], traced.output_subclass_layouts, d.SubclassGetAttrAOTOutput)

    placeholders, output = gm.graph.find_nodes(op="placeholder"), gm.graph.output_node()
    results = flatten(output.args[0])
    for what, found, expected in (("inputs", placeholders, inputs), ("outputs", results, outputs)):
        if len(found) != len(expected):
            raise GraphRefused(f"the graph has {len(found)} {what}, its trace has {len(expected)}")
    for node, descriptor in zip(placeholders, inputs):
        node.meta["desc"] = descriptor
    output.meta["desc"] = outputs
    return CaptureContext(inputs=[InputInfo(Role.INPUT) for _ in others])


def _parts(wholes: Sequence[Any], layouts: dict[int, Any], attribute: Callable) -> list[Any]:
    """A descriptor for each of the plain values that tensor subclasses were taken apart into."""
    found = []
    for position, whole in enumerate(wholes):
        meta = layouts[position].meta if position in layouts else None
        found.extend([whole] if meta is None else _of_subclass(whole, meta, attribute))
    return found


def _of_subclass(whole: Any, meta: Any, attribute: Callable) -> list[Any]:
    found = []
    for name in meta.attrs:
        part = attribute(base=whole, attr=name)
        _, inner = meta.inner_metas[name]
        found.extend([part] if inner is None else _of_subclass(part, inner, attribute))
    return found


# -- what a job is told


def _check(trainer: GraphTrainer) -> None:
    """torchtitan takes its own passes, without a word, for a pipeline that nobody registered."""
    from torchtitan.experiments.graph_trainer.registry import PASS_PIPELINE_REGISTRY

    asked = trainer.config.compile
    name, known = asked.pass_pipeline, [*PASS_PIPELINE_REGISTRY, "default"]
    if name == PIPELINE:
        if trainer.parallel_dims.pp_enabled and asked.mode != "jit":
            _warn("pipeline parallelism compiles its stages without reading compile.pass_pipeline: there is no plan")
        elif asked.mode is None or not (asked.enable if asked.mode == "jit" else asked.enable_passes):
            _warn(f"compile.pass_pipeline is {PIPELINE!r}, but nothing is compiled with it (compile.mode={asked.mode!r}, "
                  f"enable={asked.enable}, enable_passes={asked.enable_passes}): there is no plan")
    elif name not in known:
        near = difflib.get_close_matches(name, known, 1)
        _warn(f"compile.pass_pipeline={name!r} names no pipeline, and torchtitan takes its default one without a word: there is no plan; "
              + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(map(repr, known))}"))
    elif _asked.configured:
        _warn(f"bucketd.torchtitan.configure() was called, but compile.pass_pipeline is {name!r}: there is no plan; "
              f"say --compile.pass_pipeline {PIPELINE}")


def _warn(text: str) -> None:
    dist = distributed()
    if dist is None or dist.get_rank() == 0:
        log.warning("bucketd: %s", text)


def _name(each: Callable) -> str:
    return each.func.__name__ if isinstance(each, functools.partial) else each.__name__


# -- registration


def _register() -> None:
    try:
        from torchtitan.experiments.graph_trainer import registry
        from torchtitan.experiments.graph_trainer.trainer import GraphTrainer
    except ImportError as error:
        raise ImportError(f"torchtitan {needs_torchtitan.version()} lacks something that its graph trainer needs: {error}; "
                          f"{needs_torchtitan.INSTALL}") from error
    registry.register_pass_pipeline(PIPELINE)(_pipeline)
    registry.register_post_init_hook(PIPELINE)(_after_init)
    made = GraphTrainer.__init__

    @functools.wraps(made)
    def watched(self, *args, **kwargs):
        made(self, *args, **kwargs)
        _check(self)

    GraphTrainer.__init__ = watched
    log.info("bucketd: torchtitan %s has the pass pipeline %r: --compile.pass_pipeline %s", needs_torchtitan.version(), PIPELINE, PIPELINE)


_register()
