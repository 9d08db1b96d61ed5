"""What an operator does with real servers: follow one request through the log, and stop all planning at once."""

import json

import grpc
import pytest
from live_server import Server, ctl, request_for, without_graph
from waiting import wait_for

from bucketd._wire.proto import planner_pb2

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_every_line_about_a_call_names_it_and_the_reply_names_our_span(tmp_path):
    # The store is too small for any plan: that, too, is said about the call.
    with Server(tmp_path, "--log-json", "--log-level", "debug", "--store-dir", str(tmp_path / "store"), "--store-bytes", "100") as server:
        request = request_for(8)
        _, call = server.stub.GetPlan.with_call(request, timeout=30, metadata=(("traceparent", f"00-{TRACE}-{PARENT}-00"),))
        version, trace, span, flags = dict(call.trailing_metadata())["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "00") and span != PARENT
        server.stub.GetPlan(request_for(16), timeout=30)
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    about = [line for line in lines if line.get("trace") == TRACE]
    assert [line["message"].split(":")[0] for line in about] == ["plan computed", "store", "GetPlan"]
    names = ("request", "trace", "span", "parent_span")
    assert {tuple(line[name] for name in names) for line in about} == {(about[0]["request"], TRACE, span, PARENT)}
    graph = request.graph_digest.hex()
    assert all(line in about for line in lines if graph in json.dumps(line)), "and no other line is about its graph"
    untraced = [line for line in lines if line["message"] == "plan computed" and line not in about]
    assert untraced and all("request" in line and "trace" not in line for line in untraced)


def test_what_callers_write_is_no_command_to_an_operators_terminal(tmp_path):
    with Server(tmp_path) as server:
        request = request_for(8)
        request.options.mode = "\x1b[2Jclear\x9bm"
        with pytest.raises(grpc.RpcError):
            server.stub.GetPlan(request, timeout=30)
        shown = ctl("status", server=server)
        assert r"\x1b[2Jclear\x9bm" in shown, "the last errors name it"
        assert not [c for c in shown if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]


def job(request, generation: int):
    return without_graph(request, job=planner_pb2.Job(id="train", generation=generation, scope="0/fw", rank=[0], size=1))


def test_the_kill_switch_stops_every_server_of_a_store_and_lets_them_go_again(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    store = ("--store-dir", str(tmp_path / "store"))
    with Server(folders[0], *store) as a, Server(folders[1], *store) as b:
        request = request_for(8)
        known = without_graph(request)
        assert b.stub.GetPlan(request, timeout=30).HasField("plan")
        for _ in range(2):  # the second is known by its bytes
            assert b.stub.GetPlan(known, timeout=30).plan.source == planner_pb2.PLAN_SOURCE_HIT
        assert b.stub.GetPlan(job(request, 1), timeout=30).HasField("plan")

        assert "within two seconds" in ctl("disable", "--why", "INC-7: loss spikes", server=a)
        wait_for(lambda: not b.status()["planning"]["enabled"], "the other server to follow")
        assert b.status()["planning"]["why"] == "INC-7: loss spikes"
        assert b.metric("bucketd_planning_enabled") == 0
        for server in (a, b):
            with pytest.raises(grpc.RpcError) as refused:
                server.stub.GetPlan(known, timeout=30)
            assert "INC-7: loss spikes" in refused.value.details()
        assert b.stub.GetPlan(job(request, 1), timeout=30).HasField("plan"), "it has agreed, and keeps its plan"
        assert b.stub.GetPlan(job(request, 2), timeout=30).unplanned.why == "INC-7: loss spikes"
        assert "OFF" in ctl("status", server=b)

        ctl("enable", "--why", "fixed", server=b)
        wait_for(lambda: a.status()["planning"]["enabled"], "the other server to follow")
        assert b.stub.GetPlan(known, timeout=30).HasField("plan")
        assert b.stub.GetPlan(job(request, 2), timeout=30).HasField("unplanned"), "all ranks of a generation alike"
        assert b.stub.GetPlan(job(request, 3), timeout=30).HasField("plan")


def test_a_new_server_of_a_switched_off_store_is_off(tmp_path):
    store = ("--store-dir", str(tmp_path / "store"))
    with Server(tmp_path, *store) as server:
        ctl("disable", "--why", "INC-8", server=server)
    with Server(tmp_path, *store) as server:
        assert server.status()["planning"]["why"] == "INC-8"
