"""Requests that are larger than what they say, to calls that wait: fields that nobody knows, which whoever parses keeps."""

import grpc
import harness
import kit
import pytest

from bucketd._wire.proto import agent_pb2

_MOST = 64 << 10  # bytes of such a request
_AGENTS = "/bucketd.v1.Agents/"


def _padded(message, size: int) -> bytes:
    """With numbers of two bytes in a field that there is not: of all that may be sent they take most room when they are parsed."""
    plain = message.SerializeToString()
    return plain + b"\x78\x01" * ((size - len(plain)) // 2)


def _join(group: str, rank: int, size: int):
    return agent_pb2.RendezvousRequest(group=group, rank=rank, size=size, endpoint=f"host:{rank + 1}")


def _requests(channel, method: str, calls: int) -> list:
    """Whose calls wait: for the last rank of a group, for the end of an epoch."""
    if method == "Rendezvous":
        return [_join("group", rank, calls + 1) for rank in range(calls)]
    meet = channel.unary_unary(_AGENTS + "Rendezvous", agent_pb2.RendezvousRequest.SerializeToString,
                               agent_pb2.RendezvousResponse.FromString)
    epoch = meet(_join("group", 0, 1), timeout=30).epoch
    return [agent_pb2.WatchEpochRequest(group="group", epoch=epoch)] * calls


@pytest.mark.quiet
@pytest.mark.parametrize("method", ["Rendezvous", "WatchEpoch"])
def test_calls_that_wait_hold_nothing_of_what_came_with_them(method):
    calls = kit.size(300, 1000)
    with kit.Scene() as scene, harness.channel_to(scene.server.address) as channel:
        ask = channel.unary_unary(_AGENTS + method)
        requests, waiting = _requests(channel, method, calls), []

        def all_wait():
            return scene.server.metric("bucketd_requests_in_flight") >= len(waiting)

        def attack():
            for request in requests:
                waiting.append(ask.future(_padded(request, _MOST), timeout=120))
                if len(waiting) % 10 == 0 or len(waiting) == calls:  # it is not about how fast they come
                    harness.wait_for(all_wait, "the calls to wait", 60)

        seen = scene.under(attack)
        assert not any(call.done() for call in waiting)
        for call in waiting:
            call.cancel()
    seen.holds(f"{calls} calls of {method} that wait with much that nobody knows", memory_mib=kit.size(48, 64))


@pytest.mark.quiet
@pytest.mark.parametrize("method", ["Rendezvous", "WatchEpoch"])
def test_what_is_larger_is_refused_before_anything_of_it_is_parsed(method):
    calls = kit.size(48, 500)
    with kit.Scene() as scene, harness.channel_to(scene.server.address) as channel:
        ask = channel.unary_unary(_AGENTS + method)
        requests = _requests(channel, method, calls)

        def attack():
            waiting = [ask.future(_padded(request, 2_000_000), timeout=20) for request in requests]
            for call in waiting:
                error = call.exception()
                assert isinstance(error, grpc.RpcError), "it waits"
                reason = harness.reason_of(error)
                assert (reason.reason, reason.metadata["limit"]) == ("REQUEST_TOO_LARGE", str(_MOST)), reason

        seen = scene.under(attack)
    seen.holds(f"{calls} large requests to {method}", memory_mib=100)
