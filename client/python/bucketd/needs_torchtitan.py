"""A clear word where bucketd.torchtitan meets no torchtitan, or one that it was not made for. The check is this module's import, so
that it comes before whatever would fail for want of one."""

from __future__ import annotations

import importlib.metadata

from . import needs_torch

TRIED = "0.3.0"
INSTALL = f'pip install "torchtitan=={TRIED}"'


def version() -> str:
    """Of the torchtitan that is installed; "" where there is none."""
    try:
        return importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        return ""


def check() -> None:
    """ImportError unless there is a torchtitan of the minor version that this was tried with: its graph trainer is an experiment,
    whose names come and go with minor versions."""
    found = version()
    if found.split(".")[:2] != TRIED.split(".")[:2]:
        what = f"this is torchtitan {found}" if found else "there is no torchtitan"
        raise ImportError(f"bucketd.torchtitan needs torchtitan {TRIED}, and {what}: {INSTALL}", name="torchtitan")
    needs_torch.check("bucketd.torchtitan")


check()
