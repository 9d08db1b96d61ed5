"""Servers that share a store are replaced one by one, by others like them or of the next version of its tables, under the load of
both clients: no call of anybody fails."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest
from layered_graphs import ask, layers
from live_postgres import postgres
from planners import planner
from waiting import wait_for

from bucketd import addresses, counters, embedded
from bucketd.addresses import Server
from bucketd.client import PlannerClient
from bucketd.errors import BucketdError
from bucketd.job import Job

RANKS = 3
CALLS = 20  # of each kind, before and after each restart
FLAGS = ("--lame-duck-ms", "500", "--drain-seconds", "10", "--max-inline-bytes", "0")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


class Servers:
    """On one store, each on a port of its own, which the next one there takes over."""

    def __init__(self, addresses: list[str], store: tuple[str, ...], replicas: bool, name: str = ""):
        self.addresses, self.address = addresses, name or ",".join(addresses)
        self._flags, self._replicas = (*FLAGS, *store), replicas
        self._running = {}

    def __enter__(self):
        for address in self.addresses:
            self._start(address)
        return self

    def __exit__(self, *_):
        for stack, _ in self._running.values():
            stack.close()

    def restart(self, address: str, program: str = "") -> None:
        stack, one = self._running.pop(address)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(60) == 0
        stack.close()
        self._start(address, program)

    def _start(self, address: str, program: str = "") -> None:
        stack = contextlib.ExitStack()
        cluster = ("--cluster-address", address, "--cluster-dead-ms", "2000") if self._replicas else ()
        self._running[address] = stack, stack.enter_context(planner(*self._flags, *cluster, address=address, program=program))


class Load:
    """Of the Python client, as tests/client/steady_load.cc is of the C++ client: hits; misses, each with a graph that has to be
    sent; jobs of several ranks, which have to meet."""

    def __init__(self, address: str):
        self.address = address
        self.counts = dict(hits=0, misses=0, jobs=0)
        self.errors: list[str] = []
        self._over = False
        self._threads = [threading.Thread(target=run) for run in (self._hits, self._misses, self._jobs)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        for thread in self._threads:
            thread.join()

    def go_on(self) -> None:
        """Until so many calls of each kind were made from now on."""
        before = dict(self.counts)
        wait_for(lambda: all(self.counts[kind] >= before[kind] + CALLS for kind in before), "calls of each kind")

    def _asked(self, kind: str, call) -> None:
        try:
            call()
        except BucketdError as error:
            self.errors.append(f"{kind}: {error}")
        self.counts[kind] += 1
        time.sleep(0.01)

    def _hits(self) -> None:
        client = PlannerClient(self.address)
        while not self._over:
            self._asked("hits", lambda: ask(client, layers(8), deadline=120))

    def _misses(self) -> None:
        client = PlannerClient(self.address)
        while not self._over:
            self._asked("misses", lambda: ask(client, layers(16 + 8 * self.counts["misses"]), deadline=120))

    def _jobs(self) -> None:
        clients = [PlannerClient(self.address) for _ in range(RANKS)]  # each as in a process of its own
        with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
            while not self._over:
                number, generation = divmod(self.counts["jobs"], 3)
                job, graph = Job(f"python-{number}", generation), layers(12 + 8 * number)

                def meet(job=job, graph=graph):
                    replies = list(pool.map(lambda rank: ask(clients[rank], graph, job=job.at("0/fw", [rank], RANKS), deadline=120),
                                            range(RANKS)))
                    if len({reply.sha256 for reply in replies}) != 1:
                        self.errors.append(f"jobs: ranks of {job} have other plans")

                self._asked("jobs", meet)


def built(name: str) -> str:
    return str(pathlib.Path(os.environ.get("BUCKETD_BIN", pathlib.Path(embedded.find_binary()).parent)) / name)


@contextlib.contextmanager
def steady_load(address: str, graph: pathlib.Path, said: list, resolver: dict[str, str]):
    process = subprocess.Popen([built("steady_load"), address, graph], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, **resolver})
    try:
        yield
    finally:
        output, _ = process.communicate("", timeout=300)
        assert process.returncode == 0
        said.append(json.loads(output))


@pytest.fixture
def folder(tmp_path):
    return ("--store-dir", str(tmp_path / "store"))


@pytest.fixture
def database():
    with postgres() as one:
        for statement in ("CREATE ROLE bucketd LOGIN", "CREATE DATABASE bucketd OWNER bucketd"):
            subprocess.run(["psql", "-qc", statement, "postgres"], env=one.environment, check=True)
        yield ("--store-dir", one.url("bucketd"))


@contextlib.contextmanager
def no_call_fails(servers: Servers, graph: pathlib.Path, enough: int, resolver: dict[str, str] | None = None):
    """Of the load that it brings; what it lets go on by."""
    before, said = counters(), []
    with Load(servers.address) as load, steady_load(servers.address, graph, said, resolver or {}):
        yield load.go_on
        load.go_on()
    (theirs,) = said
    assert load.errors == [] and theirs["errors"] == []
    assert min(load.counts.values()) >= enough and min(theirs[kind] for kind in load.counts) >= CALLS
    assert counters()["moves"] > before["moves"] and theirs["moves"] > 0, "they were moved, and did not notice"
    assert counters()["breaker_opens"] == before["breaker_opens"]


@pytest.fixture
def graph(data):
    return data / "graphs" / "llama3_debug_fsdp8.fw.json.gz"


@pytest.mark.slow
@pytest.mark.parametrize("count,store", [(2, "folder"), (2, "database"), (3, "database")])
def test_no_call_fails_while_servers_are_replaced_one_by_one(count, store, graph, request):
    with Servers(free_addresses(count), request.getfixturevalue(store), False) as servers, no_call_fails(servers, graph, CALLS * (count + 1)) as go_on:
        for address in [*servers.addresses, servers.addresses[0]]:
            go_on()
            servers.restart(address)


@pytest.mark.slow
def test_no_call_fails_while_replicas_behind_one_name_are_replaced_one_by_one(database, graph, tmp_path, monkeypatch):
    """As behind a headless service: the name stands for all, by a resolver that libnss-wrapper puts in the C++ client, and one that is
    put in Python's here."""
    (port,) = free_ports(1)
    hosts = [f"127.0.0.{number}" for number in (1, 2, 3)]
    (tmp_path / "hosts").write_text("".join(f"{host} planners\n" for host in hosts))
    resolver = {"LD_PRELOAD": "libnss_wrapper.so", "NSS_WRAPPER_HOSTS": str(tmp_path / "hosts")}
    name, all_of_it = f"dns:///planners:{port}", [f"{host}:{port}" for host in hosts]
    monkeypatch.setattr(addresses, "look_up", lambda address, patience: [Server(each, "planners") for each in all_of_it])
    with Servers(all_of_it, database, True, name) as servers, no_call_fails(servers, graph, CALLS * 5, resolver) as go_on:
        for address in [*servers.addresses, servers.addresses[0]]:
            go_on()
            servers.restart(address)


