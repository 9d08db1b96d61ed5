"""One traceback for a failure that all ranks have, the first rank's: the others say it in a line. None where a rank was interrupted."""

from __future__ import annotations

import sys

_before = None  # the hook that was there


def as_on(rank: int, error: Exception) -> Exception:
    """`error`, which `rank` has as well. If nobody catches it here, its traceback is left out."""
    return _in_a_line(error, f" (rank {rank} has it too, and the traceback)")


def without_traceback(error: Exception) -> Exception:
    """`error`, whose place in the code tells nothing."""
    return _in_a_line(error, "")


def _in_a_line(error: Exception, added: str) -> Exception:
    global _before
    error.added_in_a_line = added
    if _before is None:  # once: a hook that was set since then may call ours
        _before, sys.excepthook = sys.excepthook, _end
    return error


def _end(kind, error, traceback) -> None:
    own = getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises
    if hasattr(own, "added_in_a_line"):
        print(f"{type(own).__name__}: {own}{own.added_in_a_line}", file=sys.stderr)
    else:
        _before(kind, error, traceback)
