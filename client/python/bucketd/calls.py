"""One call to a planner that may be busy, replaced or gone: channel, deadlines, pauses, circuit breaker."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import random
import threading
import time
import weakref

import grpc

from . import breaker, degraded
from ._wire.proto import agent_pb2_grpc, planner_pb2, planner_pb2_grpc
from .errors import PlannerError, from_rpc_error
from .tls import Tls

CONNECT_TIMEOUT = 20.0  # seconds until a planner that nobody can reach is an error
FIRST_TIMEOUT = 3.0  # the same where nobody was ever met: no planner that is being replaced, but a wrong address
PROBE_TIMEOUT = 2.0  # the same where its address was given up before
_RETURNS = 3  # of a planner that went away during one call
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

# Every call may be repeated: a plan is a function of its key. CANCELLED is what a server that shuts down leaves behind.
# An upload goes on where it stopped, which gRPC cannot know.
_SERVICE_CONFIG = json.dumps({
    "methodConfig": [
        {
            "name": [{"service": "bucketd.v1.Planner"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2.5,
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        },
        {"name": [{"service": "bucketd.v1.Planner", "method": "UploadGraph"}]},
    ],
})

_CHANNEL_OPTIONS = (
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.enable_retries", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # of one attempt, to the server's first frame: client/channel.cc
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.max_receive_message_length", -1),  # a plan of a large graph; the service bounds its size
    ("grpc.enable_http_proxy", 0),
)


class _Stub(planner_pb2_grpc.PlannerStub):
    """All calls that clients make, whatever service they belong to."""

    def __init__(self, channel):
        super().__init__(channel)
        self.Rendezvous = agent_pb2_grpc.AgentsStub(channel).Rendezvous


class Caller:
    """Calls to one address. Thread-safe; connects at first use, and again in a forked child: neither a channel nor a lock
    that another thread may have held survives a fork."""

    def __init__(self, address: str, connect_timeout: float = CONNECT_TIMEOUT, tls: Tls | None = None):
        self.address = address
        self.connect_timeout = connect_timeout
        self.tls = None if address.startswith("unix:") else tls or Tls.from_environment()
        self.returns = 0  # times that the planner was seen to come back: it may be another one
        self._lock = threading.Lock()
        self._channels = []  # the last is in use; calls may be under way on the one before
        self._stub = self._files = None
        self._forked = self._met = False
        _callers.add(self)

    def call(self, method: str, request, until: float):
        """One call within the deadline; a callable `request` makes a stream. gRPC repeats calls by the service config.
        Beyond that, a planner that comes back within the connect timeout is asked again, and one that is overloaded or
        about to be replaced says when to come back, and is obeyed."""
        returns = 0
        while True:
            try:
                return self.once(method, request, until)
            except PlannerError as failure:
                if self.obey(failure, method, until):
                    continue
                if not gone(failure) or returns == _RETURNS:
                    raise
                returns += 1
            self.await_return(method, until)

    def once(self, method: str, request, until: float):
        """One attempt, if the breaker lets it."""
        self._admit(method, until)
        if not self._met:
            self._ping(method, min(FIRST_TIMEOUT, self.connect_timeout, remaining(until, method, self.address)), counts=True)
        left = remaining(until, method, self.address)
        try:
            argument = request() if callable(request) else request
            reply = getattr(self.stub(), method)(argument, timeout=left)
        except grpc.RpcError as error:
            failure = from_rpc_error(error, self.address, method)
        else:
            self._answered()
            return reply
        if failure.answered:
            self._answered()
        elif failure.code == grpc.StatusCode.DEADLINE_EXCEEDED and left >= PROBE_TIMEOUT:
            self._nobody_answered()  # one that went away is not given up yet: await_return finds out
        raise failure

    def await_return(self, method: str, until: float) -> None:
        """Returns once somebody answers at the address; UNREACHABLE if nobody does within the connect timeout."""
        left = remaining(until, method, self.address)
        degraded.count("retries")
        degraded.say(self.address, "away", f"the planner went away during {method}; waiting for it to come back")
        patience = min(self.connect_timeout, left)
        self._ping(method, patience, patience >= min(PROBE_TIMEOUT, self.connect_timeout))

    def obey(self, failure: PlannerError, method: str, until: float) -> bool:
        """Sleeps as long as the planner asks, and somewhat longer; False if it does not ask, or `until` would pass."""
        if failure.reason not in ("OVERLOADED", "QUOTA_USED_UP", "DRAINING") or failure.retry_after is None:
            return False
        pause = failure.retry_after * random.uniform(1.0, 1.5)
        if time.monotonic() + pause >= until:
            return False
        degraded.count("waits")
        degraded.say(self.address, failure.reason, f"{method} has to wait: {failure.message}")
        time.sleep(pause)
        return True

    def pause(self, attempt: int, until: float) -> None:
        """A moment, longer at each further attempt, at random: whoever was cut off with us does not come back with us."""
        most = min(2.0, 0.1 * 2**attempt)
        time.sleep(max(0.0, min(random.uniform(most / 2, most), until - time.monotonic())))

    def close(self) -> None:
        with self._lock:
            for channel in self._channels:
                channel.close()
            self._channels, self._stub = [], None

    def stub(self):
        with self._lock:
            files = self.tls.signature() if self.tls else None
            if self._stub is None or files != self._files:
                if self._forked:
                    degraded.count("reconnects_after_fork")
                    self._forked = False
                self._channels.append(self._connect())
                self._stub, self._files = _Stub(self._channels[-1]), files
                for unused in self._channels[:-2]:
                    unused.close()
                del self._channels[:-2]
            return self._stub

    def _connect(self):
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        return grpc.secure_channel(self.address, self.tls.credentials(), options=_CHANNEL_OPTIONS)

    def forked(self) -> None:
        """In the child. The parent's channel is neither closed nor freed here: both would use what the fork left behind."""
        self._lock = threading.Lock()
        for channel in self._channels:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
            self._forked = True
        self._channels, self._stub = [], None

    # -- the breaker

    def _admit(self, method: str, until: float) -> None:
        left = remaining(until, method, self.address)
        guard = breaker.of(self.address)
        admission = guard.admit()
        if admission == breaker.PROBE:
            degraded.count("breaker_probes")
            try:
                self._ping(method, min(PROBE_TIMEOUT, left), counts=True)
            except PlannerError:
                raise
            except BaseException:  # interrupted: somebody else may try
                guard.failed()
                raise
        elif admission == breaker.REFUSED:
            degraded.count("fast_failures")
            next_try = guard.remaining()
            when = f"it will be tried again in {next_try:.1f} s" if next_try else "another call is trying it now"
            raise PlannerError("UNREACHABLE", f"{method} at {self.address}: nobody answered there before; {when}",
                               retry_after=next_try)

    def _ping(self, method: str, patience: float, counts: bool) -> None:
        try:
            self.stub().GetCapabilities(planner_pb2.GetCapabilitiesRequest(), timeout=patience, wait_for_ready=True)
        except grpc.RpcError as error:
            failure = self._cause(from_rpc_error(error, self.address, method), method)
            if not failure.answered:
                degraded.count("unreachable")
                if counts:
                    self._nobody_answered()
                raise PlannerError(
                    "UNREACHABLE", f"nobody answers at {self.address} (tried for {patience:.1f} s): {failure.message}",
                    code=grpc.StatusCode.DEADLINE_EXCEEDED) from None
        self.returns += self._met  # the first time is no return
        self._answered()

    def _cause(self, failure: PlannerError, method: str) -> PlannerError:
        """Whoever waits for a connection hears of no certificate that was refused; whoever does not wait, does."""
        if self.tls is None or failure.answered:
            return failure
        no_retries = [option for option in _CHANNEL_OPTIONS if option[0] != "grpc.service_config"]
        try:
            with grpc.secure_channel(self.address, self.tls.credentials(), options=no_retries) as channel:
                _Stub(channel).GetCapabilities(planner_pb2.GetCapabilitiesRequest(), timeout=1)
        except grpc.RpcError as error:
            cause = from_rpc_error(error, self.address, method)
            return cause if error.code() == grpc.StatusCode.UNAVAILABLE else failure
        return failure

    def _answered(self) -> None:
        self._met = True
        if breaker.of(self.address).succeeded():
            degraded.recovered(self.address)

    def _nobody_answered(self) -> None:
        if breaker.of(self.address).failed():
            degraded.count("breaker_opens")
            degraded.say(self.address, "breaker", "does not answer; calls end at once until it does")


def gone(failure: PlannerError) -> bool:
    """Whether the planner may have gone away during the call."""
    return failure.code in _GONE and not failure.answered


def remaining(until: float, method: str, address: str) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise PlannerError("DEADLINE", f"no time left for {method} at {address}")
    return left


_callers: weakref.WeakSet[Caller] = weakref.WeakSet()


def _forked() -> None:
    for caller in list(_callers):
        caller.forked()


def _ended() -> None:
    for caller in list(_callers):
        caller.close()


os.register_at_fork(after_in_child=_forked)
# gRPC's threads of an open channel would meet an interpreter that is being taken down.
atexit.register(_ended)