@pytest.mark.slow
def test_no_call_fails_while_replicas_become_those_of_the_next_version_one_by_one(database, graph):
    """The first of the next version adds what its tables have more, under the others, which go on; one of those comes back, too. Each
    version has its own plans, and the ranks of a job that come to both have one.
    (The next version is this one with other tables, and another number in its plans' keys: tests/server/next_version.cc.)"""
    url, schema = database[1], "SELECT version || ' ' || min_reader FROM bucketd_schema"
    ask = lambda sql: subprocess.run(["psql", "-qtAc", sql, url], check=True, capture_output=True, text=True).stdout.strip()  # noqa: E731
    with Servers(free_addresses(3), database, True) as servers, no_call_fails(servers, graph, CALLS * 5) as go_on:
        assert ask(schema) == "2 1"
        for address, program in [*zip(servers.addresses, [built("bucketd_next")] * 3), (servers.addresses[0], "")]:
            go_on()
            servers.restart(address, program)
            assert ask(schema) == "3 1", "what is old has not been taken away"
        go_on()
        servers.restart(servers.addresses[0], built("bucketd_next"))
    of = lambda planner: int(ask(f"SELECT COUNT(*) FROM bucketd_plan WHERE convert_from(key, 'UTF8') LIKE '%planner=\"{planner}\"%'"))  # noqa: E731
    assert of("the next one") >= CALLS and of("%") - of("the next one") >= CALLS
    ask("UPDATE bucketd_schema SET min_reader = 3")  # as the version behind the next does
    with (pytest.raises(AssertionError, match="for servers that know schema 3 or later; this one knows schema 2, and takes 1 to 3 where they are for it: start a bucketd of"),
          planner(*database)):
        pass
