"""The client against a real planner: plans, refusals with their reasons, and planners that die or say nothing."""

import concurrent.futures
import contextlib
import os
import signal
import threading
import time

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from layered_graphs import MESH, ask, layers, options
from planners import planner, wait_until_stopped

from bucketd import calls, canonical, client, plan, verify, wire
from bucketd._wire.proto import planner_pb2
from bucketd.client import PlannerClient
from bucketd.errors import PlannerError


def reason_of(call, *arguments, **more) -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        call(*arguments, **more)
    return caught.value


@pytest.fixture(scope="module")
def running():
    with planner() as one:
        yield one


@pytest.fixture
def to(running):
    made = PlannerClient(running.address)
    yield made
    made.close()


def test_gets_a_plan_that_is_legal_for_the_graph(to):
    graph = layers()
    reply = ask(to, graph)
    made = plan.parse(reply.plan)
    verify.check_plan(graph, canonical.digest(graph), made)
    assert [len(b.members) for b in made.buckets] == [2, 2]
    assert reply.sha256.hex() == made.sha256


def test_asks_again_and_hits(to):
    graph = layers(16)
    first, second = ask(to, graph), ask(to, graph)
    assert (first.source, second.source) == ("computed", "hit")
    assert first.plan == second.plan


def test_needs_no_graph_for_a_hit(to):
    graph = layers(24)
    ask(to, graph)

    def graph_again():
        raise AssertionError("the graph was made for a hit")

    assert to.get_plan(graph_again, canonical.digest(graph), MESH, options(), deadline=30).source == "hit"


def test_uploads_in_chunks_what_does_not_fit_inline():
    with planner("--max-inline-bytes", "0", "--max-chunk-bytes", "1024") as one:
        made = PlannerClient(one.address)
        assert made.capabilities().max_inline_graph_bytes == 0
        assert ask(made, layers()).source == "computed"
        assert ask(made, layers()).source == "hit"


def test_says_what_the_planner_can_do(to):
    capabilities = to.capabilities()
    assert "transformer_block" in capabilities.modes and capabilities.cost_profiles and capabilities.zstd


def test_travels_without_zstd_where_it_is_missing(to, monkeypatch):
    monkeypatch.setattr(client, "zstandard", None)
    assert ask(to, layers(32)).source == "computed"


@pytest.mark.parametrize("changes,reason", [
    (dict(mode="no such mode"), "OPTIONS_INVALID"),
    (dict(cost_profile="no such profile"), "PROFILE_UNKNOWN"),
])
def test_an_option_that_is_refused_says_what_is_known_and_is_nothing_to_fall_back_from(to, changes, reason):
    error = reason_of(ask, to, layers(), options(**changes))
    assert error.reason == reason and not error.leaves_unplanned
    assert ("transformer_block" if reason == "OPTIONS_INVALID" else to.capabilities().cost_profiles[0]) in str(error)


def test_a_plan_that_is_not_cached_says_so(to):
    assert reason_of(ask, to, layers(40), cached_only=True).reason == "PLAN_NOT_CACHED"


def test_a_graph_under_another_digest_is_refused(to):
    graph = layers(48)
    error = reason_of(to.get_plan, wire.to_proto(graph), bytes(32), MESH, options(), deadline=30)
    assert error.reason == "DIGEST_MISMATCH"


def damage(monkeypatch, change):
    """Lets `change` edit the payload that the client made, before it travels."""
    whole = client._Payload

    def damaged(*arguments):
        payload = whole(*arguments)
        change(payload)
        return payload

    monkeypatch.setattr(client, "_Payload", damaged)


def cut(payload):
    payload.data = payload.data[:-20]


def flip(payload):
    payload.data = payload.data[:100] + bytes([payload.data[100] ^ 1]) + payload.data[101:]


def lie_about_content(payload):
    payload.sha256 = bytes(32)


def lie_about_size(payload):
    payload.size += 1


def make_codec_plain(payload):
    payload.codec = planner_pb2.CODEC_UNSPECIFIED
    payload.size = len(payload.data)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("change,reasons", [
    (cut, {"CONTENT_MISMATCH", "GRAPH_MALFORMED"}),
    (flip, {"CONTENT_MISMATCH", "GRAPH_MALFORMED", "DIGEST_MISMATCH"}),
    (lie_about_size, {"CONTENT_MISMATCH"}),
    (make_codec_plain, {"CONTENT_MISMATCH", "GRAPH_MALFORMED"}),
])
def test_a_graph_that_comes_damaged_is_refused_with_a_reason(to, monkeypatch, change, reasons, inline):
    def edit(payload):
        payload.fits_inline = inline
        change(payload)

    damage(monkeypatch, edit)
    assert reason_of(ask, to, layers(56)).reason in reasons


