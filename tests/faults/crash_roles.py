"""As crash_scenes.py: what leads a replica to the same places when it has no job, or drains while something of others' goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import threading
import time

import grpc
from cluster import PASSES, Jobs, Replica
from cluster_scenarios import ctl
from crash_scenes import PATIENCE, Scene, ask
from harness import GONE, Caller, Key, expect, reason_of
from waiting import wait_for

from bucketd._wire.proto import planner_pb2

_A_WHILE = 0.5  # seconds, for a call to come where it waits


# -- a plan that no job waits for

def a_plan_without_a_job(scene: Scene) -> None:
    """Of whoever dies of it another one gets it, and no other plan, while the first one's lease is still there."""
    key = _new_key(scene)
    with scene.load() as load:
        victim = scene.whose()
        scene.order(victim)
        with contextlib.suppress(grpc.RpcError):
            ask(victim.server, key)
        dead = scene.await_death()
        expect(ask(_another(scene, victim).server, key) == scene.reference.plan(key), "another plan for", key)
        load.wait_for_more(2, PATIENCE)
        dead.server.start()
        load.wait_for_more(2, PATIENCE)


def the_holders_death(scene: Scene) -> None:
    """Then that of the next one, which has just taken its lease."""
    key = _new_key(scene)
    with scene.load() as load:
        owner, first = scene.owner(), scene.edge()
        second = next(one for one in scene.cluster.replicas if one not in (owner, first))
        for victim, at in (first, "plan: lease taken"), (second, scene.row.at):
            scene.order(victim, at)
            with contextlib.suppress(grpc.RpcError):
                ask(victim.server, key)
            expect(scene.await_death() is victim, "another one died")
        expect(ask(owner.server, key) == scene.reference.plan(key), "another plan for", key)
        for victim in (first, second):
            victim.server.start()
        load.wait_for_more(2, PATIENCE)


# -- drains, while something goes on

def a_drain_while_a_graph_arrives(scene: Scene) -> None:
    """Whoever waits for its plan: it is computed all the same."""
    key, begun, goes_on = _new_key(scene), threading.Event(), threading.Event()

    def parts():
        for at, part in enumerate(key.model.parts("", chunk=100)):
            if at == 2:
                begun.set()
                goes_on.wait(30)
            yield part

    with scene.load() as load, concurrent.futures.ThreadPoolExecutor(2) as pool:
        victim = scene.edge()
        caller = Caller(victim.server.address)
        expect(caller.stub.GetPlan(key.request(), timeout=30).HasField("graph_required"), "nothing is asked for")
        calls = [pool.submit(caller.stub.UploadGraph, parts(), timeout=30)]
        expect(begun.wait(30), "no upload")
        time.sleep(_A_WHILE)  # ranks upload and wait there as well: no metric speaks of these calls alone
        calls.append(pool.submit(caller.stub.GetPlan, key.request(), timeout=30))
        time.sleep(_A_WHILE)
        _tell_to_end(victim)
        scene.order(victim)
        goes_on.set()
        dead = scene.await_death()
        _have_ended(calls)
        expect(ask(_another(scene, victim).server, key) == scene.reference.plan(key), "another plan for", key)
        dead.server.start()
        load.wait_for_more(2, PATIENCE)
        caller.close()


def a_drain_while_a_pin_is_written(scene: Scene) -> None:
    """The engine answers only when the replica drains: its two ranks have agreed."""
    with scene.load() as load, concurrent.futures.ThreadPoolExecutor(4) as pool:
        victim, job = scene.edge(), _Quiet(scene, pool, 2)
        calls = [job.comes(victim, 0)]
        job.awaits(1)
        victim.engines[0].hold()
        calls.append(job.comes(victim, 1))
        time.sleep(_A_WHILE)
        _tell_to_end(victim)
        scene.order(victim)
        victim.engines[0].heal()
        job.is_told_one_plan(scene.await_death(), calls, load)


def an_owners_drain_while_a_rank_waits(scene: Scene) -> None:
    """A rank of another job waits at an edge; the others come when its owner is dead."""
    _drain_while_a_rank_waits(scene, owner_ends=True)


