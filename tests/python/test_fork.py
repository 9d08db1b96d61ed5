"""Forked children: workers of data loaders inherit a client, and may fork while it is in use."""

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest
from layered_graphs import ask, layers
from planners import planner

from bucketd import breaker, collector, counters, degraded
from bucketd.client import PlannerClient
from bucketd.errors import PlannerError

CHILD_SECONDS = 60


@pytest.fixture(scope="module")
def running():
    with planner() as one:
        yield one


def in_child(check) -> None:
    """Runs `check` in a forked child; it must come back True, in time."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(CHILD_SECONDS)
            status = 0 if check() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_gets_a_connection_of_its_own(running):
    to = PlannerClient(running.address)
    ask(to, layers())
    (line,) = to._caller.lines("", 0)
    inherited = line._channels[-1]

    def check():
        assert not line._channels and line.stub() is not None
        assert line._channels[-1] is not inherited
        return ask(to, layers(), deadline=20).source == "hit" and counters()["reconnects_after_fork"] == 1

    in_child(check)
    assert line._channels[-1] is inherited and ask(to, layers()).source == "hit"


def test_a_child_that_never_used_the_client_ends_as_usual(running):
    ask(PlannerClient(running.address), layers())
    script = ("import os, sys; from bucketd.client import PlannerClient; to = PlannerClient(sys.argv[1]); to.capabilities(); "
              "pid = os.fork(); sys.exit(0 if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")
    done = subprocess.run([sys.executable, "-c", script, running.address], timeout=CHILD_SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_locks_that_were_held_at_the_fork_are_free_in_the_child(running):
    to = PlannerClient(running.address)
    ask(to, layers())
    guard = breaker.of(running.address)
    locks = [to._caller.lines("", 0)[0]._lock, guard._lock, breaker._lock, degraded._lock]
    held, done = threading.Event(), threading.Event()

    def hold():
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait()
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    try:
        in_child(lambda: ask(to, layers(), deadline=20).source == "hit" and counters()["uploads"] == 0)
    finally:
        done.set()
        holder.join()


def test_a_call_that_is_under_way_in_the_parent_is_no_obstacle(running):
    graph = layers(40)
    to = PlannerClient(running.address)
    from test_degraded import asked_for

    first = asked_for(graph, running.address)
    found = []
    waiting = threading.Thread(target=lambda: found.append(ask(to, graph).source))
    waiting.start()
    in_child(lambda: ask(PlannerClient(running.address), layers(), deadline=20).plan)
    ask(first, graph)
    waiting.join(30)
    assert found and found[0] in ("computed", "joined", "hit")


def test_an_address_that_the_parent_gave_up_is_a_new_one_to_the_child(tmp_path):
    address = f"unix:{tmp_path}/socket"
    to = PlannerClient(address, connect_timeout=0.3)
    for _ in range(2):
        with pytest.raises(PlannerError):
            ask(to, layers())
    assert breaker.of(address).admit() == breaker.REFUSED
    in_child(lambda: breaker.of(address).admit() == breaker.CALL)
    assert breaker.of(address).admit() == breaker.REFUSED


def test_counts_begin_at_zero_in_a_child():
    degraded.count("retries")
    in_child(lambda: not any(counters().values()))
    assert counters()["retries"]


def test_a_child_says_anew_what_its_parent_has_said(caplog):
    degraded.say("a:2", "breaker", "does not answer")

    def check():
        caplog.clear()
        degraded.say("a:2", "breaker", "does not answer")
        return [record.levelname for record in caplog.records] == ["WARNING"]

    in_child(check)


def test_workers_of_a_data_loader_can_ask(running):
    from torch.utils.data import DataLoader, Dataset

    to = PlannerClient(running.address)
    ask(to, layers())

    class Sources(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, _):
            return ask(to, layers(), deadline=20).source

    found = [source for batch in DataLoader(Sources(), num_workers=2, timeout=CHILD_SECONDS, multiprocessing_context="fork")
             for source in batch]
    assert found == ["hit"] * 6
    assert ask(to, layers()).source == "hit"


def test_a_child_collects_garbage_though_another_thread_was_planning():
    begun, end = threading.Event(), threading.Event()

    def plan():
        with collector.off():
            begun.set()
            end.wait(CHILD_SECONDS)

    thread = threading.Thread(target=plan)
    thread.start()
    begun.wait(CHILD_SECONDS)

    def check():
        enabled = gc.isenabled()
        with collector.off():
            return enabled and not gc.isenabled()

    try:
        in_child(check)
        with collector.off():
            in_child(lambda: not gc.isenabled())
    finally:
        end.set()
        thread.join()
    assert gc.isenabled()
