"""The driver puts the package and the tests' helpers on the path."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import driver  # noqa: E402, F401


def pytest_configure(config):
    config.addinivalue_line("markers", "full: for tests/run.sh --full")
    config.addinivalue_line("markers", "slow: trains or starts many processes; left out by tests/run.sh --fast")
