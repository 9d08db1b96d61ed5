"""What callers of several servers saw, and what must be true of it whatever went wrong in between.

A call is an interval: it took effect, if it did, somewhere between its begin and its end; one that failed may have taken
effect until long after. Times are of one monotonic clock. Every check is as good as linear in the calls.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

NEVER = float("inf")


@dataclasses.dataclass(frozen=True)
class Call:
    what: str  # "agree", "epoch"; of a register (linearizable.py): "read", "write", "swap"
    about: tuple  # whose: (tenant, job, generation, scope), (group,), ("planning",), ("latest", name)
    who: Any  # the rank or client that called
    begin: float
    end: float
    value: Any = None  # what it asked to be, or was told
    error: str = ""  # "": it was acknowledged


class History:
    """Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    def add(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)

    def of(self, what: str) -> list[Call]:
        with self._lock:
            return [call for call in self._calls if call.what == what]

    def about(self, thing: str) -> list[Call]:
        with self._lock:
            return [call for call in self._calls if call.about[0] == thing]


def two_plans(agreements: Iterable[Call]) -> list[str]:
    """Scopes of a generation whose ranks were given different plans, or a plan and none: each as a sentence."""
    given: dict[tuple, dict[Any, list]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for call in agreements:
        if not call.error:
            given[call.about][call.value].append(call.who)
    return [f"{about}: " + "; ".join(f"{value} to {sorted(set(ranks), key=repr)}" for value, ranks in values.items())
            for about, values in given.items() if len(values) > 1]


def looks_at_switch(agreements: Iterable[Call]) -> list[Call]:
    """That planning is on is read somewhere between the first call of a generation that gets a plan and the first answer with it."""
    by_generation: dict[tuple, list[Call]] = collections.defaultdict(list)
    for call in agreements:
        by_generation[call.about[:3]].append(call)
    looks = []
    for about, calls in by_generation.items():
        planned = [call.end for call in calls if not call.error and call.value != "unplanned"]
        if planned:
            looks.append(Call("read", ("planning",), about, min(call.begin for call in calls), min(planned), "on"))
    return looks


def epochs_that_shrink(epochs: Iterable[Call]) -> list[str]:
    """Epochs of a group that are no larger than one whose call had ended before theirs began, or that were given to two."""
    by_group = collections.defaultdict(list)
    for call in epochs:
        if not call.error:
            by_group[call.about].append(call)
    found = []
    for group, calls in by_group.items():
        owners = collections.defaultdict(set)
        for call in calls:
            owners[call.value].add(call.who)
        found += [f"{group}: epoch {value} was given to {sorted(who)}" for value, who in owners.items() if len(who) > 1]
        ended = sorted(calls, key=lambda call: call.end)
        at, highest = 0, None
        for call in sorted(calls, key=lambda call: call.begin):
            while at < len(ended) and ended[at].end < call.begin:
                if highest is None or ended[at].value > highest.value:
                    highest = ended[at]
                at += 1
            if highest is not None and call.value <= highest.value:
                found.append(f"{group}: epoch {call.value} of {call.who} after {highest.value} of {highest.who}")
    return found
