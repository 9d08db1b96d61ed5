"""Replicas of one planner on one PostgreSQL, with links that can fail to the engine, into each replica and from its
clients, and jobs that train there: their ranks come to any replica, come again when one goes away, and every answer goes into a history."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

import grpc
from computations import Computations, computations, computed_too_often
from fault_proxy import FaultyLink
from harness import Caller, Finding, Key, Reference, Server, expect, reason_of
from history import Call, History, two_plans

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from live_postgres import Postgres, postgres, primary_and_standby  # noqa: E402

from bucketd._wire.proto import planner_pb2  # noqa: E402

PATIENCE = 120.0  # seconds until a rank counts as one that hangs
# What a rank hears of a replica or an engine that is away, and what it then does: it comes again, here or elsewhere.
PASSES = {"DRAINING", "STORE_UNAVAILABLE", "OVERLOADED", "RANKS_MISSING", "DEADLINE"}
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class Replica:
    """One of a cluster: its process, and the links to it and from it."""

    def __init__(self, folder: pathlib.Path, engines: list[FaultyLink], environment: dict):
        self._folder, self.engines, self._environment = folder, engines, environment
        self.server = None

    def start(self, clients: FaultyLink, peers: FaultyLink, listen: str, program: str = "", flags: tuple[str, ...] = ()) -> None:
        hosts = ",".join("127.0.0.1" for _ in self.engines)
        ports = ",".join(str(link.port) for link in self.engines)
        store = f"postgres://bucketd@/bucketd?host={hosts}&port={ports}&sslmode=disable&connect_timeout=2&target_session_attrs=read-write"
        self.clients, self.peers = clients, peers
        self.server = Server("--store-dir", store, "--cluster-address", peers.address, "--log-level", "debug", *flags, address=listen,
                             folder=str(self._folder), environment=self._environment, program=program)
        self.server.start()

    def come_back(self) -> None:
        """Started again and again until it serves, as by a supervisor: one that finds no engine ends."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.server.start()
                return
            except Finding as failed:
                expect("cannot connect" in str(failed) and time.monotonic() < until, failed)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.clients.address


