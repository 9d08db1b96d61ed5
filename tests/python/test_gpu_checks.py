"""gpu_agent/gpu_checks.sh where there is no GPU: that it says so, and what it makes of its parts, with programs in place of those that want
one. The steps on a GPU are the real ones, over simulated GPUs."""

import os
import pathlib
import re
import subprocess
import sys

import played_nccl
import pytest
import torch

from bucketd import bucket_library

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "gpu_agent" / "gpu_checks.sh"
SIMULATED = pathlib.Path(os.environ.get("BUCKETD_BIN") or ROOT / "build" / "bin").parent / "tests" / "gpu_steps_simulated"


AGENT = SIMULATED.parents[1] / "bin" / "bucket-agent"
CONFORMANCE = SIMULATED.with_name("cudasim_conformance_test")


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checks(tmp_path):
    """Programs, and a call of the script over them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program(folder / "gpu_checks", 'case $1 in backend) echo "backend: cuda, 1 GPU, NCCL 2.27.3 (of the test)";; copies) printf "ag_in\\t1\\t1\\n" > "$2";; esac')
    program(folder / "gpu_conformance", "echo nccl")
    program(folder / "gpu_steps", "exit 0")
    program(tmp_path / "python", 'case "$*" in *torch_ops*) echo "CHECK|torch|1.5 times|faster|right";; *torch_buckets*) echo "torch: sees no GPU"; exit 3;; esac')

    def run(seconds=60):
        environment = {**os.environ, "GPU_CHECKS_PROGRAMS": str(folder), "GPU_CHECKS_RESULTS": str(tmp_path / "RESULTS.md"),
                       "PYTHON": str(tmp_path / "python"), "GPU_CHECKS_SECONDS": str(seconds), "PATH": f"{tmp_path}/tools:/usr/bin:/bin"}
        environment.pop("BUCKETD_NCCL_LIB", None)
        done = subprocess.run([SCRIPT, tmp_path / "out"], env=environment, capture_output=True, text=True, timeout=120)
        written = tmp_path / "RESULTS.md"
        return done.returncode, done.stdout + done.stderr, written.read_text() if written.exists() else ""

    return folder, run


def test_without_a_gpu_nothing_is_checked_and_no_result_is_written(checks):
    folder, run = checks
    program(folder / "gpu_checks", "echo backend: host; exit 3")
    code, said, results = run()
    assert (code, results) == (3, "") and "there is no GPU here, so nothing was checked" in said


def test_a_gpu_that_cannot_be_used_is_wrong(checks):
    folder, run = checks
    program(folder / "gpu_checks", "exit 7")
    code, said, results = run()
    assert (code, results) == (1, "") and "the GPU cannot be used (exit 7)" in said


def test_every_check_is_a_line_with_its_figure_and_its_bound(checks):
    folder, run = checks
    program(folder / "gpu_steps", f'exec "{SIMULATED}" "$@"')
    code, said, results = run()
    assert code == 0, said
    for what, bound in (("steps on a trainer's stream, bytes", "0"), ("steps on a trainer's stream, memory kept", "32 MiB"), ("close under way", "10 s"),
                        ("close after an abort under way", "10 s"), ("two lanes beside a busy GPU, launch order not set", "it ends"),
                        ("a step as a graph", "all"), ("close before its graph is destroyed", "10 s"),
                        ("host time of a bucket's start and join", "50 us"), ("the same with a record for the agent", "1 us more"),
                        ("host time of a launch of NCCL's", "100 us"), ("4 KiB all-reduce, gated against ungated", "less, and under 50 us"),
                        ("a window over cudaMalloc's memory", "25 s"), ("torch", "faster")):
        rows = [row for row in results.splitlines() if row.startswith(f"| {what} |") and f"| {bound} |" in row]
        assert len(rows) == 1, (what, results)
    assert re.search(r"\| \*\*torch's tensors\*\* \| \d+ s \| \d+ s \| not here: torch: sees no GPU \|", results), results
    assert "NCCL 2.27.3 (of the test)" in results and results.splitlines()[2].startswith("All right. Written by")
    # What is left out is said, in both.
    for part, why in (("NCCL, 2 and 3 ranks", "NCCL 2.30"), ("NCCL's profiler plugin", "NCCL 2.30"), ("torch's tensors, 2 processes", "NCCL 2.30"), ("a training", "NCCL 2.30"), ("calibrate through NCCL", "NCCL 2.30"), ("closes under memcheck", "compute-sanitizer is not here")):
        assert re.search(rf"^\| \*\*{part}\*\* \| - \| - \| skipped: .*{why}", results, re.MULTILINE), results
        assert f"== {part}\n-- skipped: " in said
    assert "What is not right" not in results


def test_a_carried_nccl_is_for_our_programs_and_not_for_torchs_process(checks, monkeypatch):
    """torch's communicators are of the NCCL that torch has, and cannot be split by another one."""
    folder, run = checks
    (folder / "libnccl.so.2").touch()
    program(folder / "gpu_steps", 'echo "steps have ${BUCKETD_NCCL_LIB:-none}"')
    program(folder.parent / "python", 'case "$*" in *torch_buckets*) echo "torch has ${BUCKETD_NCCL_LIB:-its own}";; esac')
    code, said, _ = run()
    assert code == 0, said
    assert f"steps have {folder}/libnccl.so.2" in said and "torch has its own" in said


