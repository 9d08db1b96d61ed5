"""The checks of histories find what is planted, and let pass what may be."""

import contextlib
import dataclasses
import random
import socket
import threading
import time

import pytest
from fault_proxy import FaultyLink
from history import Call, epochs_that_shrink, looks_at_switch, two_plans
from linearizable import out_of_order


def agreed(rank, value, begin=0.0, end=1.0, generation=1, error=""):
    return Call("agree", ("", "job", generation, "fw"), rank, begin, end, value, error)


def test_two_plans_in_one_generation_are_found_and_a_plan_that_was_asked_for_twice_is_not():
    assert two_plans([agreed(0, "a"), agreed(1, "a"), agreed(1, "a"), agreed(0, "b", generation=2), agreed(2, "c", error="DEADLINE")]) == []
    (found,) = two_plans([agreed(0, "a"), agreed(1, "b"), agreed(2, "a")])
    assert "a to [0, 2]; b to [1]" in found
    assert two_plans([agreed(0, "a"), agreed(1, "unplanned")])


def switched(value, begin, end, error=""):
    return Call("write", ("planning",), "op", begin, end, value, error)


def test_a_plan_for_a_generation_that_began_after_planning_was_off_is_found():
    def wrong(agreements, switches):
        return out_of_order(switches + looks_at_switch(agreements), "on")

    off, on = switched("off", 1.0, 2.0), switched("on", 9.0, 10.0)
    assert wrong([agreed(0, "a", 2.5, 3.0)], [off, on])
    assert not wrong([agreed(0, "unplanned", 2.5, 3.0)], [off, on])
    assert not wrong([agreed(0, "a", 1.5, 3.0)], [off, on]), "it began before the operator was answered"
    assert not wrong([agreed(0, "a", 8.0, 9.5)], [off, on]), "it may have been decided after"
    assert not wrong([agreed(0, "a", 2.5, 3.0)], [switched("off", 1.0, 2.0, "UNAVAILABLE")])


def swapped(new, before, begin, end):
    return Call("swap", ("latest", "site"), "op", begin, end, (new, before))


def lost_write(new, begin, end):
    return Call("write", ("latest", "site"), "op", begin, end, new, "UNAVAILABLE")


def test_promotions_have_an_order():
    assert not out_of_order([swapped(2, 1, 0, 1), swapped(1, 2, 2, 3)], 1)
    assert not out_of_order([swapped(2, 3, 0, 5), swapped(3, 1, 1, 4)], 1), "whoever was asked second may be first"
    assert out_of_order([swapped(2, 1, 0, 1), swapped(3, 1, 2, 3)], 1), "one that did not know of the other"
    assert out_of_order([swapped(2, 1, 0, 3), swapped(3, 1, 1, 2)], 1), "nor at the same time"
    assert out_of_order([swapped(2, 1, 0, 1), swapped(1, 1, 2, 3)], 1), "done already, it said, and it was not"
    assert out_of_order([swapped(3, 2, 0, 1)], 1), "a version that nobody promoted"


def test_a_call_that_failed_may_have_its_effect_at_any_time_or_never():
    lost = lost_write(2, 0, 1)
    assert not out_of_order([lost, swapped(3, 1, 2, 3)], 1)
    assert not out_of_order([lost, swapped(3, 2, 2, 3)], 1)
    assert not out_of_order([lost, swapped(3, 1, 2, 3), swapped(1, 2, 4, 5)], 1), "even late"
    assert out_of_order([lost, swapped(3, 2, 2, 3), swapped(1, 2, 4, 5)], 1), "but once"
    assert out_of_order([swapped(3, 2, 0, 1), lost_write(2, 2, 3)], 1), "and not before it was asked for"


def test_long_histories_are_checked_soon():
    rng = random.Random(1)
    state, calls = 0, []
    for at in range(3000):
        new = rng.randrange(4)
        calls.append(swapped(new, state, at - rng.uniform(0, 3), at + rng.uniform(0, 3)))
        state = new
        if rng.random() < 0.02:
            calls.append(lost_write(rng.randrange(4), at - 1, at))
    assert not out_of_order(calls, 0, lasting=5)
    late = dataclasses.replace(calls[2000], value=(calls[2000].value[0], 9))
    (found,) = out_of_order(calls[:2000] + [late] + calls[2001:], 0, lasting=5)
    assert "(9" in found or "9)" in found


def test_epochs_grow_in_real_time_and_belong_to_one_meeting():
    epoch = lambda who, value, begin, end: Call("epoch", ("g",), who, begin, end, value)  # noqa: E731
    assert epochs_that_shrink([epoch(1, 5, 0, 1), epoch(2, 4, 0.5, 1.5), epoch(3, 6, 2, 3)]) == []
    assert epochs_that_shrink([epoch(1, 5, 0, 1), epoch(2, 5, 2, 3)])
    assert epochs_that_shrink([epoch(1, 5, 0, 1), epoch(2, 4, 1.5, 2)])


@pytest.fixture
def echo():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            while True:
                try:
                    one, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(one,), daemon=True).start()

        def answer(one):
            with one, contextlib.suppress(ConnectionResetError):
                while data := one.recv(100):
                    one.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def said(client, what: bytes, within: float = 5.0) -> bytes | None:
    """None: nothing comes."""
    client.settimeout(within)
    client.sendall(what)
    try:
        return client.recv(100)
    except TimeoutError:
        return None


def test_a_link_is_cut_held_delayed_and_healed(echo):
    with FaultyLink(echo) as link:
        client = socket.create_connection(("127.0.0.1", link.port))
        assert said(client, b"one") == b"one"
        link.delay(0.2)
        begin = time.monotonic()
        assert said(client, b"two") == b"two" and time.monotonic() - begin >= 0.4
        link.hold_answers()
        assert said(client, b"three", 0.3) is None
        link.heal()
        client.settimeout(5)
        assert client.recv(100) == b"three", "what was held comes later"
        link.hold()
        assert said(client, b"four", 0.3) is None
        link.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(100)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", link.port))
        link.heal()
        with socket.create_connection(("127.0.0.1", link.port)) as other:
            assert said(other, b"six") == b"six"
