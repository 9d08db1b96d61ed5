"""Callers who name other people's jobs, and callers who make up jobs."""

import concurrent.futures
import pathlib
import struct
import subprocess
import time

import grpc
import http2
import kit
import pytest
from harness import BINARY, Caller, Key, expect, reason_of
from waiting import wait_for

from bucketd._wire.proto import planner_pb2

_KEY = Key(3, 8, 0)


def _job(name: str, ranks: list, size: int, generation: int = 1, prefetch: int = 1):
    request = _KEY.request(job=planner_pb2.Job(id=name, generation=generation, scope="fw", rank=ranks, size=size))
    request.options.prefetch_forward = prefetch
    return request


def _refused(caller: Caller, request) -> str:
    with pytest.raises(grpc.RpcError) as error:
        caller.stub.GetPlan(request, timeout=20, wait_for_ready=True)
    return reason_of(error.value).reason


def _agree(caller: Caller, name: str, size: int = 2, generation: int = 1) -> None:
    calls = [caller.stub.GetPlan.future(_job(name, [rank], size, generation), timeout=30) for rank in range(size)]
    expect(len({one.result().plan.plan for one in calls}) == 1, "ranks of", name, "got different plans")


def _meddle(server, rounds: int) -> None:
    """While an honest rank waits, others speak for it and for later generations of its job."""
    honest, attacker = Caller(server.address), Caller(server.address)
    for number in range(rounds):
        name = f"honest-{number}"
        first = honest.stub.GetPlan.future(_job(name, [0], 2), timeout=30)
        server.eventually("bucketd_agreement_waiting_ranks", 1)
        for far in (2**64 - 1, 10**6):
            reason = _refused(attacker, _job(name, [0], 1, far))
            expect(reason == "JOB_INVALID", "generation", far, "was told", reason)
        copies = [attacker.stub.GetPlan.future(_job(name, [0], 2), timeout=30) for _ in range(3)]
        wait_for(lambda: server.metric("bucketd_requests_in_flight") >= 4, "the copies to wait beside the rank")
        expect(_refused(attacker, _job(name, [0], 2, prefetch=3)) == "JOB_INVALID", "two of a rank were taken")
        bad = _job(name, [0], 2)
        bad.options.mode = "fastest"
        expect(_refused(attacker, bad) == "OPTIONS_INVALID", "a mode that there is not was taken")
        expect(not first.done(), "the honest rank was ended:", first.done() and first.exception())
        second = honest.stub.GetPlan(_job(name, [1], 2), timeout=30)
        expect(first.result().plan.plan == second.plan.plan, "two plans in", name)
        for one in copies:
            expect(one.result().plan.plan == second.plan.plan, "two plans in", name)
    for one in (honest, attacker):
        one.close()


@pytest.mark.quiet
def test_calls_for_somebody_elses_rank_and_far_generations_end_nobody():
    with kit.Scene() as scene:
        seen = scene.under(lambda: _meddle(scene.server, kit.size(5, 50)))
    seen.holds("meddling with jobs", memory_mib=64)


def _speak_for_many(address: str, calls: int) -> int:
    """For all ranks of a scope but one, so that nobody is answered. Returns how many calls were refused."""
    caller, size = Caller(address), 131_072
    request = _job("", range(1, size), size)
    waiting = []
    for number in range(calls):
        request.job.id = f"many-{number}"
        waiting.append(caller.stub.GetPlan.future(request, timeout=kit.size(6.0, 12.0)))
    refused = sum(call.exception() is not None and call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED for call in waiting)
    caller.close()
    return refused


@pytest.mark.quiet
def test_calls_that_speak_for_many_ranks_are_bounded_by_what_they_hold():
    refused = []
    with kit.Scene() as scene:
        seen = scene.under(lambda: refused.append(_speak_for_many(scene.server.address, kit.size(80, 400))))
    seen.holds(f"calls for 131,071 ranks each, {refused[0]} of them refused", memory_mib=kit.MESSAGES_MIB)
    assert refused[0] > 0


