"""Ranks that find each other at a store, also one that holds what another start of the job left there; each rank is a thread here."""

import concurrent.futures
import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch.distributed as dist

from bucketd import meeting
from bucketd.agreement import Agreement
from bucketd.errors import AgreementError, InterruptedRank
from bucketd.meeting import Meetings


def on_ranks(ranks, step):
    """What `step(rank)` returned or raised on each of them."""
    def run(rank):
        try:
            return step(rank)
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        futures = {rank: pool.submit(run, rank) for rank in ranks}
        return {rank: future.result(timeout=60) for rank, future in futures.items()}


def start(store, plans, late=()):
    """A start of a job: what came of the plan that each rank holds."""
    ranks = tuple(range(len(plans)))

    def step(rank):
        if rank in late:
            time.sleep(0.5)
        met = Meetings().meet(store, rank, ranks, 20.0)
        agreement = Agreement(dist.PrefixStore(met.word, store), rank, ranks, "error", 20.0)
        agreement.arrive("0/fw")
        agreement.agree("0/fw", {"plan": plans[rank]})
        return f"runs {plans[rank]}"

    return on_ranks(ranks, step)


def test_all_ranks_of_a_start_meet_and_no_other_start_has_their_word():
    store = dist.HashStore()
    words = [on_ranks(range(4), lambda rank: Meetings().meet(store, rank, (0, 1, 2, 3), 20.0)) for _ in range(2)]
    assert [len({met.word for met in found.values()}) for found in words] == [1, 1]
    assert words[0][0] != words[1][0] and words[0][0].epoch != words[1][0].epoch


def test_a_start_over_the_store_of_the_last_one_agrees_on_its_own():
    """A rank whose agent counted no restart obeyed what the last start agreed on, and went on alone."""
    store = dist.HashStore()
    assert set(start(store, ["P2"] * 2).values()) == {"runs P2"}
    assert set(start(store, ["P2"] * 2).values()) == {"runs P2"}
    assert set(start(store, ["P4"] * 4, late=(1, 2, 3)).values()) == {"runs P4"}


def test_no_rank_runs_another_plan_by_what_the_last_start_agreed_on():
    store = dist.HashStore()
    start(store, ["P"] * 2)
    found = start(store, ["P", "Q"], late=(0,))
    assert all(isinstance(error, AgreementError) and "plan: P on rank 0, Q on rank 1" in str(error) for error in found.values()), found


def test_a_rank_that_ended_before_it_said_hello_holds_up_nobody():
    store = dist.HashStore()
    store.add("0-1#0/hellos", 1)
    assert set(start(store, ["P"] * 2).values()) == {"runs P"}


def test_a_first_rank_that_does_not_come_is_named_by_the_deadline():
    with pytest.raises(AgreementError, match=r"^no word from rank 4 within 0.2 s \(deadline= is half of that\)$"):
        Meetings().meet(dist.HashStore(), 5, (4, 5), 0.2)


def test_a_store_that_is_gone_is_an_agreement_error():
    class Gone:
        def add(self, key, value):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(AgreementError, match="key-value store failed: Connection reset by peer"):
        Meetings().meet(Gone(), 1, (0, 1), 20.0)


def test_the_first_ranks_meetings_are_numbered_for_all_and_others_ranks_meet_beside_them():
    store, of = dist.HashStore(), {rank: Meetings() for rank in range(3)}

    def meet(*ranks):
        return on_ranks(ranks, lambda rank: of[rank].meet(store, rank, ranks, 20.0).number)

    assert meet(0, 1) == {0: 0, 1: 0}
    assert meet(1, 2) == {1: 0, 2: 0}
    assert meet(0, 2) == {0: 1, 2: 1}
    assert meet(0, 1, 2) == {0: 2, 1: 2, 2: 2}
    assert of[0].meet(None, 0, (0,), 20.0) == meeting.Met(3)


def test_a_rank_that_is_interrupted_while_it_waits_for_an_answer_is_named_to_those_who_met(monkeypatch):
    store, await_key = dist.HashStore(), meeting.await_key

    def interrupted(*asked):
        if threading.current_thread().name == "rank 1":
            raise KeyboardInterrupt
        return await_key(*asked)

    monkeypatch.setattr(meeting, "await_key", interrupted)

    def step(rank):
        if rank == 1:
            threading.current_thread().name = "rank 1"
            with pytest.raises(KeyboardInterrupt):
                Meetings().meet(store, 1, (0, 1), 20.0)
            return "stopped"
        met = Meetings().meet(store, rank, (0, 1), 20.0)
        return Agreement(dist.PrefixStore(met.word, store), rank, (0, 1), "error", 20.0).agree("0/fw", {"plan": "P"})

    begin = time.monotonic()
    found = on_ranks(range(2), step)
    assert found[1] == "stopped" and isinstance(found[0], InterruptedRank) and "rank 1 was interrupted" in str(found[0])
    assert time.monotonic() - begin < 10


def test_a_first_rank_that_ends_while_it_answers_ends_as_it_would_have():
    """A thread that comes out of the store's C++ once the interpreter ends would abort the process."""
    program = textwrap.dedent("""
        import contextlib, datetime, sys
        import torch.distributed as dist
        from bucketd.meeting import Meetings

        class Slow:  # in C++ nearly always
            def add(self, key, value):
                with contextlib.suppress(dist.DistStoreError):
                    store.wait(["nobody sets this"], datetime.timedelta(milliseconds=30))
                return 0

        store = dist.HashStore()
        Meetings().meet(Slow(), 0, (0, 1), 60.0)
        sys.exit(3)
        """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (3, "")


WAITING = """
    import signal, sys, time
    import torch.distributed as dist
    from bucketd import agreement, meeting

    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored when the tests began
    rank, port, interrupted = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port, 2, rank == 0, wait_for_workers=False), rank=rank, world_size=2)
    store = agreement.job_store("bucketd")
    if rank == 0 and interrupted == 1:  # it does not come, so rank 1 waits for its word
        time.sleep(60)
    print("here", flush=True)
    met = meeting.of_this_process.meet(store, rank, (0, 1), 60.0)
    agreed = agreement.Agreement(dist.PrefixStore(met.word, store), rank, (0, 1), "error", 60.0)
    with agreed.telling_of_interrupts():
        if rank == 0:
            print("waits", flush=True)
            time.sleep(60)
        agreed.agree("0/fw", {})  # and so it waits for a verdict
    """


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [0, 1])
def test_ranks_of_which_one_is_interrupted_end_as_python_does(interrupted):
    """The store is rank 0's, and goes with it. A thread that is still in there as the interpreter ends would abort the process."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(WAITING), str(rank), port, str(interrupted)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        for line in ("here", "waits") if interrupted == 0 else ("here",):
            assert ranks[interrupted].stdout.readline() == line + "\n"
        if interrupted == 0:
            assert ranks[1].stdout.readline() == "here\n"
        time.sleep(1)  # the other one is to be found waiting
        ranks[interrupted].send_signal(signal.SIGINT)
        assert ranks[interrupted].wait(60) == -signal.SIGINT, ranks[interrupted].stderr.read()
        if interrupted == 0:
            said = ranks[1].communicate(timeout=60)[1]
            assert ranks[1].returncode == 1 and "InterruptedRank: rank 0 was interrupted" in said, said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
