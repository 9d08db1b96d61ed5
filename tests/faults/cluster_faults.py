"""What goes wrong in a cluster: a function each, which draws one of its kind. Scenarios make histories of them (cluster_scenarios.py),
the soak draws from all (soak.py)."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import signal
import struct
from collections.abc import Callable

from cluster import Cluster, Replica
from harness import BINARY

_CLOCK = pathlib.Path(BINARY).parents[1] / "tests" / "libjumping_clock.so"
_WAYS = ("reset", "hold", "hold_answers", "delay")


@dataclasses.dataclass
class Fault:
    """`begin` it, let it last, `end` it; links are healed by whoever made it (Cluster.heal)."""

    what: str
    begin: Callable[[], None]
    seconds: float = 0.0
    end: Callable[[], None] = lambda: None


def _fail(link, way: str) -> None:
    getattr(link, way)(*((0.15,) if way == "delay" else ()))


def engine_link(rng: random.Random, cluster: Cluster, way: str = "") -> Fault:
    way, replica = way or rng.choice(_WAYS), rng.choice(cluster.replicas)
    return Fault(f"{way} between replica {cluster.number(replica)} and the engine", lambda: [_fail(link, way) for link in replica.engines],
                 round(rng.uniform(1, 8), 1))


def peer_link(rng: random.Random, cluster: Cluster, way: str = "") -> Fault:
    way, replica = way or rng.choice(_WAYS), rng.choice([rng.choice(cluster.replicas), cluster.busiest(), cluster.busiest()])
    return Fault(f"{way} between the others and replica {cluster.number(replica)}", lambda: _fail(replica.peers, way), round(rng.uniform(1, 8), 1))


def client_link(rng: random.Random, cluster: Cluster, way: str = "") -> Fault:
    way, replica = way or rng.choice(_WAYS), rng.choice(cluster.replicas)
    return Fault(f"{way} between clients and replica {cluster.number(replica)}", lambda: _fail(replica.clients, way), round(rng.uniform(1, 8), 1))


def kill(rng: random.Random, cluster: Cluster, count: int = 1) -> Fault:
    """kill -9, and a new process after a while."""
    replicas = rng.sample(cluster.replicas, count)
    return Fault(f"kill -9 to {sorted(map(cluster.number, replicas))}", lambda: [replica.server.kill() for replica in replicas],
                 round(rng.uniform(0, 6), 1), lambda: [replica.come_back() for replica in replicas])


def drain(rng: random.Random, cluster: Cluster) -> Fault:
    """SIGTERM and its whole orderly end, and a new process."""
    replica = rng.choice(cluster.replicas)
    return Fault(f"replica {cluster.number(replica)} drains", replica.server.drain, 0.0, replica.come_back)


def sleep(rng: random.Random, cluster: Cluster, seconds: float = 0.0) -> Fault:
    """SIGSTOP, perhaps until the others take what it held, and SIGCONT: it wakes with what it believed."""
    replica = cluster.busiest()
    return Fault(f"replica {cluster.number(replica)} sleeps", lambda: _signal(replica, signal.SIGSTOP),
                 seconds or round(rng.choice([rng.uniform(0.5, 5), rng.uniform(12, 16)]), 1), lambda: _signal(replica, signal.SIGCONT))


def _signal(replica: Replica, number: signal.Signals) -> None:
    replica.server.process.send_signal(number)


def take_over(rng: random.Random, cluster: Cluster) -> Fault:
    """The primary is gone at once; its synchronous standby is promoted a moment later, and then gets a standby itself."""
    return Fault("the primary is gone, its standby promoted", cluster.lose_primary, round(rng.uniform(0, 4), 1), cluster.promote)


def stalled_standby(rng: random.Random, cluster: Cluster) -> Fault:
    """The standby that every commit waits for takes nothing and says nothing."""
    standby = cluster.standby
    return Fault("the standby stalls", lambda: standby.signal_all(signal.SIGSTOP), round(rng.uniform(2, 15), 1),
                 lambda: standby.signal_all(signal.SIGCONT))


class Clocks:
    """Wall clocks of replicas that can be set, as files that their processes look at."""

    def __init__(self, folder: str, count: int = 3):
        self._files = [pathlib.Path(folder, str(number)) for number in range(count)]
        self.environments = tuple({"LD_PRELOAD": str(_CLOCK), "JUMPING_CLOCK": str(file)} for file in self._files)
        for number in range(count):
            self.turn(number, 0)

    def turn(self, number: int, seconds: int) -> None:
        file = self._files[number]
        with open(file, "r+b" if file.exists() else "wb") as opened:  # which is mapped: it keeps its place
            opened.write(struct.pack("=q", seconds * 10**9))

    def turned(self, rng: random.Random, cluster: Cluster) -> Fault:
        number, seconds = rng.randrange(len(cluster.replicas)), rng.choice([-3600, 0, 3600])
        return Fault(f"the clock of replica {number} is off by {seconds} s", lambda: self.turn(number, seconds), 1)
