"""What goes wrong in a cluster of replicas, one function each, as in scenarios.py. Jobs train meanwhile (cluster.Jobs): no rank
hangs, no generation gets two plans, no plan that a rank was given is lost."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import random
import subprocess
import tempfile
import threading
import time

import cluster_faults as faults
from cluster import Cluster, Jobs, Replica
from harness import BINARY, Caller, Key, Reference, channel_to, expect
from history import Call, History, epochs_that_shrink, looks_at_switch
from linearizable import out_of_order
from waiting import wait_for

from bucketd._wire.proto import agent_pb2, agent_pb2_grpc, planner_pb2

_CTL = pathlib.Path(BINARY).with_name("bucketctl")


def _train_through(rng: random.Random, reference: Reference, cluster: Cluster, wrongs, say, **jobs) -> None:
    """Jobs train before, while and after each of these faults."""
    with Jobs(cluster, rng, **jobs) as load:
        load.wait_for_more(3)
        for fault in wrongs:
            say(f"{fault.what} for {fault.seconds} s" if fault.seconds else fault.what)
            fault.begin()
            time.sleep(fault.seconds)
            fault.end()
            cluster.heal()
            load.wait_for_more(3)
    load.check(reference)
    forwarded, anew = cluster.metric("bucketd_forwarded_calls_total"), cluster.metric("bucketd_calls_presented_anew_total")
    expect(forwarded > 0, "no replica forwarded anything: that is no cluster")
    say(f"{load.generations} generations; {forwarded:.0f} calls forwarded, {anew:.0f} presented anew by replicas, {load.retries} by clients")


def links_to_the_engine(rng: random.Random, say, reference: Reference) -> None:
    """One replica after the other loses PostgreSQL: for good for a while, silently, one way, or it is only far away."""
    with Cluster() as cluster:
        ways = rng.sample(["reset", "hold", "hold_answers", "delay"], 4)
        _train_through(rng, reference, cluster, (faults.engine_link(rng, cluster, way) for way in ways), say)


def links_between_replicas(rng: random.Random, say, reference: Reference) -> None:
    """Others cannot reach a replica, while its clients and the engine can."""
    with Cluster() as cluster:
        ways = rng.sample(["reset", "hold", "hold_answers", "delay"], 4)
        _train_through(rng, reference, cluster, (faults.peer_link(rng, cluster, way) for way in ways), say)


def replicas_die(rng: random.Random, say, reference: Reference) -> None:
    """kill -9, and a new process after a while; also of two at once. Other costs are promoted meanwhile, so that whoever makes a plan
    anew, for ranks of which some have theirs, makes another one."""
    with Cluster() as cluster:
        versions = import_costs(cluster)

        def deaths():
            for count in rng.sample([1, 1, 2], 3):
                fault = faults.kill(rng, cluster, count)

                def die(begin=fault.begin):
                    begin()
                    alive = next(replica for replica in cluster.replicas if replica.server.process.poll() is None)
                    versions.reverse()
                    ctl(alive.address, "costs", "promote", f"site@{versions[0]}")

                yield dataclasses.replace(fault, begin=die)

        _train_through(rng, reference, cluster, deaths(), say, profile="site@latest")


def replicas_sleep(rng: random.Random, say, reference: Reference) -> None:
    """SIGSTOP until the others take what a replica held, and SIGCONT: it wakes with what it believed."""
    with Cluster() as cluster:
        spans = (round(rng.uniform(0.5, 5), 1), round(rng.uniform(12, 16), 1))
        _train_through(rng, reference, cluster, (faults.sleep(rng, cluster, seconds) for seconds in spans), say)


def standby_takes_over(rng: random.Random, say, reference: Reference) -> None:
    """The primary is gone at once; its synchronous standby is promoted a moment later. Then back again."""
    with Cluster(standby=True) as cluster:
        _train_through(rng, reference, cluster, (faults.take_over(rng, cluster) for _ in range(2)), say)


def standby_stalls(rng: random.Random, say, reference: Reference) -> None:
    """No commit ends, for longer than a replica may be silent: nobody is told a plan that the standby does not have."""
    with Cluster(standby=True) as cluster:
        _train_through(rng, reference, cluster, [dataclasses.replace(faults.stalled_standby(rng, cluster), seconds=seconds) for seconds in (3, 14)], say)


def clocks_differ(rng: random.Random, say, reference: Reference) -> None:
    """Wall clocks that are an hour off, each in its direction, and are set while jobs train."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        clocks = faults.Clocks(folder)
        for number, seconds in enumerate((3600, -3600, 0)):
            clocks.turn(number, seconds)
        with Cluster(environments=clocks.environments) as cluster:
            _train_through(rng, reference, cluster, (clocks.turned(rng, cluster) for _ in range(4)), say)