def test_parts_have_what_their_programs_want_of_the_environment(checks, monkeypatch):
    folder, run = checks
    program(folder / "gpu_checks", 'case $1 in backend) echo "backend: cuda, 1 GPU, NCCL 2.30.7 (of the test)";; esac')
    (folder / "libnccl.so.2").touch()
    program(folder / "gpu_steps", 'echo "order ${NCCL_LAUNCH_ORDER_IMPLICIT:-unset}"')
    program(folder.parent / "python", 'case "$*" in *"torch_buckets.py --ranks 2"*) echo "2 ranks: order ${NCCL_LAUNCH_ORDER_IMPLICIT:-unset}, first $LD_PRELOAD, own ${BUCKETD_NCCL_LIB:-none}";; *torch_training.py*) echo "training: order ${NCCL_LAUNCH_ORDER_IMPLICIT:-unset}, first $LD_PRELOAD, $*";; esac')
    program(folder / "bucket-agent", 'echo "agent: $* by $LD_LIBRARY_PATH"')
    (folder.parent / "tools").mkdir()
    program(folder.parent / "tools" / "compute-sanitizer", 'echo "sanitizer: $*"')
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")  # where some containers have the driver
    code, said, _ = run(seconds=570)
    assert code == 0, said
    assert re.findall("^order .*", said, re.MULTILINE) == ["order unset"] * 3
    # NCCL that is newer than torch's is torch's there, and the one whose communicators the executor splits.
    assert f"2 ranks: order 1, first {folder}/libnccl.so.2, own none" in said
    assert re.search(f"training: order 1, first {folder}/libnccl.so.2, .* {folder}/libbucket_executor.so {folder}/bucketd\n", said), said
    assert re.search(f"agent: calibrate .* --measure-when always .* by {folder}:/usr/local/nvidia/lib64\n", said), said
    # What NCCL tries and fails is not what is looked for.
    assert re.findall(r"sanitizer: .*--report-api-errors no .*/gpu_(\w+)", said) == ["steps"] and said.count("sanitizer: ") == 4, said


