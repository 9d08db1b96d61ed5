"""Ranks that compare notes through a real store; each rank is a thread here, which a store cannot tell from a process."""

import concurrent.futures
import queue
import signal
import threading
import time

import pytest
import torch.distributed as dist

from bucketd.agreement import ENDED, INTERRUPTED, Agreement, attempt, await_key, difference, hearing_signals, ranks_text
from bucketd.errors import AgreementError, EmbeddedError, InterruptedRank, PlannerError, PlanRejected

WORLD = 4


def settle(step, fallback="error", deadline=20.0, ranks=range(WORLD), silent=()):
    """What `step(agreement, rank)` returned or raised on every rank that is not silent."""
    store = dist.HashStore()

    def run(rank):
        try:
            return step(Agreement(dist.PrefixStore("job", store), rank, ranks, fallback, deadline), rank)
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(WORLD) as pool:
        futures = {rank: pool.submit(run, rank) for rank in ranks if rank not in silent}
        return {rank: future.result(timeout=60) for rank, future in futures.items()}


def agree(record):
    return lambda agreement, rank: agreement.agree("0/fw", record(rank))


def fail_on(rank_that_fails, error, record=None):
    def step(agreement, rank):
        if rank == rank_that_fails:
            return agreement.fail("0/fw", error)
        return agreement.agree("0/fw", record or {"plan": "ab"})

    return step


def test_ranks_with_one_plan_agree():
    assert all(not v.unplanned for v in settle(agree(lambda rank: {"plan": "ab", "graph digest": "cd"})).values())


def test_a_rank_with_another_plan_is_named_on_every_rank():
    results = settle(agree(lambda rank: {"option numerics": "exact" if rank == 2 else "free", "plan": f"p{rank == 2}"}))
    for error in results.values():
        assert isinstance(error, AgreementError)
        assert "option numerics: free on ranks 0-1, 3, exact on rank 2" in str(error)
        assert "0/fw" in str(error)


def test_a_rank_without_a_field_differs():
    results = settle(agree(lambda rank: {"plan": "ab"} if rank else {"plan": "ab", "option reorder": "all"}))
    assert all("option reorder: all on rank 0, None on ranks 1-3" in str(e) for e in results.values())


def groups(*entries):
    """Each an entry by ranks of what the ranks hold, from rank 0 on."""
    return settle(agree(lambda rank: {"process groups": entries[rank]}))


def test_ranks_whose_graphs_differ_are_told_what_makes_them():
    text = difference({0: {"graph digest": "aa", "plan": "P"}, 1: {"graph digest": "bb", "plan": "Q"}})
    assert text.endswith("and compile nothing that some ranks do and others do not (`if rank == 0: ...`)")
    assert "if rank" not in difference({0: {"plan": "P"}, 1: {"plan": "Q"}})


def test_members_of_a_group_agree_on_it_alone():
    low, high = {"0-1": "dp#0 is group 2"}, {"2-3": "dp#0 is group 3"}
    assert all(not v.unplanned for v in groups(low, low, high, high).values())
    for error in groups(low, low, high, {"2-3": "dp#0 is group 5"}).values():
        assert "process groups of ranks 2-3: dp#0 is group 3 on rank 2, dp#0 is group 5 on rank 3" in str(error)


def test_a_member_that_does_not_use_the_group_is_named():
    one, other = {"0, 2": "group0#0 is group 4"}, {"1, 3": "group0#0 is group 5"}
    for error in groups(one, {"0-1": "group0#0 is group 2"}, one, other).values():
        assert "of ranks 0-1: nothing on rank 0, group0#0 is group 2 on rank 1" in str(error)
        assert "of ranks 1, 3: nothing on rank 1, group0#0 is group 5 on rank 3" in str(error)


@pytest.mark.parametrize("rank_that_fails", [0, 3])
def test_a_rank_without_a_plan_stops_every_rank(rank_that_fails):
    own = PlannerError("UNREACHABLE", "nobody answers at :1")
    results = settle(fail_on(rank_that_fails, own))
    assert results.pop(rank_that_fails) is own
    for error in results.values():
        assert isinstance(error, AgreementError)
        assert f"rank {rank_that_fails}: PlannerError: UNREACHABLE: nobody answers" in str(error)


