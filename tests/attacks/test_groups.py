"""Agents of groups that are made up, each for a tenant of its own: where callers have no names, anybody may name any tenant."""

import grpc
import harness
import kit
import pytest
from http2 import DATA, END_HEADERS, END_STREAM, HEADERS, Connection, frame, header_block, message

from bucketd._wire.proto import agent_pb2

ELSEWHERE = "127.0.0.2"  # another peer
_JOIN = "/bucketd.v1.Agents/Rendezvous"
_MOST = 4096  # groups that a server keeps
_STREAMS = 64  # of a connection


def _request(tenant: str, rank: int, size: int) -> agent_pb2.RendezvousRequest:
    return agent_pb2.RendezvousRequest(tenant=tenant, group="group", rank=rank, size=size, endpoint=f"host:{rank + 1}")


def _wait_for_nobody(address: str, first: int) -> Connection:
    """A rank of each of so many groups whose other rank never comes."""
    connection = Connection(address, ELSEWHERE)
    for number in range(first, first + _STREAMS):
        stream = connection.next_stream()
        connection.send(frame(HEADERS, END_HEADERS, stream, header_block(_JOIN, grpc_timeout="60S")))
        connection.send_data(stream, message(_request(f"made-up-{number}", 0, 2).SerializeToString()))
        connection.send(frame(DATA, END_STREAM, stream))
    return connection


def _meet(address: str, ranks: int) -> list[Connection]:
    """All ranks of a group, whose answers name all of them, and are not taken."""
    connections = []
    for rank in range(ranks):
        if rank % 500 == 0:
            connections.append(Connection(address, ELSEWHERE))
        stream = connections[-1].next_stream()
        request = agent_pb2.RendezvousRequest(tenant="many", group="group", rank=rank, size=ranks, endpoint=f"{rank:0256}")
        connections[-1].send(frame(HEADERS, END_HEADERS, stream, header_block(_JOIN, grpc_timeout="60S")))
        connections[-1].send_data(stream, message(request.SerializeToString()))
        connections[-1].send(frame(DATA, END_STREAM, stream))
    return connections


@pytest.mark.quiet
def test_a_group_whose_answers_are_long_takes_the_memory_of_one():
    ranks = kit.size(1500, 3000)
    with kit.Scene() as scene:
        connections = []

        def attack():
            connections.extend(_meet(scene.server.address, ranks))
            harness.wait_for(lambda: all(len(connection.answers) > 16_384 for connection in connections), "the ranks to meet", 60)

        seen = scene.under(attack)
        for connection in connections:
            connection.close()
    seen.holds(f"{ranks} ranks that hear of each other", memory_mib=200)


@pytest.mark.quiet
def test_a_host_that_has_all_groups_keeps_no_other_one_out():
    with kit.Scene() as scene, harness.channel_to(scene.server.address) as channel:
        join = channel.unary_unary(_JOIN, agent_pb2.RendezvousRequest.SerializeToString, agent_pb2.RendezvousResponse.FromString)
        connections = []

        def attack():
            connections.extend(_wait_for_nobody(scene.server.address, first) for first in range(0, _MOST, _STREAMS))
            harness.wait_for(lambda: scene.server.metric("bucketd_requests_in_flight") >= _MOST, "the calls to wait", 60)
            ranks = [join.future(_request("honest", rank, 2), timeout=20) for rank in range(2)]
            try:
                assert len({rank.result().epoch for rank in ranks}) == 1
            except grpc.RpcError as error:
                pytest.fail(f"two honest ranks did not meet: {harness.reason_of(error)}")

        seen = scene.under(attack)
        displaced = scene.server.metric("bucketd_displaced_total")
        for connection in connections:
            connection.close()
    seen.holds(f"{_MOST} groups of made-up tenants", memory_mib=200)
    assert displaced >= 1