def test_an_upload_of_other_content_than_announced_is_refused(to, monkeypatch):
    def edit(payload):
        payload.fits_inline = False
        lie_about_content(payload)

    damage(monkeypatch, edit)
    assert reason_of(ask, to, layers(56)).reason == "CONTENT_MISMATCH"


@pytest.mark.parametrize("believes", [True, False], ids=["refused_here", "refused_there"])
def test_a_graph_that_is_too_large_is_refused(monkeypatch, believes):
    with planner("--max-graph-bytes", "500") as one:
        made = PlannerClient(one.address)
        if not believes:
            calls.Route(made._caller).capabilities = client.dataclasses.replace(made.capabilities(), max_graph_bytes=1 << 30)
        error = reason_of(ask, made, layers())
        assert error.reason == "GRAPH_TOO_LARGE" and error.metadata["limit"] == "500"


def test_a_client_that_is_too_old_is_told(to, monkeypatch):
    monkeypatch.setattr(client, "CLIENT_VERSION", "0.0.9")
    error = reason_of(ask, to, layers())
    assert error.reason == "CLIENT_TOO_OLD" and "0.0.9" in str(error)


def test_a_plan_that_came_damaged_is_refused(to, monkeypatch):
    whole = calls.Route.call

    def damaged(self, method, request, until):
        answer = whole(self, method, request, until)
        if method == "GetPlan" and answer.WhichOneof("answer") == "plan":
            answer.plan.plan = answer.plan.plan[:-1]
        return answer

    monkeypatch.setattr(calls.Route, "call", damaged)
    error = reason_of(ask, to, layers())
    assert error.reason == "PROTOCOL" and "damaged" in str(error)


def test_nobody_at_the_address_is_an_error_soon(tmp_path):
    begin = time.monotonic()
    error = reason_of(ask, PlannerClient(f"unix:{tmp_path}/nobody", connect_timeout=1.0), layers())
    assert error.reason == "UNREACHABLE" and "nobody answers" in str(error)
    assert time.monotonic() - begin < 10


def test_why_nobody_answers_is_said_within_the_deadline(tmp_path):
    for address, why in ((f"unix:{tmp_path}/nobody", "No such file"), ("127.0.0.1:2", "Connection refused")):  # other tests give :1 up
        begin = time.monotonic()
        error = reason_of(PlannerClient(address, connect_timeout=1.0).capabilities, 1.0)
        assert error.reason == "UNREACHABLE" and why in error.message and "no answer in time" not in error.message
        assert time.monotonic() - begin < 1.5


def test_a_planner_that_is_killed_while_it_is_asked_is_an_error_soon():
    graph = layers()
    with planner() as one, concurrent.futures.ThreadPoolExecutor(1) as pool:
        first, second = (PlannerClient(one.address, connect_timeout=2.0) for _ in range(2))
        request = planner_pb2.GetPlanRequest(
            graph_digest=canonical.digest(graph), mesh=MESH, options=options(), client_version="0.1.0")
        until = time.monotonic() + 60
        assert calls.Route(first._caller).call("GetPlan", request, until).WhichOneof("answer") == "graph_required"
        waiting = pool.submit(ask, second, graph)  # held: the first one was asked for the graph
        concurrent.futures.wait([waiting], timeout=0.5)
        assert not waiting.done()
        os.kill(one.pid, signal.SIGKILL)
        error = waiting.exception(timeout=30)
        assert isinstance(error, PlannerError) and error.reason == "UNREACHABLE"


def test_a_planner_that_says_nothing_is_an_error_at_the_deadline(to, running):
    ask(to, layers())
    os.kill(running.pid, signal.SIGSTOP)
    try:
        wait_until_stopped(running.pid)
        begin = time.monotonic()
        error = reason_of(ask, to, layers(), deadline=1.5)
        assert error.reason == "DEADLINE"
        assert 1 < time.monotonic() - begin < 15
    finally:
        os.kill(running.pid, signal.SIGCONT)


