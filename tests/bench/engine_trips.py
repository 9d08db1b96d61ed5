#!/usr/bin/env python3
"""How often a server goes to PostgreSQL for a hit, a cold plan and the start of a job, what it costs that a rank is forwarded
from one replica to another, and how late the last of many is answered by three replicas: rows of tests/bench/cluster.sh's table.

A trip is what is sent before an answer is waited for: one Sync of the protocol, however many statements go before it. They are
counted by a relay between the server and the engine. What servers ask by themselves (once a second, what others have changed)
is measured while nobody calls, and taken off.
"""
import contextlib
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "client" / "python")]

import grpc  # noqa: E402
from live_postgres import postgres  # noqa: E402
from live_server import Server, request_for, without_graph  # noqa: E402
from waiting import wait_for  # noqa: E402

from bucketd._wire.proto import planner_pb2, planner_pb2_grpc  # noqa: E402

CALLS = 100
IDLE_SECONDS = 6
JOBS, TURNS = 200, 3  # of what is forwarded
AT_ONCE, BURSTS, LATER = 64, 20, 2.0  # calls; of each kind and turn; of what one server takes
HIT, STORED, COLD, JOB = "a hit from memory", "a hit from the store", "a cold plan", "the start of a job, of a plan in memory"
EDGE = f"{JOB}, one of whose two ranks comes to another one"
WANTED = {HIT: 0, STORED: 1, COLD: 3, JOB: 2}
# At a replica who takes a job's lease reads its records in that trip (server/decisions/0004-replicas-hold-leases-and-forward-ranks.md);
# who learns of another's has gone there once.
AT_A_REPLICA = {HIT: 0, STORED: 1, COLD: 3, JOB: 2, EDGE: 3}
BEYOND = 0.2  # that is measured and not a trip: what servers ask by themselves varies


