"""One call to planners that may be busy, replaced or gone: which of them is asked, deadlines, pauses, circuit breaker."""

from __future__ import annotations

import os
import random
import time

import grpc

from . import addresses, breaker, degraded
from .addresses import Server
from .errors import PlannerError, from_rpc_error
from .line import Line
from .tls import Tls

CONNECT_TIMEOUT = 20.0  # seconds until planners that nobody can reach are an error
FIRST_TIMEOUT = 3.0  # the same where nobody was ever met: no planner that is being replaced, but a wrong address
PROBE_TIMEOUT = 2.0  # the same where the address was given up before
_RETURNS = 3  # of each planner that went away during one call
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

# Of several planners.
_ROUND_PAUSE = 0.1  # seconds, where none of them answered, until they are asked again
_FIRST_LOOK, _LATER_LOOKS = 1.0, 5.0  # into a call: whether it had better wait elsewhere
_SILENT = 2  # looks at a planner that says nothing, until the call is made elsewhere
_NAMES_HOLD = 30.0  # seconds until dns:/// is looked up again, though nothing went wrong
_NEWER_NAME = 1.0  # seconds that this may take where it is known what the name stood for
_MOST_NAME_PAUSE = 1.0  # seconds between looks for a name that nobody knows

_MINE = os.urandom(8).hex()  # the order of a process that asks about nothing in particular


class Caller:
    """Calls to the planners of one address (addresses.py). Thread-safe, and of use in a forked child. ValueError for an address
    that is invalid."""

    def __init__(self, address: str, connect_timeout: float = CONNECT_TIMEOUT, tls: Tls | None = None):
        self.address = address
        self.connect_timeout = connect_timeout
        self.entries = addresses.parse(address)
        self.one = len(self.entries) == 1 and not addresses.is_name(self.entries[0])
        only_unix = all(entry.startswith("unix:") for entry in self.entries)
        self._tls = None if only_unix else tls or Tls.from_environment()
        self.secured = only_unix or self._tls is not None
        self._lines: dict[Server, Line] = {}  # of those that the address lists, or stood for when it was looked up last
        self._met_others = False  # somebody answered at a line that is dropped
        self._names: dict[str, tuple[float, list[Server]]] = {}  # when each was looked up, and what it stood for

    def lines(self, about: str, patience: float, names_hold: float = _NAMES_HOLD) -> list[Line]:
        """In the order of addresses.py, within `patience` seconds whatever the resolver does. Lines of planners that a name stands for no
        more are dropped: gRPC closes the channel with the last call on it."""
        servers: list[Server] = []
        end = time.monotonic() + patience
        for entry in self.entries:
            servers += self._look_up(entry, end, names_hold) if addresses.is_name(entry) else [Server(entry)]
        for gone in set(list(self._lines)).difference(servers):  # a copy: other threads may add to it
            line = self._lines.pop(gone, None)
            self._met_others |= line is not None and line.ever_met
        return [self._lines.setdefault(server, Line(server, self._tls, repeats=self.one))
                for server in addresses.in_order(servers, about)]

    def names_known(self) -> bool:
        """Whether `lines` would look nothing up."""
        newest = time.monotonic() - _NAMES_HOLD
        return all(self._names.get(entry, (0.0,))[0] > newest for entry in self.entries if addresses.is_name(entry))

    def ever_met(self) -> bool:
        return self._met_others or any(line.ever_met for line in list(self._lines.values()))

    def close(self) -> None:
        for line in list(self._lines.values()):
            line.close()

    def _look_up(self, name: str, end: float, hold: float) -> list[Server]:
        when, known = self._names.get(name, (0.0, []))
        if known and time.monotonic() - when < hold:
            return known
        pause = _ROUND_PAUSE
        while True:
            left = end - time.monotonic()
            try:
                found = addresses.look_up(name, max(0.0, min(left, _NEWER_NAME) if known else left))
                break
            except PlannerError:
                if known:
                    found = known
                    break
                if end - time.monotonic() <= pause:
                    raise
            time.sleep(pause)  # a name may stand for nothing until its first planner is there
            pause = min(2 * pause, _MOST_NAME_PAUSE)
        self._names[name] = (time.monotonic(), found)
        return found


