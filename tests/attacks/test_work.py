"""Work that is asked for and not waited for, and places that are taken and not used. Beside the hits, honest misses go on."""

import hashlib
import threading
import time

import grpc
import harness
import http2
import kit
import pytest
from harness import Caller, Key
from http2 import Connection, frame

from bucketd._wire.proto import planner_pb2, planner_pb2_grpc

ELSEWHERE = "127.0.0.2"  # another peer
_PATIENCE = 2.0


def miss(address: str, width: int, within: float, tenant: str = "") -> float:
    """Seconds until a plan that nobody has asked for is there, graph and all; who is refused asks again."""
    caller = Caller(address)
    begin = time.monotonic()
    try:
        while True:
            try:
                caller.ask(Key(4, 8 * width, 0, tenant), within)
                return time.monotonic() - begin
            except grpc.RpcError as error:
                failure = harness.reason_of(error)
                harness.expect(failure.reason == "OVERLOADED" and time.monotonic() - begin < within,
                               f"an honest miss failed after {time.monotonic() - begin:.1f} s:", failure)
                time.sleep(0.2)
    finally:
        caller.close()


class Impatient:
    """Calls for plans that take seconds, each with another memory limit, whose callers leave after two."""

    def __init__(self, address: str, calls: int):
        key = Key(2000, 8, 0, "impatient")
        self._channel = harness.channel_to(address)
        stub = planner_pb2_grpc.PlannerStub(self._channel)
        stub.UploadGraph(key.model.parts(key.tenant), timeout=60)
        self._waiting = []
        for number in range(calls):
            request = key.request()
            request.options.CopyFrom(planner_pb2.PlanOptions(
                mode="auto", backend="gloo", memory_limit_ppm=1_050_000 + number,
                settings=[planner_pb2.OptionSetting(name="effort", value="9")]))
            self._waiting.append(stub.GetPlan.future(request, timeout=_PATIENCE))

    def leave(self) -> None:
        for call in self._waiting:
            call.exception()
        self._channel.close()


@pytest.mark.quiet
def test_work_that_nobody_waits_for():
    with kit.Scene() as scene:
        address, took = scene.server.address, {}

        def attack():
            impatient = Impatient(address, kit.size(100, 300))
            took["during"] = miss(address, 1, 30, "honest")
            impatient.leave()
            took["after"] = miss(address, 2, 30, "impatient")

        seen = scene.under(attack)
        scene.server.eventually("bucketd_plan_compute_queued", 0, 5)
        given_up = scene.server.metric("bucketd_plan_computations_dropped_total")
        begin = time.monotonic()
        scene.server.drain()
        took["the end"] = time.monotonic() - begin
    print({what: f"{seconds:.1f} s" for what, seconds in took.items()}, f"{given_up:.0f} dropped")
    seen.holds("work that nobody waits for", memory_mib=150)
    assert given_up > kit.size(50, 150)
    assert took["the end"] < 8 and took["after"] < 15


class SlowUploads:
    """Streams that announce much and bring a byte now and then."""

    def __init__(self, address: str, streams: int, announced: int, source: str):
        self._connection = Connection(address, source)
        self._streams = [self._connection.next_stream() for _ in range(streams)]
        self._stop = threading.Event()
        for stream in self._streams:
            header = planner_pb2.UploadHeader(tenant="slow", graph_digest=hashlib.sha256(b"%d" % stream).digest(), size=announced,
                                              content_sha256=bytes(32))
            self._send(frame(http2.HEADERS, http2.END_HEADERS, stream, http2.header_block(http2.UPLOAD_GRAPH)))
            self._message(stream, planner_pb2.UploadGraphRequest(header=header))
        self._thread = threading.Thread(target=self._trickle)
        self._thread.start()

    def _send(self, data: bytes) -> None:
        self._connection.send(data)

    def _message(self, stream: int, part) -> None:
        self._send(frame(http2.DATA, 0, stream, http2.message(part.SerializeToString())))

    def _trickle(self) -> None:
        try:
            while not self._stop.wait(1.0):
                for stream in self._streams:
                    self._message(stream, planner_pb2.UploadGraphRequest(chunk=b"\0"))
        except OSError:
            pass

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


