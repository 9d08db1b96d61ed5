"""The package is pure Python; building it generates the wire stubs from proto/ first."""

import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
if (HERE.parent.parent / "proto" / "planner.proto").exists():
    sys.path.insert(0, str(HERE))
    import generate_wire

    generate_wire.main()

setup()
