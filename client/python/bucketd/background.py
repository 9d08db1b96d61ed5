"""Threads that call a store of torch's again and again, and end before the interpreter does.

Whoever comes out of C++ once the interpreter ends is unwound there, through a destructor of pybind11's that may not throw: the process
aborts. So these threads are told to end, and waited for, while it still runs.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

# The process waits this long for all of them: one may be in a call of a store that does not answer.
_LAST = 1.0

ending = threading.Event()  # a thread of `run` returns soon after this is set
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def run(target: Callable[[], None]) -> threading.Thread:
    """In a thread of its own, which keeps no process alive. `target` looks at `ending` between its calls."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    _threads.add(thread)
    return thread


def _end() -> None:
    ending.set()
    until = time.monotonic() + _LAST
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


atexit.register(_end)
