"""What HTTP/2 and gRPC's framing allow a single connection to do."""

import contextlib
import socket
import struct
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterable

import harness
import honest
import http2
import kit
import pytest
from http2 import Connection, frame

from bucketd._wire.proto import planner_pb2_grpc

_AT_ONCE = 1000  # resets in one write


def _resets(first: int, count: int, block: bytes) -> bytes:
    cancel = (8).to_bytes(4, "big")
    streams = range(first, first + 2 * count, 2)
    return b"".join(frame(http2.HEADERS, http2.END_HEADERS, s, block) + frame(http2.RST_STREAM, 0, s, cancel) for s in streams)


def rapid_reset(address: str, resets: int, seconds: float) -> int:
    """Calls that are taken back as they begin: none counts against the number of open streams. `resets` on a connection; who is
    thrown out comes back until `seconds` are over."""
    block = http2.header_block(http2.GET_PLAN)
    writes = [_resets(first, _AT_ONCE, block) for first in range(1, 2 * resets, 2 * _AT_ONCE)]
    until = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < until:
        try:
            with Connection(address) as connection:
                for write in writes:
                    connection.send(write)
                    sent += _AT_ONCE
                connection.closed.wait(max(0.0, until - time.monotonic()))  # what waits in the socket is read, too
        except OSError:
            time.sleep(0.01)
    return sent


def flood(address: str, seconds: float, *frames: bytes) -> None:
    """The same few frames over and over; who is thrown out comes back."""
    write = b"".join(frames) * _AT_ONCE
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with Connection(address) as connection:
                while time.monotonic() < until:
                    connection.send(write)
        except OSError:
            time.sleep(0.01)


def bomb(mib: int) -> bytes:
    """A gzip stream that inflates to so many mebibytes, a thousandth of that in size."""
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = press.compress(bytes(1 << 20)) + press.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + piece * mib + b"\x03\0" + bytes(8)


def gzip_bombs(address: str, count: int, mib: int) -> bytes:
    """Messages that gRPC is asked to inflate. Returns what the server said."""
    data = http2.message(bomb(mib), compressed=True)
    with Connection(address) as connection:
        for _ in range(count):
            stream = connection.next_stream()
            block = http2.header_block(http2.GET_PLAN, grpc_encoding="gzip")
            connection.send(frame(http2.HEADERS, http2.END_HEADERS, stream, block))
            with contextlib.suppress(ConnectionError):  # the server takes a window of what it has refused
                connection.send_data(stream, data)
        connection.closed.wait(2.0)
        return bytes(connection.answers)


def patient_calls(address: str, calls: int, seconds: float) -> int:
    """Large requests for a plan of a graph that nobody has: each is held while its call waits. Returns how many were refused."""
    request = honest.KEY.request()
    request.graph_digest = bytes(32)
    channel = harness.channel_to(address)
    ask = planner_pb2_grpc.PlannerStub(channel).GetPlan
    waiting = []
    for number in range(calls):
        request.options.parameter_order[:] = [f"{number}." + "x" * 1_000_000]
        waiting.append(ask.future(request, timeout=seconds))
    refused = sum(call.exception() is not None and call.code().name == "RESOURCE_EXHAUSTED" for call in waiting)
    channel.close()
    return refused


def how_many_end(connections: Iterable[Connection], say: Callable[[Connection], None]) -> int:
    """Of connections that are opened one after the other, on each of which something is said; within two seconds of the last."""
    held = []
    for connection in connections:
        held.append(connection)
        with contextlib.suppress(OSError):
            say(connection)
    until = time.monotonic() + 2
    ended = sum(connection.closed.wait(max(0.0, until - time.monotonic())) for connection in held)
    for connection in held:
        connection.close()
    return ended


