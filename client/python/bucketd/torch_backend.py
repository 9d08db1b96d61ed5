"""The torch.compile backend, and the pass for everybody else's."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from . import bucket_ops, degraded, recompiling
from .boxed import boxed
from .capture import KINDS
from .graph import Role
from .job import rank_and_world
from .once import until_backward
from .session import Ordinal, Planned, Session
from .settings import Settings, SettingsArgs, bucket_list
from .step_context import CaptureContext, clean, describe_input, parameter_order
from .structure import describe, is_described, named_inputs, structural_context
from .tags import kind_of, tag_if_it_can_be

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PARTITIONERS = {"default": "default_partition", "min_cut": "min_cut_rematerialization_partition"}  # of functorch
PLAN = "plan"
INDUCTOR = "inductor"

log = logging.getLogger("bucketd")

Pass = Callable[[fx.GraphModule, Sequence[object]], fx.GraphModule | None]


def backend(
    *called: object,
    model: torch.nn.Module | None = None,
    param_order: Sequence[str] | None = None,
    compiler: Literal["aot_eager", "inductor"] | Callable[[fx.GraphModule, Sequence[object]], Callable] = "aot_eager",
    passes: Sequence[Literal["plan"] | Pass] = (PLAN,),
    partitioner: Literal["default", "min_cut"] | Callable | None = None,
    on_plan: Callable[[Planned], None] | None = None,
    **settings: Unpack[SettingsArgs],
) -> Backend:
    """A backend for `torch.compile(model, backend=bucketd.backend(...))` that runs the step's collectives by a plan.

    Compile with it, and with others, in the same order on every rank. What is compiled again, for a batch of another size, keeps the
    order of its plan, and a rank may do that alone; sizes may be symbolic. No rank runs a plan before all of them hold the same
    one: they compare notes through torch.distributed's key-value store. With `job` the planner sees to it as well: it
    answers when all ranks have asked, all of them alike, names the ranks and the first node that differ or the ranks that
    are missing, and gives a restarted job the plans that it had. A rank that fails by itself, before it asks or with the
    answer in its hands, is still for the store to tell; without torch.distributed the planner agrees alone.

    model          the module whose registration order is eager's; None: the compiled one, where it can be told
    param_order    the same as a list of parameter names
    compiler       what a graph is handed to when all passes are done: "aot_eager", which runs it node by node; "inductor", whose
                   code launches and waits in the plan's order, or it raises InductorOrderError (client/python/TRAINERS.md);
                   or a function such as AOTAutograd takes for fw_compiler, from a graph and example inputs to what runs it
    passes         what each forward and backward graph goes through before that, in order: "plan", where it gets its plan, and
                   functions of your own, from a graph and example inputs to a graph; None: it was changed in place
    partitioner    what takes the joint graph apart: "default", "min_cut" (the one that recomputes what is cheap), or a function
                   such as AOTAutograd takes for partition_fn; None: "default", under Inductor its own, which is min_cut
    on_plan        called with each `Planned` graph, before it first runs (and before Inductor, which then changes its module)
    settings       how to plan, and with whom: bucketd.SettingsArgs says what there is
    """
    if called:  # by torch.compile, or with a model that has no name
        raise TypeError("bucketd.backend() makes a backend, and takes arguments by name: torch.compile(model, backend=bucketd.backend())")
    for name, value, known in (("compiler", compiler, ("aot_eager", INDUCTOR)), ("partitioner", partitioner, (None, *_PARTITIONERS)),
                               *(("passes", each, (PLAN,)) for each in passes)):
        if value not in known and not callable(value):
            raise ValueError(f"{name}={value!r}: expected {', '.join(map(repr, known))} or a function")
    if partitioner is None and compiler != INDUCTOR:
        partitioner = "default"
    if partitioner in _PARTITIONERS:
        from torch._functorch import partitioners

        partitioner = getattr(partitioners, _PARTITIONERS[partitioner])
    session = Session(named_settings(model, settings))
    # Whoever else gets to see a planned graph may run it as it is.
    recompile = compiler not in ("aot_eager", INDUCTOR) or tuple(passes) != (PLAN,) or on_plan is not None
    compiler = aot_eager if compiler == "aot_eager" else compiler
    return Backend(session, parameter_names(model, param_order), on_plan, compiler, tuple(passes), partitioner, recompile)


def aot_eager(gm: fx.GraphModule, _inputs: Sequence[object]) -> Callable:
    return boxed(gm)


class Backend:
    """What backend() returns. One compiled graph after the other; each gets an ordinal that all ranks share."""

    def __init__(self, session: Session, parameter_order: list[str] | None, on_plan: Callable[[Planned], None] | None,
                 compiler: str | Callable, passes: Sequence[str | Pass], partitioner: Callable | None, recompile: bool):
        self.session = session
        self.parameter_order = parameter_order
        self.on_plan = on_plan
        self.compiler, self.passes, self.partitioner, self.recompile = compiler, passes, partitioner, recompile
        self._told: set[str] = set()
        self._had_collectives = False
        self.__name__ = "bucketd"
        recompiling.watch()

    def __deepcopy__(self, memo) -> Backend:
        """Of a compiled model (an average of weights, say): its copy, made on all ranks alike, has the same planner and agreement."""
        return self

    def __reduce__(self):
        """With a compiled model that is saved, or given to a spawned process."""
        return Backend, (self.session, self.parameter_order, self.on_plan, self.compiler, self.passes, self.partitioner, self.recompile)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **how: Any) -> Callable:
        """With compiler="inductor", `how` is what torch.compile has of mode= and options=, and what compile_fx takes."""
        context = CaptureContext.from_dynamo(gm, example_inputs)
        order = self._order(context)
        compiled_for, planned = recompiling.backend_here(), threading.Event()

        def on_plan(_: Planned) -> None:
            planned.set()
            recompiling.hold(compiled_for, self.session.agreement)

        ordinal = self.session.next_ordinal(_code(), self.compiler == INDUCTOR)
        plan = functools.partial(self._plan, context, ordinal, order, on_plan)
        ordinal.in_forward = True
        try:
            run = self._compiled(gm, example_inputs, context, plan, how)
        finally:
            ordinal.in_forward = False
        return recompiling.never_eager(run, planned)

    def _order(self, context: CaptureContext) -> list[str]:
        """Of eager's parameters. Blocks of a model that are compiled alone have names of their own, and an order of their own."""
        order = self.parameter_order
        names = [info.parameter for info in context.inputs if info.role == Role.PARAMETER]
        if order is not None and not (order and names and set(names).isdisjoint(order)):
            return order
        module = _traced_module(context.model_prefixes)
        own = parameter_order(module) if module is not None else []
        if order and not own:
            self._warn("bucketd: a graph has none of the parameters that model= and param_order= name (%s, ...), but others (%s, ...): "
                       "sums of their gradients keep the graph's order, which need not be eager's", order[0], names[0])
        return own

    def _warn(self, text: str, *args: object) -> None:
        """Once, on one rank."""
        if text not in self._told:
            self._told.add(text)
            rank, world = rank_and_world()
            log.log(logging.WARNING if rank == min(self.session.settings.ranks or range(world)) else logging.DEBUG, text, *args)

    def _compiled(self, gm: fx.GraphModule, example_inputs, context, plan, how):
        if self.compiler != INDUCTOR:
            if how:
                self._warn("bucketd: nothing reads %s: compiler=\"inductor\" would",
                           ", ".join(f"{name}={value!r}" for name, value in how.items()))
            return self._node_by_node(gm, example_inputs, context, plan)
        from . import inductor

        return inductor.compile_step(gm, example_inputs, context, plan, partitioner=self.partitioner, **how)

    @contextlib.contextmanager
    def _plan(self, context, ordinal: Ordinal, order, on_plan, part: fx.GraphModule, inputs,
              kind: str) -> Iterator[tuple[fx.GraphModule, bool]]:
        """A forward or backward behind all passes, and whether it has a plan; it is compiled within the `with`."""
        plans: list[Planned] = []

        def planned(one: Planned) -> None:
            plans.append(one)
            on_plan(one)
            if self.on_plan is not None:
                self.on_plan(one)

        with contextlib.ExitStack() as made:
            for each in self.passes:
                if each != PLAN:
                    part = each(part, inputs) or part
                elif has_collectives(part):
                    self._had_collectives = True
                    recompiling.errors_are_errors()
                    part = made.enter_context(self.session.planned(part, context, kind, ordinal, order, planned, self.recompile))
                else:
                    degraded.count("graphs_without_collectives")
                    self._tell_of_nothing(context, kind)
            yield part, bool(plans)

    def _tell_of_nothing(self, context, kind: str) -> None:
        """Once, on one rank: that a graph has nothing to plan since something around it communicates, or that no graph of a model that is
        trained had anything."""
        ranks = self.session.settings.ranks or range(rank_and_world()[1])
        wrapper = _wrapper(_traced_module(context.model_prefixes))
        if wrapper is not None:
            why = f"a graph without collectives has no plan: {wrapper} communicates outside of what is compiled"
        elif kind == "bw" and not self._had_collectives and len(ranks) > 1:
            why = ("a backward without collectives has no plan, and no graph before it had any: nothing is sharded in what is compiled, or "
                   "what shards it (fully_shard, DistributedDataParallel) communicates outside of that")
        else:
            return
        self._warn("bucketd: %s. Parameters have to be gathered in the graph (SimpleFSDP; client/python/TRAINERS.md); for fully_shard "
                   "`bucketctl advise` says how to wrap and prefetch", why)

    def _node_by_node(self, gm: fx.GraphModule, example_inputs, context, plan):
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch import config

        partitioner = self.partitioner

        def partition(joint, *args, **kwargs):
            tag_if_it_can_be(joint, context)
            return partitioner(joint, *args, **kwargs)

        @until_backward
        def compiler(part, inputs, is_backward=False):
            with plan(part, inputs, "bw" if is_backward else "fw") as (part, _):
                around = bucket_ops.watcher(part)  # before a compiler changes it
                return around(self.compiler(part, inputs))

        # A cached artefact would be yesterday's plan.
        with config.patch(enable_autograd_cache=False):
            return aot_autograd(
                fw_compiler=compiler, bw_compiler=functools.partial(compiler, is_backward=True), inference_compiler=compiler,
                partition_fn=partition, keep_inference_input_mutations=True)(gm, example_inputs)


