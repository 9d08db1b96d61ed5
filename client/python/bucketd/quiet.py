"""One traceback for a failure that all ranks have, the first rank's: the others say it in a line. None where a rank was interrupted."""

from __future__ import annotations

import sys

_before = None  # the hook that was there


def in_a_line(error: Exception, also_on: int | None = None) -> Exception:
    """`error`, whose traceback is left out if nobody catches it here: its place in the code tells nothing, or is told by the rank
    `also_on`, which has it as well."""
    global _before
    error.added_in_a_line = "" if also_on is None else f" (rank {also_on} has it too, and the traceback)"
    if _before is None:  # once: a hook that was set since then may call ours
        _before, sys.excepthook = sys.excepthook, _end
    return error


def _end(kind, error, traceback) -> None:
    own = getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises
    if hasattr(own, "added_in_a_line"):
        print(f"{type(own).__name__}: {own}{own.added_in_a_line}", file=sys.stderr)
    else:
        _before(kind, error, traceback)