def messages_without_an_end(address: str, connections: int, mib: int) -> int:
    """So many mebibytes a connection of messages whose last byte never comes. Returns how many connections were ended."""
    message, block = http2.message(bytes(2_000_000)), http2.header_block(http2.GET_PLAN)

    def say(connection):
        for _ in range(mib // 2):
            stream = connection.next_stream()
            connection.send(frame(http2.HEADERS, http2.END_HEADERS, stream, block))
            connection.send_data(stream, message[:-1], patience=10)

    return how_many_end((Connection(address, f"127.0.0.{2 + number % 2}") for number in range(connections)), say)


@pytest.mark.quiet
def test_messages_without_an_end():
    """More than all memory that there is for messages; gRPC then closes connections, and not those that hold it."""
    ended, connections = [], kit.size(4, 12)
    with kit.Scene() as scene:
        seen = scene.under(lambda: ended.append(messages_without_an_end(scene.server.address, connections, 120)))
        assert scene.server.metric("bucketd_connections_closed_total") == ended[0] > 0
    seen.holds(f"messages without an end, {connections} times 120 MiB", memory_mib=kit.MESSAGES_MIB)


def small_pieces_of_large_messages(address: str, connections: int, mib: int) -> int:
    """Forty bytes of a message, sixteen kilobytes that belong to no call, and so on: so many mebibytes a connection. Returns how many
    connections were ended."""
    block, nobodys, junk = http2.header_block(http2.GET_PLAN), 999_999, bytes(1 << 14)

    def say(connection):
        streams = [connection.next_stream() for _ in range(30)]
        for stream in streams:
            connection.send(frame(http2.HEADERS, http2.END_HEADERS, stream, block))
            connection.send_data(stream, http2.message(bytes(4_000_000))[:5])
        for number in range(mib << 6):
            connection.send_data(streams[number % len(streams)], bytes(40), patience=10)
            connection.give_window(nobodys)
            connection.send_data(nobodys, junk, patience=10)

    return how_many_end((Connection(address, f"127.0.0.{2 + number}") for number in range(connections)), say)


@pytest.mark.quiet
def test_small_pieces_of_messages_that_keep_the_memory_around_them():
    """gRPC keeps all that it has read together with a piece of a message."""
    ended, connections = [], kit.size(4, 8)
    with kit.Scene() as scene:
        seen = scene.under(lambda: ended.append(small_pieces_of_large_messages(scene.server.address, connections, kit.size(100, 500))))
        assert ended[0] == connections, "each holds as much as it sends"
    seen.holds(f"small pieces of large messages, {connections} connections", memory_mib=kit.MESSAGES_MIB)


def test_what_comes_behind_the_message_of_a_call_that_waits_is_bounded_by_its_window():
    request = honest.KEY.request()
    request.graph_digest = bytes(32)  # nobody has that graph
    block = http2.header_block(http2.GET_PLAN, grpc_timeout="20S")
    with harness.Server(address="127.0.0.1:0") as server, Connection(server.address) as connection:
        for _ in range(2):  # the first caller is asked for it, the second waits
            stream = connection.next_stream()
            connection.send(frame(http2.HEADERS, http2.END_HEADERS, stream, block))
            connection.send_data(stream, http2.message(request.SerializeToString()))
        server.eventually("bucketd_requests_in_flight", 1)
        with pytest.raises(ConnectionError):
            for _ in range(200):
                connection.send_data(stream, http2.message(bytes(1000)))
        assert not connection.closed.is_set(), "its window is shut, and it goes on"


def calls_without_requests(address: str, connections: int, calls: int, acknowledged: bool) -> int:
    """Opens so many calls a connection and sends nothing more; `acknowledged`: the server's settings, among them how many there may
    be at a time. Returns how many connections were ended."""
    block = http2.header_block(http2.GET_PLAN)
    opened = b"".join(frame(http2.HEADERS, http2.END_HEADERS, 2 * number + 1, block) for number in range(calls))
    host, port = address.rsplit(":", 1)
    held, ended = [], 0
    for number in range(connections):
        held.append(sock := socket.create_connection((host, int(port)), timeout=30, source_address=(f"127.0.0.{2 + number % 2}", 0)))
        try:
            sock.sendall(http2.PREFACE + frame(http2.SETTINGS, 0, 0) + acknowledged * frame(http2.SETTINGS, http2.ACK, 0))
            sock.sendall(opened)
        except OSError:
            pass
        time.sleep(0.05)  # it is about memory: opened at once they cost a second of both cores
    for sock in held:
        sock.settimeout(2.0)
        try:
            while sock.recv(1 << 16):
                pass
            ended += 1
        except TimeoutError:
            pass
        except OSError:
            ended += 1
        sock.close()
    return ended


@pytest.mark.quiet
@pytest.mark.parametrize("acknowledged", [True, False])
def test_calls_whose_requests_never_come(acknowledged):
    """gRPC holds who has not acknowledged its settings to no number of calls, and each is kept."""
    ended = []
    connections, calls = (kit.size(60, 150), 1000) if acknowledged else (2, kit.size(50_000, 150_000))
    with kit.Scene() as scene:
        seen = scene.under(lambda: ended.append(calls_without_requests(scene.server.address, connections, calls, acknowledged)))
        assert scene.server.metric("bucketd_connections_closed_total") == ended[0] > 0
    seen.holds(f"calls whose requests never come, {connections} times {calls}", memory_mib=100)


def answers_that_nobody_takes(address: str, connections: int, calls: int) -> int:
    """So many hits a connection whose windows stay shut. Returns how many connections were ended."""
    shut = frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + frame(http2.SETTINGS, http2.ACK, 0)
    block, request = http2.header_block(http2.GET_PLAN), http2.message(honest.KEY.request().SerializeToString())

    def say(connection):
        time.sleep(0.1)  # it is about memory
        connection.send(shut)
        for _ in range(calls):
            stream = connection.next_stream()
            connection.send(frame(http2.HEADERS, http2.END_HEADERS, stream, block)
                            + frame(http2.DATA, http2.END_STREAM, stream, request))

    return how_many_end((Connection(address, "127.0.0.2") for _ in range(connections)), say)


@pytest.mark.quiet
def test_answers_that_nobody_takes():
    """gRPC keeps an answered call until its client has taken the answer; none of them waits for anything here."""
    ended, connections = [], kit.size(8, 60)
    with kit.Scene() as scene:
        seen = scene.under(lambda: ended.append(answers_that_nobody_takes(scene.server.address, connections, 1000)))
        assert scene.server.metric("bucketd_connections_closed_total") == ended[0] > 0
    seen.holds(f"answers that nobody takes, {connections} times 1000", memory_mib=kit.MESSAGES_MIB // 2)


def silent_connections(address: str, count: int) -> list[socket.socket]:
    """That are opened and say nothing."""
    host, port = address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=30, source_address=("127.0.0.2", 0)) for _ in range(count)]