def clock_set_back(rng: random.Random, say, reference: Reference) -> None:
    """By an hour, while a replica waits to connect to the one that has a job: it connects as soon as it can, and not an hour later."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        clocks = faults.Clocks(folder, 2)
        with Cluster(count=2, environments=clocks.environments) as cluster, concurrent.futures.ThreadPoolExecutor(2) as pool:
            owner = cluster.replicas[0]
            first = pool.submit(_rank, owner, 0)
            wait_for(lambda: owner.server.metric("bucketd_agreement_waiting_ranks") == 1, "the first rank to wait where its job is")
            owner.peers.reset()
            other = pool.submit(_rank, cluster.replicas[1], 1)
            wait_for(lambda: cluster.replicas[1].server.metric("bucketd_calls_presented_anew_total") > 3, "the other one to be presented in vain")
            clocks.turn(1, -3600)
            time.sleep(3)  # gRPC tries once a second
            owner.peers.heal()
            plans = {future.result().plan.plan for future in (first, other)}
    expect(plans == {reference.plan(Key(2, 8, 0))}, "other plans:", len(plans))


def _rank(replica: Replica, rank: int):
    request = Key(2, 8, 0).inline()
    request.job.CopyFrom(planner_pb2.Job(id="train", generation=1, scope="0/fw", rank=[rank], size=2))
    caller = Caller(replica.address)
    try:
        return caller.stub.GetPlan(request, timeout=30)
    finally:
        caller.close()


def operators(rng: random.Random, say, reference: Reference) -> None:
    """Planning is switched off and on, and costs are promoted that make other plans, at any replica while jobs begin at others and
    groups of agents meet: a generation has one plan, and none if it begins behind the operator's answer; epochs are given once, and
    grow where a group asks, which is at one replica while it lives."""
    with Cluster() as cluster:
        versions = import_costs(cluster)
        with Jobs(cluster, rng, jobs=4, ranks=3, profile="site@latest") as load:
            over = threading.Event()
            agents = [threading.Thread(target=_meet, args=(random.Random(rng.random()), cluster, load.history, group, over))
                      for group in ("g0", "g1")]
            for agent in agents:
                agent.start()
            try:
                for enabled in (False, True) * 4:
                    switch(rng.choice(cluster.replicas).address, enabled, load.history)
                    for version in versions:
                        promote(rng.choice(cluster.replicas).address, version, load.history)
                        load.wait_for_more(12)
                promote_against_each_other(rng, cluster, versions, load.history)
            finally:
                over.set()
                for agent in agents:
                    agent.join(60)
        history = load.history
        wrong = wrong_order(history, versions[0]) + epochs_that_shrink(history.of("epoch"))
        expect(not wrong, *wrong[:3])
        load.check(reference)
    answers = [call.value for call in history.of("agree") if not call.error]
    plans = set(answers) - {"unplanned"}
    expect("unplanned" in answers, "no generation began while planning was off")
    expect(len(plans) > 12, "the costs that were promoted made no other plans:", len(plans))
    say(f"{load.generations} generations, {len(plans)} plans, {answers.count('unplanned')} answers without one, "
        f"{len(history.of('epoch'))} epochs")


def ctl(address: str, *asked: str) -> str:
    return subprocess.run([_CTL, *asked, "--server", address], check=True, capture_output=True, timeout=60, text=True).stdout


def import_costs(cluster: Cluster) -> list[int]:
    """Two versions of "site" between which every plan differs, if only in what it predicts; all replicas know them."""
    address = cluster.replicas[0].address
    shown = json.loads(ctl(address, "costs", "show", "slow_network", "--json"))
    versions = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        path = pathlib.Path(folder, "profile.json")
        for gamma_us in (1.5, 2.5):
            path.write_text(json.dumps({**shown, "gamma_us": gamma_us}))
            said = json.loads(ctl(address, "costs", "import", str(path), "--name", "site", "--json"))
            versions.append(int(said["version"]["version"]))
    newest = {"name": "site", "version": versions[-1]}
    for replica in cluster.replicas:  # within a second
        wait_for(lambda replica=replica: any(newest.items() <= one.items() for one in json.loads(ctl(replica.address, "costs", "list", "--json"))["profiles"]),
                 "a replica to know new costs")
    return versions


def switch(address: str, enabled: bool, history: History) -> None:
    asked = ["enable"] if enabled else ["disable", "--why", "a test"]
    begin, error = time.monotonic(), ""
    try:
        error = "not stored" if "not in the store yet" in ctl(address, *asked) else ""
    except subprocess.SubprocessError as failed:
        error = str(failed)
    history.add(Call("write", ("planning",), "operator", begin, time.monotonic(), "on" if enabled else "off", error))


def promote(address: str, version: int, history: History) -> None:
    begin = time.monotonic()
    try:
        before = json.loads(ctl(address, "costs", "promote", f"site@{version}", "--json"))["before"]
        # Said also where a first attempt had its effect and no answer.
        what, value, error = ("write", version, "") if before == version else ("swap", (version, before), "")
    except subprocess.SubprocessError as failed:
        what, value, error = "write", version, str(failed)
    history.add(Call(what, ("latest", "site"), address, begin, time.monotonic(), value, error))


def promote_against_each_other(rng: random.Random, cluster: Cluster, versions: list[int], history: History) -> None:
    def run(own: random.Random) -> None:
        for _ in range(8):
            promote(own.choice(cluster.replicas).address, own.choice(versions), history)

    operators = [threading.Thread(target=run, args=(random.Random(rng.random()),)) for _ in range(3)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()


def wrong_order(history: History, first: int) -> list[str]:
    """What no order of the operators' calls explains. `first`: the version that was imported first is the latest one."""
    return out_of_order(history.about("planning") + looks_at_switch(history.of("agree")), "on", lasting=60) + \
        out_of_order(history.about("latest"), first, lasting=60)


def _meet(rng: random.Random, cluster: Cluster, history: History, group: str, over: threading.Event) -> None:
    with channel_to(rng.choice(cluster.replicas).address) as channel:
        while not over.is_set():
            begin = time.monotonic()
            who = f"{group} at {begin}"
            asked = agent_pb2.RendezvousRequest(group=group, rank=0, size=1, endpoint="unix:/none")
            epoch = agent_pb2_grpc.AgentsStub(channel).Rendezvous(asked, timeout=30).epoch
            history.add(Call("epoch", (group,), who, begin, time.monotonic(), epoch))


CLUSTER_SCENARIOS = [links_to_the_engine, links_between_replicas, replicas_die, replicas_sleep, standby_takes_over, standby_stalls,
                     clocks_differ, clock_set_back, operators]
