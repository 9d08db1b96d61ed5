"""What goes wrong in a cluster of replicas, one function each, as in scenarios.py. Jobs train meanwhile (cluster.Jobs): no rank
hangs, no generation gets two plans, no plan that a rank was given is lost."""

from __future__ import annotations

import json
import pathlib
import random
import signal
import struct
import subprocess
import tempfile
import threading
import time

from cluster import Cluster, Jobs
from harness import BINARY, Reference, channel_to, expect
from history import Call, History, epochs_that_shrink, planned_after_switch
from waiting import wait_for

from bucketd._wire.proto import agent_pb2, agent_pb2_grpc

_CTL = pathlib.Path(BINARY).with_name("bucketctl")
_CLOCK = pathlib.Path(BINARY).parents[1] / "tests" / "libjumping_clock.so"


def _train_through(rng: random.Random, reference: Reference, cluster: Cluster, faults, say, **jobs) -> None:
    """Jobs train before, while and after faults() happen, each a (what it is, do it, how long it lasts)."""
    with Jobs(cluster, rng, **jobs) as load:
        load.wait_for_more(3)
        for what, act, seconds in faults:
            say(what)
            act()
            time.sleep(seconds)
            cluster.heal()
            load.wait_for_more(3)
    load.check(reference)
    forwarded, anew = cluster.metric("bucketd_forwarded_calls_total"), cluster.metric("bucketd_calls_presented_anew_total")
    expect(forwarded > 0, "no replica forwarded anything: that is no cluster")
    say(f"{load.generations} generations; {forwarded:.0f} calls forwarded, {anew:.0f} presented anew by replicas, {load.retries} by clients")


def links_to_the_engine(rng: random.Random, say, reference: Reference) -> None:
    """One replica after the other loses PostgreSQL: for good for a while, silently, one way, or it is only far away."""
    with Cluster() as cluster:
        def faults():
            for way in rng.sample(["reset", "hold", "hold_answers", "delay"], 4):
                replica = rng.choice(cluster.replicas)
                seconds = round(rng.uniform(1, 8), 1)
                arguments = (0.15,) if way == "delay" else ()
                yield (f"{way} between replica {cluster.replicas.index(replica)} and the engine for {seconds} s",
                       lambda replica=replica, way=way, arguments=arguments: [getattr(link, way)(*arguments) for link in replica.engines], seconds)

        _train_through(rng, reference, cluster, faults(), say)


def links_between_replicas(rng: random.Random, say, reference: Reference) -> None:
    """Others cannot reach a replica, while its clients and the engine can."""
    with Cluster() as cluster:
        def faults():
            for way in rng.sample(["reset", "hold", "hold_answers", "delay"], 4):
                replica = rng.choice([rng.choice(cluster.replicas), cluster.busiest(), cluster.busiest()])
                seconds = round(rng.uniform(1, 8), 1)
                arguments = (0.15,) if way == "delay" else ()
                yield (f"{way} between the others and replica {cluster.replicas.index(replica)} for {seconds} s",
                       lambda replica=replica, way=way, arguments=arguments: getattr(replica.peers, way)(*arguments), seconds)

        _train_through(rng, reference, cluster, faults(), say)


def replicas_die(rng: random.Random, say, reference: Reference) -> None:
    """kill -9, and a new process after a while; also of two at once. Other costs are promoted meanwhile, so that whoever makes a plan
    anew, for ranks of which some have theirs, makes another one."""
    with Cluster() as cluster:
        versions = _import_costs(cluster)

        def die(replicas, seconds):
            for replica in replicas:
                replica.server.kill()
            alive = next(replica for replica in cluster.replicas if replica not in replicas)
            versions.reverse()
            _ctl(alive.address, "costs", "promote", f"site@{versions[0]}")
            time.sleep(seconds)
            for replica in replicas:
                replica.server.start()

        def faults():
            for count in rng.sample([1, 1, 2], 3):
                replicas = rng.sample(cluster.replicas, count)
                seconds = round(rng.uniform(0, 6), 1)
                yield (f"kill -9 to {[cluster.replicas.index(each) for each in replicas]}, back after {seconds} s",
                       lambda replicas=replicas, seconds=seconds: die(replicas, seconds), 0)

        _train_through(rng, reference, cluster, faults(), say, profile="site@latest")


def replicas_sleep(rng: random.Random, say, reference: Reference) -> None:
    """SIGSTOP until the others take what a replica held, and SIGCONT: it wakes with what it believed."""
    with Cluster() as cluster:
        def sleep(replica, seconds):
            replica.server.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            replica.server.process.send_signal(signal.SIGCONT)

        def faults():
            for seconds in (round(rng.uniform(0.5, 5), 1), round(rng.uniform(12, 16), 1)):
                replica = cluster.busiest()
                yield (f"replica {cluster.replicas.index(replica)} sleeps for {seconds} s",
                       lambda replica=replica, seconds=seconds: sleep(replica, seconds), 0)

        _train_through(rng, reference, cluster, faults(), say)