@pytest.mark.quiet
@pytest.mark.parametrize(("streams", "mib", "source"), [(2, 256, "127.0.0.1"), (64, 1, ELSEWHERE), (64, 1, "127.0.0.1")])
def test_uploads_that_bring_nothing(streams, mib, source):
    with kit.Scene() as scene:
        address, took = scene.server.address, []

        def attack():
            slow = SlowUploads(address, streams, mib << 20, source)
            scene.server.eventually("bucketd_uploads_in_flight", streams)
            took.extend(miss(address, width, 30) for width in range(1, kit.size(3, 10)))
            time.sleep(kit.size(0, 12))
            slow.end()

        seen = scene.under(attack)
    print(f"misses took {[round(seconds, 2) for seconds in took]} s")
    seen.holds(f"{streams} slow uploads of {mib} MiB from {source}", memory_mib=100)
    assert max(took) < 20  # who was asked for the graph and is refused is asked again when the lease ends


@pytest.mark.quiet
def test_a_crowd_that_waits_for_one_graph():
    """As many calls as may wait; nobody brings the graph."""
    calls = kit.size(512, 8192)
    request = Key(2, 8, 0, "crowd").request()
    request.graph_digest = bytes(32)
    message = http2.message(request.SerializeToString())
    block = http2.header_block(http2.GET_PLAN)
    with kit.Scene("--max-waiting", str(calls)) as scene:
        address, took, crowd = scene.server.address, [], []

        def attack():
            for number in range(calls + 8):
                if number % 512 == 0:
                    crowd.append(Connection(address, ELSEWHERE))
                if number % 32 == 0:
                    time.sleep(0.01)
                stream = crowd[-1].next_stream()
                crowd[-1].send(frame(http2.HEADERS, http2.END_HEADERS, stream, block)
                               + frame(http2.DATA, http2.END_STREAM, stream, message))
            harness.wait_for(lambda: scene.server.metric("bucketd_waiting_callers") >= calls, "the crowd to wait")
            took.extend(miss(address, width, 30) for width in (1, 2))

        seen = scene.under(attack)
        for connection in crowd:
            connection.close()
    print(f"misses took {[round(seconds, 2) for seconds in took]} s")
    seen.holds("a crowd that waits for one graph", memory_mib=kit.size(100, 500))
    assert max(took) < 10


def test_a_host_that_fills_the_room_for_requests_leaves_as_much_to_others():
    """Of the 32 MiB that requests may hold here, a host gets half; each holds its megabyte until it is read, and then four. Six
    come at once: while three wait, two more are too many to be read, and with them out of the way there is room for the last,
    unless it was read beside them."""
    request = Key(2, 8, 0, "large").request()
    request.graph_digest = bytes(32)

    def large(number: int):
        request.options.parameter_order[:] = [f"{number}." + "x" * 1_000_000]
        return request

    with harness.Server("--max-upload-bytes", "512MiB", "--max-in-flight-bytes", "576MiB", "--upload-lease-ms", "3600000",
                        address="127.0.0.1:0") as server, \
            Connection(server.address, ELSEWHERE) as elsewhere:
        here = planner_pb2_grpc.PlannerStub(harness.channel_to(server.address))
        here.GetPlan(request, timeout=30)  # is asked for the graph and does not bring it
        messages = {elsewhere.next_stream(): http2.message(large(number).SerializeToString()) for number in range(6)}
        for stream in messages:
            elsewhere.send(frame(http2.HEADERS, http2.END_HEADERS, stream, http2.header_block(http2.GET_PLAN)))
        elsewhere.send_together(messages)
        refused = lambda: elsewhere.answers.count(b"too many bytes")
        harness.wait_for(lambda: refused() + server.metric("bucketd_waiting_callers") == 6, "six to be refused or to wait")
        assert refused() in (2, 3)
        waiting = [here.GetPlan.future(large(number), timeout=60) for number in range(100, 102)]
        server.eventually("bucketd_waiting_callers", 6 - refused() + 2)
        for call in waiting:
            call.cancel()