def test_more_connections_than_files(monkeypatch, tmp_path):
    """gRPC stops listening for good when no file is left; the side port needs some, too."""
    few = tmp_path / "bucketd"
    few.write_text(f"#!/bin/sh\nulimit -n 200\nexec {harness.BINARY} \"$@\"\n")
    few.chmod(0o700)
    monkeypatch.setattr(harness, "BINARY", str(few))
    with harness.Server(address="127.0.0.1:0") as server:
        silent = silent_connections(server.address, 400)
        for _ in range(2):
            assert urllib.request.urlopen(f"http://{server.http}/readyz", timeout=30).status == 200
            harness.Caller(server.address).ask(honest.KEY, 30, inline=True)
            assert server.metric("bucketd_connections_closed_total") >= 250
            for connection in silent:
                connection.close()


@pytest.mark.quiet
def test_rapid_reset():
    with kit.Scene() as scene:
        sent = []
        seen = scene.under(lambda: sent.append(rapid_reset(scene.server.address, kit.size(9_000, 54_000), kit.size(1.0, 10.0))))
    seen.holds(f"rapid reset, {sent[0]} of them", memory_mib=64)


@pytest.mark.quiet
def test_floods_of_frames_that_nobody_answers():
    ping = frame(http2.PING, 0, 0, bytes(8))
    settings = frame(http2.SETTINGS, 0, 0)
    windows = frame(http2.WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big"))
    answers = frame(http2.PING, http2.ACK, 0, bytes(8)) + frame(http2.SETTINGS, http2.ACK, 0)
    headers = frame(http2.HEADERS, http2.END_HEADERS, 2, http2.header_block(http2.GET_PLAN))
    seconds = kit.size(1.0, 10.0)
    with kit.Scene() as scene:
        address = scene.server.address
        for name, what in {"pings": ping, "settings": settings, "window updates": windows, "answers to nothing": answers,
                           "headers of no call": headers}.items():
            seen = scene.under(lambda: flood(address, seconds, what))
            seen.holds(f"a flood of {name}", memory_mib=100)
        closed = scene.server.metric("bucketd_connections_closed_total")
    assert closed > 0


@pytest.mark.quiet
def test_gzip_bomb():
    said = []
    with kit.Scene() as scene:
        seen = scene.under(lambda: said.append(gzip_bombs(scene.server.address, 3, kit.size(200, 1900))))
    seen.holds("gzip bombs", memory_mib=100)
    assert b"gzip" in said[0], "the refusal says why"


@pytest.mark.quiet
def test_large_requests_that_wait():
    refused = []
    with kit.Scene() as scene:
        seen = scene.under(lambda: refused.append(patient_calls(scene.server.address, kit.size(40, 400), kit.size(4.0, 8.0))))
    print(f"{refused[0]} refused")
    assert refused[0] > 0
    seen.holds("large requests that wait", memory_mib=kit.MESSAGES_MIB)