class Relay:
    """Between clients of a PostgreSQL and its socket; `trips`: Syncs and simple queries that have gone by."""

    def __init__(self, folder: str, to: pathlib.Path):
        self.trips = 0
        self._to = str(to / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/.s.PGSQL.5432")
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._to)
            threading.Thread(target=self._up, args=(client, engine), daemon=True).start()
            threading.Thread(target=self._down, args=(engine, client), daemon=True).start()

    def _up(self, client: socket.socket, engine: socket.socket) -> None:
        seen, begun = b"", False
        while data := client.recv(1 << 16):
            engine.sendall(data)
            seen += data
            while True:  # one message after another: a type, except in the first one, then its length
                at = 1 if begun else 0
                if len(seen) < at + 4 or len(seen) < at + (size := struct.unpack_from("!i", seen, at)[0]):
                    break
                self.trips += begun and seen[:1] in b"SQ"
                # What comes first may ask for encryption; what really begins follows in the same form.
                begun = begun or struct.unpack_from("!i", seen, 4)[0] == 196608
                seen = seen[at + size:]
        engine.shutdown(socket.SHUT_WR)

    def _down(self, engine: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := engine.recv(1 << 16):
                client.sendall(data)


class Count:
    """Trips of a call, less what servers ask by themselves."""

    def __init__(self, relay: Relay):
        self._relay = relay
        before = relay.trips
        time.sleep(IDLE_SECONDS)
        self._idle = (relay.trips - before) / IDLE_SECONDS

    def of(self, calls) -> float:
        before, begin = self._relay.trips, time.monotonic()
        for call in calls:
            call()
        time.sleep(0.3)  # what is written behind an answer
        return (self._relay.trips - before - self._idle * (time.monotonic() - begin)) / len(calls)


def trips(folder: pathlib.Path, relay: Relay, store: tuple[str, ...], names: str, cluster: bool):
    """What is asked, and trips of one call, between two servers of a store."""
    with contextlib.ExitStack() as stack:
        servers = []
        for name in names:
            (folder / name).mkdir()
            more = ("--cluster-address", f"unix:{folder}/{name}/socket") if cluster else ()
            servers.append(stack.enter_context(Server(folder / name, *store, *more)))
        if cluster:
            see_each_other(servers)
        for what, count in measure(*servers[:2], relay, cluster):
            yield what, max(0.0, count)


def counted(engine, folder: pathlib.Path):
    """What is asked, trips of one call, how many are wanted: of a server, then of a replica."""
    relay = Relay(str(folder), engine.folder)
    for name, of, servers, wanted in ("bucketd", "", "ab", WANTED), ("leases", ", among three replicas", "ijk", AT_A_REPLICA):
        database(engine, name)
        store = ("--store-dir", f"postgres://bucketd@/{name}?host={folder}")
        for what, count in trips(folder, relay, store, servers, cluster=bool(of)):
            yield what + of, count, wanted[what]


def measure(first: Server, second: Server, relay: Relay, cluster: bool):
    count = Count(relay)
    widths = range(8, 8 + 8 * CALLS, 8)
    ask = lambda server, request: lambda: server.stub.GetPlan(request, timeout=60)
    job = lambda number: planner_pb2.Job(id=f"job-{number}", scope="0/fw", rank=[0], size=1)
    cold = count.of([ask(first, request_for(width)) for width in widths])
    yield HIT, count.of([ask(first, without_graph(request_for(8)))] * CALLS)
    yield STORED, count.of([ask(second, without_graph(request_for(width))) for width in widths])
    yield COLD, cold
    yield JOB, count.of([ask(first, without_graph(request_for(8), job=job(number))) for number in range(CALLS)])
    if cluster:
        yield EDGE, count.of([lambda number=number: both(first, second, f"shared-{number}") for number in range(CALLS)])


def both(owner: Server, edge: Server, name: str) -> None:
    """A job whose first rank comes to `owner`, which takes it before the other one comes to `edge`."""
    request = lambda rank: without_graph(request_for(8), job=planner_pb2.Job(id=name, scope="0/fw", rank=[rank], size=2))
    first = owner.stub.GetPlan.future(request(0), timeout=60)
    time.sleep(0.02)
    assert edge.stub.GetPlan(request(1), timeout=60).HasField("plan") and first.result().HasField("plan")


def see_each_other(servers: list[Server]) -> None:
    wait_for(lambda: all(server.metric('bucketd_replicas{state="serving"}') == len(servers) for server in servers),
             "the replicas to see each other")


def cpu_seconds(server: Server) -> float:
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_jobs(servers: list[Server], places: list[Server], name: str) -> float:
    """Microseconds of all servers for a job whose ranks come to `places`, one each, of a plan in memory."""
    request = without_graph(request_for(8))
    before = sum(map(cpu_seconds, servers))
    for number in range(JOBS):
        ranks = [planner_pb2.Job(id=f"{name}-{number}", scope="0/fw", rank=[rank], size=len(places)) for rank in range(len(places))]
        calls = [place.stub.GetPlan.future(without_graph(request, job=job), timeout=60) for place, job in zip(places, ranks)]
        assert len({call.result().plan.plan_sha256 for call in calls}) == 1
    return (sum(map(cpu_seconds, servers)) - before) / JOBS * 1e6


@contextlib.contextmanager
def replicas(url: str, folder: pathlib.Path, names: str):
    with contextlib.ExitStack() as stack:
        servers = []
        for name in names:
            (folder / name).mkdir()
            servers.append(stack.enter_context(Server(folder / name, "--store-dir", url, "--cluster-address", f"unix:{folder}/{name}/socket")))
        see_each_other(servers)
        for server in servers:
            server.stub.GetPlan(request_for(8), timeout=60)
        yield servers


def forwarding(url: str, folder: pathlib.Path) -> None:
    with replicas(url, folder, "cd") as servers:
        apart, together = [], []
        for turn in range(TURNS):
            apart.append(cpu_of_jobs(servers, servers, f"apart-{turn}"))
            together.append(cpu_of_jobs(servers, servers[:1] * 2, f"together-{turn}"))
        ratio = statistics.median(a / b for a, b in zip(apart, together))
        print(f"| CPU of two replicas for a job of two ranks that come to both, of one whose ranks come to one | {ratio:.2f} "
              f"({statistics.median(apart):.0f} us, {statistics.median(together):.0f} us) | - |", flush=True)


def last_answer(places: list[planner_pb2_grpc.PlannerStub], name: str) -> tuple[float, float]:
    """Milliseconds from the first of many calls at once, of one job if it has a name, until the last is answered: the median, and what
    one of twenty exceeds."""
    took = []
    for number in range(BURSTS):
        jobs = [planner_pb2.Job(id=f"{name}-{number}", scope="0/fw", rank=[rank], size=AT_ONCE) if name else None for rank in range(AT_ONCE)]
        requests = [without_graph(request_for(8), **({"job": job} if job else {})) for job in jobs]
        begin = time.monotonic()
        calls = [places[at % len(places)].GetPlan.future(request, timeout=60) for at, request in enumerate(requests)]
        assert all(call.result().HasField("plan") for call in calls)
        took.append((time.monotonic() - begin) * 1e3)
    return statistics.median(took), sorted(took)[-2]


@contextlib.contextmanager
def connections(servers: list[Server]):
    """Three, each of its own, to one server or to one each: what the client does is the same."""
    channels = [grpc.insecure_channel(servers[at % len(servers)].address, options=[("grpc.use_local_subchannel_pool", 1)]) for at in range(3)]
    yield [planner_pb2_grpc.PlannerStub(channel) for channel in channels]
    for channel in channels:
        channel.close()


def three_against_one(urls: list[str], folder: pathlib.Path) -> int:
    missed = 0
    sys.setswitchinterval(1e-4)  # threads of the three connections take turns
    with (replicas(urls[0], folder, "e") as server, replicas(urls[1], folder, "fgh") as servers, connections(server) as one,
          connections(servers) as three):
        for what, name in (f"{AT_ONCE} hits at once", ""), (f"the {AT_ONCE} ranks of a job", "burst"):
            last_answer(one, name and f"{name}-warm"), last_answer(three, name and f"{name}-warm")
            pairs = [(last_answer(three, name and f"{name}-{turn}"), last_answer(one, name and f"{name}-{turn}")) for turn in range(TURNS)]
            for which, of in enumerate(("", ", of the slowest in twenty")):
                ours, theirs = ([pair[side][which] for pair in pairs] for side in (0, 1))
                ratio = statistics.median(a / b for a, b in zip(ours, theirs))
                missed += ratio > LATER
                print(f"| last answer to {what}, by three replicas on these cores, of one server's{of} | {ratio:.2f} "
                      f"({statistics.median(ours):.1f} ms, {statistics.median(theirs):.1f} ms) | at most {LATER:.0f} |", flush=True)
    return missed


def database(engine, name: str) -> None:
    subprocess.run(["createdb", "-O", "bucketd", name], env=engine.environment, check=True)


def main() -> int:
    missed = 0
    with postgres() as engine, tempfile.TemporaryDirectory(prefix="bucketd-trips-") as folder:
        subprocess.run(["createuser", "bucketd"], env=engine.environment, check=True)
        for name in ("replicas", "one", "three"):
            database(engine, name)
        for what, count, wanted in counted(engine, pathlib.Path(folder)):
            missed += count > wanted + BEYOND
            print(f"| trips to PostgreSQL for {what} | {count:.1f} | {wanted} |", flush=True)
        forwarding(engine.url("replicas"), pathlib.Path(folder))
        missed += three_against_one([engine.url("one"), engine.url("three")], pathlib.Path(folder))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
