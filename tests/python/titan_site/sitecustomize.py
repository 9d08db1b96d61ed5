"""On PYTHONPATH: every program of torchtitan finds what tests/python/titan_on_cpu.py makes."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import titan_on_cpu  # noqa: E402, F401