@pytest.mark.parametrize("rank_that_fails", [0, 3])
def test_all_ranks_go_without_a_plan_where_that_was_asked_for(rank_that_fails):
    results = settle(fail_on(rank_that_fails, PlannerError("UNREACHABLE", "gone")), fallback="unplanned")
    assert all(v.unplanned and f"rank {rank_that_fails}" in v.why for v in results.values())


@pytest.mark.parametrize("told_to_go_on", [0, 1, 2])
def test_ranks_that_were_told_different_fallbacks_all_stop(told_to_go_on):
    """Whoever fails, and whichever of the ranks was told otherwise: none goes on without the others."""
    def step(agreement, rank):
        agreement.fallback = "unplanned" if rank == told_to_go_on else "error"
        if rank == 1:
            return agreement.fail("0/fw", PlannerError("UNREACHABLE", "gone"))
        return agreement.agree("0/fw", {"plan": "ab"})

    results = settle(step)
    assert all(isinstance(e, AgreementError | PlannerError) for e in results.values()), results


def test_ranks_that_were_told_different_fallbacks_hear_of_it_before_they_need_one():
    def step(agreement, rank):
        agreement.fallback = "error" if rank == 3 else "unplanned"
        return agreement.agree("0/fw", {"plan": "ab"})

    assert all("fallback: unplanned on ranks 0-2, error on rank 3" in str(e) for e in settle(step).values())


@pytest.mark.parametrize("rank_with_a_wrong_plan", [0, 2, 3])
def test_a_rank_with_a_wrong_plan_stops_those_that_fell_back_too(rank_with_a_wrong_plan):
    own = PlanRejected("it is for another graph")

    def step(agreement, rank):
        return agreement.fail("0/fw", own if rank == rank_with_a_wrong_plan else PlannerError("UNREACHABLE", "gone"))

    results = settle(step, fallback="unplanned")
    assert results.pop(rank_with_a_wrong_plan) is own
    assert all(isinstance(e, PlannerError) for e in results.values()), results


def test_a_wrong_plan_is_never_a_reason_to_go_on():
    own = PlanRejected("it is for another graph")
    results = settle(fail_on(1, own), fallback="unplanned")
    assert results.pop(1) is own
    assert all(isinstance(e, AgreementError) and "rank 1: PlanRejected" in str(e) for e in results.values())


def test_a_difference_is_never_a_reason_to_go_on():
    results = settle(agree(lambda rank: {"plan": str(rank % 2)}), fallback="unplanned")
    assert all(isinstance(e, AgreementError) and "plan: 0 on ranks 0, 2, 1 on ranks 1, 3" in str(e)
               for e in results.values())


@pytest.mark.parametrize("rank_that_fails", [0, 3])
def test_what_was_agreed_on_is_done_by_all_ranks_or_stops_all_of_them(rank_that_fails):
    own = PlannerError("UNREACHABLE", "gone")  # which would do for going without a plan, had anybody kept the graph as it was

    def step(agreement, rank):
        for scope in ("0/fw", "0/bw"):
            agreement.agree(scope, {"plan": "ab"})
            agreement.confirm(scope, own if (scope, rank) == ("0/bw", rank_that_fails) else None)

    results = settle(step, fallback="unplanned")
    assert results.pop(rank_that_fails) is own
    for error in results.values():
        assert isinstance(error, AgreementError) and f"0/bw/done: rank {rank_that_fails}: PlannerError: UNREACHABLE" in str(error)


def test_a_silent_rank_is_named_by_the_deadline(monkeypatch):
    monkeypatch.setattr("bucketd.agreement._LINGER", 0.1)
    begin = time.monotonic()
    results = settle(agree(lambda rank: {"plan": "ab"}), deadline=1.0, silent=(2,))
    assert all("no word from rank 2 within 1 s" in str(e) for e in results.values()), results
    assert time.monotonic() - begin < 10


def test_a_silent_leader_is_named_by_the_deadline(monkeypatch):
    monkeypatch.setattr("bucketd.agreement._GRACE", 0.2)
    results = settle(agree(lambda rank: {"plan": "ab"}), deadline=1.0, silent=(0,))
    for error in results.values():
        assert isinstance(error, AgreementError)
        assert "no verdict from rank 0" in str(error) and "no word from rank 0" in str(error)


def test_scopes_do_not_meet():
    def step(agreement, rank):
        return [agreement.agree(scope, {"plan": scope}) for scope in ("0/fw", "0/bw", "1/fw")]

    assert all(len(v) == 3 for v in settle(step).values())


