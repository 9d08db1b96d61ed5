"""A planner that dies, breaks off, is busy, drains or stays away: what the client makes of it, says of it and counts."""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import logging
import os
import signal
import threading
import time
import types

import pytest
from cut import Relay
from layered_graphs import MESH, ask, layers, options
from live_server import ctl
from planners import planner, wait_until_stopped

from bucketd import breaker, calls, canonical, client, counters, degraded, wire
from bucketd._wire.proto import planner_pb2
from bucketd.client import CLIENT_VERSION, PlannerClient
from bucketd.errors import PlannerError
from bucketd.job import Job

IN_CHUNKS = ("--max-inline-bytes", "0", "--max-chunk-bytes", "1024")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def counted():
    """What was counted since the test began."""
    before = counters()
    return lambda: {name: now - before[name] for name, now in counters().items() if now != before[name]}


@pytest.fixture
def clock():
    """The breakers' that are made from now on."""
    return Clock()


def breaker_with(clock, address):
    breaker._breakers[address] = breaker.Breaker(clock)


def large():
    """That takes many chunks: its nodes' names do not compress."""
    graph = layers(8, 100)
    for number, node in enumerate(graph.nodes):
        node.name = hashlib.sha256(str(number).encode()).hexdigest()
    return graph


def error_of(call, *arguments, **more) -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        call(*arguments, **more)
    return caught.value


def asked_for(graph, address):
    """A caller that was asked for the graph and does not send it: the next one has to wait."""
    request = planner_pb2.GetPlanRequest(
        graph_digest=canonical.digest(graph), mesh=MESH, options=options(), client_version=CLIENT_VERSION)
    one = PlannerClient(address)
    assert calls.Route(one._caller).call("GetPlan", request, time.monotonic() + 30).WhichOneof("answer") == "graph_required"
    return one


# -- uploads that break


def test_a_broken_upload_goes_on_where_it_stopped(tmp_path, counted):
    graph = large()
    with planner(*IN_CHUNKS) as one, Relay(f"{tmp_path}/relay", one.address, 20_000) as relay:
        reply = ask(PlannerClient(relay.address), graph)
        assert relay.cut == 1
        assert reply.plan == ask(PlannerClient(one.address), graph).plan
    assert counted() == {"retries": 1, "uploads": 2, "resumed_uploads": 1}


def test_an_upload_that_breaks_again_and_again_gets_there_piece_by_piece(tmp_path, counted):
    with planner(*IN_CHUNKS) as one, Relay(f"{tmp_path}/relay", one.address, *[9_000] * 6) as relay:
        assert ask(PlannerClient(relay.address), large()).source == "computed"
        assert relay.cut >= 4
    assert counted()["resumed_uploads"] >= 4


def test_an_upload_that_never_gets_on_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(calls.Route, "pause", lambda *_: None)
    with planner(*IN_CHUNKS) as one, Relay(f"{tmp_path}/relay", one.address, *[900] * 50) as relay:
        error = error_of(ask, PlannerClient(relay.address, connect_timeout=5), large())
    assert error.reason == "UNREACHABLE"


def test_bytes_that_another_one_left_are_no_obstacle(tmp_path, monkeypatch):
    """The same graph, packed in another way: the first half of that and the rest of ours make no graph together."""
    graph, packed = large(), client.zstandard.ZstdCompressor
    with planner(*IN_CHUNKS) as one, Relay(f"{tmp_path}/relay", one.address, 3_000) as relay:
        monkeypatch.setattr(client.zstandard, "ZstdCompressor", lambda level: packed(level=19))
        other = PlannerClient(one.address)
        half = client._Payload(wire.to_proto(graph), other.capabilities()).parts("", canonical.digest(graph), 1024, 0)

        def first_half():
            yield from itertools.islice(half(), 12)
            raise ConnectionError("this client dies")

        error_of(calls.Route(other._caller).once, "UploadGraph", first_half, time.monotonic() + 20)
        monkeypatch.setattr(client.zstandard, "ZstdCompressor", packed)
        assert ask(PlannerClient(relay.address), graph).source == "computed"
        assert relay.cut == 1


def test_a_planner_killed_during_an_upload_and_back_gets_the_graph(tmp_path, monkeypatch):
    address = f"unix:{tmp_path}/socket"
    graph = large()
    with planner(*IN_CHUNKS, address=address) as one:
        made = PlannerClient(address)
        once = calls.Route.once
        killed = threading.Event()

        def send(self, method, request, until):
            def dying():
                for number, part in enumerate(request()):
                    yield part
                    if number == 5 and not killed.is_set():
                        os.kill(one.pid, signal.SIGKILL)
                        killed.set()

            return once(self, method, dying if method == "UploadGraph" else request, until)

        monkeypatch.setattr(calls.Route, "once", send)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, made, graph)
            assert killed.wait(30)
            one.process.wait()
            with planner(*IN_CHUNKS, address=address):
                assert answer.result(timeout=60).source == "computed"


# -- nobody there


