"""The one file that trainers install: made of the build, put into an environment that has nothing else of ours, and used there."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trainers_page import commands

import bucketd

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BUCKETD_BIN", ROOT / "build" / "bin"))
PROGRAMS = ("bucket-agent", "bucketctl", "bucketd")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([ROOT / "deploy" / "wheel.sh", "--built", BIN.parent, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


def needed_by(*names: str) -> dict[str, importlib.metadata.Distribution]:
    """These distributions and what they need, by name, as they are installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            wanted = map(Requirement, found[name].requires or ())
            left.extend(one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""}))
    return found


class Environment:
    """A virtual environment with the wheel, what it needs, and nothing that says where else our programs are."""

    def __init__(self, folder: pathlib.Path, wheel: pathlib.Path, linked=(), alone=(), install=()):
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.site = pathlib.Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        with zipfile.ZipFile(wheel) as file:
            requires = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", _metadata(file), re.MULTILINE)
        self.link(*needed_by(*requires, *linked).values(), *map(importlib.metadata.distribution, alone))
        self.pip("install", "--no-index", *(install or [wheel]))
        self.examples = folder / "examples"
        shutil.copytree(ROOT / "client" / "python" / "examples", self.examples)

    def link(self, *packages: importlib.metadata.Distribution) -> None:
        """Installs packages, as links to those that are installed here: nothing is fetched."""
        for one in packages:
            for entry in {file.parts[0] for file in one.files} - {"..", "__pycache__", "google"}:
                if not (self.site / entry).exists():
                    (self.site / entry).symlink_to(one.locate_file(entry))
            for file in one.files:  # a folder of several packages
                if file.parts[:1] == ("google",) and len(file.parts) > 1 and not (self.site / "google" / file.parts[1]).exists():
                    (self.site / "google").mkdir(exist_ok=True)
                    (self.site / "google" / file.parts[1]).symlink_to(one.locate_file("/".join(file.parts[:2])))

    def pip(self, *words) -> str:
        return self._output(sys.executable, "-m", "pip", "--python", self.folder / "bin" / "python", "--disable-pip-version-check", *words)

    def run(self, *words, check: bool = True) -> subprocess.CompletedProcess:
        """A program of the environment, which knows nothing of the source tree."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUCKETD_", "PYTHON"))}
        kept.update(PATH=f"{self.folder / 'bin'}:/usr/bin:/bin", OMP_NUM_THREADS="1")
        done = subprocess.run(list(map(str, words)), cwd=self.folder, env=kept, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def _output(self, *words) -> str:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def trainer(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("trainer"), wheel, linked=("torch", "numpy"))


def _metadata(file: zipfile.ZipFile) -> str:
    (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    return file.read(name).decode()


def test_the_name_says_manylinux_and_the_wheel_brings_all_libraries_but_the_systems(wheel, bare):
    assert re.fullmatch(r"bucketd-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    for name in PROGRAMS:
        ends = bare.run("ldd", bare.site / "bucketd" / "_native" / name).stdout
        others = {line.split()[0] for line in ends.splitlines() if str(bare.site) not in line}
        assert len(others) < 10 and all(re.match(r"(linux-vdso|libc|libm|libresolv|libz|libstdc\+\+|libgcc_s|/lib64/ld-linux)\W", other) for other in others), others


def test_the_wheel_says_what_it_is_and_whose_work_is_in_it(wheel):
    with zipfile.ZipFile(wheel) as file:
        metadata = _metadata(file)
        licenses = {name.rsplit("/", 1)[1] for name in file.namelist() if re.search("/licenses/.", name)}
        others = file.read("bucketd/_native/THIRD_PARTY.txt").decode()
    for line in (f"Version: {bucketd.__version__}", "License-Expression: Apache-2.0", "Provides-Extra: torch", "Provides-Extra: torchtitan",
                 "Description-Content-Type: text/markdown", "Requires-Dist: grpcio>=1.62"):
        assert line in metadata.splitlines(), line
    assert licenses == {"LICENSE", "NOTICE"}
    for package in ("libgrpc29", "libprotobuf32", "libabsl20220623", "libssl3", "nlohmann-json3-dev"):
        assert f"==== {package} " in others


def test_programs_are_on_the_path_and_nothing_that_the_package_wants_is_missing(bare):
    assert "No broken requirements" in bare.pip("check")
    for name in PROGRAMS:
        assert re.search(r"\d+\.\d+\.\d+", bare.run(name, "--version").stdout), name
    assert "bucketctl plan" in bare.run("bucketctl", "plan", "--help").stdout


def test_what_needs_torch_says_so_where_there_is_none(bare):
    assert bare.run("python", "-c", "import bucketd; print(bucketd.__file__)").stdout.startswith(str(bare.site))
    for name in ("backend", "joint_step", "plan_pass"):
        said = bare.run("python", "-c", f"import bucketd; bucketd.{name}", check=False).stderr.splitlines()
        assert said[-1] == f"ImportError: bucketd.{name} needs PyTorch, and there is none here: pip install 'torch>=2.13'"


def test_the_quickstarts_example_trains_with_the_planner_that_the_wheel_carries_and_the_tools_read_its_plans(trainer):
    out = trainer.folder / "out"
    said = trainer.run("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4, trainer.examples / "train_llama.py",
                       "--steps", 3, "--layers", 1, "--out-dir", out).stdout
    result = json.loads((out / "result.json").read_text())
    # Odd shapes: the bits of eager FSDP2 come of its order of payloads alone.
    assert result["planned equals eager FSDP2"] and not result["planned equals unplanned"]
    assert result["as the plan said of eager FSDP2"] and result["as the plan said of unplanned"]
    assert "planned and eager FSDP2: weights and every step's gradients are equal, bit for bit; the plan says equal" in said
    for plan in result["plans"]:
        assert plan["collectives_after"] < plan["collectives_before"]
        assert plan["answers"].count("computed") == 1
    for part in ("fw", "bw"):
        trace = out / f"{part}.trace.json"
        trainer.run("bucketctl", "trace", out / f"{part}.graph.json.gz", out / f"{part}.plan.json", "--out", trace)
        assert any(event.get("ph") == "X" for event in json.loads(trace.read_text())["traceEvents"])


def test_the_example_of_one_graph_for_the_whole_step_trains_too(trainer):
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    said = trainer.run(*torchrun, 2, trainer.examples / "train_joint.py", "--steps", 3, "--layers", 1).stdout
    assert "weights and every step's gradients are equal, bit for bit" in said


@pytest.mark.skipif(not importlib.util.find_spec("torchtitan"), reason="torchtitan 0.3.0 needs Python 3.11")
def test_what_the_page_for_trainers_has_installed_is_one_environment(wheel, tmp_path):
    """By the page's words, where torchtitan is already. Of its own needs, some are not here (deploy/requirements-alone.txt)."""
    pip, install, *asked = shlex.split(commands("torchtitan")[0])
    assert (pip, install) == ("pip", "install")
    asked = [wheel if word.endswith(".whl") else word for word in asked]
    made = Environment(tmp_path, wheel, install=["--no-deps", *asked], linked=("torch", "numpy"), alone=["torchtitan"])
    said = made.run("python", "-c", "import bucketd.needs_torchtitan as n, bucketd; print(n.version(), bucketd.__file__)").stdout
    assert said.startswith(f"0.3.0 {made.site}")


def test_the_library_that_runs_buckets_is_loaded_from_the_wheel(bare):
    where = bare.run("python", "-c", "from bucketd import bucket_library as b; b.load(); print(b.find())").stdout.strip()
    assert where == str(bare.site / "bucketd" / "_native" / "libbucket_executor.so")
