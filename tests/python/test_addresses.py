"""Clients that know several planners: whom they ask first, when they go on to the next one, and when they come back."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import time

import pytest
from certificates import Certificates
from layered_graphs import ask, layers
from live_server import ctl
from planners import planner, wait_until_stopped
from waiting import wait_for

from bucketd import addresses, calls, counters
from bucketd.addresses import Server
from bucketd.client import PlannerClient
from bucketd.errors import PlannerError
from bucketd.job import Job
from bucketd.settings import Settings


@pytest.fixture
def counted():
    """What was counted since the test began."""
    before = counters()
    return lambda: {name: now - before[name] for name, now in counters().items() if now != before[name]}


@contextlib.contextmanager
def stopped(one):
    os.kill(one.pid, signal.SIGSTOP)
    try:
        wait_until_stopped(one.pid)
        yield
    finally:
        os.kill(one.pid, signal.SIGCONT)


def error_of(call, *arguments, **more) -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        call(*arguments, **more)
    return caught.value


class Pair:
    """Two addresses, of planners that share a store; the first is the one that ranks of the job "train" ask first."""

    def __init__(self, tmp_path):
        targets = [Server(f"unix:{tmp_path}/{name}") for name in "ab"]
        self.first, self.second = (server.target for server in addresses.in_order(targets, "job//train"))
        self.address = ",".join(server.target for server in targets)
        self._store = ("--store-dir", str(tmp_path / "store"))

    def start(self, address: str, *flags: str):
        return planner(*self._store, *flags, address=address)

    def rank(self, rank: int, size: int = 2, address: str = "", width: int = 8, deadline: float = 60):
        """What a rank of the job gets, that lists them in its own way."""
        listed = address or ",".join(sorted(self.address.split(","), reverse=rank % 2 == 1))
        return ask(PlannerClient(listed), layers(width), job=Job("train").at("0/fw", [rank], size), deadline=deadline)


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


# -- what an address is


@pytest.mark.parametrize("text,wrong", [
    ("planner", "planner"), ("a:9460,b", "b"), ("a:9460,,b:9460", ""), ("a:9460,b:0", "b:0"), ("a:9460,b:65536", "b:65536"),
    ("a:9460,http://b:9460", "http://b:9460"), ("a:9460,dns://b:9460", "dns://b:9460"), ("a:9460,dns:///b", "dns:///b"),
    ("::1:9460", "::1:9460"), ("unix:", "unix:"), ("a:9460, b c:9460", "b c:9460"), ("", ""),
])
def test_an_address_that_is_none_is_named(text, wrong):
    for make in (addresses.parse, PlannerClient, lambda text: Settings.of(address=text)):
        with pytest.raises(ValueError, match="expected HOST:PORT, unix:/path, dns:///NAME:PORT") as caught:
            make(text)
        assert str(caught.value).startswith(repr(wrong))


def test_one_that_is_listed_twice_is_named():
    with pytest.raises(ValueError, match="'a:9460' is twice"):
        addresses.parse("a:9460,b:9460,a:9460")


def test_lists_are_taken_as_people_write_them():
    assert addresses.parse("a:9460, [::1]:9460 ,unix:/run/bucketd,dns:///planners:9460") == (
        "a:9460", "[::1]:9460", "unix:/run/bucketd", "dns:///planners:9460")


# -- in which order


def test_the_order_is_that_of_the_other_clients():
    """tests/client/addresses_test.cc has the same."""
    servers = [Server(target) for target in ("a:9460", "b:9460", "c:9460")]
    orders = {about: [server.target[0] for server in addresses.in_order(servers, about)] for about in ("job//train", "job//eval", "graph/00")}
    assert orders == {"job//train": ["a", "c", "b"], "job//eval": ["c", "a", "b"], "graph/00": ["b", "a", "c"]}
    assert addresses.in_order(servers[::-1], "job//train") == addresses.in_order(servers, "job//train")


def test_jobs_spread_and_move_only_where_a_planner_goes():
    servers = [Server(f"planner-{number}:9460") for number in range(4)]
    orders = [addresses.in_order(servers, f"job//{number}") for number in range(2000)]
    for server in servers:
        assert 400 < sum(order[0] == server for order in orders) < 600
        left = [other for other in servers if other != server]
        assert all(addresses.in_order(left, f"job//{number}") == [each for each in order if each != server]
                   for number, order in enumerate(orders))


def test_all_who_ask_for_a_graph_ask_one_planner(pair):
    with pair.start(pair.first) as one, pair.start(pair.second) as other:
        sources = [ask(PlannerClient(address), layers(width)).source for width in (8, 16, 24, 32, 40, 48)
                   for address in (f"{one.address},{other.address}", f"{other.address},{one.address}")]
    assert sources == ["computed", "hit"] * 6


def test_ranks_of_one_job_meet_however_their_lists_are_sorted(pair):
    with pair.start(pair.first), pair.start(pair.second), concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda rank: pair.rank(rank, 4), range(4)))
    assert len({reply.sha256 for reply in replies}) == 1


# -- when they go on


def test_a_planner_that_is_gone_is_left_at_once_and_asked_again_later(pair, counted):
    client = PlannerClient(pair.address)
    with pair.start(pair.second) as second:
        with pair.start(pair.first) as first:
            assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "computed"
            os.kill(first.pid, signal.SIGKILL)
            first.process.wait()
            begin = time.monotonic()
            assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "pinned"
            assert time.monotonic() - begin < 3
            assert counted()["moves"] == 1 and "breaker_opens" not in counted()
        with pair.start(pair.first) as first:
            os.kill(second.pid, signal.SIGKILL)
            second.process.wait()
            assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "pinned"


def test_a_planner_that_drains_is_left_at_once(pair, counted):
    client = PlannerClient(pair.address)
    with pair.start(pair.second), pair.start(pair.first, "--lame-duck-ms", "60000", "--drain-seconds", "60") as first:
        assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "computed"
        first.process.terminate()
        wait_for(lambda: json.loads(ctl("status", "--json", server=first))["state"] == "draining", "the end to begin")
        begin = time.monotonic()
        assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "pinned"
        assert ask(PlannerClient(pair.address), layers(), job=Job("train").at("0/fw", [0], 1)).source == "pinned", "nor is it begun with"
        assert time.monotonic() - begin < 3
    assert counted()["moves"] == 2 and "waits" not in counted()


def test_a_rank_whose_planner_is_killed_meets_the_others_at_the_next_one(pair):
    with pair.start(pair.second), pair.start(pair.first) as first, concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.rank, 0)
        concurrent.futures.wait([waiting], timeout=1)
        assert not waiting.done()
        os.kill(first.pid, signal.SIGKILL)
        assert pair.rank(1).sha256 == waiting.result(60).sha256


def test_a_rank_that_waits_elsewhere_goes_back_to_where_the_others_come(pair):
    with pair.start(pair.second), concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.rank, 0)
        concurrent.futures.wait([waiting], timeout=1)
        assert not waiting.done()
        with pair.start(pair.first):
            assert pair.rank(1, address=pair.first, deadline=30).sha256 == waiting.result(30).sha256


def test_a_planner_that_says_nothing_any_more_is_left(pair, monkeypatch, counted):
    monkeypatch.setattr(calls, "_LATER_LOOKS", 0.2)
    monkeypatch.setattr(calls, "_FIRST_LOOK", 0.1)
    client = PlannerClient(pair.address)
    with pair.start(pair.second), pair.start(pair.first) as first:
        ask(client, layers(), job=Job("train").at("0/fw", [0], 1))
        with stopped(first):
            assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "pinned"
    assert counted()["moves"] == 1


def test_one_that_was_never_heard_of_does_not_take_the_time_of_the_others(pair):
    with pair.start(pair.second), pair.start(pair.first) as first, stopped(first):
        begin = time.monotonic()
        assert pair.rank(0, 1).source == "computed"
        assert time.monotonic() - begin < calls.FIRST_TIMEOUT


@pytest.mark.quiet
def test_nobody_in_a_list_is_known_as_soon_as_nobody_at_one_address(tmp_path, counted):
    with socket.socket() as silent:  # a host that takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        listed = [f"127.0.0.1:{silent.getsockname()[1]}", f"unix:{tmp_path}/nobody", f"unix:{tmp_path}/either"]
        client = PlannerClient(",".join(listed))
        for _ in range(2):
            begin = time.monotonic()
            error = error_of(ask, client, layers(), deadline=30)
            assert time.monotonic() - begin < calls.FIRST_TIMEOUT + 1
            assert error.reason == "UNREACHABLE" and all(address in error.message for address in listed)
        begin = time.monotonic()
        assert "it will be tried again in" in error_of(ask, client, layers()).message and time.monotonic() - begin < 1
    assert counted()["breaker_opens"] == 1


# -- names


@pytest.fixture
def name_of_two(pair, monkeypatch):
    """A name that stands for both, as a resolver would say; what it stands for can be changed."""
    stands_for = {"planners": [pair.first, pair.second]}

    def look_up(address: str, patience: float) -> list[Server]:
        return [Server(target, "planners") for target in stands_for["planners"]]

    monkeypatch.setattr(addresses, "look_up", look_up)
    return stands_for


def test_a_name_stands_for_all_that_it_is_known_for_now(pair, name_of_two):
    client = PlannerClient("dns:///planners:9460")
    with pair.start(pair.first) as first:
        assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "computed"
        first.process.kill()
        first.process.wait()
        third = pair.first + "-moved"
        name_of_two["planners"] = [third]
        with pair.start(third):
            assert ask(client, layers(), job=Job("train").at("0/fw", [0], 1)).source == "pinned"


def test_a_resolver_that_hangs_costs_its_patience_once_and_a_second_where_planners_are_known(monkeypatch):
    asked, knows = [], True

    def look_up(address: str, patience: float) -> list[Server]:
        asked.append(patience)
        time.sleep(0.02)
        if not knows:
            raise PlannerError("UNREACHABLE", "the name is not known")
        return [Server(address.removeprefix("dns:///"))]

    monkeypatch.setattr(addresses, "look_up", look_up)
    caller = calls.Caller("dns:///a:1,dns:///b:1")
    assert len(caller.lines("", 10.0)) == 2
    assert asked[0] <= 10.0 and asked[1] <= 9.98, "one time for all names"
    knows = False
    assert len(caller.lines("", 10.0, names_hold=0.0)) == 2 and len(asked) == 4 and max(asked[2:]) <= 1.0
    caller.close()


def test_a_name_that_stands_for_nothing_yet_is_looked_up_again(monkeypatch):
    looks = []

    def look_up(address: str, patience: float) -> list[Server]:
        looks.append(patience)
        if len(looks) != 3:
            raise PlannerError("UNREACHABLE", "the name is not known")
        return [Server("planners:9460")]

    monkeypatch.setattr(addresses, "look_up", look_up)
    caller = calls.Caller("dns:///planners:9460")
    with pytest.raises(PlannerError):
        caller.lines("", 0.05)
    assert len(looks) == 1, "no time for another"
    assert [line.target for line in caller.lines("", 10.0)] == ["planners:9460"] and len(looks) == 3
    caller.close()


def connections(unix: str) -> int:
    """That somebody has to this address."""
    with open("/proc/net/unix") as sockets:
        found = [line.split() for line in sockets]
    return sum(each[5] == "03" and each[7:] == [unix.removeprefix("unix:")] for each in found)


def test_a_planner_that_a_name_stands_for_no_more_is_forgotten_once_its_calls_ended(pair, name_of_two):
    client = PlannerClient("dns:///planners:9460")
    look_again = lambda: client._caller.lines("", 1.0, names_hold=0.0)
    with pair.start(pair.second), pair.start(pair.first) as first, concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, client, layers(), job=Job("train").at("0/fw", [0], 2), deadline=60)
        wait_for(lambda: json.loads(ctl("status", "--json", server=first))["jobs_waiting"], "a rank that waits")
        name_of_two["planners"] = [pair.second]
        assert [line.target for line in look_again()] == [pair.second]
        assert client._caller.ever_met(), "which has others wait for its successor"
        assert connections(pair.first) and not waiting.done()
        assert pair.rank(1, address=pair.first).sha256 == waiting.result(60).sha256
        wait_for(lambda: not connections(pair.first), "the end of its connection")
        name_of_two["planners"] = [pair.first]
        assert not look_again()[0].ever_met, "of one that comes back nothing is known"
        assert ask(client, layers(), job=Job("train").at("0/fw", [0], 2)).plan


@pytest.mark.parametrize("name, why", [("no-such-planner.invalid", ""), ("no..name", "label empty")])
def test_a_name_that_nobody_knows_is_an_error_that_says_so(name, why):
    begin = time.monotonic()
    error = error_of(ask, PlannerClient(f"dns:///{name}:9460"), layers())
    assert error.reason == "UNREACHABLE" and f"dns:///{name}:9460: the name is not known" in error.message and why in error.message
    assert time.monotonic() - begin < calls.FIRST_TIMEOUT + 1


# -- TLS

WHO = '[[identity]]\nnames = ["URI:spiffe://example.org/train/*"]\ntenant = "team-a"\nroles = ["plan"]\n'


def test_each_planners_certificate_names_what_it_was_asked_by(tmp_path):
    files = Certificates(tmp_path / "tls")
    files.make("server", "DNS:localhost")
    files.make("rank", "URI:spiffe://example.org/train/rank")
    tls = files.tls("rank")
    with planner(*files.server_flags(WHO), address="localhost:0") as one, planner(*files.server_flags(WHO), address="localhost:0") as other:
        ports = [each.address.rsplit(":", 1)[1] for each in (one, other)]
        for address in (",".join(f"localhost:{port}" for port in ports), f"dns:///localhost:{ports[0]}"):
            assert ask(PlannerClient(address, tls=tls), layers(len(address))).source == "computed", address
        numbers = [f"127.0.0.1:{port}" for port in ports]
        error = error_of(ask, PlannerClient(",".join(numbers), tls=tls), layers())
        assert error.reason == "UNREACHABLE" and all(number in error.message for number in numbers), "neither is called so"
        mixed = f"localhost:{ports[0]},{numbers[1]}"
        assert all(ask(PlannerClient(mixed, tls=tls), layers(width)).plan for width in (8, 16, 24)), "the right one is found"