def _speak_for_all_and_take_nothing(address: str, calls: int) -> None:
    """Each for all ranks of a job, which is answered at once: its windows are shut."""
    request = _job("", range(131_072), 131_072)
    block = http2.header_block(http2.GET_PLAN)
    with http2.Connection(address, "127.0.0.2") as connection:
        connection.send(http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        for number in range(calls):
            request.job.id = f"all-{number}"
            stream = connection.next_stream()
            connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block))
            connection.send_data(stream, http2.message(request.SerializeToString()), patience=30)
            connection.send(http2.frame(http2.DATA, http2.END_STREAM, stream))
            time.sleep(0.03)  # one after the other: those that wait are bounded


@pytest.mark.quiet
def test_ranks_of_calls_whose_answers_nobody_takes_are_not_kept():
    calls = kit.size(200, 1000)
    with kit.Scene() as scene:
        seen = scene.under(lambda: _speak_for_all_and_take_nothing(scene.server.address, calls))
    seen.holds(f"{calls} calls for 131,072 ranks each, whose answers nobody takes", memory_mib=50)


def test_a_generation_that_somebody_else_ended_comes_back_when_the_job_is_released(tmp_path):
    """Who may speak for a job is not known yet, so that one generation ahead ends the one before: what remains is the way out."""
    with kit.Scene("--store-dir", str(tmp_path / "store")) as scene:
        caller = Caller(scene.server.address)
        first = caller.stub.GetPlan.future(_job("train", [0], 2), timeout=30)
        scene.server.eventually("bucketd_agreement_waiting_ranks", 1)
        _agree(caller, "train", size=1, generation=2)  # somebody else
        expect(first.exception() is not None, "the rank of the generation before was not told")
        expect(reason_of(first.exception()).reason == "GENERATION_OVER", reason_of(first.exception()))
        expect(_refused(caller, _job("train", [0], 2)) == "GENERATION_OVER", "the generation came back by itself")
        said = _bucketctl(scene, "pin", "train", "--release")
        expect("released" in said, said)
        _agree(caller, "train", size=2, generation=1)
        caller.close()


def _bucketctl(scene, *arguments: str) -> str:
    command = [pathlib.Path(BINARY).with_name("bucketctl"), *arguments, "--server", scene.server.address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _make_up(address: str, begin: int, jobs: int) -> None:
    caller = Caller(address)
    for number in range(begin, begin + jobs):
        _agree(caller, f"junk-{number}", size=1, generation=7)
    caller.close()


@pytest.mark.quiet
def test_made_up_jobs_take_no_pin_from_real_ones_and_go_at_once(tmp_path):
    limit, jobs = kit.size((200, 400), (4096, 6000))
    flags = ("--store-dir", str(tmp_path / "store"), "--max-pins-per-tenant", str(limit))

    def attack():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda k: _make_up(scene.server.address, k * jobs // 4, jobs // 4), range(4)))

    with kit.Scene(*flags) as scene:
        caller = Caller(scene.server.address)
        _agree(caller, "before", size=2)
        seen = scene.under(attack)
        _agree(caller, "after", size=2)
        unpinned = scene.server.metric("bucketd_agreements_unpinned_total")
        expect(unpinned == 0, unpinned, "agreements without a pin")
        expect(scene.server.metric("bucketd_pins") == limit, "pins:", scene.server.metric("bucketd_pins"))
        for name in ("before", "after"):  # what they agreed on is still theirs
            again = caller.stub.GetPlan(_job(name, [0], 2), timeout=30)
            expect(again.HasField("plan"), name, "lost its plan")
        begin = time.monotonic()
        said = _bucketctl(scene, "pin", "junk-*", "--release", "--all")
        print(f"{jobs} made-up jobs: {said.strip()} in {time.monotonic() - begin:.2f} s")
        expect(scene.server.metric("bucketd_pins") == 2, "pins after the release:", scene.server.metric("bucketd_pins"))
        _agree(caller, "junk-1", size=2, generation=1)  # and its generation is forgotten
        caller.close()
    seen.holds("made-up jobs", memory_mib=192)
