"""Trainings by torchtitan's own Trainer on 4 gloo processes: planned by bucketd, and as torchtitan does it without."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from live_server import Server
from ranks import run_ranks

pytest.importorskip("torchtitan", reason="torchtitan 0.3.0 needs Python 3.11")
import titan_on_cpu  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "bench"))

import trainers  # noqa: E402
from trainers_page import blocks, commands  # noqa: E402

WORLD = 4
PLANNED = {"pass_pipeline": "bucketd"}


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchtitan")
    titan_on_cpu.assets(folder)
    return folder


@pytest.fixture(scope="module")
def offline(assets):
    """Nothing is fetched, and what torchtitan's data set makes of our file goes into the test's folder."""
    return {"HF_HUB_OFFLINE": "1", "HF_HOME": str(assets / "hf")}


def trained(assets, offline, timeout=280, **runs) -> tuple[dict, str]:
    """What rank 0 saw of each run, and what it said. Each run's weights are compared with the first one's, on every rank."""
    said = run_ranks("titan_worker.py", WORLD, json.dumps(dict(assets=str(assets), runs=runs)), timeout=timeout, **offline)
    seen = [json.loads(text.splitlines()[-1]) for text in said]
    first = next(iter(runs))
    for name in runs:
        for ours in seen:
            assert ours[name]["losses"] == seen[0][name]["losses"]
        seen[0][name]["same"] = all(ours[name]["weights"] == ours[first]["weights"] for ours in seen)
    assert len({ours[first]["weights"] for ours in seen}) == WORLD, "ranks have one shard"
    return seen[0], said[0]


def launched(run: dict) -> int:
    return sum(run["launches"].values())


@pytest.mark.slow
def test_llama3_trains_as_it_does_without_us(assets, offline, tmp_path):
    small = {"layers": 2}
    with Server(tmp_path) as server:
        seen, said = trained(
            assets, offline,
            own={**small},
            shared={**small, "bucketd": {"address": server.address}, "compile": PLANNED},
            jit={**small, "bucketd": {"mode": "transformer_block"}, "compile": {"mode": "jit", **PLANNED}},
            executor={**small, "bucketd": {"address": server.address, "executor": "bucketd"}, "compile": PLANNED},
            typo={**small, "steps": 0, "compile": {"pass_pipeline": "bucketed"}})
        answered = server.status()
    own = seen["own"]
    assert len(own["losses"]) == 3 and own["losses"][0] > own["losses"][-1]
    for name in ("shared", "jit", "executor"):
        assert seen[name]["same"] and seen[name]["losses"] == own["losses"], name
    assert launched(own) == 8  # the embedding, two blocks, and the last norm with the head; twice
    assert launched(seen["shared"]) <= 8
    assert all(graph["run by"] == "bucketd" for graph in seen["executor"]["planned"]) and launched(seen["executor"]) < launched(seen["shared"])
    assert [graph["scope"][-2:] for graph in seen["jit"]["planned"]] == ["fw", "bw"]
    assert sum(len(graph["buckets"]) for graph in seen["jit"]["planned"]) <= 8
    assert "compile.pass_pipeline='bucketed' names no pipeline" in said and "did you mean 'bucketd'?" in said
    assert answered["plans"], "the shared server planned nothing"


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, pytest.param(25, marks=pytest.mark.full)])
def test_deepseek_v3_trains_as_it_does_without_us(assets, steps):
    """Mixtures of experts, their parameters on a mesh of their own, tokens sent to where their experts are."""
    seen = trainers.train(trainers.Case("aot_fx_trace", "deepseek_v3", "FSDP, experts on 2"), steps, assets)
    made = trainers.row(seen)
    assert made.same and len(seen[0]["own"]["losses"]) == steps
    assert made.own == 14 and made.planned <= 14 and made.alone == 82
    (graph,) = seen[0]["planned"]["planned"]
    shared = {(kind, mesh) for kind, mesh, members in graph["buckets"] if members > 1}
    assert shared == {(kind, mesh) for kind in ("all_gather", "reduce_scatter") for mesh in ("world", "efsdp")}
    before, after = graph["under_exchanges"]
    assert len(before) == len(after) == 10 and not any(before), "torchtitan waits for tokens at once"
    assert sum("aten.mm.default" in products for products in after) >= 5, after


EXPERTS = trainers.Case("aot_fx_trace", "deepseek_v3", "FSDP, experts on 2")  # of the test above
FAST = trainers.Case("torch.compile aot_eager", "example", "FSDP")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case == FAST else pytest.mark.full, id=str(case))
                                  for case in trainers.CASES if case != EXPERTS])
def test_a_row_of_the_table(assets, case):
    made = trainers.row(trainers.train(case, 3, assets))
    assert made.same and made.planned < made.alone
    assert made.planned <= (made.own or LEFT.get((case.model, case.parallelism), made.alone))
    assert made.guards[0] <= made.guards[1] and made.breaks == (0, 0), "Dynamo made something for the plan's sake"
    assert any(made.guards) == (case.integration not in ("aot_fx_trace", "Inductor")), "who asks Dynamo"


# What torchtitan's own pass leaves of parameters' and gradients' collectives; of its own runs, only aot_fx_trace shows it.
LEFT = {("llama3", "FSDP"): 10, (EXPERTS.model, EXPERTS.parallelism): 14}


@pytest.mark.full
@pytest.mark.parametrize("case", [case for case in trainers.CASES if (case.model, case.parallelism) in LEFT], ids=str)
def test_a_shared_servers_plans_train_alike(assets, tmp_path, case):
    """What the rows of the table have from a planner of the ranks' own."""
    with Server(tmp_path) as server:
        made = trainers.row(trainers.train(case, 3, assets, address=server.address))
        answered = server.status()
    assert made.same and made.planned <= LEFT[case.model, case.parallelism]
    assert answered["plans"], "the shared server planned nothing"


