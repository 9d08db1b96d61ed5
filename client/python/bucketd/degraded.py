"""What went otherwise than it should have, counted, and said once: nobody should find out from a profile that a job ran
for a week without plans."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger("bucketd")

NAMES = {
    "retries": "calls asked again because the planner had gone away",
    "moves": "calls that went on to another planner of the address",
    "waits": "pauses that a planner asked for: overloaded, draining, or a quota used up",
    "unreachable": "calls that nobody answered within the connect timeout",
    "breaker_opens": "times that an address was given up, or once more after a probe",
    "breaker_probes": "calls that found out whether such an address is back",
    "fast_failures": "calls refused while it was given up",
    "uploads": "graphs sent in chunks, each attempt once",
    "resumed_uploads": "of them, those that went on where a broken one stopped",
    "graphs_without_collectives": "graphs that a backend was to plan and that have nothing to plan",
    "unplanned": "graphs that stay without a plan, by fallback or because planning is switched off",
    "refused_buckets": "buckets that stay with torch.distributed, since the executor has no such dtype or operation, or would add in "
                       "another order than the plan promises",
    "telemetry_dropped": "records of buckets that no agent has read in time, or that were not made when an executor was closed",
    "reconnects_after_fork": "connections made anew by a forked child",
}

_lock = threading.Lock()
_counts = dict.fromkeys(NAMES, 0)
_gauges: dict[str, list[Callable[[], int]]] = {}  # by name, of what others count
_said: set[tuple[str, str]] = set()


def counters() -> dict[str, int]:
    """This process's counts by name; NAMES says what each counts. A forked child begins with zeros."""
    with _lock:
        return {name: count + sum(told() for told in _gauges.get(name, ())) for name, count in _counts.items()}


def count(name: str) -> None:
    with _lock:
        _counts[name] += 1


def gauge(name: str, told: Callable[[], int]) -> None:
    """`told` says how much to add to that count, for as long as this process lives."""
    with _lock:
        _gauges.setdefault(name, []).append(told)


def say(address: str, cause: str, text: str) -> None:
    """Logs a warning, once for each cause and address until the address was given up and answered again."""
    with _lock:
        first = (address, cause) not in _said
        _said.add((address, cause))
    log.log(logging.WARNING if first else logging.DEBUG, "bucketd: %s: %s", address, text)


def recovered(address: str) -> None:
    with _lock:
        _said.difference_update([entry for entry in _said if entry[0] == address])
    log.info("bucketd: %s answers again", address)


def _start_over() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held the old one
    _counts.update(dict.fromkeys(_counts, 0))
    _said.clear()
    _gauges.clear()


os.register_at_fork(after_in_child=_start_over)