def standby_takes_over(rng: random.Random, say, reference: Reference) -> None:
    """The primary is gone at once; its synchronous standby is promoted a moment later."""
    with Cluster(standby=True) as cluster:
        primary, standby = cluster.engines

        def take_over(seconds):
            primary.stop()
            for replica in cluster.replicas:
                replica.engines[0].reset()  # its machine answers no more for it
            time.sleep(seconds)
            standby.run("pg_ctl", "promote", "-D", str(standby.folder / "data"))

        seconds = round(rng.uniform(0, 4), 1)
        _train_through(rng, reference, cluster, [(f"the primary is gone, its standby promoted after {seconds} s", lambda: take_over(seconds), 0)], say)


def clocks_differ(rng: random.Random, say, reference: Reference) -> None:
    """Wall clocks that are an hour off, each in its direction, and are set while jobs train."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        clocks = [pathlib.Path(folder, str(number)) for number in range(3)]

        def turn(clock, seconds):
            with open(clock, "r+b" if clock.exists() else "wb") as file:  # which is mapped: it keeps its place
                file.write(struct.pack("=q", seconds * 10**9))

        for clock, seconds in zip(clocks, (3600, -3600, 0)):
            turn(clock, seconds)
        with Cluster(environments=tuple({"LD_PRELOAD": str(_CLOCK), "JUMPING_CLOCK": str(clock)} for clock in clocks)) as cluster:
            def faults():
                for _ in range(4):
                    number, seconds = rng.randrange(3), rng.choice([-3600, 0, 3600])
                    yield f"the clock of replica {number} is off by {seconds} s", lambda n=number, s=seconds: turn(clocks[n], s), 1

            _train_through(rng, reference, cluster, faults(), say)


def operators(rng: random.Random, say, reference: Reference) -> None:
    """Planning is switched off and on, and costs are promoted that make other plans, at any replica while jobs begin at others and
    groups of agents meet: a generation has one plan, and none if it begins behind the operator's answer; epochs are given once, and
    grow where a group asks, which is at one replica while it lives."""
    with Cluster() as cluster:
        versions = _import_costs(cluster)
        with Jobs(cluster, rng, jobs=4, ranks=3, profile="site@latest") as load:
            over = threading.Event()
            agents = [threading.Thread(target=_meet, args=(random.Random(rng.random()), cluster, load.history, group, over))
                      for group in ("g0", "g1")]
            for agent in agents:
                agent.start()
            try:
                for enabled in (False, True) * 4:
                    _switch(rng.choice(cluster.replicas).address, enabled, load.history)
                    for version in versions:
                        _ctl(rng.choice(cluster.replicas).address, "costs", "promote", f"site@{version}")
                        load.wait_for_more(12)
            finally:
                over.set()
                for agent in agents:
                    agent.join(60)
        history = load.history
        wrong = planned_after_switch(history.of("agree"), history.of("switch")) + epochs_that_shrink(history.of("epoch"))
        expect(not wrong, *wrong[:3])
        load.check(reference)
    answers = [call.value for call in history.of("agree") if not call.error]
    plans = set(answers) - {"unplanned"}
    expect("unplanned" in answers, "no generation began while planning was off")
    expect(len(plans) > 12, "the costs that were promoted made no other plans:", len(plans))
    say(f"{load.generations} generations, {len(plans)} plans, {answers.count('unplanned')} answers without one, "
        f"{len(history.of('epoch'))} epochs")


def _ctl(address: str, *asked: str) -> str:
    return subprocess.run([_CTL, *asked, "--server", address], check=True, capture_output=True, timeout=60, text=True).stdout


def _import_costs(cluster: Cluster) -> list[int]:
    """Two versions of "site" between which every plan differs, if only in what it predicts; all replicas know them."""
    address = cluster.replicas[0].address
    shown = json.loads(_ctl(address, "costs", "show", "slow_network", "--json"))
    versions = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        path = pathlib.Path(folder, "profile.json")
        for gamma_us in (1.5, 2.5):
            path.write_text(json.dumps({**shown, "gamma_us": gamma_us}))
            said = json.loads(_ctl(address, "costs", "import", str(path), "--name", "site", "--json"))
            versions.append(int(said["version"]["version"]))
    newest = {"name": "site", "version": versions[-1]}
    for replica in cluster.replicas:  # within a second
        wait_for(lambda replica=replica: any(newest.items() <= one.items() for one in json.loads(_ctl(replica.address, "costs", "list", "--json"))["profiles"]),
                 "a replica to know new costs")
    return versions


def _switch(address: str, enabled: bool, history: History) -> None:
    asked = ["enable"] if enabled else ["disable", "--why", "a test"]
    begin = time.monotonic()
    _ctl(address, *asked)
    history.add(Call("switch", (), "operator", begin, time.monotonic(), "on" if enabled else "off"))


def _meet(rng: random.Random, cluster: Cluster, history: History, group: str, over: threading.Event) -> None:
    with channel_to(rng.choice(cluster.replicas).address) as channel:
        while not over.is_set():
            begin = time.monotonic()
            who = f"{group} at {begin}"
            asked = agent_pb2.RendezvousRequest(group=group, rank=0, size=1, endpoint="unix:/none")
            epoch = agent_pb2_grpc.AgentsStub(channel).Rendezvous(asked, timeout=30).epoch
            history.add(Call("epoch", (group,), who, begin, time.monotonic(), epoch))


CLUSTER_SCENARIOS = [links_to_the_engine, links_between_replicas, replicas_die, replicas_sleep, standby_takes_over, clocks_differ, operators]