@pytest.mark.full
@pytest.mark.quiet
def test_a_planned_step_is_no_slower_than_one_by_torchtitans_own_pass(assets):
    made = trainers.row(trainers.train(trainers.Case("aot_fx_trace", "llama3", "FSDP"), 60, assets))
    assert made.ratio[1] <= 1, made


@pytest.mark.full
def test_what_inductor_writes_keeps_the_plans_order(assets, offline):
    whole = {"inductor_compilation": "full"}
    seen, _ = trained(
        assets, offline, timeout=580,
        own={"layers": 1, "compile": whole},
        planned={"layers": 1, "bucketd": {"mode": "transformer_block"}, "compile": {**whole, **PLANNED}})
    assert seen["planned"]["same"]
    assert seen["planned"]["code"] == [""], "one graph, and nothing in another order"


@pytest.mark.slow
def test_the_page_takes_a_user_to_a_planned_step(assets, offline, tmp_path):
    """The page's own command, on a debug model that trains here: what is behind `--` is what this machine asks for."""
    _, command = commands("torchtitan")
    words = shlex.split(command)
    words[0] = str(pathlib.Path(sys.executable).with_name("torchrun"))
    words[words.index("--nproc-per-node") + 1] = "2"
    words[words.index("--config") + 1] = "graph_trainer_llama3_debugmodel_sdpa_cross_entropy_loss"
    here = ["--training.steps", "2", "--training.local_batch_size", "2", "--training.seq_len", "64", "--training.disable_cuda_graphs",
            "--compile.disable_passes", "cudagraph_pass,tag_with_memory_policy_pass,selective_activation_remat_pass",
            "--hf_assets_path", str(assets / "tokenizer"), "--dataloader.dataset_path", str(assets / "data"),
            "--dump_folder", str(tmp_path), "--checkpoint.no_enable", "--validator.no_enable"]
    environment = dict(os.environ, OMP_NUM_THREADS="1", **offline)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "python" / "titan_site"), environment["PYTHONPATH"]])
    done = subprocess.run([*words, *here], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)  # without colours
    assert re.search(r"bucketd: \d+ buckets, predicted .*\(0/joint\)", said) and "step:  2" in said, said


def test_the_pages_two_lines_set_what_the_pipeline_plans_with():
    (lines,) = blocks("torchtitan", "python")
    run(f"""
import titan_on_cpu
{lines}
assert bucketd.torchtitan._asked.options["address"] == "planner:9460"
""")


def test_options_are_those_of_the_backend():
    run("""
import titan_on_cpu, bucketd.torchtitan as ours
for options, expected in [(dict(mod="auto"), "did you mean mode?"), (dict(fallback="never"), "fallback='never'"), (dict(model=1), "model=")]:
    try:
        ours.configure(**options)
    except (TypeError, ValueError) as error:
        assert expected in str(error), error
    else:
        raise AssertionError(options)
ours.configure(mode="greedy", on_plan=print, passes=("plan",))
""")


@pytest.mark.parametrize("version, said", [(None, "there is no torchtitan"), ("0.2.1", "this is torchtitan 0.2.1")])
def test_what_to_install_is_said(version, said):
    run(f"""
import importlib.metadata
found = importlib.metadata.version
def version(name):
    if name == "torchtitan" and {version!r} is None:
        raise importlib.metadata.PackageNotFoundError(name)
    return {version!r} if name == "torchtitan" else found(name)
importlib.metadata.version = version
try:
    import bucketd.torchtitan
except ImportError as error:
    assert {said!r} in str(error) and 'pip install "torchtitan==0.3.0"' in str(error), error
else:
    raise AssertionError("imported")
""")


def run(program: str) -> None:
    """In a process of its own, since what torchtitan is patched with would stay."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "tests" / "python", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
