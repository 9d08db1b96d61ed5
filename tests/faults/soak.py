"""A cluster for an hour (or --minutes), with faults drawn from all that cluster_faults.py has, one or two at a time, by seed. Jobs
train meanwhile, some with costs that operators promote. What is printed is a summary: tests/bench/record.py soak -- tests/faults/soak.sh"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import random
import subprocess
import sys
import tempfile
import time
import traceback

import driver  # noqa: F401  puts the package on the path

# isort: split
import cluster_faults as faults
from cluster import Cluster, Jobs
from cluster_scenarios import ctl, import_costs, promote, switch, wrong_order
from computations import tally as computations_of
from harness import Reference, expect

_COUNTERS = {"calls forwarded": "bucketd_forwarded_calls_total", "presented anew by replicas": "bucketd_calls_presented_anew_total",
             "leases taken over": "bucketd_leases_taken_over_total", "computations": "bucketd_plan_computations_total"}
# Of computations.py: those of the first kind are one a plan, and all others have had a cause.
_RIGHTS = {"held": "by whoever had the plan's lease until it was saved", "none": "without a lease, the store away", "lost": "by whoever lost the lease meanwhile",
           "not saved": "and not saved", "died": "by whoever died of a fault then, at most"}
# Two of one group are not drawn together: what is agreed on while the engine is away lives in one process, and ends with it.
_ENGINE, _PROCESS, _OTHER = "engine", "process", "other"


def _switched_off(rng, soak: Soak) -> faults.Fault:
    ask = lambda on: lambda: switch(rng.choice(soak.cluster.replicas).address, on, soak.promoted.history)  # noqa: E731
    return faults.Fault("planning is off", ask(False), round(rng.uniform(0.5, 4), 1), ask(True))


def _promoted(rng, soak: Soak) -> faults.Fault:
    version = rng.choice(soak.versions)
    return faults.Fault(f"site@{version} is promoted", lambda: promote(rng.choice(soak.cluster.replicas).address, version, soak.promoted.history), 0.5)


def _of_cluster(make):
    return lambda rng, soak: make(rng, soak.cluster)


# Name: its group, how often beside the others, how one is drawn.
KINDS = {
    "link to the engine": (_ENGINE, 3, _of_cluster(faults.engine_link)),
    "link between replicas": (_OTHER, 3, _of_cluster(faults.peer_link)),
    "link to clients": (_OTHER, 2, _of_cluster(faults.client_link)),
    "kill -9": (_PROCESS, 4, _of_cluster(faults.kill)),
    "kill -9 to two": (_PROCESS, 1, _of_cluster(functools.partial(faults.kill, count=2))),
    "drain": (_PROCESS, 2, _of_cluster(faults.drain)),
    "SIGSTOP": (_PROCESS, 2, _of_cluster(faults.sleep)),
    "clock": (_OTHER, 2, lambda rng, soak: soak.clocks.turned(rng, soak.cluster)),
    "promotion of the standby": (_ENGINE, 1, _of_cluster(faults.take_over)),
    "stalled standby": (_ENGINE, 1, _of_cluster(faults.stalled_standby)),
    "planning switched off": (_ENGINE, 2, _switched_off),  # a replica that is cut off does not hear of it: deploy/README.md
    "costs promoted": (_OTHER, 3, _promoted),
}


@dataclasses.dataclass
class Tally:
    """What is in the summary."""

    generations: int = 0
    answers: int = 0
    retries: int = 0
    worst_wait: float = 0.0
    drawn: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    worst_of: dict[str, float] = dataclasses.field(default_factory=lambda: collections.defaultdict(float))
    counted: dict[tuple, dict[str, float]] = dataclasses.field(default_factory=dict)  # by process
    computations: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by their right to it
    findings: list[str] = dataclasses.field(default_factory=list)


class Soak:
    """One cluster, until the time is over or something is found."""

    def __init__(self, rng: random.Random, tally: Tally, reference: Reference, cluster: Cluster, clocks: faults.Clocks):
        self._rng, self._tally, self._reference = rng, tally, reference
        self.cluster, self.clocks = cluster, clocks
        self.versions = import_costs(cluster)
        self.plain = Jobs(cluster, rng, jobs=3, ranks=4, trains=2.0)
        self.promoted = Jobs(cluster, rng, jobs=3, ranks=3, profile="site@latest", trains=2.0)
        self._seen = {self.plain: 0, self.promoted: 0}

    def run(self, until: float) -> None:
        try:
            with self.plain, self.promoted:
                while time.monotonic() < until:
                    self._round()
            for load in (self.plain, self.promoted):
                load.check(self._reference)
            wrong = wrong_order(self.promoted.history, self.versions[0])
            expect(not wrong, *wrong[:3])
        except BaseException:
            self._show()
            raise
        finally:
            self._tally.computations += computations_of(self.cluster.computations())
            for load in (self.plain, self.promoted):
                self._tally.generations += load.generations
                self._tally.retries += load.retries
                self._tally.answers += sum(not call.error for call in load.history.of("agree"))

    def _round(self) -> None:
        names = self._draw()
        drawn = [KINDS[name][2](self._rng, self) for name in names]
        print(f"{time.strftime('%H:%M:%S')} {'; '.join(f'{fault.what}, {fault.seconds} s' for fault in drawn)}", file=sys.stderr, flush=True)
        for fault in drawn:
            fault.begin()
        time.sleep(max(fault.seconds for fault in drawn))
        for fault in drawn:
            fault.end()
        self.cluster.heal()
        for load in (self.plain, self.promoted):
            load.wait_for_more(3)
        self._look(names)

    def _draw(self) -> list[str]:
        names = list(KINDS)
        weights = [KINDS[name][1] for name in names]
        drawn = [self._rng.choices(names, weights)[0]]
        second = self._rng.choices(names, weights)[0]
        groups = {KINDS[name][0] for name in (drawn[0], second)}
        if self._rng.random() < 0.4 and _OTHER in groups and second != drawn[0]:
            drawn.append(second)
        return drawn

    def _look(self, names: list[str]) -> None:
        tally = self._tally
        for number, replica in enumerate(self.cluster.replicas):
            replica.server.watch()
            life = (number, replica.server.process.pid)
            tally.counted[life] = {what: replica.server.metric(metric) for what, metric in _COUNTERS.items()}
        worst = max(self._worst_wait(load) for load in (self.plain, self.promoted))
        tally.worst_wait = max(tally.worst_wait, worst)
        for name in names:
            tally.drawn[name] += 1
            tally.worst_of[name] = max(tally.worst_of[name], worst)

    def _show(self) -> None:
        """What the replicas say of themselves, for whoever looks for the cause."""
        for replica in self.cluster.replicas:
            print(f"-- replica {self.cluster.number(replica)}", replica.server.log.read_text()[-8000:], sep="\n", file=sys.stderr)
            for asked in ("status", "jobs"):
                try:
                    print(ctl(replica.server.address, asked), file=sys.stderr, flush=True)
                except subprocess.SubprocessError as failed:
                    print(failed, file=sys.stderr, flush=True)

    def _worst_wait(self, load: Jobs) -> float:
        """From a rank's first call to its first plan, of those that came since the last look."""
        calls = load.history.of("agree")
        since, self._seen[load] = self._seen[load], len(calls)
        first: dict[tuple, float] = {}
        worst = 0.0
        for at in range(max(0, since - 500), len(calls)):
            call = calls[at]
            began = first.setdefault((call.about, call.who), call.begin)
            if not call.error:
                if at >= since:
                    worst = max(worst, call.end - began)
                first[call.about, call.who] = call.end
        return worst


