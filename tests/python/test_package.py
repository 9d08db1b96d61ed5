"""What the Python package's distribution holds, and what its sources are held to."""

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUBS = {f"bucketd/_wire/proto/{name}_pb2.py" for name in ("agent", "costs", "graph", "plan", "planner")}
STUBS |= {f"bucketd/_wire/proto/{name}_pb2_grpc.py" for name in ("agent", "planner")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy as a clone has it: no generated file is there yet."""
    copy = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "proto", copy / "proto")
    shutil.copytree(ROOT / "client" / "python", copy / "client" / "python",
                    ignore=shutil.ignore_patterns("*_pb2*.py", "__pycache__", "*.egg-info", "build"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*command, "-w", copy / "out", copy / "client" / "python"], check=True, capture_output=True, text=True)
    (made,) = (copy / "out").glob("bucketd-*.whl")
    return made


def test_the_wheel_holds_every_module_the_wire_stubs_and_the_mark_of_types(wheel):
    found = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("bucketd/")}
    package = ROOT / "client" / "python"
    modules = {path.relative_to(package).as_posix() for path in (package / "bucketd").rglob("*.py")}
    assert found == {name for name in modules if "_pb2" not in name} | STUBS | {"bucketd/py.typed"}


def test_the_wheel_is_imported_without_the_source_tree(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = f"import bucketd, bucketd.wire; assert bucketd.__file__.startswith({str(tmp_path)!r}), bucketd.__file__"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)


def test_the_sources_are_as_the_linter_wants_them():
    ruff = pathlib.Path(sys.executable).with_name("ruff")
    found = subprocess.run([ruff, "check", "--output-format", "concise", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
