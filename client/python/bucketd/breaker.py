"""Stops asking an address that does not answer, so that a job with hundreds of graphs waits for it a few times and not
hundreds of times.

closed     every call goes out
open       after FAILURES calls in a row, none older than WINDOW, that nobody answered: calls are refused at once for
           COOLDOWN, lengthened by up to half at random so that the ranks of a job do not come back together
half-open  then one call is a probe and the others are still refused; if the probe is answered the breaker closes, else
           it is open for another cooldown
"""

from __future__ import annotations

import os
import random
import threading
import time

FAILURES = 2
WINDOW = 120.0  # seconds
COOLDOWN = 30.0

CALL, PROBE, REFUSED = "call", "probe", "refused"


class Breaker:
    """Of one address. Thread-safe."""

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: list[float] = []  # in a row
        self._open = self._probing = False
        self._until = 0.0

    def admit(self) -> str:
        """PROBE: this caller must say what came of it, `succeeded` or `failed`, for others to be let in."""
        with self._lock:
            if not self._open:
                return CALL
            if self._probing or self._clock() < self._until:
                return REFUSED
            self._probing = True
            return PROBE

    def succeeded(self) -> bool:
        """Somebody answered, whatever the answer. True: it was not closed before."""
        with self._lock:
            was_open = self._open
            self._failed.clear()
            self._open = self._probing = False
            return was_open

    def failed(self) -> bool:
        """Nobody answered. True: it opened, or stays open after a probe."""
        with self._lock:
            if self._open and not self._probing:
                return False  # a call that went out before it opened says nothing new
            now = self._clock()
            self._failed = [at for at in self._failed if now - at <= WINDOW] + [now]
            if not self._probing and len(self._failed) < FAILURES:
                return False
            self._open, self._probing = True, False
            self._until = now + COOLDOWN * random.uniform(1.0, 1.5)
            self._failed.clear()
            return True

    def remaining(self) -> float:
        """Seconds until the next probe may go out; 0 if one may, or is under way."""
        with self._lock:
            return max(0.0, self._until - self._clock()) if self._open and not self._probing else 0.0


_lock = threading.Lock()
_breakers: dict[str, Breaker] = {}


def of(address: str) -> Breaker:
    """The one of this process, for all clients of the address."""
    with _lock:
        return _breakers.setdefault(address, Breaker())


def _start_over() -> None:
    """A child learns for itself: whoever was probing is not in it."""
    global _lock
    _lock = threading.Lock()
    _breakers.clear()


os.register_at_fork(after_in_child=_start_over)