def _code() -> int | None:
    """Of what Dynamo is compiling: the number of the code object in this process, which compilations of the same code share."""
    from torch._guards import CompileContext

    compiled = CompileContext.current_compile_id()
    return compiled.frame_id if compiled is not None else None


def context(
    gm: fx.GraphModule, example_inputs: Sequence[object] = (), *, parameters: Sequence[str | None] | None = None,
) -> CaptureContext:
    """What plan_pass() has to know of the step: which inputs are parameters, by name, and the device meshes.

    `gm` is the graph that torch.compile called your backend with, before AOTAutograd lowers it: only there do inputs carry
    the names of parameters. Or it is a joint graph that make_fx traced, whose inputs carry nothing: then `parameters` are their names
    in the order of its placeholders, None for each that is none; what is behind the last name is none either.
    """
    if parameters is not None:
        return named_inputs(gm, parameters)
    return CaptureContext.from_dynamo(gm, example_inputs)


_passes: dict[Settings, Session] = {}
_passes_lock = threading.Lock()


def plan_pass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    kind: Literal["fw", "bw", "joint"] = "joint",
    context: CaptureContext | None = None,
    model: torch.nn.Module | None = None,
    param_order: Sequence[str] | None = None,
    on_plan: Callable[[Planned], None] | None = None,
    fused: bool = False,
    **settings: Unpack[SettingsArgs],
) -> fx.GraphModule:
    """The plan as a pass over an aten-level graph, for anybody's own backend or list of passes.

    Takes the settings of backend(), and `kind`; `example_inputs`, with which PyTorch calls its passes, are not read. Changes `gm` in
    place, once all ranks agree, and returns it (with `twin_groups` a copy: use what is returned); it stays as it is if it holds no
    collectives or stays unplanned. `fused`: Inductor gets the graph next, so the plan is made with the costs of the kernels that it
    fuses. Which inputs are parameters is in `context`, where the caller has one (bucketd.context); else it is derived from the
    graph's structure, which knows no names: ValueError if `model` or `param_order` then name parameters that the graph cannot be
    told by. A joint graph that make_fx traced has no descriptors (meta["desc"]); it gets those that its structure and `context` tell.
    """
    asked = named_settings(model, settings)
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: expected {', '.join(map(repr, KINDS))}")
    if not has_collectives(gm):
        return gm
    with _passes_lock:
        session = _passes.get(asked)
        if session is None:
            session = _passes[asked] = Session(asked)
    compiled_for = recompiling.backend_here()
    if compiled_for is not None:
        recompiling.watch()
        recompiling.errors_are_errors()

    def planned(one: Planned) -> None:
        recompiling.hold(compiled_for, session.agreement)
        if on_plan is not None:
            on_plan(one)

    order = parameter_names(model, param_order) or []
    if kind == "joint" and (context is None or context.by_position) and not is_described(gm):
        describe(gm, context)
    if context is None:
        context = structural_context(gm)
        _check_names(gm, context, order)
    return session.plan(gm, context, kind, session.next_ordinal(_code(), fused), order, planned)


