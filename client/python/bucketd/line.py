"""The connection to one planner."""

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

from . import degraded
from ._wire.proto import agent_pb2_grpc, planner_pb2, planner_pb2_grpc
from .addresses import Server
from .errors import PlannerError, from_rpc_error
from .tls import Tls

_ASIDE, _MOST_ASIDE = 1.0, 20.0  # seconds, doubled from time to time, for which one that did not answer is not asked first: as in C++
_LAST_CALL = 1.0  # of the seconds in which one is waited for, that go to finding out why it is not there

# Every call may be repeated: a plan is a function of its key. CANCELLED is what a server that shuts down leaves behind.
# An upload goes on where it stopped, which gRPC cannot know.
_REPEATS = {
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
}

_CHANNEL_OPTIONS = (
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


class Line:
    """To one planner. Thread-safe; connects at first use, and again in a forked child: neither a channel nor a lock that
    another thread may have held survives a fork.

    `repeats`: gRPC repeats calls by itself. Not where there is another planner to ask instead."""

    def __init__(self, server: Server, tls: Tls | None, repeats: bool):
        self.target = server.target
        self.met = False  # somebody answered, and nothing has been heard of their end since
        self.ever_met = False
        self.capabilities = None  # what the client made of them, until the planner is seen to come back: it may be another one
        self._tls = None if server.target.startswith("unix:") else tls
        self._options = list(_CHANNEL_OPTIONS)
        if server.name:
            self._options.append(("grpc.ssl_target_name_override", server.name))
        self._repeats = repeats
        self._aside_until, self._times_aside = 0.0, 0
        self._lock = threading.Lock()
        self._channels = []  # the last is in use; calls may be under way on the one before
        self._stub = self._files = None
        self._forked = False
        _lines.add(self)

    def stub(self):
        with self._lock:
            files = self._tls.signature() if self._tls else None
            if self._stub is None or files != self._files:
                if self._forked:
                    degraded.count("reconnects_after_fork")
                    self._forked = False
                self._channels.append(self._connect(self._repeats))
                self._stub, self._files = _Stub(self._channels[-1]), files
                for unused in self._channels[:-2]:
                    unused.close()
                del self._channels[:-2]
            return self._stub

    def ping(self, patience: float, wait: bool) -> PlannerError | None:
        """None: somebody answers there, and does not drain. `wait`: for one that is not there yet, too; nobody says to whoever waits why
        there is none (a port that is closed, a certificate that was refused), so the last of the time is for a call that does not.
        PlannerError where a file of TLS cannot be read."""
        last = min(_LAST_CALL, patience / 4) if wait else 0.0
        failure = self._capable(self.stub(), patience - last, wait)
        if wait and failure is not None and not failure.answered:
            with self._connect(repeats=False) as channel:
                failure = self._capable(_Stub(channel), last, False)
        if failure is None:
            self.answered()
        return failure

    def _capable(self, stub: _Stub, patience: float, wait: bool) -> PlannerError | None:
        try:
            stub.GetCapabilities(planner_pb2.GetCapabilitiesRequest(), timeout=patience, wait_for_ready=wait)
        except grpc.RpcError as error:
            failure = from_rpc_error(error, self.target, "GetCapabilities")
            return None if failure.answered and failure.reason != "DRAINING" else failure
        return None

    def answered(self) -> None:
        if not self.met and self.ever_met:
            self.capabilities = None
        self.met = self.ever_met = True
        self._aside_until, self._times_aside = 0.0, 0

    def leave(self, least: float = 0.0) -> None:
        """It drains or is gone: others are asked first for a while, `least` seconds or more."""
        self.met = False
        pause = max(least, min(_MOST_ASIDE, _ASIDE * 2**self._times_aside)) * random.uniform(1.0, 1.5)
        self._times_aside = min(self._times_aside + 1, 10)
        self._aside_until = time.monotonic() + pause

    def aside(self) -> float:
        """For how many seconds others are still asked first."""
        return max(0.0, self._aside_until - time.monotonic())

    def close(self) -> None:
        with self._lock:
            for channel in self._channels:
                channel.close()
            self._channels, self._stub = [], None
        self.capabilities = None

    def forked(self) -> None:
        """In the child. The parent's channel is neither closed nor freed here: both would use what the fork left behind."""
        self._lock = threading.Lock()
        for channel in self._channels:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
            self._forked = True
        self._channels, self._stub = [], None

    def _connect(self, repeats: bool):
        options = [*self._options, ("grpc.service_config", json.dumps(_REPEATS))] if repeats else self._options
        if self._tls is None:
            return grpc.insecure_channel(self.target, options=options)
        return grpc.secure_channel(self.target, self._tls.credentials(), options=options)


_lines: weakref.WeakSet[Line] = weakref.WeakSet()


def _forked() -> None:
    for line in list(_lines):
        line.forked()


def _ended() -> None:
    for line in list(_lines):
        line.close()


os.register_at_fork(after_in_child=_forked)
# gRPC's threads of an open channel would meet an interpreter that is being taken down.
atexit.register(_ended)
