"""The planner service as a Python object: one call, get_plan, that always ends by its deadline."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import threading
import time

import grpc

from ._wire.proto import planner_pb2, planner_pb2_grpc
from .errors import PlannerError, from_rpc_error

try:
    import zstandard
except ImportError:  # graphs then travel as they are
    zstandard = None

CLIENT_VERSION = "0.1.0"
GRAPH_FORMAT_VERSION = 1

DEFAULT_DEADLINE = 300.0  # seconds, for everything that one get_plan does
CONNECT_TIMEOUT = 20.0  # seconds until a planner that nobody can reach is an error
_RETURNS = 3  # of a planner that went away during one call
_RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_UPLOADS = 4  # rounds of "upload it, ask again" before this is an error

# Every call may be repeated: a plan is a function of its key. CANCELLED is what a server that shuts down leaves behind.
_SERVICE_CONFIG = json.dumps({
    "methodConfig": [{
        "name": [{"service": "bucketd.v1.Planner"}],
        "retryPolicy": {
            "maxAttempts": 5,
            "initialBackoff": "0.1s",
            "maxBackoff": "2s",
            "backoffMultiplier": 2.5,
            "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
        },
    }],
})

_CHANNEL_OPTIONS = (
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.enable_retries", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.max_receive_message_length", -1),  # a plan of a large graph; the service bounds its size
    ("grpc.enable_http_proxy", 0),
)


@dataclasses.dataclass(frozen=True)
class PlanReply:
    plan: bytes  # a serialised bucketd.v1.Plan
    sha256: bytes
    source: str  # "hit", "computed", "joined"
    seconds: float  # that the call took
    uploaded: bool  # the graph was sent by this call


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
    """A client of one planner address ("host:port", "unix:/path"). Thread-safe; connects at first use, and again in a
    forked child, since a channel does not survive a fork."""

    def __init__(self, address: str, tenant: str = "", connect_timeout: float = CONNECT_TIMEOUT):
        self.address = address
        self.tenant = tenant
        self.connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._pid = None
        self._channel = None
        self._capabilities = None

    def close(self) -> None:
        with self._lock:
            if self._channel is not None and self._pid == os.getpid():
                self._channel.close()
            self._channel = self._pid = self._capabilities = None

    def capabilities(self, deadline: float = DEFAULT_DEADLINE) -> Capabilities:
        """What the service offers. PlannerError CLIENT_TOO_OLD or PROTOCOL where it and this client cannot talk."""
        return self._capabilities_until(time.monotonic() + deadline)

    def get_plan(self, graph, digest: bytes, mesh=None, options=None, deadline: float = DEFAULT_DEADLINE,
                 cached_only: bool = False) -> PlanReply:
        """The plan for `graph`, a bucketd.v1.Graph or a callable that makes one, whose digest is `digest`.

        Asks by digest; sends the graph only where the service wants it, and then asks again. PlannerError on anything
        but a plan, by the deadline (seconds from now) at the latest.
        """
        begin = time.monotonic()
        until = begin + deadline
        capabilities = self._capabilities_until(until)
        request = planner_pb2.GetPlanRequest(
            tenant=self.tenant, graph_digest=digest, mesh=mesh, options=options, client_version=CLIENT_VERSION,
            cached_only=cached_only)
        payload = None
        for _ in range(1 + _UPLOADS):
            answer = self._call("GetPlan", request, until)
            which = answer.WhichOneof("answer")
            if which == "plan":
                return self._reply(answer.plan, time.monotonic() - begin, payload is not None)
            if which != "graph_required":
                raise PlannerError("PROTOCOL", f"{self.address} answered GetPlan with nothing")
            if payload is None:
                payload = _Payload(graph() if callable(graph) else graph, capabilities)
            if payload.fits_inline:
                request.graph.CopyFrom(payload.inline())
            else:
                self._upload(payload, digest, capabilities, until)
        raise PlannerError("PROTOCOL", f"{self.address} asked for graph {digest.hex()[:12]} {1 + _UPLOADS} times")

    # -- calls

    def _reply(self, reply, seconds: float, uploaded: bool) -> PlanReply:
        found = hashlib.sha256(reply.plan).digest()
        if found != reply.plan_sha256:
            raise PlannerError(
                "PROTOCOL", f"plan from {self.address} is damaged: SHA-256 {found.hex()[:12]}, announced "
                f"{reply.plan_sha256.hex()[:12]}")
        source = planner_pb2.PlanSource.Name(reply.source) if reply.source in planner_pb2.PlanSource.values() else ""
        return PlanReply(reply.plan, found, source.removeprefix("PLAN_SOURCE_").lower(), seconds, uploaded)

    def _upload(self, payload: _Payload, digest: bytes, capabilities: Capabilities, until: float) -> None:
        header = payload.header(self.tenant, digest)
        chunk_bytes = max(1, capabilities.max_chunk_bytes or (1 << 20))

        def parts():
            yield planner_pb2.UploadGraphRequest(header=header)
            for at in range(0, len(payload.data), chunk_bytes):
                yield planner_pb2.UploadGraphRequest(chunk=payload.data[at:at + chunk_bytes])

        answer = self._call("UploadGraph", parts, until)
        if answer.graph_digest != digest:
            raise PlannerError("PROTOCOL", f"{self.address} stored another graph than was sent")

    def _capabilities_until(self, until: float) -> Capabilities:
        self._stub()  # drops what a forked child inherited
        if self._capabilities is not None:
            return self._capabilities
        answer = self._call("GetCapabilities", planner_pb2.GetCapabilitiesRequest(), until)
        if _version(answer.min_client_version) > _version(CLIENT_VERSION):
            raise PlannerError(
                "CLIENT_TOO_OLD", f"{self.address} (version {answer.server_version}) wants clients of version "
                f"{answer.min_client_version} or later, this is {CLIENT_VERSION}")
        if answer.graph_format_version != GRAPH_FORMAT_VERSION:
            raise PlannerError(
                "PROTOCOL", f"{self.address} reads graphs of format {answer.graph_format_version}, this client writes "
                f"{GRAPH_FORMAT_VERSION}")
        self._capabilities = Capabilities(
            answer.server_version, answer.planner_version, tuple(answer.modes), tuple(answer.cost_profiles),
            answer.max_inline_graph_bytes, answer.max_graph_bytes, answer.max_chunk_bytes,
            planner_pb2.CODEC_ZSTD in answer.codecs)
        return self._capabilities

    def _call(self, method: str, request, until: float):
        """One call within the deadline; a callable `request` makes a stream. gRPC repeats calls by the service config.
        Beyond that, a planner that comes back within the connect timeout is asked again, and one that is overloaded or
        about to be replaced says when to come back, and is obeyed."""
        returns = 0
        while True:
            try:
                argument = request() if callable(request) else request
                return getattr(self._stub(), method)(argument, timeout=_remaining(until, method, self.address))
            except grpc.RpcError as error:
                failure = from_rpc_error(error, self.address, method)
            if failure.reason in ("OVERLOADED", "DRAINING") and failure.retry_after is not None:
                pause = failure.retry_after * random.uniform(1.0, 1.5)
                if time.monotonic() + pause >= until:
                    raise failure
                time.sleep(pause)
            elif failure.code in _RETRYABLE and returns < _RETURNS:
                returns += 1
                self._await_return(method, until)
            else:
                raise failure

    def _await_return(self, method: str, until: float) -> None:
        patience = min(self.connect_timeout, _remaining(until, method, self.address))
        try:
            self._stub().GetCapabilities(planner_pb2.GetCapabilitiesRequest(), timeout=patience, wait_for_ready=True)
        except grpc.RpcError as error:
            details = from_rpc_error(error, self.address, method).message
            raise PlannerError(
                "UNREACHABLE", f"nobody answers at {self.address} (tried for {patience:.1f} s): {details}",
                code=error.code()) from None

    # -- the channel

    def _stub(self):
        with self._lock:
            if self._channel is None or self._pid != os.getpid():
                self._channel = grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
                self._stub_object = planner_pb2_grpc.PlannerStub(self._channel)
                self._pid = os.getpid()
                self._capabilities = None
            return self._stub_object


class _Payload:
    """A graph in the form in which it travels."""

    def __init__(self, graph, capabilities: Capabilities):
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

    def header(self, tenant: str, digest: bytes):
        return planner_pb2.UploadHeader(
            tenant=tenant, graph_digest=digest, codec=self.codec, size=self.size, content_sha256=self.sha256)


def _remaining(until: float, method: str, address: str) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise PlannerError("DEADLINE", f"no time left for {method} at {address}")
    return left


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
