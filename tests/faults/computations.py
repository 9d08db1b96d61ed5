"""Which replica computed which plan, by which right: what their logs say (plan_broker_compute.cc), and what must be true of it.

Of all replicas one has a plan's lease, and has it until the plan is saved; whoever takes it after that finds the plan. So a plan is
computed once, and once more for each time that whoever computed it died, lost its lease or could not save it meanwhile. A replica
that the store does not answer computes without a lease: that is counted apart, and is nobody's right whose store was there. Plans
that an operator evicts are not expected. Linear in what was logged."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable

_COMPUTED = re.compile(r"\bplan computed\b.* plan=(?P<plan>\w+)")
_KEPT = re.compile(r"\bplan kept\b.* plan=(?P<plan>\w+) lease=(?P<lease>\w+) saved=(?P<saved>\w+)")
# A replica whose store failed, or that others may have ended since it was stopped, or that ends.
_TROUBLE = re.compile(r"\bstore: |\breplica \S+: |\bstopping: ")


@dataclasses.dataclass
class Computations:
    """Of one process."""

    computed: list[str] = dataclasses.field(default_factory=list)  # in order, as the following
    kept: list[tuple[str, str, bool]] = dataclasses.field(default_factory=list)  # plan, "held"/"lost"/"none", saved
    twice: list[str] = dataclasses.field(default_factory=list)  # begun while the same one was computed
    had_trouble: bool = False


def computations(log: str) -> Computations:
    """What one process wrote while it lived."""
    life, running = Computations(), collections.Counter()
    for line in log.splitlines():
        if kept := _KEPT.search(line):
            life.kept.append((kept["plan"], kept["lease"], kept["saved"] == "true"))
            running[kept["plan"]] -= 1
        elif computed := _COMPUTED.search(line):
            life.computed.append(computed["plan"])
            running[computed["plan"]] += 1
            if running[computed["plan"]] > 1:
                life.twice.append(computed["plan"])
        elif _TROUBLE.search(line):
            life.had_trouble = True
    return life


def computed_too_often(lives: Iterable[Computations]) -> list[str]:
    """Plans that were computed though another replica, or the same one, had to have computed them: each as a sentence."""
    lives = list(lives)
    found = [f"plan {plan}: one replica computes it twice at once" for life in lives for plan in life.twice]
    whole = collections.Counter(plan for life in lives for plan, lease, saved in life.kept if lease == "held" and saved)
    found += [f"plan {plan}: {times} times computed and saved with its lease" for plan, times in whole.items() if times > 1]
    found += [f"plan {plan}: computed, its lease {lease}, saved: {saved}, by a replica that had no trouble"
              for life in lives if not life.had_trouble for plan, lease, saved in life.kept if lease != "held" or not saved]
    return found


def tally(lives: Iterable[Computations]) -> collections.Counter:
    """How many there were of each kind."""
    counted = collections.Counter(lease if saved else "not saved" for life in lives for _, lease, saved in life.kept)
    counted["died"] = sum(len(life.computed) - len(life.kept) for life in lives)
    return counted
