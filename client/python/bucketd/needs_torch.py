"""A clear word where what needs PyTorch meets none, or one that it was not tried with. Imports no torch at import."""

from __future__ import annotations

import importlib.metadata
import logging
import re

TRIED = ("2.13",)  # oldest first; what a change adds here, the suite has passed with
INSTALL = f"pip install 'torch>={TRIED[0]}'"  # not bucketd[torch]: no index has bucketd, and one might have another of that name

log = logging.getLogger("bucketd")
_said = False


def check(what: str) -> None:
    """ImportError unless there is a PyTorch that `what` (say "bucketd.backend") can be expected to work with. A newer one than was
    tried is warned of, once."""
    global _said
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{what} needs PyTorch, and there is none here: {INSTALL}", name="torch") from None
    if _release(found) < _release(TRIED[0]):
        raise ImportError(f"{what} needs PyTorch {TRIED[0]} or later, and this is {found}: {INSTALL}", name="torch")
    if _release(found) > _release(TRIED[-1]) and not _said:
        _said = True
        log.warning("bucketd: PyTorch %s is newer than any that bucketd was tried with (%s)", found, ", ".join(TRIED))


def _release(version: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu" and "2.13.0a0+git1234"; nothing, which is less than any, of what is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()
