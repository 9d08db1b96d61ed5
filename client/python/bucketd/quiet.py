"""One traceback for a failure that all ranks have, the first rank's: the others say in a line what it was."""

from __future__ import annotations

import sys

_before = None  # the hook that was there


def as_on(rank: int, error: Exception) -> Exception:
    """`error`, which `rank` has as well. If nobody catches it here, its traceback is left out."""
    global _before
    error.as_on_rank = rank
    if sys.excepthook is not _end:
        _before, sys.excepthook = sys.excepthook, _end
    return error


def _end(kind, error, traceback) -> None:
    own = getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises
    if hasattr(own, "as_on_rank"):
        print(f"{type(own).__name__}: {own} (rank {own.as_on_rank} has it too, and the traceback)", file=sys.stderr)
    else:
        _before(kind, error, traceback)
