"""Python's collector of circular garbage, while a graph is planned."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def off() -> Iterator[None]:
    """A pass over all objects of a training process, at a random moment, takes longer than all of the planning."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
