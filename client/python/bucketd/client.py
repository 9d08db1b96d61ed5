"""The planner service as a Python object, whose calls always end by their deadlines."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable

from . import degraded
from ._wire.proto import agent_pb2, graph_pb2, planner_pb2
from .calls import CONNECT_TIMEOUT, Caller, Route, gone
from .errors import PlannerError
from .tls import Tls
from .wire import FORMAT_VERSION

try:
    import zstandard
except ImportError:  # graphs then travel as they are
    zstandard = None

CLIENT_VERSION = "0.1.0"

DEFAULT_DEADLINE = 300.0  # seconds, for everything that one get_plan does
_UPLOADS = 4  # rounds of "upload it, ask again" before this is an error
_BREAKS = 4  # of an upload, in a row and without a byte of progress


@dataclasses.dataclass(frozen=True)
class PlanReply:
    plan: bytes  # a serialised bucketd.v1.Plan
    sha256: bytes
    source: str  # "hit", "computed", "joined", "pinned"
    seconds: float  # that the call took


@dataclasses.dataclass(frozen=True)
class Capabilities:
    server_version: str
    planner_version: str
    modes: tuple[str, ...]
    cost_profiles: tuple[str, ...]
    max_inline_graph_bytes: int
    max_graph_bytes: int
    max_chunk_bytes: int
    zstd: bool


class PlannerClient:
    """A client of the planner at an address ("host:port", "unix:/path"), or of several that share a store ("a:9460,b:9460",
    "dns:///name:port"; addresses.py). Of several each call asks one: all ranks of a job the same, and all who ask for a graph;
    one that drains or is gone is left at once for the next one. Thread-safe; connects at first use, and again in a forked child,
    since a channel does not survive a fork. ValueError names an address that is invalid.

    Two calls in a row that nobody answers give the address up for all clients of this process: calls then end at once,
    with an error that says when it will be tried again (breaker.py).

    `tls`: the files for a planner with TLS; None: those that the environment names (tls.py), if it does. Unix sockets have none.
    """

    def __init__(self, address: str, tenant: str = "", connect_timeout: float = CONNECT_TIMEOUT, tls: Tls | None = None):
        self.address = address
        self.tenant = tenant
        self._caller = Caller(address, connect_timeout, tls)

    def close(self) -> None:
        self._caller.close()

    def capabilities(self, deadline: float = DEFAULT_DEADLINE) -> Capabilities:
        """What the service offers. PlannerError CLIENT_TOO_OLD or PROTOCOL where it and this client cannot talk."""
        return self._capabilities_until(time.monotonic() + deadline, Route(self._caller))

    def get_plan(self, graph: graph_pb2.Graph | Callable[[], graph_pb2.Graph], digest: bytes, mesh: planner_pb2.Mesh | None = None,
                 options: planner_pb2.PlanOptions | None = None, deadline: float = DEFAULT_DEADLINE,
                 cached_only: bool = False, job: planner_pb2.Job | None = None) -> PlanReply:
        """The plan for `graph`, a bucketd.v1.Graph or a callable that makes one, whose digest is `digest`.

        Asks by digest; sends the graph only where the service wants it, and then asks again. PlannerError on anything
        but a plan, by the deadline (seconds from now) at the latest. With `job` (Job.at) the answer is the same for all
        ranks of its scope, and waits for them; without it nothing is agreed on.
        """
        begin = time.monotonic()
        until = begin + deadline
        about = f"graph/{digest.hex()}" if job is None else f"job/{self.tenant}/{job.id}"
        route = Route(self._caller, about, meets=job is not None)
        request = planner_pb2.GetPlanRequest(
            tenant=self.tenant, graph_digest=digest, mesh=mesh, options=options, client_version=CLIENT_VERSION,
            cached_only=cached_only, job=job)
        payload = asked = None
        asks = 0
        while True:
            self._capabilities_until(until, route)
            answer = route.call("GetPlan", request, until)
            which = answer.WhichOneof("answer")
            if which == "plan":
                return self._reply(answer.plan, time.monotonic() - begin, route)
            if which == "unplanned":
                raise PlannerError("UNPLANNED", answer.unplanned.why or "planning is switched off", answered=True)
            if which != "graph_required":
                raise PlannerError("PROTOCOL", f"{route.target} answered GetPlan with nothing")
            asks, asked = asks + 1 if asked == route.target else 1, route.target
            if asks > _UPLOADS:
                raise PlannerError("PROTOCOL", f"{asked} asked for graph {digest.hex()[:12]} {asks} times")
            capabilities = self._capabilities_until(until, route)
            if payload is None or payload.capabilities != capabilities:
                graph = graph() if callable(graph) else graph
                payload = _Payload(graph, capabilities)
            if payload.fits_inline:
                request.graph.CopyFrom(payload.inline())
            else:
                request.ClearField("graph")
                self._upload(payload, digest, until, route)

    def generation_of(self, job_id: str, deadline: float = 30.0) -> int:
        """The generation that the planner knows a job in; 0 where it knows none.

        That is in its answer to a call of generation 0, which is over if there was another one since. Else the planner wants the graph that
        the call is about; it gets none, and with the generation that begins next the call is over, too."""
        class Wanted(Exception):
            pass

        def graph():
            raise Wanted

        digest = secrets.token_bytes(32)  # one that was asked for before may be awaited from there
        call = planner_pb2.Job(id=job_id, scope=f"generation/{digest.hex()[:16]}", rank=[0], size=1)
        try:
            self.get_plan(graph, digest, deadline=deadline, job=call)
        except Wanted:
            return 0
        except PlannerError as error:
            if error.reason == "GENERATION_OVER" and "limit" in error.metadata:
                return int(error.metadata["limit"])
            if error.reason != "UNPLANNED":
                raise
        return 0

    def release_job(self, job_id: str, deadline: float = 30.0) -> int:
        """Lets go of the plans that are pinned for a job; their number."""
        request = planner_pb2.ReleaseJobRequest(tenant=self.tenant, job_id=job_id)
        route = Route(self._caller, f"job/{self.tenant}/{job_id}")
        return route.call("ReleaseJob", request, time.monotonic() + deadline).released

    def rendezvous(self, group: str, rank: int, size: int, endpoint: str, agrees: bytes,
                   deadline: float) -> agent_pb2.RendezvousResponse:
        """Waits until all ranks of the group have called: the same epoch and secret for each of them (proto/agent.proto).
        PlannerError RANKS_MISSING, or RENDEZVOUS_DIFFERS where one has another size or other `agrees`."""
        request = agent_pb2.RendezvousRequest(
            tenant=self.tenant, group=group, rank=rank, size=size, endpoint=endpoint, agrees=agrees)
        route = Route(self._caller, f"group/{self.tenant}/{group}", meets=True)
        return route.call("Rendezvous", request, time.monotonic() + deadline)

    # -- calls

    def _reply(self, reply, seconds: float, route: Route) -> PlanReply:
        found = hashlib.sha256(reply.plan).digest()
        if found != reply.plan_sha256:
            raise PlannerError(
                "PROTOCOL", f"plan from {route.target} is damaged: SHA-256 {found.hex()[:12]}, announced "
                f"{reply.plan_sha256.hex()[:12]}")
        source = planner_pb2.PlanSource.Name(reply.source) if reply.source in planner_pb2.PlanSource.values() else ""
        return PlanReply(reply.plan, found, source.removeprefix("PLAN_SOURCE_").lower(), seconds)

    def _upload(self, payload: _Payload, digest: bytes, until: float, route: Route) -> None:
        """Sends the graph in chunks. An upload that broke goes on from what the service says that it holds."""
        chunk_bytes = max(1, payload.capabilities.max_chunk_bytes or (1 << 20))
        offset, breaks, may_resume = 0, 0, True
        while True:
            degraded.count("uploads")
            if offset:
                degraded.count("resumed_uploads")
            try:
                answer = route.once("UploadGraph", payload.parts(self.tenant, digest, chunk_bytes, offset), until)
            except PlannerError as failure:
                if route.obey(failure, "UploadGraph", until):
                    continue
                if not gone(failure):
                    if not offset:
                        raise
                    # What was held may be of other bytes, or be held no more: once more, from the start.
                    offset, may_resume = 0, False
                    continue
                breaks += 1
                if breaks > _BREAKS:
                    raise
            else:
                if answer.graph_digest != digest:
                    raise PlannerError("PROTOCOL", f"{route.target} stored another graph than was sent")
                return
            route.await_return("UploadGraph", until)
            route.pause(breaks, until)
            held = route.call("QueryUpload", payload.query(self.tenant, digest), until)
            if held.present:
                return
            committed = held.committed_size if may_resume and 0 <= held.committed_size <= len(payload.data) else 0
            if committed > offset:
                breaks = 0
            offset = committed

    def _capabilities_until(self, until: float, route: Route) -> Capabilities:
        """Of the planner that the route leads to now."""
        known = route.capabilities
        if known is not None:
            return known
        answer = route.call("GetCapabilities", planner_pb2.GetCapabilitiesRequest(), until)
        if _version(answer.min_client_version) > _version(CLIENT_VERSION):
            raise PlannerError(
                "CLIENT_TOO_OLD", f"{route.target} (version {answer.server_version}) wants clients of version "
                f"{answer.min_client_version} or later, this is {CLIENT_VERSION}")
        if answer.graph_format_version != FORMAT_VERSION:
            raise PlannerError(
                "PROTOCOL", f"{route.target} reads graphs of format {answer.graph_format_version}, this client writes "
                f"{FORMAT_VERSION}")
        capabilities = route.capabilities = Capabilities(
            answer.server_version, answer.planner_version, tuple(answer.modes), tuple(answer.cost_profiles),
            answer.max_inline_graph_bytes, answer.max_graph_bytes, answer.max_chunk_bytes,
            planner_pb2.CODEC_ZSTD in answer.codecs)
        return capabilities


class _Payload:
    """A graph in the form in which it travels."""

    def __init__(self, graph, capabilities: Capabilities):
        self.capabilities = capabilities
        plain = graph.SerializeToString(deterministic=True)
        if 0 < capabilities.max_graph_bytes < len(plain):
            raise PlannerError(
                "GRAPH_TOO_LARGE", f"the graph takes {len(plain)} bytes, the service accepts "
                f"{capabilities.max_graph_bytes}", {"limit": str(capabilities.max_graph_bytes), "actual": str(len(plain))})
        self.size = len(plain)
        self.sha256 = hashlib.sha256(plain).digest()
        if capabilities.zstd and zstandard is not None:
            self.codec, self.data = planner_pb2.CODEC_ZSTD, zstandard.ZstdCompressor(level=1).compress(plain)
        else:
            self.codec, self.data = planner_pb2.CODEC_UNSPECIFIED, plain
        self.fits_inline = len(self.data) <= capabilities.max_inline_graph_bytes

    def inline(self):
        return planner_pb2.GraphData(codec=self.codec, size=self.size, data=self.data)

    def parts(self, tenant: str, digest: bytes, chunk_bytes: int, offset: int):
        """What UploadGraph sends, from `offset` on; to be called for each attempt."""
        header = planner_pb2.UploadHeader(
            tenant=tenant, graph_digest=digest, codec=self.codec, size=self.size, content_sha256=self.sha256,
            resume_offset=offset)

        def stream():
            yield planner_pb2.UploadGraphRequest(header=header)
            for at in range(offset, len(self.data), chunk_bytes):
                yield planner_pb2.UploadGraphRequest(chunk=self.data[at:at + chunk_bytes])

        return stream

    def query(self, tenant: str, digest: bytes):
        return planner_pb2.QueryUploadRequest(
            tenant=tenant, graph_digest=digest, codec=self.codec, content_sha256=self.sha256)


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("."):
        if not part.isdecimal() or len(part) > 9:
            break
        numbers.append(int(part))
    return tuple(numbers)
