"""Callers who name other people's jobs."""

import time

import grpc
import kit
import pytest
from harness import Caller, Key, expect, reason_of

from bucketd._wire.proto import planner_pb2

_KEY = Key(3, 8, 0)


def _job(name: str, ranks: list, size: int, generation: int = 1, prefetch: int = 1):
    request = _KEY.request(job=planner_pb2.Job(id=name, generation=generation, scope="fw", rank=ranks, size=size))
    request.options.prefetch_forward = prefetch
    return request


def _refused(caller: Caller, request) -> str:
    with pytest.raises(grpc.RpcError) as error:
        caller.stub.GetPlan(request, timeout=20)
    return reason_of(error.value).reason


def _meddle(address: str, rounds: int) -> None:
    """While an honest rank waits, others speak for it and for later generations of its job."""
    honest, attacker = Caller(address), Caller(address)
    for number in range(rounds):
        name = f"honest-{number}"
        first = honest.stub.GetPlan.future(_job(name, [0], 2), timeout=30)
        time.sleep(0.05)
        for far in (2**64 - 1, 10**6):
            expect(_refused(attacker, _job(name, [0], 1, far)) == "JOB_INVALID", "generation", far, "was taken")
        copies = [attacker.stub.GetPlan.future(_job(name, [0], 2), timeout=30) for _ in range(3)]
        time.sleep(0.05)
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
        seen = scene.under(lambda: _meddle(scene.server.address, kit.size(5, 50)))
    seen.holds("meddling with jobs", memory_mib=64)
