"""The torch.compile backend, and the pass for everybody else's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import fx

from . import capture
from .client import DEFAULT_DEADLINE
from .job import Job, resolve
from .ops import collective_kind, op_name
from .session import Planned, Session
from .settings import Settings, option_texts
from .structure import structural_context

_COMPILERS = ("aot_eager",)


def backend(
    mode: str = "auto",
    address: str | None = None,
    numerics: str = "eager_order",
    memory_limit: str | int | None = None,
    *,
    model: torch.nn.Module | None = None,
    param_order: Sequence[str] | None = None,
    fallback: str = "error",
    embedded: str | None = None,
    job: Job | str | bool | None = None,
    deadline: float = DEFAULT_DEADLINE,
    cost_profile: str | None = None,
    compiler: str = "aot_eager",
    on_plan: Callable[[Planned], None] | None = None,
    **more,
) -> Backend:
    """A backend for `torch.compile(model, backend=bucketd.backend(...))` that runs the step's collectives by a plan.

    Make it, and compile with it, in the same order on every rank. No rank runs a plan before all of them hold the same
    one: they compare notes through torch.distributed's key-value store. With `job` the planner sees to it as well: it
    answers when all ranks have asked, all of them alike, names the ranks and the first node that differ or the ranks that
    are missing, and gives a restarted job the plans that it had. A rank that fails by itself, before it asks or with the
    answer in its hands, is still for the store to tell; without torch.distributed the planner agrees alone.

    mode           which collectives share a bucket: "auto", the best that a search finds, or one of the classic modes:
                   "transformer_block", "manual", "greedy", "overlap", "none"
    address        of the planner, "host:port" or "unix:/path"; None: the ranks of one node start a private one
    numerics       what a plan may do to the order of sums: "eager_order", "exact" or "free"
    memory_limit   peak memory that a plan may reach: "1.05x", "+5%" (of the peak without a plan), "38GiB", bytes
    model          the module whose registration order is eager's; None: the compiled one, where it can be told
    param_order    the same as a list of parameter names
    fallback       where there is no plan: "error", or "unplanned": rank 0 decides that all ranks go without
    embedded       "rank0": without an address, on several nodes, rank 0 plans for all
    job            what the planner shall know the ranks by: "torchrun" or True (name and restarts from torchrun), or a
                   bucketd.Job(id, generation)
    deadline       seconds that one graph's plan may take
    cost_profile   of the planner; None: its default
    on_plan        called with each `Planned` graph, before it first runs
    executor       in `more`: what runs the buckets: None, torch.distributed, or "bucketd", our own executor (ranks of one
                   host, on the CPU); executor_timeout: seconds that a bucket may take, peers' late arrival included (600)
    more           buckets, prefetch_forward, prefetch_backward, defer_reduce_scatter, reorder, strict_coverage, comm_backend,
                   tenant, ranks (those that run this program; None: all), options (every other one that `bucketctl plan
                   --help` lists, by name: {"max_topo_span": 800, "bucket_all_reduce": True})
    """
    if compiler not in _COMPILERS:
        raise ValueError(f"compiler={compiler!r}: expected one of {', '.join(map(repr, _COMPILERS))}")
    options = _settings(mode, address, numerics, memory_limit, fallback, embedded, deadline, cost_profile, job, more)
    return Backend(Session(options, on_plan), _parameter_order(model, param_order))


class Backend:
    """What backend() returns. One compiled graph after the other; each gets an ordinal that all ranks share."""

    def __init__(self, session: Session, parameter_order: list[str] | None):
        self.session = session
        self.parameter_order = parameter_order
        self.__name__ = "bucketd"

    def __call__(self, gm: fx.GraphModule, example_inputs, **_):
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch import config
        from torch._functorch.partitioners import default_partition

        context = capture.CaptureContext.from_dynamo(gm, example_inputs)
        order = self.parameter_order
        if order is None:
            order = _registration_order(context)
        ordinal = self.session.next_ordinal()

        def partition(joint, *args, **kwargs):
            capture.tag_joint(joint, context)
            return default_partition(joint, *args, **kwargs)

        def compiler(kind):
            def compile_part(part, _inputs):
                return _boxed(self._planned(part, context, kind, ordinal, order))

            return compile_part

        # A cached artefact would be yesterday's plan.
        with config.patch(enable_autograd_cache=False):
            return aot_autograd(
                fw_compiler=compiler("fw"), bw_compiler=compiler("bw"), inference_compiler=compiler("fw"),
                partition_fn=partition, keep_inference_input_mutations=True)(gm, example_inputs)

    def _planned(self, part: fx.GraphModule, context, kind: str, ordinal: int, order) -> fx.GraphModule:
        return self.session.plan(part, context, kind, ordinal, order) if has_collectives(part) else part


_passes: dict = {}
_passes_lock = threading.Lock()


def plan_pass(
    gm: fx.GraphModule,
    example_inputs=None,
    *,
    kind: str = "joint",
    context: capture.CaptureContext | None = None,
    model: torch.nn.Module | None = None,
    param_order: Sequence[str] | None = None,
    on_plan: Callable[[Planned], None] | None = None,
    **options,
) -> fx.GraphModule:
    """The plan as a pass over an aten-level graph, for anybody's own backend or list of passes.

    Takes the options of backend(), and `kind`: "fw", "bw" or "joint". Returns a new module, or `gm` itself if it holds no
    collectives or stays unplanned; `gm` is never changed. Which inputs are parameters is in `context`, where the caller has
    one (capture.CaptureContext.from_dynamo); else it is derived from the graph's structure.
    """
    settings = planner_settings(options)
    if not has_collectives(gm):
        return gm
    with _passes_lock:
        session = _passes.get(settings)
        if session is None:
            session = _passes[settings] = Session(settings)
    session.on_plan = on_plan
    if context is None:
        context = structural_context(gm)
    order = _parameter_order(model, param_order) or []
    return session.plan(gm, context, kind, session.next_ordinal(), order)


def has_collectives(gm: fx.GraphModule) -> bool:
    return any(
        node.op == "call_function" and collective_kind(op_name(node.target)) is not None for node in gm.graph.nodes)


def planner_settings(options: dict) -> Settings:
    """The options of backend() by name, with its defaults."""
    rest = dict(options)
    return _settings(rest.pop("mode", "auto"), rest.pop("address", None), rest.pop("numerics", "eager_order"),
                     rest.pop("memory_limit", None), rest.pop("fallback", "error"), rest.pop("embedded", None),
                     rest.pop("deadline", DEFAULT_DEADLINE), rest.pop("cost_profile", None), rest.pop("job", None), rest)


def _settings(mode, address, numerics, memory_limit, fallback, embedded, deadline, cost_profile, job, more) -> Settings:
    known = set(Settings.__dataclass_fields__)
    unknown = sorted(set(more) - known)
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if more.get("ranks") is not None:
        more["ranks"] = tuple(more["ranks"])
    if more.get("options") is not None:
        more["options"] = option_texts(more["options"])
    return Settings(mode=mode, address=address, numerics=numerics, memory_limit=memory_limit, fallback=fallback,
                    embedded=embedded, deadline=deadline, cost_profile=cost_profile or "", job=resolve(job),
                    **{name: value for name, value in more.items() if value is not None})


def _parameter_order(model, param_order) -> list[str] | None:
    if param_order is not None:
        return list(param_order)
    return capture.parameter_order(model) if model is not None else None


def _registration_order(context) -> list[str]:
    """Of the module that is being compiled: the one whose forward Dynamo traces, if all parameters hang on it."""
    module = _traced_module(context.model_prefixes)
    return capture.parameter_order(module) if module is not None else []


def _traced_module(prefixes):
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


def _boxed(gm: fx.GraphModule):
    """The module as AOTAutograd calls it: with one list of inputs, which it empties, so that each dies at its last use."""
    from torch.fx.graph import _BoxedCodeGen

    gm.graph.set_codegen(_BoxedCodeGen())
    gm.recompile()
    forward = gm.forward

    def run(inputs):
        return forward(inputs)

    run._boxed_call = True
    return run
