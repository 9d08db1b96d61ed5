"""What people meet of a job's ranks: how much they say, and how soon."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from fx_graphs import Builder, result
from planners import planner, wait_until_stopped
from ranks import Ranks, run_ranks
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketd
from bucketd.errors import PlannerError, advise

HERE = pathlib.Path(__file__).resolve().parent
WORLD = 4


def test_a_job_with_a_plan_says_so_in_one_line():
    with planner() as one:
        said = run_ranks("manners_worker.py", WORLD, one.address, "planned", timeout=120)
    assert [text.splitlines() for text in said[1:]] == [["there"]] * (WORLD - 1)
    first, line = said[0].splitlines()
    assert first == "there" and line.startswith("bucketd: 1 bucket, predicted ") and line.endswith("(0/fw)")


@pytest.mark.parametrize(("setting", "levels"), [("bucketd", "I"), ("+bucketd", "IV")])
def test_torchs_own_setting_of_logs_turns_ours_on(setting, levels):
    """It finds our logger by the package's name, which it imports for that; V is its letter for debug."""
    done = subprocess.run([sys.executable, HERE / "manners_worker.py", "", "alone"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TORCH_LOGS": setting})
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("[rank0]:") for line in done.stderr.splitlines() if "] bucketd: " in line]
    assert {line[0] for line in said} == set(levels) and sum("predicted " in line for line in said) == 1, done.stderr


def test_a_hook_around_ours_is_kept_and_called_once():
    """As programs have them that report errors somewhere; ours may be wanted again behind it."""
    script = """if True:
        import sys
        from bucketd import errors, quiet
        quiet.in_a_line(errors.AgreementError("caught by the program"), 0)
        ours = sys.excepthook
        sys.excepthook = lambda *error: print("reported") or ours(*error)
        last = quiet.in_a_line(errors.AgreementError("caught, too"), 0)
        raise last if sys.argv[1:] else ValueError("its own")
    """
    for arguments, said in (((), ["Traceback (most recent call last):", "ValueError: its own"]),
                            (("ours",), ["AgreementError: caught, too (rank 0 has it too, and the traceback)"] * 2)):
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
        lines = done.stderr.splitlines()
        assert done.stdout == "reported\n" and [lines[0], lines[-1]] == said, done.stderr


def test_an_argument_that_helps_is_named_once():
    error = PlannerError("UNREACHABLE", "nobody answers")
    for _ in range(2):
        advise(error, "error")
    assert str(error) == ("UNREACHABLE: nobody answers (address= names the planner; without it the ranks start one of their own; "
                          'fallback="unplanned" trains without a plan)')
    asked_for = PlannerError("PLANNER_BUG", "a plan failed")
    advise(asked_for, "unplanned")
    assert str(asked_for) == "PLANNER_BUG: a plan failed"


def test_a_failure_that_all_ranks_have_is_traced_once():
    with planner() as one, Ranks("manners_worker.py", WORLD, one.address, "impossible") as ranks:
        ended = ranks.wait(120)
    assert all(status == 1 and "PLAN_IMPOSSIBLE" in text for status, text in ended), ended
    assert ["Traceback" in text for _, text in ended] == [True, False, False, False], ended
    for _, text in ended[1:]:
        assert "memory_limit=, mode=, buckets= and strict_coverage= are what a plan has to keep to" in text
        there, line = text.splitlines()
        assert line.startswith("PlannerError: PLAN_IMPOSSIBLE: ") and line.endswith("(rank 0 has it too, and the traceback)")


@pytest.mark.quiet
@pytest.mark.parametrize("what", ["late", "late alone", "patient", "twins", "running"])
def test_ranks_that_wait_are_interrupted_within_a_second(what):
    with planner() as one, Ranks("manners_worker.py", WORLD, "" if "alone" in what else one.address, what.split()[0]) as ranks:
        if what == "patient":
            os.kill(one.pid, signal.SIGSTOP)
            wait_until_stopped(one.pid)
        for rank in ranks.processes:
            for word in ("there", "planned") if what in ("running", "twins") else ("there",):
                while (line := rank.stdout.readline()) != f"{word}\n":
                    assert line.startswith("bucketd: "), line
        time.sleep(1)  # by then they wait
        begin = time.monotonic()
        for rank in ranks.processes:
            os.kill(rank.pid, signal.SIGINT)
        # c10d may warn, on several lines, where rank 0, whose store it is, ends first.
        heard = [next((line.split() for line in rank.stdout if line.startswith("interrupted ")), []) for rank in ranks.processes]
        statuses = [rank.wait() for rank in ranks.processes]
        ended = time.monotonic()
    assert all(heard) and statuses == [7] * WORLD
    assert max(float(at) for _, at in heard) - begin < 1 and ended - begin < 10


def test_an_interrupted_rank_ends_the_wait_of_the_others_with_its_number():
    """Rank 1 is still to come."""
    with planner() as one, Ranks("manners_worker.py", WORLD, one.address, "told") as ranks:
        for rank in (0, 2, 3):
            assert [ranks.processes[rank].stdout.readline() for _ in range(2)] == ["there\n", "waits\n"]
        begin = time.monotonic()
        os.kill(ranks.processes[2].pid, signal.SIGINT)
        statuses = [ranks.processes[rank].wait() for rank in (0, 2, 3)]
        ended = time.monotonic()
        # c10d may warn beside it, where rank 0, whose store it is, ends first.
        texts = [ranks.processes[rank].rest() for rank in (0, 3)]
    said = [[line for line in text.splitlines() if "InterruptedRank" in line or "Traceback" in line] for text in texts]
    # Who comes late hears that it is gone, too.
    heard = ["InterruptedRank: rank 2 was interrupted"], ["InterruptedRank: rank 2 was interrupted and has ended"]
    assert all(lines in heard for lines in said) and statuses == [1, 7, 1], texts
    assert ended - begin < 10


def test_ranks_that_were_interrupted_and_go_on_are_planned_for_anew():
    """As in a notebook. Rank 1 is elsewhere when it is interrupted: it hears of it only where it asks again."""
    with planner() as one, Ranks("manners_worker.py", WORLD, one.address, "again") as ranks:
        for rank, word in zip(ranks.processes, ("waits", "there", "waits", "waits"), strict=True):
            while not (line := rank.stdout.readline()).startswith(word):
                assert line.split()[0] in ("0/fw", "bucketd:", "there"), line
        for rank in ranks.processes:
            os.kill(rank.pid, signal.SIGINT)
            while not (line := rank.stdout.readline()).startswith("interrupted"):
                assert line == "waits\n", line
        ended = ranks.wait(60)
    scopes = [[line for line in text.splitlines() if line.startswith("1.0/fw ")] for _, text in ended]
    assert [status for status, _ in ended] == [0] * WORLD and scopes == [scopes[0]] * WORLD and len(scopes[0]) == 1, ended


def test_an_address_where_nobody_is_is_known_after_three_seconds():
    with Ranks("manners_worker.py", WORLD, "127.0.0.1:1", "planned") as ranks:
        began = [rank.stdout.readline() and time.monotonic() for rank in ranks.processes]
        ended = ranks.wait(60)
    assert all(status == 1 and "UNREACHABLE: nobody answers at 127.0.0.1:1" in text for status, text in ended), ended
    assert all("address= names the planner" in text and 'fallback="unplanned" trains without' in text for _, text in ended), ended
    assert ["Traceback" in text for _, text in ended] == [True, False, False, False], ended
    assert time.monotonic() - max(began) < 8


def test_a_process_that_stands_for_all_ranks_of_fake_groups_plans_alone():
    dist.init_process_group("fake", rank=1, world_size=WORLD, store=FakeStore())
    try:
        plans = []
        with planner() as one:
            for more in ({}, {"job": bucketd.Job("fake")}):
                b = Builder()
                shards = [b.parameter(f"{name}.weight", 2, 3) for name in "ab"]
                gm = b.output([b.wait(b.gather(shard)) for shard in shards], [result(), result(1)])
                bucketd.plan_pass(gm, kind="fw", context=b.context, address=one.address, mode="greedy", numerics="exact",
                                  on_plan=plans.append, **more)
        assert [planned.source for planned in plans] == ["computed", "hit"]
    finally:
        dist.destroy_process_group()
