"""From a captured graph to a module that runs by an agreed plan: what every compiled graph of a backend goes through."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence

from torch import fx

from . import (
    apply,
    asking,
    canonical,
    capture,
    collector,
    common_graph,
    degraded,
    following,
    fusion,
    meeting,
    mesh,
    normalize,
    plan,
    settings,
    step_context,
    twins,
    verify,
)
from .agreement import GRAPH, Agreement, LeaderFailed, attempt, job_store
from .errors import BackwardLater, BucketdError, GraphRefused, InterruptedRank, PlannerError, PlanRejected, advise
from .graph import GraphError, RawGraph
from .job import rank_and_world

log = logging.getLogger("bucketd")

# Which of a plan's diagnostics people hear of unasked.
_TOLD = {"option-unread": logging.WARNING, "unknown-entry": logging.WARNING, "memory-limit": logging.WARNING,
         "all-reduce-merged": logging.INFO, "all-reduce-unmerged": logging.INFO}


@dataclasses.dataclass(frozen=True)
class Planned:
    """One graph that runs by a plan: what an on_plan callback gets."""

    scope: str  # "0/fw": the first compiled graph's forward
    plan: plan.Plan
    digest: bytes  # of the graph
    # "hit", "computed", "joined", "pinned"; "handed over" where rank 0 planned for all; "agreed before" where code is compiled again
    source: str
    seconds: float  # that the planner took to answer
    module: fx.GraphModule
    captured: object
    normalized: object
    runner: object = None  # executor.Runner, where buckets do not go through torch.distributed


def _tells_nothing(captured: capture.Captured) -> bool:
    """Whether no collective is tagged and no input has a descriptor by which one could be."""
    collectives = [node.collective for node in captured.raw.nodes if node.collective is not None]
    described = any(node.meta.get("desc") is not None for node in captured.nodes if node.op == "placeholder")
    return not described and not any(c.tag for c in collectives)


def _ranks(graph) -> list:
    """What an executor has connections to."""
    return [group.ranks for group in graph.groups]


class Ordinal:
    """Counts what is planned, alike on all ranks. What some of them compile alone, since it has no collectives or is compiled again, gets
    no number unless it needs a plan of its own. `inductor` compiles it; `fused`: it is planned with the costs of the kernels that
    Inductor fuses."""

    def __init__(self, draw: Callable[[], str], code: Hashable, fused: bool, inductor: bool):
        self._draw, self.code, self.fused, self.inductor = draw, code, fused, inductor
        self.in_forward = False  # while the forward, and what PyTorch compiles with it, is compiled
        self.follows = False  # the forward runs by another one's plan, whose backward the ranks have not agreed on yet

    @functools.cached_property
    def number(self) -> str:
        return self._draw()


class Session:
    """One backend's dealings with its planner and with the other ranks. Every rank must compile its graphs with collectives in the same
    order: that is how they know which graph they speak of. A session without any is of no account."""

    def __init__(self, asked: settings.Settings):
        self.settings = asked
        self._met = meeting.Met(0)
        self._place = None  # where the ranks have met: store, rank, ranks
        self._ordinals: Iterator[str] = iter(())
        self._agreement = None
        self._asker = None
        self._lock = threading.RLock()
        self._said = False  # that there is a plan, where nobody reads the log
        self._agreed: dict[tuple[Hashable, str], list[following.Agreed]] = {}  # by code and kind of graph
        self._told: set[str] = set()  # once, not for each graph
        self._runners: list = []  # of the graphs that run by them

    def __reduce__(self):
        """Somewhere else it is one that asks for the same, of planner and ranks that there are then."""
        return Session, (self.settings,)

    @property
    def agreement(self) -> Agreement:
        """With the ranks that there are at first use."""
        with self._lock:
            return self._agreement or self._join()

    def next_ordinal(self, code: Hashable = None, fused: bool = False, inductor: bool = False) -> Ordinal:
        """Of what is compiled now, from `code` where that is known; `inductor`: by that, whether or not its kernels are priced `fused`."""
        return Ordinal(lambda: next(self._ordinals), code, fused, inductor or fused)

    def plan(self, *args, **more) -> fx.GraphModule:
        """What planned() gives, for a caller who is not known to make anything of it."""
        with self.planned(*args, **more) as module:
            return module

    @contextlib.contextmanager
    def planned(self, gm: fx.GraphModule, context: step_context.CaptureContext, kind: str, ordinal: Ordinal,
                parameter_order: Sequence[str] = (), on_plan: Callable[[Planned], None] | None = None,
                recompile: bool = True) -> Iterator[fx.GraphModule]:
        """`gm`, which then runs by its plan, or untouched where all ranks fall back to that. What runs it is made within the `with`: no
        rank leaves that before all have made theirs. `on_plan` is called with a plan before its module runs. Code that is compiled again
        keeps the plan that it has, and the other ranks are not asked. Without `recompile` the module's own code stays that of the graph
        as it was, for callers that read the graph alone.

        Raises, on every rank, where one of them has no plan or another one, or cannot make what runs it.
        """
        with self._lock:
            if self._agreement is not None and self._agreement.is_over():
                self._agreement = None
        agreement = self.agreement
        with agreement.telling_of_interrupts():
            planned, edit = self._plan(gm, context, kind, ordinal, parameter_order)
            if edit is None:
                yield gm
                return
            together = planned.source != following.SOURCE
            try:
                self._put_in_use(agreement, planned, edit, ordinal, on_plan, recompile)
                yield planned.module
            except InterruptedRank:
                raise
            except Exception as error:
                if together:
                    agreement.confirm(planned.scope, error)  # raises it
                agreement.say_stopped(f"stopped: {type(error).__name__}: {error}")
                raise
            if together:
                agreement.confirm(planned.scope)
                self._know(ordinal, kind, following.Agreed(planned.scope, planned.plan, planned.normalized.graph, planned.runner))

    def _plan(self, gm: fx.GraphModule, context, kind: str, ordinal: Ordinal, parameter_order):
        """As _again() and _agree() have it, of which one answers."""
        with collector.off(), self._lock:
            planned, edit = self._again(gm, context, kind, ordinal)
            if planned is None and kind == "bw" and ordinal.follows and ordinal.in_forward:
                raise BackwardLater(f"the backward of {ordinal.number}/fw is compiled when it runs, as on the other ranks, which may "
                                    "wait for this rank's forward now")
            if planned is None:
                planned, edit = self._agree(gm, context, kind, ordinal, parameter_order)
            return planned, edit

    def _know(self, ordinal: Ordinal, kind: str, agreed: following.Agreed) -> None:
        """By what `agreed`, to which all ranks have come, the same code runs when it is compiled again."""
        if ordinal.code is not None:  # code without a number is not known again; its runner lives as long as the session
            self._agreed.setdefault((ordinal.code, kind), []).append(agreed)

    def _put_in_use(self, agreement: Agreement, planned: Planned, edit, ordinal: Ordinal, on_plan, recompile: bool) -> None:
        with collector.off():
            self._tell(planned, ordinal.inductor)
            edit.apply()
            if self.settings.twin_groups:
                twins.open_twins(planned.module)
            if recompile:
                planned.module.recompile()
        if planned.runner is not None and planned.source != following.SOURCE:
            planned.runner.open(f"{planned.scope}#{self._met.number}", agreement, self._met.epoch, self._asker.planner_of_all)
        if on_plan is not None:
            on_plan(planned)

    def _tell(self, planned: Planned, inductor: bool) -> None:
        """What people hear of a plan: a line where it is in use, on one rank."""
        agreement, scope = self._agreement, planned.scope
        said = f"bucketd: {planned.plan.summary(planned.source, inductor)} ({scope})"
        log.log(logging.INFO if agreement.leader else logging.DEBUG, "%s", said)
        if agreement.leader and not self._said and not (log.isEnabledFor(logging.INFO) and log.hasHandlers()):
            print(said, file=sys.stderr, flush=True)
        self._said = True
        log.debug("bucketd: %s: %s", scope, planned.plan.bits_text)
        if _tells_nothing(planned.captured):
            log.log(logging.WARNING if agreement.leader else logging.DEBUG,
                    "bucketd: %s: nothing says which collectives are of parameters and gradients, so none shares a bucket: its inputs "
                    "have no meta['desc'], as AOTAutograd leaves it (what make_fx traced is to be planned as kind='joint')", scope)
        for text in planned.runner.refused.values() if planned.runner is not None and planned.source != following.SOURCE else ():
            degraded.count("refused_buckets")
            log.log(logging.WARNING if agreement.leader else logging.DEBUG, "bucketd: %s: %s; torch.distributed runs it", scope, text)
        # A backward has no nodes of modules that are frozen; the default limit is nobody's wish.
        quiet = {"unknown-entry": planned.captured.raw.kind == "bw", "memory-limit": self.settings.memory_limit is None}
        for diagnostic in planned.plan.diagnostics:
            level = logging.DEBUG if quiet.get(diagnostic.code) else _TOLD.get(diagnostic.code, logging.DEBUG)
            if level > logging.DEBUG and diagnostic.text not in self._told:
                self._told.add(diagnostic.text)
                log.log(level if agreement.leader else logging.DEBUG, "bucketd: %s", diagnostic.text)
            else:
                log.debug("bucketd: %s: %s: %s", scope, diagnostic.code, diagnostic.text)

    def _agree(self, gm, context, kind: str, ordinal: Ordinal, parameter_order):
        """(Planned, the change to make) that all ranks hold; (None, None) where all go without."""
        agreement = self._agreement
        scope = f"{agreement.ranks[0]}/{ordinal.number}/{kind}" if agreement.ranks[0] else f"{ordinal.number}/{kind}"
        planned, edit, record, graph = None, None, {}, None
        agreement.arrive(scope)
        try:
            captured = self._captured(gm, context, kind, scope, ordinal.fused)
            graph = captured[2].graph
            planned, edit, record = self._propose(captured, scope, parameter_order)
        except InterruptedRank:
            raise
        except LeaderFailed:
            verdict = agreement.agree(scope, record)
        except Exception as error:
            advise(error, self.settings.fallback)
            self._asker.give_up(scope)
            verdict = agreement.fail(scope, error)
        else:
            verdict = agreement.agree(scope, record)
        if planned is not None and planned.runner is not None:
            self._runners.append(planned.runner)
        if verdict.unplanned or planned is None:
            self._know(ordinal, kind, following.Agreed(scope, graph=graph))
            degraded.count("unplanned")
            log.log(logging.WARNING if agreement.leader else logging.DEBUG,
                    "bucketd: %s stays without a plan on every rank: %s", scope, verdict.why or record["plan"].removeprefix("none, "))
            return None, None
        return planned, edit

    def _again(self, gm, context, kind: str, ordinal: Ordinal):
        """The same for code that is compiled again, by what was agreed then; (None, None) if nothing was that this graph could
        run by. With a plan, but no change to make, where it goes without."""
        known = self._agreed.get((ordinal.code, kind), ()) if ordinal.code is not None else ()
        if not known:
            return None, None
        try:
            gm, captured, normalized, digest, _ = self._capture(gm, context, kind, ordinal.fused)
        except GraphRefused:
            refused = next((agreed for agreed in known if agreed.graph is None), None)
            return self._without(refused, kind, ordinal) if refused is not None else (None, None)  # of which all ranks will hear
        for agreed in known:
            if agreed.plan is None:
                if agreed.graph is None or following.launch_alike(agreed.graph, normalized.graph):
                    return self._without(agreed, kind, ordinal)
                continue
            followed = following.follow(agreed, normalized.graph, digest)
            if followed is None or agreed.runner is not None and _ranks(agreed.graph) != _ranks(normalized.graph):
                continue
            with contextlib.suppress(PlanRejected):
                edit = apply.prepare(gm, captured, normalized, digest, followed, agreed.runner)
                self._number_again(agreed, kind, ordinal)
                return Planned(agreed.scope, followed, digest, following.SOURCE, 0.0, gm, captured, normalized, agreed.runner), edit
        return None, None

    def _number_again(self, agreed: following.Agreed, kind: str, ordinal: Ordinal) -> None:
        if kind == "fw" and (ordinal.code, "bw") not in self._agreed:
            # No backward of this code was compiled yet: that of this forward is the others' first one.
            ordinal.number, ordinal.follows = agreed.scope.split("/")[-2], True

    def _without(self, agreed: following.Agreed, kind: str, ordinal: Ordinal):
        self._number_again(agreed, kind, ordinal)
        degraded.count("unplanned")
        log.log(logging.WARNING if self._agreement.leader else logging.DEBUG,
                "bucketd: %s is compiled again and stays without a plan", agreed.scope)
        return agreed, None

    def _captured(self, gm, context, kind: str, scope: str, fused: bool):
        """_capture(), of which the leader tells the others."""
        try:
            *captured, encoded = self._capture(gm, context, kind, fused)
        except Exception:
            common_graph.hand_out(self._agreement, scope, b"")
            raise
        common_graph.hand_out(self._agreement, scope, encoded)
        return captured

    def _capture(self, gm, context, kind: str, fused: bool):
        """(the graph that a plan changes, its capture, that normalised, digest and encoding of the latter)."""
        try:
            if context.fault is not None:
                raise context.fault
            if self.settings.twin_groups:
                gm = twins.on_twins(gm, context, kind)
            captured = capture.capture_graph(gm, context, kind)
            normalized = normalize.normalize(captured.raw)
            if fused and not self._priced(normalized, captured):
                normalized = normalize.normalize(captured.raw)
            encoded = canonical.encode(normalized.graph)
            return gm, captured, normalized, hashlib.sha256(encoded).digest(), encoded
        except GraphError as error:
            raise GraphRefused(str(error)) from error
        except BucketdError:
            raise
        except Exception as error:  # nothing was changed: as much a reason to go without a plan, where that was asked for, as any
            raise GraphRefused(f"the graph cannot be described, which is a fault of bucketd's: {type(error).__name__}: {error}") from error

    def _priced(self, normalized, captured) -> bool:
        """With the costs of the kernels that Inductor fuses. All ranks get the same, or none, since it follows from what they have
        in common; what it has done of a graph by then is of no use where it fails."""
        try:
            fusion.use_inductor_costs(normalized, captured)
            return True
        except Exception as error:
            text = f"what Inductor fuses cannot be predicted, so operations are priced one by one ({type(error).__name__}: {error})"
            log.log(logging.DEBUG if text in self._told else logging.WARNING, "bucketd: %s", text, exc_info=error)
            self._told.add(text)
            return False

    def _telemetry(self):
        """Where buckets are reported to; None: nowhere."""
        agent = self.settings.agent or os.environ.get("BUCKETD_AGENT", "")
        if not agent:
            return None
        from . import telemetry

        return telemetry.of(agent, self.settings.job.id if self.settings.job else "")

    def _propose(self, made, scope: str, parameter_order):
        gm, captured, normalized, digest = made
        graph, asked = common_graph.receive(self._agreement, scope, normalized.graph, digest, 2 * self.settings.deadline)
        message = mesh.mesh_message(captured.raw)
        options = self.settings.plan_options(parameter_order, _comm_backend(captured.raw))
        record = {f"option {name}": text for name, text in settings.describe_options(options).items()}
        record["costs"] = normalized.graph.costs or "node by node"
        record["collectives"] = str(sum(node.collective is not None for node in graph.nodes))
        record[GRAPH] = asked.hex()
        record["twin groups"] = self.settings.twin_groups
        record["process groups"] = mesh.identities(captured.raw.groups)
        try:
            reply = self._asker.ask(scope, graph, asked, message, options)
        except PlannerError as error:
            if error.reason != "UNPLANNED":
                raise
            record["plan"] = f"none, planning is switched off: {error.message}"
            return None, None, record
        parsed = plan.parse(reply.plan)
        if asked != digest:
            parsed = self._followed(scope, graph, asked, parsed, normalized.graph, digest)
        runner = None
        if self.settings.executor:
            from . import executor

            runner = executor.Runner(
                normalized.graph, parsed, message.device_type, self.settings.executor_timeout, self._telemetry(),
                scope.rpartition("/")[2])
        record["executor"] = runner.takes_text if runner is not None else "torch.distributed"
        edit = apply.prepare(gm, captured, normalized, digest, parsed, runner)
        record["plan"] = parsed.sha256
        return Planned(scope, parsed, digest, reply.source, reply.seconds, gm, captured, normalized, runner), edit, record

    @staticmethod
    def _followed(scope: str, graph, asked: bytes, plan_of_all: plan.Plan, own, digest: bytes) -> plan.Plan:
        """A plan of `graph`, for this rank's own graph."""
        verify.check_plan(graph, asked, plan_of_all)
        found = following.follow(following.Agreed(scope, plan_of_all, graph), own, digest)
        if found is None:
            raise PlanRejected("this rank's graph has other sizes than that of the scope's first rank, and cannot run its order")
        return found

    # -- the other ranks

    def _join(self) -> Agreement:
        self._place = self._place or self._meet()
        store, rank, ranks = self._place
        number, store = attempt(store) if store is not None else (0, None)
        again = f"{number}." if number else ""
        self._ordinals = (f"{again}{n}" for n in itertools.count())
        self._agreement = Agreement(store, rank, ranks, self.settings.fallback, 2 * self.settings.deadline)
        self._asker = asking.Asker(self.settings, self._agreement, self._met.number)
        return self._agreement

    def _meet(self) -> tuple[object, int, tuple[int, ...]]:
        import torch.distributed as dist

        store = job_store("bucketd")
        # Without torch.distributed ranks can meet at the planner alone, if it knows their job.
        job = self.settings.job
        rank, world = rank_and_world() if store is not None or job is not None or self.settings.ranks else (0, 1)
        ranks = tuple(sorted(self.settings.ranks or range(world)))
        if rank not in ranks:
            raise BucketdError(f"ranks={list(ranks)} does not contain this process, rank {rank}")
        if store is None and len(ranks) > 1 and job is None:
            raise BucketdError(f"ranks={list(ranks)}: nobody brings them together: torch.distributed is not initialised, or its groups "
                               "are fake, and job=, by which the planner would, is not given")
        if store is None and len(ranks) > 1 and self.settings.fallback != "error":
            raise BucketdError(f"fallback={self.settings.fallback!r} is decided for all ranks through torch.distributed's "
                               f"key-value store, and torch.distributed is not initialised")
        if len(ranks) == 1:
            store = None
        self._met = meeting.of_this_process.meet(store, rank, ranks, 2 * self.settings.deadline)
        return dist.PrefixStore(self._met.word, store) if store is not None else None, rank, ranks


def _comm_backend(raw: RawGraph) -> str:
    """Whose order of summation the plan's numerics speak of: the backend of the graph's first group."""
    import torch.distributed as dist

    with contextlib.suppress(Exception):  # a group that is not of this process: the service's default
        group = dist.distributed_c10d._resolve_process_group(raw.groups[0].name)
        name = dist.get_backend(group)
        if name in ("gloo", "nccl"):
            return name
    return ""