def _summary(tally: Tally, seed: int, seconds: float) -> str:
    lines = [f"Seed {seed}, {seconds / 60:.0f} minutes of three replicas on a primary and its synchronous standby, six jobs of three and four ranks.", "",
             "| | |", "|---|---|", f"| generations | {tally.generations} |", f"| answers to ranks | {tally.answers} |",
             f"| calls that clients repeated | {tally.retries} |"]
    for what in _COUNTERS:
        lines.append(f"| {what}, at least | {sum(counts[what] for counts in tally.counted.values()):.0f} |")
    lines += [f"| computations: {what} | {tally.computations[kind]} |" for kind, what in _RIGHTS.items()]
    lines += [f"| processes of replicas | {len(tally.counted)} |", f"| worst time a rank waited | {tally.worst_wait:.1f} s |",
              f"| findings | {len(tally.findings)} |", "", "| fault | drawn | worst time a rank waited meanwhile, s |", "|---|--:|--:|"]
    lines += [f"| {name} | {tally.drawn[name]} | {tally.worst_of[name]:.1f} |" for name in KINDS]
    return "\n".join([*lines, "", *(f"Found: {finding}" for finding in tally.findings)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--minutes", type=float, default=60)
    arguments = parser.parse_args()
    rng, tally = random.Random(arguments.seed), Tally()
    begun = time.monotonic()
    until = begun + 60 * arguments.minutes
    with Reference() as reference:
        while time.monotonic() < until:
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                clocks = faults.Clocks(folder)
                try:
                    with Cluster(standby=True, environments=clocks.environments) as cluster:
                        Soak(rng, tally, reference, cluster, clocks).run(until)
                except Exception as found:  # the next cluster goes on
                    print(f"{time.strftime('%H:%M:%S')} FOUND", file=sys.stderr)
                    traceback.print_exc()
                    tally.findings.append(f"{type(found).__name__}: {str(found)[:500]}")
    print(_summary(tally, arguments.seed, time.monotonic() - begun))
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
