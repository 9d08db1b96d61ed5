"""What leads a replica to the places of crash_table.py, while the ranks of a job train: a function each, named in `led_by`. Each sees that
a process ended there, that the ranks go on without it, and that it serves again."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import pathlib
import random
import signal
import subprocess
import tempfile

import cluster_faults as faults
import grpc
from cluster import Cluster, Jobs, Replica
from cluster_scenarios import ctl, import_costs
from crash_table import Orders, Row
from harness import BINARY, Caller, Finding, Key, Reference, Server, channel_to, expect
from history import Call, epochs_that_shrink
from waiting import wait_for

from bucketd._wire.proto import agent_pb2, agent_pb2_grpc, planner_pb2, planner_pb2_grpc

MORTAL = str(pathlib.Path(BINARY).with_name("bucketd_mortal"))
_DEAD_AFTER_MS = 2000
PATIENCE = 30.0  # for a rank: others are found dead after two seconds
_OLD = 30 * 24 * 3600  # seconds, for a pin that is kept for a week


class Stage:
    """Replicas that die when they are told to, for row after row; made anew after one that failed."""

    def __init__(self, stack: contextlib.ExitStack):
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))
        self.orders, self.clocks = Orders(folder), faults.Clocks(folder)
        environments = tuple({**self.orders.environment(number), **self.clocks.environments[number]} for number in range(3))
        self.cluster = stack.enter_context(Cluster(environments=environments, program=MORTAL, flags=("--cluster-dead-ms", str(_DEAD_AFTER_MS))))
        self.versions = import_costs(self.cluster)


class Scene:
    def __init__(self, stage: Stage, row: Row, reference: Reference):
        self.cluster, self.orders, self.clocks, self.versions = stage.cluster, stage.orders, stage.clocks, stage.versions
        self.row, self.rng = row, random.Random(str(row))
        self.reference = reference

    @contextlib.contextmanager
    def load(self, profile: str = ""):
        """One job, whose every generation has a graph of its own."""
        with Jobs(self.cluster, self.rng, jobs=1, profile=profile, graphs=1000, attempt=10, patience=PATIENCE) as load:
            self._load = load
            load.wait_for_more(1)
            yield load
        load.check(self.reference)
        wait_for(lambda: self.sql("SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == "0",
                 "transactions of the dead to end")

    def owner(self) -> Replica:
        """As it stands in the store."""
        job = self._load.history.of("agree")[-1].about[1]
        has = f"SELECT ENCODE(value, 'escape') FROM bucketd_record WHERE ENCODE(key, 'escape') LIKE 'lease/job/%{job}'"
        return wait_for(lambda: next((one for one in self.cluster.replicas if one.peers.address in self.sql(has)), None), "a replica to have the job")

    def edge(self) -> Replica:
        owner = self.owner()
        return self.rng.choice([replica for replica in self.cluster.replicas if replica is not owner])

    def whose(self) -> Replica:
        """A drainer is the owner, and a holder none."""
        return self.edge() if self.row.role in ("edge", "holder") else self.owner()

    def order(self, victim: Replica | None, at: str = "") -> None:
        """Of whoever comes there, if it is nobody in particular."""
        self._alive = [one for one in self.cluster.replicas if one is victim or one.server.process.poll() is None]
        self.orders.give(at or self.row.at, None if victim is None else self.cluster.number(victim))

    def await_death(self) -> Replica:
        died = lambda: self.orders.was_obeyed() and next((one for one in self._alive if one.server.was_killed()), None)  # noqa: E731
        try:
            dead = []
            wait_for(lambda: dead.append(died()) or dead[-1], f"somebody to come to {self.row.at}", 30)
            return dead[-1]
        finally:
            self.orders.take_back()

    def sees_it_through(self, load: Jobs) -> Replica:
        """The death that was ordered, the others without it, and all of them."""
        dead = self.await_death()
        load.wait_for_more(2, PATIENCE)
        dead.server.start()
        load.wait_for_more(2, PATIENCE)
        return dead

    def dies_as_it_starts(self, victim: Replica) -> None:
        self.order(victim)
        _must_not_start(victim.server)
        expect(self.await_death() is victim, "another one died")

    def sql(self, statement: str, database: str = "bucketd") -> str:
        engine = self.cluster.engines[0]
        said = subprocess.run(["psql", "-qtAc", statement, database], env=engine.environment, check=True, capture_output=True, text=True)
        return said.stdout.strip()

    def audited(self, *what: str) -> list[dict]:
        """The oldest first."""
        entries = json.loads(ctl(self.cluster.replicas[0].address, "audit", "--json", "--limit", "1000"))["entries"]
        return [entry for entry in reversed(entries) if entry["what"] in what]


def _must_not_start(server: Server) -> None:
    try:
        server.start()
    except Finding:
        server.process.wait(30)
        return
    raise Finding("it starts, though it was told to die of that")


# -- ranks

def training(scene: Scene) -> None:
    with scene.load() as load:
        scene.order(scene.whose())
        scene.sees_it_through(load)


def a_new_job(scene: Scene) -> None:
    """Its lease is the first that is taken, by whoever is asked first."""
    scene.order(None)
    with scene.load() as load:
        scene.sees_it_through(load)


def planning_is_off(scene: Scene) -> None:
    with scene.load() as load:
        owner = scene.owner()
        scene.order(owner)
        ctl(scene.edge().address, "disable", "--why", "a test")
        scene.sees_it_through(load)
        _switch_on(scene)
        load.wait_for_more(2)


def _switch_on(scene: Scene) -> None:
    ctl(scene.cluster.replicas[0].address, "enable")
    wait_for(lambda: scene.cluster.metric("bucketd_planning_enabled") == len(scene.cluster.replicas), "all to hear that planning is on")


# -- others that end

def the_owners_death(scene: Scene) -> None:
    """Whoever comes to what that leads to dies as well: one replica is left."""
    with scene.load() as load:
        owner = scene.owner()
        owner.server.kill()
        scene.order(None)
        scene.sees_it_through(load)
        owner.server.start()
        load.wait_for_more(2)


def the_owners_drain(scene: Scene) -> None:
    with scene.load() as load, concurrent.futures.ThreadPoolExecutor(1) as pool:
        owner = scene.owner()
        scene.order(scene.edge())
        drained = pool.submit(owner.server.drain)
        scene.sees_it_through(load)
        drained.result()
        owner.server.start()
        load.wait_for_more(2)


def its_drain(scene: Scene) -> None:
    with scene.load() as load:
        victim = scene.whose()
        scene.order(victim)
        victim.server.process.send_signal(signal.SIGTERM)
        scene.sees_it_through(load)


# -- starts

def a_start(scene: Scene) -> None:
    epochs = []
    with scene.load() as load:
        victim = scene.edge()
        epochs.append(_meet(scene.owner()))
        victim.server.kill()
        scene.dies_as_it_starts(victim)
        victim.server.start()
        epochs.append(_meet(victim))
        load.wait_for_more(2)
    expect(not epochs_that_shrink(epochs), epochs)


def a_start_after_a_death(scene: Scene) -> None:
    """Of one that had a job for which nobody has asked since."""
    with scene.load() as load:
        victim = scene.edge()
        _agree_alone(scene, victim)
        victim.server.kill()
        scene.dies_as_it_starts(victim)
        victim.server.start()
        load.wait_for_more(2)


def a_start_when_pins_are_old(scene: Scene) -> None:
    with scene.load() as load:
        victim = scene.edge()
        victim.server.kill()
        number = scene.cluster.number(victim)
        scene.clocks.turn(number, _OLD)
        try:
            scene.dies_as_it_starts(victim)
        finally:
            scene.clocks.turn(number, 0)
        victim.server.start()
        load.wait_for_more(2)


def _meet(replica: Replica) -> Call:
    with channel_to(replica.address) as channel:
        asked = agent_pb2.RendezvousRequest(group="g", rank=0, size=1, endpoint="unix:/none")
        epoch = agent_pb2_grpc.AgentsStub(channel).Rendezvous(asked, timeout=30).epoch
    # One call after the other: their times are their order.
    return Call("epoch", ("g",), replica.address, epoch, epoch, epoch)


def _agree_alone(scene: Scene, replica: Replica) -> str:
    """A job of one rank; its name."""
    job = f"alone-{scene.rng.getrandbits(32):08x}"
    request = Key(2, 8, 0).inline()
    request.job.CopyFrom(planner_pb2.Job(id=job, generation=1, scope="0/fw", rank=[0], size=1))
    caller = Caller(replica.address)
    expect(caller.stub.GetPlan(request, timeout=30).HasField("plan"), "no plan for one rank")
    caller.close()
    return job


# -- what operators and agents say

def _told(scene: Scene, tell, profile: str = "", afterwards=lambda scene: None) -> None:
    """`tell(address)` of one that dies of it, and then of another one, which must do what was wanted."""
    with scene.load(profile) as load:
        victim = scene.whose()
        scene.order(victim)
        with contextlib.suppress(subprocess.SubprocessError, grpc.RpcError):
            tell(victim.address)
        scene.sees_it_through(load)
        tell(scene.rng.choice([one for one in scene.cluster.replicas if one is not victim]).address)
        afterwards(scene)
        load.wait_for_more(2)


def _is_a_chain(entries: list[dict]) -> None:
    """Each says that it found what the one before it left: so none is missing, and none is there without its change."""
    for before, after in zip(entries, entries[1:]):
        expect(before["after"] == after["before"], "the audit log has a gap:", before, after)


def a_promotion(scene: Scene) -> None:
    shown = lambda: json.loads(ctl(scene.cluster.replicas[0].address, "costs", "list", "--json"))["profiles"]  # noqa: E731
    promoted = next(one["version"] for one in shown() if one["name"] == "site" and one.get("promoted"))
    other = next(version for version in scene.versions if version != promoted)
    _told(scene, lambda address: ctl(address, "costs", "promote", f"site@{other}"), profile="site@latest")
    lines = scene.audited("promote")
    _is_a_chain(lines)
    expect(lines[-1]["after"] == f"latest is version {other}", lines[-1])
    wait_for(lambda: any(one["name"] == "site" and one["version"] == other and one.get("promoted") for one in shown()), "it to be known everywhere")


def an_import(scene: Scene) -> None:
    shown = json.loads(ctl(scene.cluster.replicas[0].address, "costs", "show", "slow_network", "--json"))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        path = pathlib.Path(folder, "profile.json")
        path.write_text(json.dumps({**shown, "gamma_us": 3.5}))
        said = []
        _told(scene, lambda address: said.append(ctl(address, "costs", "import", str(path), "--name", "half", "--json")))
    expect(json.loads(said[-1])["version"]["version"] == 1, "it is there once:", said)


def the_switch(scene: Scene) -> None:
    _told(scene, lambda address: ctl(address, "disable", "--why", "a test"), afterwards=_switch_on)
    lines = scene.audited("disable", "enable")
    expect(lines[-1]["after"] == "on" and lines[-2]["after"] == "off: a test", lines[-2:])


def a_release(scene: Scene) -> None:
    job = _agree_alone(scene, scene.cluster.replicas[0])

    def release(address: str) -> None:
        with channel_to(address) as channel:
            planner_pb2_grpc.PlannerStub(channel).ReleaseJob(planner_pb2.ReleaseJobRequest(job_id=job), timeout=30)

    _told(scene, release)
    left = scene.sql(f"SELECT COUNT(*) FROM bucketd_hold WHERE ENCODE(holder, 'escape') LIKE '%{job}%'")
    expect(left == "0", left, "holds are left of a job that was released")


def a_report(scene: Scene) -> None:
    samples = [{"kind": "all_gather", "dtype": "bf16", "group_size": 8, "bytes": 4096 << n, "picoseconds": 10**7 * (n + 1)} for n in range(3)]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        path = pathlib.Path(folder, "samples.json")
        path.write_text(json.dumps({"profile": "site", "reporter": "host-1", "samples": samples}))
        _told(scene, lambda address: ctl(address, "costs", "report", str(path)))


# -- tables

def no_tables(scene: Scene) -> None:
    _alone(scene, lambda url, database: None)


def tables_of_before(scene: Scene) -> None:
    def make(url: str, database: str) -> None:
        with Server("--store-dir", url) as server:
            ask(server)
        scene.sql("DROP TABLE bucketd_audit; UPDATE bucketd_schema SET version = 1, min_reader = 1", database)

    _alone(scene, make)


def ask(server: Server, key: Key = Key(2, 8, 0)) -> bytes:
    """Its plan, for whoever names no job."""
    caller = Caller(server.address)
    try:
        return caller.ask(key, 30, inline=True).plan
    finally:
        caller.close()


def _alone(scene: Scene, make) -> None:
    """A server that dies as it makes its tables, or adds to them."""
    database = f"tables_{scene.rng.getrandbits(32):08x}"
    scene.sql(f"CREATE DATABASE {database} OWNER bucketd", "postgres")
    url = scene.cluster.engines[0].url(database)
    make(url, database)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        server = Server("--store-dir", url, folder=folder, environment=scene.orders.environment(0), program=MORTAL)
        scene.order(None)
        _must_not_start(server)
        expect(server.was_killed() and scene.orders.was_obeyed(), "it did not start, and not for that:", server.log.read_text())
        scene.orders.take_back()
        with server:
            expect(ask(server) == scene.reference.plan(Key(2, 8, 0)), "another plan")
        expect(scene.sql("SELECT version FROM bucketd_schema", database) == "2", "the tables are not whole")