def an_edges_drain_while_a_rank_waits(scene: Scene) -> None:
    """The last one comes to the owner, so that the edge gets its answer as it drains."""
    _drain_while_a_rank_waits(scene, owner_ends=False)


def _drain_while_a_rank_waits(scene: Scene, owner_ends: bool) -> None:
    with scene.load() as load, concurrent.futures.ThreadPoolExecutor(6) as pool:
        edge, job = scene.edge(), _Quiet(scene, pool, 3)
        owner = _another(scene, edge)
        calls = [job.comes(owner, 0)]
        job.awaits(1)
        calls.append(job.comes(edge, 1))
        job.awaits(2)
        victim = owner if owner_ends else edge
        if owner_ends:
            scene.order(victim)
            victim.server.process.send_signal(signal.SIGTERM)
        else:
            _tell_to_end(victim)
            scene.order(victim)
            calls.append(job.comes(owner, 2))
        job.is_told_one_plan(scene.await_death(), calls, load)


def a_stale_word(scene: Scene) -> None:
    """Another replica believes that a job is where it was before that one was started anew."""
    with scene.load() as load, concurrent.futures.ThreadPoolExecutor(4) as pool:
        victim, job = scene.edge(), _Quiet(scene, pool, 1)
        other = _another(scene, victim)
        plans = {job.comes(victim, 0).result(), job.comes(other, 0).result()}
        victim.server.drain()
        victim.server.start()
        scene.order(victim)
        plans.add(job.comes(other, 0).result())
        expect(plans == {job.plan}, "other plans:", len(plans))
        scene.sees_it_through(load)


class _Quiet:
    """A job beside the one that trains, with a plan of its own, whose ranks come when they are told to."""

    def __init__(self, scene: Scene, pool: concurrent.futures.Executor, size: int):
        self._scene, self._pool, self._size = scene, pool, size
        self._name, self._key = f"quiet-{scene.rng.getrandbits(32):08x}", _new_key(scene)
        self.plan = scene.reference.plan(self._key)

    def comes(self, replica: Replica, rank: int) -> concurrent.futures.Future:
        return self._pool.submit(self._call, replica.server.address, rank)

    def _call(self, address: str, rank: int) -> bytes:
        request = self._key.inline()
        request.job.CopyFrom(planner_pb2.Job(id=self._name, generation=1, scope="0/fw", rank=[rank], size=self._size))
        caller = Caller(address)
        try:
            return caller.stub.GetPlan(request, timeout=30).plan.plan
        finally:
            caller.close()

    def awaits(self, ranks: int) -> None:
        asked = lambda: json.loads(ctl(self._scene.cluster.replicas[0].address, "jobs", "--job", self._name, "--json"))  # noqa: E731
        wait_for(lambda: sum(int(scope.get("arrived", 0)) for scope in asked().get("jobs", [])) == ranks, f"{ranks} ranks to wait")

    def is_told_one_plan(self, dead: Replica, calls: list[concurrent.futures.Future], load: Jobs) -> None:
        """All its ranks, those that come again and those that had their answer."""
        other = _another(self._scene, dead)
        again = [self.comes(other, rank) for rank in range(self._size)]  # the call of one that waits elsewhere speaks for it as well
        plans = {call.result() for call in again}
        _have_ended(calls, self.plan)
        expect(plans == {self.plan}, "other plans:", len(plans))
        dead.server.start()
        load.wait_for_more(2, PATIENCE)


def _have_ended(calls: list[concurrent.futures.Future], plan: bytes = b"") -> None:
    """With that plan, if any, or with their server; one that waits for others, who come again, ends with theirs."""
    for call in calls:
        try:
            expect(call.result(60) == plan or not plan, "another plan")
        except grpc.RpcError as error:
            expect(error.code() in GONE or reason_of(error).reason in PASSES, error)


def _tell_to_end(victim: Replica) -> None:
    victim.server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: victim.server.metric("bucketd_ready") == 0, "it to drain")


def _another(scene: Scene, than: Replica) -> Replica:
    return scene.rng.choice([one for one in scene.cluster.replicas if one is not than])


def _new_key(scene: Scene) -> Key:
    """That no job trains with."""
    return Key(2, 8 * scene.rng.randint(2000, 10**6), 0)