def test_some_of_the_ranks_can_agree_alone():
    assert all(not v.unplanned for v in settle(agree(lambda rank: {"plan": "ab"}), ranks=(1, 3)).values())


def test_one_process_agrees_with_itself_and_falls_back_for_itself():
    alone = Agreement(None, 0, (0,), "unplanned")
    assert not alone.agree("0/fw", {"plan": "ab"}).unplanned
    assert alone.fail("0/fw", PlannerError("UNREACHABLE", "gone")).unplanned
    with pytest.raises(PlanRejected):
        alone.fail("0/fw", PlanRejected("no"))
    with pytest.raises(PlannerError):
        Agreement(None, 0, (0,), "error").fail("0/fw", PlannerError("UNREACHABLE", "gone"))


def test_a_store_that_is_gone_is_an_agreement_error():
    class Gone:
        def set(self, key, value):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(AgreementError, match="key-value store failed: Connection reset by peer"):
        Agreement(Gone(), 1, (0, 1)).agree("0/fw", {})


def test_ranks_are_told_as_spans():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([5, 0, 1, 2]) == "ranks 0-2, 5"


def test_a_call_that_nobody_waits_for_any_more_is_told():
    told = queue.SimpleQueue()

    def call(over):
        signal.raise_signal(signal.SIGINT)
        told.put(over.wait(30))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored when the tests began
    try:
        with pytest.raises(KeyboardInterrupt):
            hearing_signals(call)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told.get(timeout=30)


def test_ranks_at_two_scopes_hear_where_each_of_them_is():
    def step(agreement, rank):
        for scope in ("0/fw", "0/bw") if rank < 2 else ("0/fw", "1/fw"):
            agreement.arrive(scope)
            agreement.agree(scope, {"plan": "ab"})

    for error in settle(step, deadline=2).values():
        assert isinstance(error, AgreementError)
        assert str(error).endswith(
            "; ranks 0-1 at 0/bw, ranks 2-3 at 1/fw: some ranks compiled a graph with collectives that others did not, or in another order")


def test_what_ranks_at_two_scopes_wait_for_is_an_error_of_their_agreement():
    def step(agreement, rank):
        agreement.arrive(f"{rank // 2}/fw")
        barrier.wait()
        await_key(agreement.store, "planner", 0.1, "rank 0 started no planner", agreement.apart, EmbeddedError)

    barrier = threading.Barrier(WORLD)
    for error in settle(step).values():
        assert isinstance(error, AgreementError) and "within 0.1 s; ranks 0-1 at 0/fw, ranks 2-3 at 1/fw" in str(error)


def test_a_rank_that_is_only_late_is_not_at_another_scope():
    def step(agreement, rank):
        for scope in ("0/fw", "0/bw") if rank < 3 else ("0/fw",):
            agreement.arrive(scope)
            agreement.agree(scope, {"plan": "ab"})

    results = settle(step, deadline=0.5)
    assert results.pop(3) is None
    assert all(str(error).endswith("no word from rank 3 within 0.5 s (deadline= is half of that; ranks= names those that run this "
                                   "program, where others run another one)") for error in results.values())


def test_an_attempt_is_over_with_the_first_interrupt_and_who_stops_for_good_ends_the_one_that_the_others_are_at():
    store = dist.HashStore()
    first = [Agreement(store, rank, range(2), deadline=20.0) for rank in range(2)]
    assert not first[0].is_over()
    first[1].say_stopped(INTERRUPTED)
    assert first[0].is_over() and first[1].is_over()
    number, place = attempt(store)
    second = Agreement(place, 0, range(2), deadline=20.0)
    assert number == 1 and not second.is_over()
    first[1].say_stopped(ENDED)
    second.say_stopped(INTERRUPTED)  # the first word stands
    assert not second.is_over() and attempt(store)[0] == 1
    with pytest.raises(InterruptedRank, match=r"^rank 1 was interrupted and has ended$"):
        second.agree("0/fw", {})


def test_a_compilers_many_words_are_cut_for_the_other_ranks():
    found = settle(fail_on(2, OSError("x" * 10**6)))
    assert {len(str(found[rank])) for rank in (0, 1, 3)} == {len("0/fw: rank 2: OSError: ") + 4000 + len(" ...")}