class Route:
    """Which planner a call is made to, and those that belong to it, and which one after that. For one thread. Who asks about the same
    thing comes to the same planner while it lives. `meets`: and waits there for others, so it follows them.

    A planner that drains or is gone is left at once for the next one, and asked again later: at first after a second or what it
    said itself. Where `meets`, a call that waits elsewhere goes back as soon as an earlier one is there again: that is
    where others will come."""

    def __init__(self, caller: Caller, about: str = _MINE, meets: bool = False):
        self._caller = caller
        self._about = about
        self._meets = meets
        self._lines = caller.lines(about, 0.0) if caller.names_known() else []
        self._line: Line | None = self._preferred()[0] if self._lines else None
        self._obeyed: PlannerError | None = None  # what the call that is being made was refused with last

    @property
    def target(self) -> str:
        """Who is asked now; the address, while nobody has looked it up."""
        return self._line.target if self._line else self._caller.address

    @property
    def capabilities(self):
        """Of the one who is asked now, while the client knows them."""
        return self._line.capabilities if self._line else None

    @capabilities.setter
    def capabilities(self, known) -> None:
        self._line.capabilities = known

    def call(self, method: str, request, until: float):
        """One call within the deadline; a callable `request` makes a stream. gRPC repeats calls by the service config where
        there is one planner. Beyond that, one that comes back within the connect timeout is asked again, or the next one
        is; and one that is overloaded or about to be replaced says when to come back, and is obeyed."""
        returns = 0
        while True:
            try:
                return self.once(method, request, until)
            except PlannerError as failure:
                if self.obey(failure, method, until):
                    continue
                if not gone(failure) or returns == _RETURNS * max(1, len(self._lines)):
                    raise
                returns += 1
            self.await_return(method, until)

    def once(self, method: str, request, until: float):
        """One attempt, if the breaker lets it. Where time is up in it, the error says what the attempt before was refused with."""
        try:
            reply = self._attempt(method, request, until)
        except PlannerError as failure:
            if failure.reason == "DEADLINE" and self._obeyed is not None:
                raise failure.after(self._obeyed) from self._obeyed
            raise
        self._obeyed = None
        return reply

    def await_return(self, method: str, until: float) -> None:
        """Returns once somebody answers at the address; UNREACHABLE if nobody does within the connect timeout."""
        left = remaining(until, method, self.target)
        degraded.count("retries")
        if self._caller.one:
            degraded.say(self._caller.address, "away", f"the planner went away during {method}; waiting for it to come back")
        else:
            degraded.say(self._caller.address, f"away {self.target}", f"{self.target} went away during {method}; asking the next one")
            self._line.leave()
        patience = min(self._caller.connect_timeout, left)
        self._find(method, patience, patience >= min(PROBE_TIMEOUT, self._caller.connect_timeout))

    def obey(self, failure: PlannerError, method: str, until: float) -> bool:
        """Goes on to the next planner if this one drains; else sleeps as long as it asks, and somewhat longer. False if it
        does not ask, or `until` would pass."""
        if failure.reason not in ("OVERLOADED", "QUOTA_USED_UP", "DRAINING") or failure.retry_after is None:
            return False
        self._obeyed = failure
        if failure.reason == "DRAINING" and self._leave(failure.retry_after):
            return True
        pause = failure.retry_after * random.uniform(1.0, 1.5)
        if time.monotonic() + pause >= until:
            return False
        degraded.count("waits")
        degraded.say(self._caller.address, failure.reason, f"{method} has to wait: {failure.message}")
        time.sleep(pause)
        return True

    def pause(self, attempt: int, until: float) -> None:
        """A moment, longer at each further attempt, at random: whoever was cut off with us does not come back with us."""
        most = min(2.0, 0.1 * 2**attempt)
        time.sleep(max(0.0, min(random.uniform(most / 2, most), until - time.monotonic())))

    # -- which planner

    def _set_out(self, method: str, until: float) -> None:
        """Chooses who is asked, and finds somebody where that is not known to answer."""
        caller = self._caller
        left = remaining(until, method, self.target)
        if not self._admit(method, left):
            return
        patience = caller.connect_timeout if caller.ever_met() else min(FIRST_TIMEOUT, caller.connect_timeout)
        if self._line is None or self._line.aside():
            self._lines = caller.lines(self._about, min(patience, left))
            self._take(self._preferred()[0])
        if not self._line.met and not (caller.one and self._line.ever_met):
            self._find(method, min(patience, remaining(until, method, self.target)), counts=True)

    def _preferred(self) -> list[Line]:
        """Those of whom nothing bad is known, in their order; then the others, by when they may be back."""
        return sorted(self._lines, key=Line.aside)

    def _take(self, line: Line) -> None:
        if self._line is not None and self._line is not line:
            degraded.count("moves")
        self._line = line

    def _leave(self, least: float) -> bool:
        """Goes on to the next planner, if there is one of whom nothing bad is known."""
        if self._caller.one:
            return False
        self._line.leave(least)
        first = self._preferred()[0]
        if not first.aside():
            self._take(first)
        return not first.aside()

    def _find(self, method: str, patience: float, counts: bool) -> None:
        """Returns once a planner answers; UNREACHABLE if none does in time, which `counts` for the breaker."""
        if self._caller.one:
            self._line.met = False  # whoever answers may be another one
            failure = self._line.ping(patience, wait=True)
        else:
            failure = self._find_one_of_several(patience)
        if failure is None or failure.answered:
            return self._answered()
        degraded.count("unreachable")
        if counts:
            self._nobody_answered()
        how = "" if self._caller.secured else ", without TLS"
        raise PlannerError(
            "UNREACHABLE", f"nobody answers at {self._caller.address} (tried for {patience:.1f} s{how}): {failure.message}",
            code=grpc.StatusCode.DEADLINE_EXCEEDED)

    def _find_one_of_several(self, patience: float) -> PlannerError | None:
        """Asks them in turn. One that says nothing is left after its share of the time, and does not take the others'."""
        end = time.monotonic() + patience
        while True:
            failed = []
            for line in self._preferred():
                left = end - time.monotonic()
                failure = line.ping(max(0.01, min(left, patience / len(self._lines))), wait=False)
                if failure is None:
                    self._take(line)
                    return None
                line.leave(failure.retry_after or 0.0)
                failed.append(failure)
            if time.monotonic() + _ROUND_PAUSE >= end:
                return PlannerError("UNREACHABLE", "; ".join(failure.message for failure in failed))
            time.sleep(_ROUND_PAUSE)
            self._lines = self._caller.lines(self._about, end - time.monotonic(), names_hold=1.0)

    # -- one attempt

    def _attempt(self, method: str, request, until: float):
        self._set_out(method, until)
        left = remaining(until, method, self.target)
        try:
            reply = self._ask(method, request, until)
        except grpc.RpcError as error:
            failure = from_rpc_error(error, self._line.target, method)
        else:
            self._answered()
            return reply
        if failure.answered:
            self._answered()
        elif failure.code == grpc.StatusCode.DEADLINE_EXCEEDED and left >= PROBE_TIMEOUT:
            self._nobody_answered()  # one that went away is not given up yet: await_return finds out
        raise failure

    def _ask(self, method: str, request, until: float):
        if callable(request):
            return getattr(self._line.stub(), method)(request(), timeout=remaining(until, method, self.target))
        if self._caller.one:
            return getattr(self._line.stub(), method)(request, timeout=remaining(until, method, self.target))
        while True:
            future = getattr(self._line.stub(), method).future(request, timeout=remaining(until, method, self.target))
            try:
                better = self._watch(future, method)
            except BaseException:
                future.cancel()
                raise
            if better is None:
                return future.result()
            future.cancel()
            self._take(better)

    def _watch(self, future, method: str) -> Line | None:
        """None once the call has ended; or where it had better wait. UNREACHABLE where its planner says nothing any more."""
        look, silent = _FIRST_LOOK, 0
        while True:
            try:
                future.exception(timeout=look)
                return None
            except grpc.FutureTimeoutError:
                pass
            for line in self._lines[:self._lines.index(self._line)] if self._meets else ():
                if line.ping(_FIRST_LOOK, wait=False) is None and not future.done():
                    return line
            if look == _LATER_LOOKS:
                failure = self._line.ping(_LATER_LOOKS, wait=False)
                silent = silent + 1 if failure is not None and not failure.answered else 0
                if silent == _SILENT:
                    raise PlannerError("UNREACHABLE", f"{method} at {self.target}: it says nothing any more",
                                       code=grpc.StatusCode.UNAVAILABLE)
            look = _LATER_LOOKS if look > _FIRST_LOOK else 2 * look

    # -- the breaker

    def _admit(self, method: str, left: float) -> bool:
        """False: this call was the probe, and has found somebody."""
        address = self._caller.address
        guard = breaker.of(address)
        admission = guard.admit()
        if admission == breaker.PROBE:
            degraded.count("breaker_probes")
            try:
                patience = min(PROBE_TIMEOUT, left)
                self._lines = self._caller.lines(self._about, patience)
                self._take(self._line or self._preferred()[0])
                self._find(method, patience, counts=True)
            except BaseException:  # whatever it was: somebody else may try
                guard.failed()
                raise
        elif admission == breaker.REFUSED:
            degraded.count("fast_failures")
            next_try = guard.remaining()
            when = f"it will be tried again in {next_try:.1f} s" if next_try else "another call is trying it now"
            raise PlannerError("UNREACHABLE", f"{method} at {address}: nobody answered there before; {when}",
                               retry_after=next_try)
        return admission != breaker.PROBE

    def _answered(self) -> None:
        self._line.answered()
        if breaker.of(self._caller.address).succeeded():
            degraded.recovered(self._caller.address)

    def _nobody_answered(self) -> None:
        if breaker.of(self._caller.address).failed():
            degraded.count("breaker_opens")
            degraded.say(self._caller.address, "breaker", "does not answer; calls end at once until it does")


def gone(failure: PlannerError) -> bool:
    """Whether the planner may have gone away during the call."""
    return failure.code in _GONE and not failure.answered


def remaining(until: float, method: str, address: str) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise PlannerError("DEADLINE", f"no time left for {method} at {address}")
    return left
