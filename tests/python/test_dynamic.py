"""Sizes that change from step to step: gloo processes train without a plan and with one, and end with the same weights."""

import json
import pathlib
import re
import subprocess

import pytest
from planners import planner
from ranks import run_ranks

from bucketd import embedded
from bucketd.canonical import digest
from bucketd.files import load_graph
from bucketd.graph import SYMBOLIC
from bucketd.normalize import normalize

pytestmark = pytest.mark.slow

# By the number of ranks.
JOBS = {3: ("automatic", "declared", "static_then_last", "uneven", "uneven_by_default", "last_on_rank_2", "two_forwards_first",
            "two_forwards_first_by_default"), 4: ("routed",)}
CASES = [case for cases in JOBS.values() for case in cases]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def jobs(graphs):
    found = {}
    with planner() as one:
        for world, cases in JOBS.items():
            said = run_ranks("dynamic_worker.py", world, *cases, timeout=600, PLANNER=one.address, GRAPHS=str(graphs))
            ranks = [[json.loads(line) for line in text.splitlines() if line.startswith('{"case"')] for text in said]
            found.update({case: [rank[i] for rank in ranks] for i, case in enumerate(cases)})
    return found


def plans(rank):
    """By scope the plans that a rank ran, each once, and how often it compiled for them without asking."""
    return {scope: plan for scope, plan, _ in rank["planned"]["plans"]}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_unplanned_run_and_all_ranks_ran_one_plan(jobs, case):
    for rank in jobs[case]:
        assert rank["planned"]["bits"] == rank["plain"]["bits"]
        assert plans(rank) == plans(jobs[case][0]) and len(plans(rank)) == 2


@pytest.mark.parametrize("case", CASES)
def test_no_graph_is_compiled_and_no_guard_added_for_the_plans_sake(jobs, case):
    for rank in jobs[case]:
        assert len(rank["planned"]["collectives"]) == len(rank["plain"]["collectives"])
        assert rank["planned"]["guards"] == rank["plain"]["guards"]


def test_another_batch_makes_a_second_graph_and_no_second_question(jobs):
    for rank in jobs["automatic"]:
        sources = [source for _, _, source in rank["planned"]["plans"]]
        assert rank["plain"]["collectives"] == 4 * [7] and rank["planned"]["guards"]
        assert sources.count("agreed before") == 2 and set(sources[2:]) == {"agreed before"}
        assert rank["planned"]["collectives"][2:] == rank["planned"]["collectives"][:2]
        assert sum(rank["planned"]["collectives"][:2]) <= 4


def test_a_rank_compiles_alone(jobs):
    pairs = [len(rank["planned"]["collectives"]) // 2 for rank in jobs["last_on_rank_2"]]
    assert pairs[0] == pairs[1] < pairs[2]


def test_ranks_of_other_sizes_run_the_first_ranks_plan(jobs):
    """Also where that one's batch is of one sample, or another's batch is as long as its sequences."""
    for case in ("uneven", "uneven_by_default"):
        first = [rank["planned"]["plans"][0] for rank in jobs[case]]
        assert all(source != "agreed before" for _, _, source in first) and len({plan for _, plan, _ in first}) == 1


def run(program, *arguments):
    binary = pathlib.Path(embedded.find_binary()).with_name(program)
    return subprocess.run([binary, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def test_a_saved_graph_with_symbolic_sizes_is_planned_and_shown_by_the_command_line(jobs, graphs, tmp_path):
    symbolic = [path for path in graphs.iterdir() if any(node.flags & SYMBOLIC for node in load_graph(path).nodes)]
    assert len(symbolic) >= 4
    for path in symbolic:
        said = path.name.split(".")[3]
        assert digest(normalize(load_graph(path)).graph).hex() == said and said in run("bucketctl", "digest", path)
    largest = max((path for path in symbolic if ".fw." in path.name), key=lambda path: len(load_graph(path).nodes))
    text = run("bucketctl", "plan", largest, "--numerics", "exact", "--plan-out", tmp_path / "plan.json")
    assert "all-to-all" in text
    assert "fsdp.all_gather.0 forward" in run("bucketctl", "show", tmp_path / "plan.json")
    assert re.search(r"= all_to_all\([^=]*\) symbolic ", run("bucketd-opt", largest, "--graph"))


def test_what_the_router_decides_stays_alone_and_the_parameters_share_buckets(jobs):
    """Six exchanges of tokens and counts in the forward, four in the backward; what else there is, parameters and gradients, is one
    bucket each."""
    for rank in jobs["routed"]:
        assert rank["plain"]["collectives"] == [11, 9] and rank["planned"]["collectives"] == [7, 5]