def test_finds_a_planner_that_came_back(tmp_path):
    address = f"unix:{tmp_path}/socket"
    with planner(address=address) as one:
        made = PlannerClient(one.address)
        ask(made, layers())
    with planner(address=address):
        assert ask(made, layers()).source == "computed"


# -- whatever else may listen there


def trailer(reason: str, **retry) -> bytes:
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason))
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(**retry)))
    return status.SerializeToString()


def damaged_trailer() -> bytes:
    status = status_pb2.Status()
    status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff" * 9)
    return status.SerializeToString()


@contextlib.contextmanager
def stranger(*, get_plan=lambda context: b"", **capabilities):
    """A server that answers as a test says; its address, and how often GetPlan was called."""
    said = planner_pb2.GetCapabilitiesResponse(graph_format_version=1, max_inline_graph_bytes=1 << 20)
    for name, value in capabilities.items():
        setattr(said, name, value)
    calls_of_plan = []

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            if call.method.endswith("/GetCapabilities"):
                return grpc.unary_unary_rpc_method_handler(lambda _, context: said.SerializeToString())
            calls_of_plan.append(call)
            return grpc.unary_unary_rpc_method_handler(lambda _, context: get_plan(context))

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", calls_of_plan
    finally:
        server.stop(None)


def refuses(details: bytes, text: str = "no"):
    def answer(context):
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    return answer


def test_what_another_service_says_moves_no_cursor_and_is_asked_whether_it_is_a_bucketd():
    with stranger(get_plan=refuses(b"", "\x1b[2J\x07red\r\nline")) as (address, _):
        made = PlannerClient(address, connect_timeout=2)
        try:
            graph = layers()
            error = reason_of(made.get_plan, wire.to_proto(graph), canonical.digest(graph), MESH, options(), deadline=1)
            assert "RESOURCE_EXHAUSTED: ?[2J?red?\nline (expected what a bucketd answers: is that one?)" in str(error)
        finally:
            made.close()


def test_where_time_is_up_the_error_says_what_the_planner_said_before():
    end, asked = threading.Event(), []

    def refuses_then_says_nothing(context):
        asked.append(context)
        if len(asked) == 1:
            refuses(trailer("OVERLOADED"), "plans are being made for others")(context)
        end.wait(30)
        return b""

    with stranger(get_plan=refuses_then_says_nothing) as (address, _):
        made = PlannerClient(address, connect_timeout=2)
        try:
            graph = layers()
            error = reason_of(made.get_plan, wire.to_proto(graph), canonical.digest(graph), MESH, options(), deadline=2)
            assert error.reason == "DEADLINE" and len(asked) == 2
            assert str(error) == (f"DEADLINE: no answer in time from GetPlan at {address}; "
                                  "before: OVERLOADED: plans are being made for others")
        finally:
            end.set()
            made.close()


@pytest.mark.parametrize("says,reason", [
    (dict(get_plan=lambda context: b"\xff" * 50), "PROTOCOL"),
    (dict(get_plan=refuses(damaged_trailer())), "PROTOCOL"),
    (dict(get_plan=refuses(b"\xff" * 50)), "PROTOCOL"),
    (dict(get_plan=refuses(trailer("OVERLOADED"))), "OVERLOADED"),
    (dict(get_plan=refuses(trailer("OVERLOADED", seconds=-5))), "OVERLOADED"),
    (dict(get_plan=refuses(trailer("OVERLOADED", seconds=-2**63, nanos=-2**31))), "OVERLOADED"),
    (dict(get_plan=refuses(trailer("OVERLOADED", seconds=2**63 - 1, nanos=2**31 - 1))), "OVERLOADED"),
    (dict(min_client_version="9" * 5000), "PROTOCOL"),
    (dict(graph_format_version=7), "PROTOCOL"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_whatever_a_server_answers_is_an_error_of_the_planners_and_no_storm(says, reason):
    with stranger(**says) as (address, calls_of_plan):
        made = PlannerClient(address, connect_timeout=2)
        try:
            graph = layers()
            error = reason_of(made.get_plan, wire.to_proto(graph), canonical.digest(graph), MESH, options(), deadline=1)
            last = str(error).partition("; before: ")[2] or str(error)  # the last try may have no time left to be refused in
            assert last.startswith(f"{reason}: ")
            assert len(calls_of_plan) <= 1 + 1 / 0.05  # with a pause between two, whatever it asks for
        finally:
            made.close()