@pytest.mark.quiet
def test_an_address_that_does_not_answer_is_given_up_and_tried_again_by_one_call(tmp_path, counted, clock, caplog):
    caplog.set_level(logging.INFO, "bucketd")
    address = f"unix:{tmp_path}/socket"
    breaker_with(clock, address)
    made, other = PlannerClient(address, connect_timeout=0.3), PlannerClient(address, connect_timeout=0.3)
    for _ in range(2):
        assert "nobody answers" in str(error_of(ask, made, layers()))
    begin = time.monotonic()
    for _ in range(100):
        error = error_of(ask, other, layers())
        assert error.reason == "UNREACHABLE" and error.leaves_unplanned
        assert "it will be tried again in" in str(error) and 30 <= error.retry_after <= 45
    assert time.monotonic() - begin < 10, "a hundred times the connect timeout alone is 30 s"
    with planner(address=address):
        assert "tried again in" in str(error_of(ask, made, layers())), "it is there, but nobody has looked yet"
        clock.now += 45
        assert ask(made, layers()).source == "computed"
        assert ask(other, layers()).source == "hit"
    assert counted() == {"unreachable": 2, "breaker_opens": 1, "fast_failures": 101, "breaker_probes": 1}
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.split(": ", 2)[2].split(";")[0] for line in said] == ["does not answer"]
    assert f"bucketd: {address} answers again" in caplog.messages


def test_a_planner_that_says_nothing_gets_one_probe_whoever_asks(tmp_path, counted, clock, monkeypatch):
    monkeypatch.setattr(calls, "PROBE_TIMEOUT", 0.5)
    address = f"unix:{tmp_path}/socket"
    breaker_with(clock, address)
    with planner(address=address) as one, concurrent.futures.ThreadPoolExecutor(8) as pool:
        os.kill(one.pid, signal.SIGSTOP)
        wait_until_stopped(one.pid)
        made = PlannerClient(address, connect_timeout=0.5)
        for _ in range(2):
            assert error_of(ask, made, layers(), deadline=0.6).reason in ("DEADLINE", "UNREACHABLE")
        clock.now += 45
        reasons = [future.exception().reason for future in [pool.submit(ask, made, layers()) for _ in range(8)]]
        assert reasons == ["UNREACHABLE"] * 8
    assert (counted()["breaker_probes"], counted()["fast_failures"]) == (1, 7)
    assert counted()["breaker_opens"] == 2, "it stays given up"


def test_failures_long_ago_do_not_count(clock):
    one = breaker.Breaker(clock)
    assert not one.failed()
    clock.now += breaker.WINDOW + 1
    assert not one.failed()
    assert one.admit() == breaker.CALL
    assert one.failed() and one.admit() == breaker.REFUSED


def test_an_answer_between_two_failures_makes_them_two_beginnings(clock):
    one = breaker.Breaker(clock)
    one.failed()
    assert not one.succeeded()
    assert not one.failed() and one.admit() == breaker.CALL


def test_a_refusal_is_an_answer(clock):
    with planner() as one:
        breaker_with(clock, one.address)
        made = PlannerClient(one.address)
        for _ in range(4):
            assert error_of(ask, made, layers(), options(mode="no such mode")).reason == "OPTIONS_INVALID"
        assert ask(made, layers()).source == "computed"


def test_ranks_do_not_come_back_together():
    def until(one):
        one.failed(), one.failed()
        return one.remaining()

    waits = {until(breaker.Breaker(Clock())) for _ in range(20)}
    assert len(waits) == 20 and all(breaker.COOLDOWN <= wait <= 1.5 * breaker.COOLDOWN for wait in waits)


# -- busy, or about to go


@pytest.fixture
def naps(monkeypatch):
    """An event that is set when a client begins to sleep, as it was asked to."""
    began = threading.Event()

    def sleep(seconds):
        began.set()
        time.sleep(seconds)

    monkeypatch.setattr(calls, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return began


@contextlib.contextmanager
def full(*, until: float):
    """A planner whose one place for a rank is taken by one whose peer never comes, for so many seconds."""
    with planner("--max-waiting-ranks", "1") as one, concurrent.futures.ThreadPoolExecutor(1) as pool:
        lonely = pool.submit(error_of, ask, PlannerClient(one.address), layers(), deadline=until, job=Job("lonely").at("0/fw", [0], 2))
        while not json.loads(ctl("status", "--json", server=one))["jobs_waiting"]:
            assert not lonely.done()
        yield PlannerClient(one.address), Job("other").at("0/fw", [0], 1)


def test_an_overloaded_planner_is_asked_again_when_it_said(counted, naps):
    with full(until=3) as (client, job):
        assert ask(client, layers(16), job=job).source == "computed"
    assert naps.is_set() and counted()["waits"] >= 1


@pytest.mark.quiet
def test_an_overloaded_planner_does_not_hold_anybody_beyond_the_deadline(counted):
    with full(until=6) as (client, job):
        begin = time.monotonic()
        error = error_of(ask, client, layers(16), deadline=1.5, job=job)
        assert error.reason in ("OVERLOADED", "DEADLINE") and time.monotonic() - begin < 2.5
    assert counted()["waits"] >= 1


def test_a_caller_that_a_draining_planner_sends_away_comes_back_to_the_next_one(tmp_path):
    address = f"unix:{tmp_path}/socket"
    graph = layers()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with planner("--upload-lease-ms", "60000", address=address) as one:
            asked_for(graph, address)
            waiting = pool.submit(ask, PlannerClient(address), graph)
            concurrent.futures.wait([waiting], timeout=0.5)
            assert not waiting.done()
            one.process.terminate()
            one.process.wait()
        with planner(address=address):
            assert waiting.result(timeout=30).source == "computed"


# -- what is said


def test_each_cause_is_said_once_for_an_address(caplog):
    for address in ("a:1", "b:1"):
        for _ in range(3):
            degraded.say(address, "breaker", "does not answer")
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "bucketd: a:1: does not answer", "bucketd: b:1: does not answer"]
    degraded.recovered("a:1")
    degraded.say("a:1", "breaker", "does not answer")
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 3


def test_every_counter_has_a_description():
    assert set(counters()) == set(degraded.NAMES) and all(degraded.NAMES.values())
