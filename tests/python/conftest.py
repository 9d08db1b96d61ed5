"""What all Python tests share: the package from the source tree, the data, and how ranks are run."""

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLIENT = ROOT / "client" / "python"

for path in (str(ROOT / "tests" / "data" / "vectors"), str(HERE), str(CLIENT)):
    if path not in sys.path:
        sys.path.insert(0, path)
# Workers are processes of their own.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CLIENT), os.environ.get("PYTHONPATH", "")]))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CI", "true")  # where torch makes errors of what it only warns of elsewhere

import generate_wire  # noqa: E402

generate_wire.main()


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: trains or starts many processes; left out by tests/run.sh --fast")
    config.addinivalue_line("markers", "full: the rest of a product whose representatives always run; left out unless -m names it")
    config.addinivalue_line("markers", "quiet: bounds a time, so tests/run.sh runs these last, when nothing else runs but one more of them")


def pytest_collection_modifyitems(config, items):
    # Files that train begin first, so that no worker of pytest-xdist waits for one of them at the end.
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
    if "full" in config.getoption("markexpr"):
        return
    rest = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=rest)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def data():
    """tests/data."""
    return pathlib.Path(os.environ.get("BUCKETD_TEST_DATA", ROOT / "tests" / "data"))


@pytest.fixture(scope="session")
def vectors(data):
    """(file, digest) of every shared vector."""
    import json

    expected = json.loads((data / "vectors" / "vectors.json").read_text())
    assert expected, "there are no vectors"
    return [(data / "vectors" / name, digest) for name, digest in sorted(expected.items())]
