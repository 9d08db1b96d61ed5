"""The driver of tests/faults puts the package and the tests' helpers on the path."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "faults"), str(pathlib.Path(__file__).resolve().parent)]

import driver  # noqa: E402, F401


def pytest_configure(config):
    config.addinivalue_line("markers", "quiet: bounds a time, so tests/run.sh runs these last, when nothing else runs but one more of them")
