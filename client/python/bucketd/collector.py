"""Python's collector of circular garbage, while a graph is planned."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_busy = 0  # threads that want it off
_was = False  # on, before the first of them came
_here = threading.local()  # .off: whether this thread is one of them


def off() -> contextlib.AbstractContextManager[None]:
    """A pass over all objects of a training process, at a random moment, takes longer than all of the planning."""
    return _wanting(True)


def on() -> contextlib.AbstractContextManager[None]:
    """Within off(), around a wait for others, which may take minutes: other threads go on, and make garbage."""
    return _wanting(False)


@contextlib.contextmanager
def _wanting(wanted: bool) -> Iterator[None]:
    before = getattr(_here, "off", False)
    if wanted != before:
        _change(wanted)
    try:
        yield
    finally:
        if wanted != before:
            _change(before)


def _change(wanted: bool) -> None:
    global _busy, _was
    with _lock:
        if _busy == 0:
            _was = gc.isenabled()
        _busy += 1 if wanted else -1
        _here.off = wanted
        if _busy:
            gc.disable()
        elif _was:
            gc.enable()


def _start_over() -> None:
    """A forked child has the one thread that forked: what others wanted is over."""
    global _lock, _busy
    _lock = threading.Lock()
    mine = getattr(_here, "off", False)
    if _busy and not mine and _was:
        gc.enable()
    _busy = int(mine)


os.register_at_fork(after_in_child=_start_over)
