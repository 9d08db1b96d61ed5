"""Clients of the side port, of a server and of an agent, that send half a request, drip it, or do not read what they asked for."""

import contextlib
import socket
import threading
import time

import kit
import pytest
from harness import expect
from live_agents import agents

_HALF = b"GET /readyz HTTP/1.1\r\nHost: x\r\n"
_UNREAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def _connect(http: str) -> socket.socket:
    host, port = http.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def _hold(http: str, count: int, seconds: float, sent: bytes, drip: bytes = b"") -> None:
    """So many connections at any time; who is thrown out comes back."""
    until = time.monotonic() + seconds
    held = []
    try:
        while time.monotonic() < until:
            for one in list(held):
                try:
                    one.sendall(drip)
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        if not drip and not sent and not one.recv(1):
                            raise OSError
                    one.setblocking(True)
                except OSError:
                    one.close()
                    held.remove(one)
            while len(held) < count and time.monotonic() < until:
                held.append(_connect(http))
                held[-1].sendall(sent)
            time.sleep(0.1)
    finally:
        for one in held:
            one.close()


def _health(http: str, over: threading.Event) -> list:
    """How long /readyz took, each time on a connection of its own."""
    took = []
    while not over.is_set():
        begin = time.monotonic()
        with _connect(http) as one:
            one.sendall(_HALF + b"\r\n")
            answer = b""
            while more := one.recv(4096):
                answer += more
        expect(answer.endswith(b"\r\n\r\nok\n"), "/readyz said", answer)
        took.append(time.monotonic() - begin)
        time.sleep(0.01)
    return took


def _attack(http: str, count: int, seconds: float) -> list:
    over, took = threading.Event(), []
    watch = threading.Thread(target=lambda: took.extend(_health(http, over)))
    watch.start()
    kinds = [(b"", b""), (_HALF, b""), (_HALF, b"x"), (_UNREAD, b"")]
    slow = [threading.Thread(target=_hold, args=(http, count // len(kinds), seconds, *kind)) for kind in kinds]
    for one in slow:
        one.start()
    for one in slow:
        one.join()
    over.set()
    watch.join()
    return took


def _holds(what: str, count: int, took: list) -> None:
    print(f"{count} slow clients of {what}: /readyz p99 {1e3 * kit.p99(took):.1f} ms, worst {1e3 * max(took):.0f} ms, {len(took)} calls")
    expect(len(took) > 20 and max(took) < 1.0, "health took", max(took), "s beside", count, "slow clients of", what)


@pytest.mark.quiet
@pytest.mark.parametrize("count", kit.size([8, 64], [8, 64, 512]))
def test_slow_clients_of_a_servers_side_port_keep_nobody_from_its_health(count):
    took = []
    with kit.Scene() as scene:
        seen = scene.under(lambda: took.extend(_attack(scene.server.http, count, kit.size(1.5, 10))))
    seen.holds(f"{count} slow clients of the side port", memory_mib=64)
    _holds("a server", count, took)


@pytest.mark.quiet
def test_slow_clients_of_an_agents_side_port_keep_nobody_from_its_health(tmp_path):
    count = kit.size(64, 512)
    with kit.Scene() as scene, agents(tmp_path, scene.server.address, 2, probe_every="1h") as group:
        _holds("an agent", count, _attack(group[0].http, count, kit.size(1.5, 10)))
