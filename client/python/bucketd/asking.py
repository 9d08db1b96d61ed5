"""Whom a rank has a plan from: a planner at an address, one of its node's own, or the first rank, which asks for all."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

from . import collector, degraded, embedded, starts, wire
from ._wire.proto import planner_pb2
from .agreement import Agreement, await_key, ranks_text
from .client import PlannerClient, PlanReply
from .errors import AgreementError, BucketdError, EmbeddedError, PlannerError
from .graph import Graph
from .job import Job
from .settings import Settings

# The planner's words for ranks that do not agree: they differ, or do not come. Never a reason to go without a plan.
_DISAGREEMENTS = ("RANKS_DIFFER", "RANKS_MISSING", "GENERATION_OVER", "JOB_INVALID")

_private_planner: embedded.EmbeddedPlanner | None = None
_private_lock = threading.Lock()


class Asker:
    """Of one session, for the ranks of its agreement; `number` is that of their meeting. Not thread-safe."""

    def __init__(self, settings: Settings, agreement: Agreement, number: int):
        self.settings, self._agreement, self._number = settings, agreement, number
        self._planner: PlannerClient | _HandedOut | BucketdError | None = None
        self._own: embedded.EmbeddedPlanner | None = None  # behind `_planner`, where this process started it
        self._job_of_all: Job | None = None  # settings.job, with its generation

    @property
    def planner_of_all(self) -> PlannerClient | None:
        """None where rank 0 plans for all: the others know no planner."""
        return None if self.settings.embedded == "rank0" else self._planner

    def give_up(self, scope: str) -> None:
        """This rank has failed: nobody waits any longer for what it would have asked."""
        if self.settings.job is not None and self._job_of_all is None:
            starts.give_up(self._agreement, scope)

    def ask(self, scope: str, graph: Graph, digest: bytes, message: planner_pb2.Mesh, options: planner_pb2.PlanOptions) -> PlanReply:
        """PlannerError or EmbeddedError where there is no plan, AgreementError where the planner sees that the ranks do not agree."""
        if self._planner is None:
            self._planner = self._find_planner()
        if isinstance(self._planner, BucketdError):
            raise self._planner
        if isinstance(self._planner, _HandedOut):
            return self._planner.receive(scope, self.settings.deadline, self._agreement.apart)

        def upload():
            with collector.off():
                return wire.to_proto(graph)

        def ask():
            if self._own is not None:
                with _private_lock:  # other backends may share it
                    self._own.revive()
            with collector.on():
                return self._planner.get_plan(upload, digest, message, options, self.settings.deadline, job=self._job(scope))

        if self.settings.embedded == "rank0" and self._agreement.store is not None:
            return _HandedOut(self._agreement.store).hand_out(scope, ask)
        try:
            return ask()
        except PlannerError as error:
            if error.reason not in _DISAGREEMENTS:
                raise
            ranks = self._agreement.ranks
            counted = f" (ranks counted within {ranks_text(ranks)})" if ranks[0] else ""
            raise AgreementError(f"{scope}: {error}{counted}{self._agreement.apart()}", error.reason) from error

    def _job(self, scope: str) -> planner_pb2.Job | None:
        """What GetPlan says of this rank; None without a job."""
        if self.settings.job is None:
            return None
        if self._job_of_all is None:
            self._job_of_all = starts.numbered(self.settings.job, self._agreement, self._planner, scope, self.settings.deadline)
        ranks, number = self._agreement.ranks, self._number
        named = f"{scope}#{number}" if number else scope  # the job's other backends count their graphs too
        return self._job_of_all.at(named, [ranks.index(self._agreement.rank)], len(ranks))

    def _find_planner(self) -> PlannerClient | _HandedOut | BucketdError:
        """A PlannerClient, where one can be reached; else the error that says why, once and for all."""
        if self.settings.address is not None:
            return PlannerClient(self.settings.address, self.settings.tenant, tls=self.settings.tls)
        if "BUCKETD_ADDRESS" in os.environ and self._agreement.leader:
            degraded.say("environment", "BUCKETD_ADDRESS", "bucketctl reads BUCKETD_ADDRESS, a backend does not: this job starts a planner "
                         "of its own, where address=os.environ[\"BUCKETD_ADDRESS\"] would name that one")
        try:
            if self._agreement.store is None:
                if len(self._agreement.ranks) > 1:  # each would start one, and wait there for the others
                    raise EmbeddedError("without torch.distributed nobody tells the other ranks of a private planner: give the address of "
                                        "one, or call torch.distributed.init_process_group first")
                self._own = private_planner()
                return PlannerClient(self._own.address, self.settings.tenant)
            return self._share_planner()
        except BucketdError as error:
            return error

    def _share_planner(self) -> PlannerClient | _HandedOut:
        """The leader starts a planner if all ranks are on its node, or if it shall plan for all; the rest hear of it."""
        store, me = self._agreement.store, self._agreement
        store.set(f"node/{me.rank}", embedded.node_identity())
        if me.leader:
            found = self._start_for_all(store)
            store.set("planner", json.dumps(found))
        else:
            found = json.loads(self._hear("planner", me.ranks[0], embedded.START_TIMEOUT))
        if "error" in found:
            raise (AgreementError if found["apart"] else EmbeddedError)(found["error"])
        if self.settings.embedded == "rank0" and not me.leader:
            return _HandedOut(store)
        if not me.leader:
            embedded.check_peer(found["address"])
        return PlannerClient(found["address"], self.settings.tenant)

    def _hear(self, key: str, rank: int, grace: float = 0.0) -> bytes:
        """What `rank` says of the planner; AgreementError where it says nothing, as with an address."""
        me = self._agreement
        return await_key(me.store, key, 2 * self.settings.deadline + grace, f"no word from {ranks_text([rank])}",
                         lambda: me.apart() or " (deadline= is half of that)")

    def _start_for_all(self, store) -> dict[str, object]:
        try:
            nodes = {self._hear(f"node/{rank}", rank) for rank in self._agreement.ranks}
            if len(nodes) > 1 and self.settings.embedded != "rank0":
                raise EmbeddedError(
                    f"the ranks run on {len(nodes)} nodes, and a private planner serves one: give the address of a "
                    f"planner that all can reach, or say embedded=\"rank0\" to let rank 0 plan for all")
            self._own = private_planner()
            return {"address": self._own.address}
        except BucketdError as error:
            return {"error": str(error), "apart": isinstance(error, AgreementError)}


class _HandedOut:
    """Plans that the leader asked for and hands out through the store: b"+" and the plan, or b"-" and why there is none."""

    def __init__(self, store):
        self.store = store

    def hand_out(self, scope: str, ask: Callable[[], PlanReply]) -> PlanReply:
        try:
            reply = ask()
        except Exception as error:
            self.store.set(f"{scope}/plan", b"-" + f"{type(error).__name__}: {error}".encode())
            raise
        self.store.set(f"{scope}/plan", b"+" + reply.plan)
        return reply

    def receive(self, scope: str, deadline: float, apart: Callable[[], str]) -> PlanReply:
        begin = time.monotonic()
        data = await_key(self.store, f"{scope}/plan", deadline, f"no plan for {scope} from the first rank", apart, EmbeddedError)
        if data[:1] != b"+":
            raise PlannerError("RANK0", f"the first rank has no plan: {data[1:].decode(errors='replace')}")
        return PlanReply(data[1:], b"", "handed over", time.monotonic() - begin)


def private_planner() -> embedded.EmbeddedPlanner:
    """This process's own planner, started at first use."""
    global _private_planner
    with _private_lock:
        if _private_planner is None or not _private_planner.alive:
            _private_planner = embedded.EmbeddedPlanner()
        return _private_planner