def test_programs_with_lines_of_their_own_kind_are_checks_too(checks):
    """The contract's real tests and the agent's real calibration; compute-sanitizer's words are those of its manual."""
    folder, run = checks
    program(folder / "gpu_checks", 'case $1 in backend) echo "backend: cuda, 1 GPU, NCCL 2.30.7 (of the test)";; esac')
    program(folder / "gpu_conformance", f'exec "{CONFORMANCE}" "$@" --gtest_filter="*TellsWhatItIs*"')
    program(folder / "bucket-agent", f'exec "{AGENT}" calibrate --backend ring --ranks 2 --max-bytes 4096')
    (folder.parent / "tools").mkdir()
    program(folder.parent / "tools" / "compute-sanitizer", 'case "$*" in *racecheck*) echo "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"; exit 9;; '
            '*) echo "========= ERROR SUMMARY: 0 errors";; esac')
    code, said, results = run(seconds=570)
    assert code == 1, said
    lines = results.splitlines()
    for tool, found, verdict in (("memcheck", 0, "right"), ("initcheck", 0, "right"), ("racecheck", 2, "WRONG")):
        assert lines.count(f"| kernels under {tool}, what it found | {found} | 0 | {verdict} |") == 1, results
    assert lines.count("| closes under memcheck, what it found | 0 | 0 | right |") == 1, results
    assert len([line for line in lines if re.fullmatch(r"\| NCCL, tests \| ([1-9]\d*) of \1 \| all \| right \|", line)]) == 1, results
    assert len([line for line in lines if re.fullmatch(r"\| calibrate through NCCL, elements that were wrong \| 0 in [1-9]\d* rows \| 0 \| right \|", line)]) == 1, results


@pytest.mark.parametrize("words, check", [
    (("[==========] 3 tests from 1 test suite ran. (5 ms total)", "[  PASSED  ] 2 tests."), "| NCCL, tests | 2 of 3 | all | WRONG |"),
    (("[==========] 3 tests from 1 test suite ran. (5 ms total)", "[  PASSED  ] 2 tests.", "[  SKIPPED ] 1 test, listed below:"), "| NCCL, tests | 2 of 3, 1 of them not here | all | right |"),
    (("[==========] 3 tests from 1 test suite ran. (5 ms total)",), "| NCCL, tests | 0 of 3 | all | WRONG |"),
    (("#  size  count  type  redop  root  time algbw busbw #wrong  time algbw busbw #wrong", " 4 1 f32 sum -1  1.0 1.0 1.0 3  1.0 1.0 1.0 4"),
     "| NCCL, elements that were wrong | 7 in 1 rows | 0 | WRONG |"),
])
def test_what_fails_among_them_is_wrong(checks, words, check):
    folder, run = checks
    program(folder / "gpu_conformance", "\n".join(f"echo '{word}'" for word in words) + "\nexit 1")
    _, said, results = run()
    assert results.splitlines().count(check) == 1, results


@pytest.mark.parametrize("steps, code, verdict", [
    ('echo "CHECK|x|9 us|5 us|below the goal"; exit 2', 2, "| x | 9 us | 5 us | below the goal |"),
    ('echo "CHECK|x|9|5|WRONG"; exit 1', 1, "WRONG (exit 1)"),
    ("exec sleep 60", 1, "WRONG: took too long"),
])
def test_what_a_part_says_is_what_the_script_says(checks, steps, code, verdict):
    folder, run = checks
    program(folder / "gpu_steps", steps)
    ended, said, results = run(seconds=3 if "sleep" in steps else 60)
    assert ended == code and verdict in results, said + results
    # Whoever runs it first learns what it means, and sees what the part said.
    advice = results.split("## What is not right, and what to do\n")[1]
    assert advice.count("**an executor on a GPU**: ") == 1 and "runs one alone" in advice and "runs one alone" in said
    assert ("It hung, or this machine is slow" in advice) == ("sleep" in steps)
    assert "CHECK|x" in advice or "sleep" in steps


def test_nccls_profiler_plugin_is_a_part_where_two_ranks_are_on_one_gpu(checks, monkeypatch):
    folder, run = checks
    program(folder / "gpu_checks", 'case $1 in backend) echo "backend: cuda, 1 GPU, NCCL 2.30.7 (of the test)";; esac')
    program(folder / "gpu_steps", f'case "$*" in *ProfilerPlugin*) exec "{SIMULATED}" "$@";; esac')
    program(folder / "bucket-agent", "exit 0")
    monkeypatch.setenv("GPU_CHECKS_PLUGIN", played_nccl.PLUGIN)
    code, said, results = run(seconds=570)
    assert code == 0, said
    assert re.search(r"^\| collectives that NCCL's profiler plugin tells of \| (\d+) of \1 \| all \| right \|$", results, re.MULTILINE), results
    assert re.search(r"^\| 4 KiB all-reduce, in its kernel against on the wire \| [\d.]+ us against [\d.]+ us \| less, and more than 0 \| right \|$",
                     results, re.MULTILINE), results
    # Another interface, or none at all: it says so.
    monkeypatch.setenv("GPU_CHECKS_PLUGIN", "/nowhere.so")
    code, said, results = run(seconds=570)
    assert code == 1 and "NCCL's profiler plugin**: WRONG" in results, results


