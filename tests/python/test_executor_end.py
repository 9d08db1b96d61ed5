"""How executors end: what they may still use, what still runs, and errors that come behind the last join."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from test_on_device import RANKS, Trainer, on_simulated_gpus

import bucketd
from bucketd import executor
from bucketd.errors import ExecutorError


def test_what_an_executor_may_still_use_stays(monkeypatch):
    for over, stays in ((True, False), (False, True)):
        used = [object()]
        monkeypatch.setattr(executor.library, "close", lambda handle, over=over: (over, ""))
        executor._close(4711, os.getpid(), "0/fw#1", used)
        assert any(one is used for one in executor._left) == stays
    executor._left.remove(used)


def executors_that_are_open_at_the_end(monkeypatch):
    open_yet = []
    monkeypatch.setattr(Trainer, "end", lambda trainer: open_yet.append(trainer))
    monkeypatch.setattr(executor.library, "close", lambda handle: (print("closed"), (True, ""))[1])
    on_simulated_gpus(monkeypatch, 1, lambda trainer: trainer.step())
    for trainer in open_yet:
        monkeypatch.setattr(trainer.gpu, "settle", lambda: print("settled"))
    globals()["open_yet"] = open_yet


def test_what_runs_at_the_end_of_a_process_ends_before_its_executor_is_closed():
    """A close would end it in its midst, and with it the peers that it is for."""
    program = "import pytest, test_executor_end as t; t.executors_that_are_open_at_the_end(pytest.MonkeyPatch())"
    ended = subprocess.run([sys.executable, "-c", program], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["settled"] * RANKS + ["closed"] * RANKS, ended


def an_error_behind_the_last_join(monkeypatch, then):
    """Rank 0 has joined a bucket that rank 1 does not run, and does `then`."""
    over = threading.Event()

    def run(trainer):
        trainer.step()
        if trainer.rank == 1:
            over.wait()
            return
        for bucket in range(len(trainer.plan.buckets)):
            trainer.start(bucket)
        for bucket in range(len(trainer.plan.buckets)):
            trainer.runner.wait(bucket)
        try:
            then()
        finally:
            over.set()

    on_simulated_gpus(monkeypatch, 1, run, timeout=2.0)


def test_an_error_behind_the_last_join_ends_the_process():
    """Before anything that is behind the join runs, as torch's watchdog does it."""
    ended = subprocess.run(
        [sys.executable, "-c", "import pytest, test_executor_end as t; t.an_error_behind_the_last_join(pytest.MonkeyPatch(), lambda: t.time.sleep(60))"],
        cwd=os.path.dirname(__file__), env={**os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGABRT, ended
    assert "did not end within 2s" in ended.stderr and "had been joined is undefined; the process ends" in ended.stderr, ended.stderr


def test_a_process_that_is_not_to_end_hears_of_an_error_behind_the_last_join(monkeypatch, caplog):
    def then():
        time.sleep(4)
        with pytest.raises(ExecutorError, match="0/fw#1: .*did not end within 2s"):
            bucketd.check_executors()

    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "0")  # its older name, which torch reads, too
    an_error_behind_the_last_join(monkeypatch, then)
    assert any("0/fw#1: its executor ended by an error: " in text and "did not end within 2s" in text for text in caplog.messages)
