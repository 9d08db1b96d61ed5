"""Where our programs and libraries lie: in the wheel, or in the build folder of the source tree that this package lies in."""

from __future__ import annotations

import os
import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parent
CARRIED = _PACKAGE / "_native"  # in a wheel that deploy/wheel.sh made
BUILT = _PACKAGE.parents[2] / "build"


def carried(name: str) -> str | None:
    """The path of what the wheel carries under this name; None: this is no such wheel, or it carries none."""
    path = CARRIED / name
    return str(path) if path.exists() else None


def built(name: str) -> str | None:
    """The path of build/`name`, say "bin/bucketd", in the source tree; None: there is none."""
    path = BUILT / name
    return str(path) if os.access(path, os.R_OK) else None


def library(name: str) -> str | None:
    """The path of a library of ours, the wheel's before the source tree's; None: there is none."""
    return carried(name) or built(f"lib/{name}")