class Cluster:
    """`count` replicas of `program`, running, on a PostgreSQL (`engine`, if it is a particular one), or with `standby` on a pair of
    which the second may take over."""

    def __init__(self, count: int = 3, standby: bool = False, engine: Postgres | None = None, environments: tuple[dict, ...] = (),
                 program: str = "", flags: tuple[str, ...] = ()):
        self._count, self._has_standby, self._engine, self._environments = count, standby, engine, environments
        self._program, self._flags = program, flags
        self._primary = 0
        self._stack = contextlib.ExitStack()
        self.replicas: list[Replica] = []

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            if self._has_standby:
                self.engines = list(stack.enter_context(primary_and_standby()))
            else:
                self.engines = [self._engine or stack.enter_context(postgres())]
            self.engines[0].run("createuser", "bucketd")
            self.engines[0].run("createdb", "-O", "bucketd", "bucketd")
            folder = pathlib.Path(tempfile.mkdtemp(prefix="faults-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            for number in range(self._count):
                own = folder / str(number)
                own.mkdir()
                engines = [stack.enter_context(FaultyLink(engine.socket)) for engine in self.engines]
                environment = self._environments[number] if number < len(self._environments) else {}
                replica = Replica(own, engines, environment)
                inside = f"unix:{own}/socket"
                clients, peers = (stack.enter_context(FaultyLink(str(own / "socket"))) for _ in range(2))
                replica.start(clients, peers, inside, self._program, self._flags)
                stack.callback(self._end, replica)
                self.replicas.append(replica)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                for replica in self.replicas:
                    replica.server.watch()
                often = computed_too_often(self.computations())
                expect(not often, *often[:3])
        finally:
            self._stack.close()

    @staticmethod
    def _end(replica: Replica) -> None:
        replica.server.__exit__(Finding)

    def heal(self) -> None:
        for replica in self.replicas:
            links = [link for link, engine in zip(replica.engines, self.engines) if engine.runs()]
            for link in (replica.clients, replica.peers, *links):
                link.heal()

    def computations(self) -> list[Computations]:
        """Of each process that was one of the replicas, as far as it has written it down: within a second."""
        return [computations(log) for replica in self.replicas for log in replica.server.logs()]

    def number(self, replica: Replica) -> int:
        return self.replicas.index(replica)

    @property
    def standby(self) -> Postgres:
        return self.engines[1 - self._primary]

    def lose_primary(self) -> None:
        self.engines[self._primary].stop()
        for replica in self.replicas:
            replica.engines[self._primary].reset()  # its machine answers no more for it

    def promote(self) -> None:
        """The standby is the primary, and who was comes back as its standby."""
        self.standby.run("pg_ctl", "promote", "-D", str(self.standby.folder / "data"))
        lost = self.engines[self._primary]
        self._primary = 1 - self._primary
        lost.follow(self.engines[self._primary])

    def busiest(self) -> Replica:
        """That has the most jobs now."""
        return max(self.replicas, key=lambda replica: replica.server.metric("bucketd_leases_held"))

    def metric(self, name: str) -> float:
        return sum(replica.server.metric(name) for replica in self.replicas)


class Jobs:
    """Jobs of `ranks` ranks each, a thread a rank, that start generation after generation until they are told to stop. Every
    rank asks replicas by chance. `history` has every answer. With a `profile`, plans depend on what that name stands for when a
    generation begins: which plans there should be is not known then, only that a generation has one. `trains`: seconds that a generation
    lasts at most once it has its plan. `graphs`: how many of its own each job has, one after the other; `patience`: seconds until a rank
    counts as one that hangs."""

    def __init__(self, cluster: Cluster, rng: random.Random, jobs: int = 3, ranks: int = 4, attempt: float = 15.0,
                 profile: str = "", trains: float = 0.0, graphs: int = 1, patience: float = PATIENCE):
        self.history = History()
        self.findings: list[BaseException] = []
        self.plans: dict[Key, bytes] = {}
        self.retries = 0
        self._cluster, self._attempt, self._profile, self._trains = cluster, attempt, profile, trains
        self._graphs, self._patience = graphs, patience
        self._lock = threading.Lock()
        self._advanced = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._generations = [0] * jobs
        self._ended = [False] * jobs
        self._threads = []
        for job in range(jobs):
            together = threading.Barrier(ranks, action=lambda job=job: self._next(job))
            shape, ids = (rng.randint(2, 6), 8 * rng.randint(1, 40)), f"{rng.getrandbits(32):08x}"
            self._threads += [threading.Thread(target=self._rank, args=(random.Random(rng.random()), job, ids, rank, ranks, shape, together))
                              for rank in range(ranks)]

    def __enter__(self) -> Jobs:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE + 60)
            expect(kind is not None or not thread.is_alive(), "a rank hangs")
        if kind is None and self.findings:
            raise self.findings[0]

    @property
    def generations(self) -> int:
        return sum(self._generations)

    def wait_for_more(self, generations: int, within: float = PATIENCE) -> None:
        """So many further generations of all jobs together."""
        with self._advanced:
            enough = self.generations + generations
            came = self._advanced.wait_for(lambda: self.generations >= enough or self.findings, within)
            expect(came, f"{self.generations} generations, no more in {within} s")

    def _next(self, job: int) -> None:
        with self._advanced:
            self._ended[job] = self._stop.is_set()  # for all ranks, or for none
            self._generations[job] += not self._ended[job]
            self._advanced.notify_all()

    def _rank(self, rng, job: int, ids: str, rank: int, ranks: int, shape, together: threading.Barrier) -> None:
        callers: dict[str, Caller] = {}
        try:
            while True:
                together.wait(PATIENCE + 30)
                if self._ended[job]:
                    return
                generation = self._generations[job]
                layers, width = shape
                key = Key(layers, width + 8 * (generation % self._graphs), generation % 3)
                about = ("", f"job-{ids}", generation, "0/fw")
                self._agree(rng, callers, key, about, rank, ranks)
                if rng.random() < 0.3:  # as whoever did not hear the answer
                    time.sleep(rng.uniform(0, 0.5))
                    self._agree(rng, callers, key, about, rank, ranks)
                time.sleep(rng.uniform(0, self._trains))
        except threading.BrokenBarrierError:
            pass
        except BaseException as finding:
            self.findings.append(finding)
            together.abort()
            with self._advanced:
                self._advanced.notify_all()
        finally:
            for caller in callers.values():
                caller.close()

    def _agree(self, rng, callers, key: Key, about: tuple, rank: int, ranks: int) -> None:
        until = time.monotonic() + self._patience
        job = planner_pb2.Job(id=about[1], generation=about[2], scope=about[3], rank=[rank], size=ranks, fresh=bool(self._profile))
        while True:
            replica = rng.choice(self._cluster.replicas)
            if replica.address not in callers:
                callers[replica.address] = Caller(replica.address)
            begin = time.monotonic()
            try:
                value = self._ask(callers[replica.address], key, job)
                self.history.add(Call("agree", about, rank, begin, time.monotonic(), value))
                return
            except grpc.RpcError as error:
                failure = reason_of(error)
                self.history.add(Call("agree", about, rank, begin, time.monotonic(), error=failure.reason))
                expect(failure.reason in PASSES or failure.code in _GONE, about, "rank", rank, failure, error.code())
                expect(time.monotonic() < until, f"{about}: rank {rank} has had no answer for {self._patience} s, last:", failure)
                with self._lock:
                    self.retries += 1
                time.sleep(rng.uniform(0.02, 0.2))

    def _ask(self, caller: Caller, key: Key, job) -> str:
        """The plan's SHA-256, or "unplanned"."""
        until = time.monotonic() + self._attempt
        while True:
            request = key.request(job=job)
            request.options.cost_profile = self._profile
            answer = caller.stub.GetPlan(request, timeout=max(0.001, until - time.monotonic()))
            if answer.HasField("plan"):
                expect(hashlib.sha256(answer.plan.plan).digest() == answer.plan.plan_sha256, "a torn plan for", key)
                if not self._profile:
                    with self._lock:
                        self.plans[key] = answer.plan.plan
                return answer.plan.plan_sha256.hex()
            if answer.HasField("unplanned"):
                return "unplanned"
            expect(answer.HasField("graph_required"), "no plan and nothing asked for:", key)
            caller.stub.UploadGraph(key.model.parts(key.tenant), timeout=max(0.001, until - time.monotonic()))

    def check(self, reference: Reference) -> None:
        """What must be true now that all replicas are there again and nothing is broken."""
        expect(not self.findings, *self.findings[:1])
        wrong = two_plans(self.history.of("agree"))
        expect(not wrong, *wrong[:3])
        reference.check(self.plans, "agreed on in a cluster")
        for replica in self._cluster.replicas:
            caller = Caller(replica.address)
            for key, plan in self.plans.items():
                found = caller.cached(key)
                expect(found is not None, f"a plan that ranks were given is not at {replica.address}:", key)
                expect(found.plan == plan, f"another plan at {replica.address} for", key)
            caller.close()
