"""What the Python package's distribution holds, and what its sources are held to."""

import ast
import graphlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import trainers_page

from bucketd import needs_torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client" / "python" / "bucketd"
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


@pytest.mark.parametrize(("version", "said"), [
    ("2.12.1", "ImportError: bucketd.backend needs PyTorch 2.13 or later, and this is 2.12.1: pip install 'torch>=2.13'"),
    ("2.14.0", "bucketd: PyTorch 2.14.0 is newer than any that bucketd was tried with (2.13)"),
    ("2.13.0a0+git1234", ""),
])
def test_a_torch_that_was_not_tried_is_told(tmp_path, version, said):
    """By the metadata that another version would leave; the one that is installed does the rest."""
    (tmp_path / f"torch-{version}.dist-info").mkdir()
    (tmp_path / f"torch-{version}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    done = subprocess.run([sys.executable, "-c", "import bucketd; bucketd.backend; bucketd.plan_pass"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])})
    assert (done.stderr.splitlines() or [""])[-1] == said and done.returncode == said.startswith("ImportError"), done.stderr


ROWS = re.findall(r"^\| (torch|torchtitan) \| (\S+) \| (.*) \|$", trainers_page.PATH.read_text(), re.MULTILINE)


def test_a_test_runs_every_block_of_code_on_the_page_for_trainers():
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "python").glob("*.py"))
    asked = re.findall(r'(blocks|commands)\("([^"]+)"(?:, "(\w+)")?\)', tests)
    assert {(heading, language or "sh") for _, heading, language in asked} == trainers_page.everything().keys()


def test_the_table_of_versions_has_what_was_tried_and_its_neighbours():
    tried = [f"{package} {version}" for package, version, happens in ROWS if happens == "tried"]
    assert tried == [*(f"torch {version}" for version in needs_torch.TRIED), "torchtitan 0.3"]
    assert [f"{package} {version}" for package, version, _ in ROWS if version == "none"] == ["torch none", "torchtitan none"]


@pytest.mark.parametrize(("package", "version", "happens"), ROWS)
def test_a_version_gets_what_the_table_says(package, version, happens):
    """As the checks see it; what is installed is another one."""
    program = f"""
import importlib.metadata
found = importlib.metadata.version
def version(name):
    if name == {package!r} and {version!r} == "none":
        raise importlib.metadata.PackageNotFoundError(name)
    return {{"torch": "2.13.0", "torchtitan": "0.3.0", {package!r}: "{version}.0"}}.get(name) or found(name)
importlib.metadata.version = version
from bucketd import needs_torch
needs_torch.check("this")
if {package!r} == "torchtitan":
    import bucketd.needs_torchtitan
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    said = (done.stderr.splitlines() or [""])[-1]
    if happens.startswith("refused"):
        assert said.startswith("ImportError: ") and said.endswith(happens.split("`")[1]), said
    elif happens.startswith("runs, with a warning"):
        assert done.returncode == 0 and "is newer than any that bucketd was tried with" in said
    else:
        assert happens == "tried" and done.returncode == 0 and not said


def _imported(path: pathlib.Path, modules: dict[str, pathlib.Path]) -> set[str]:
    """Modules of the package that this one imports, wherever in it."""
    here = path.relative_to(PACKAGE.parent).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*here[:len(here) - node.level + 1], *filter(None, [node.module])])
            found.update(name if name in modules else base for name in (f"{base}.{each.name}" for each in node.names))
    return found & modules.keys()


def test_no_module_is_imported_by_what_it_imports():
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
               for path in PACKAGE.rglob("*.py") if "_wire" not in path.parts}
    arrows = {name: _imported(path, modules) - {name} for name, path in modules.items()}
    assert "bucketd.mesh" in arrows["bucketd.step_context"] and "bucketd.tags" in arrows["bucketd.capture"]
    graphlib.TopologicalSorter(arrows).prepare()  # or CycleError, which names a circle


def test_generated_stubs_ask_for_no_version_of_what_runs_them():
    for name in sorted(STUBS):
        text = (ROOT / "client" / "python" / name).read_text()
        assert "runtime_version" not in text and "GRPC_GENERATED_VERSION" not in text, name


def test_the_sources_are_as_the_linter_wants_them():
    ruff = pathlib.Path(sys.executable).with_name("ruff")
    found = subprocess.run([ruff, "check", "--output-format", "concise", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