def test_all_parts_have_room_within_the_whole():
    text = SCRIPT.read_text()
    parts = [int(limit) for limit in re.findall(r'^ *part "[^"]+" (\d+) ', text, re.MULTILINE)]
    more = [int(limit) for limit in re.findall(r"\$\(limited (\d+) ", text)]
    tools = len(re.search(r"^for tool in (.*); do", text, re.MULTILINE)[1].split())
    by_tool = [int(limit) for limit in re.findall(r'part "kernels under \$tool" (\d+) ', text)]
    assert len(parts) == 14 and len(more) == 3 and len(by_tool) == 1
    assert sum(parts) + sum(more) + (tools - 1) * by_tool[0] <= int(re.search(r"GPU_CHECKS_SECONDS:-(\d+)", text)[1]) < 600


_TORCH_ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grpc", "google") or name.startswith("bucketd._wire"):
            raise ModuleNotFoundError(f"{name} is not carried")

sys.meta_path.insert(0, Absent())
"""


def test_torchs_part_runs_its_steps_on_the_processor_where_nothing_but_torch_and_the_sources_are(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_TORCH_ALONE)

    def said(*device):
        done = subprocess.run([sys.executable, ROOT / "tests" / "gpu_agent" / "checks" / "torch_buckets.py", bucket_library.find(), *device],
                              env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, 3), done.stderr
        return done.returncode, [line for line in done.stdout.splitlines() if "|" in line or "sees no GPU" in line]

    done = subprocess.run([sys.executable, "-c", "import grpc"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert "grpc is not carried" in done.stderr
    for ranks, suffix in (("1", ""), ("2", ", 2 processes")):
        assert said("cpu", "--ranks", ranks) == (0, [f"CHECK|{what}{suffix}|40 of 40 steps|all|right" for what in (
            "torch's tensors, bits of torch.distributed", "torch's allocator gives memory out again at once",
            "torch's own all-reduces beside buckets, launch order not set")])
    if not torch.cuda.is_available():
        assert said() == (3, ["torch: sees no GPU"])


def test_the_trainings_part_has_eagers_bits_on_the_processor_and_says_what_is_not_here(tmp_path):
    def said(*arguments, **more):
        done = subprocess.run([sys.executable, ROOT / "tests" / "gpu_agent" / "checks" / "torch_training.py", bucket_library.find(), *arguments],
                              env={**os.environ, **more}, capture_output=True, text=True, timeout=240)
        assert done.returncode in (0, 3), done.stderr
        return done.returncode, done.stdout

    code, lines = said(AGENT.with_name("bucketd"), "cpu")
    checks = [line.split("|") for line in lines.splitlines() if line.startswith("CHECK|")]
    assert (code, len(checks)) == (0, 2), lines
    for (_, what, figure, _, verdict), ours in zip(checks, ("0 of 4 buckets ours", "4 of 4 buckets ours"), strict=True):
        assert verdict == "right" and figure.startswith("weights equal, gradients equal, loss") and figure.endswith(ours), (what, figure)
    assert said("/bin/false", "cpu") == (3, "the planner does not start: \n")
    (tmp_path / "sitecustomize.py").write_text(_TORCH_ALONE)
    assert said("/bin/false", "cpu", PYTHONPATH=str(tmp_path)) == (3, "a training: not here (bucketd._wire is not carried)\n")


def test_where_a_checks_rank_fails_the_others_end_with_it(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu_agent" / "checks")
    import check_ranks

    monkeypatch.setattr(check_ranks, "_AFTER_A_FAILURE", 0.2)
    monkeypatch.setattr(check_ranks.signal, "signal", lambda *_: None)
    assert check_ranks.run([["sleep", "60"], ["sh", "-c", "exit 4"]]) == [-9, 4]
    assert check_ranks.run([["true"], ["true"]]) == [0, 0]