def _check_names(gm: fx.GraphModule, context: CaptureContext, order: Sequence[str]) -> None:
    """An order of names that are not in the graph would leave payloads in the graph's order, which is not eager's."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    named = [name for role, name in (describe_input(n.meta.get("desc"), context) for n in inputs) if role == Role.PARAMETER]
    if order and named and set(named).isdisjoint(order):
        raise ValueError(
            f"model= and param_order= name parameters ({order[0]}, ...), this graph knows its own by structure alone ({named[0]}, ...): "
            "give context=bucketd.context(gm, example_inputs), made from the graph that torch.compile called your backend with")


def has_collectives(gm: fx.GraphModule) -> bool:
    return any(kind_of(node) is not None for node in gm.graph.nodes)


def named_settings(model: torch.nn.Module | None, settings: dict[str, object]) -> Settings:
    """With modules in `buckets` by their names."""
    buckets = settings.get("buckets", "")
    if model is not None and not isinstance(buckets, str | None):
        names = {id(module): clean(name) for name, module in model.named_modules()}
        settings = {**settings, "buckets": bucket_list(buckets, lambda entry: names.get(id(entry)))}
    return Settings.of(**settings)


def parameter_names(model: torch.nn.Module | None, param_order: Sequence[str] | None) -> list[str] | None:
    if param_order is not None:
        return list(param_order)
    return parameter_order(model) if model is not None else None


def _wrapper(module: torch.nn.Module | None) -> str | None:
    """Who communicates for the module that is being compiled, from its hooks."""
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if DistributedDataParallel._get_active_ddp_module() is not None:
        return "DistributedDataParallel"
    sharded = module is not None and any(isinstance(each, FSDPModule) for each in module.modules())
    return "fully_shard" if sharded else None


def _traced_module(prefixes):
    """The module that is being compiled: the one whose forward Dynamo traces, if all parameters hang on it."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if len(prefixes) != 1:
        return None
    (prefix,) = prefixes
    name = prefix.removeprefix("L['").removesuffix("']")
    if prefix != f"L['{name}']":
        return None
    try:
        module = InstructionTranslator.current_tx().output.local_scope.get(name)
    except AttributeError:  # called by something other than Dynamo
        return None
    return module if isinstance(module, torch.nn.Module) else None

