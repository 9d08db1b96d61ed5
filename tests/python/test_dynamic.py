"""Sizes that change from step to step: four gloo processes train without a plan and with one, and end with the same weights."""

import json

import pytest
from planners import planner
from ranks import run_ranks

pytestmark = pytest.mark.slow

WORLD = 4
CASES = ("automatic", "routed", "uneven", "uneven_by_default", "last_on_rank_3")


@pytest.fixture(scope="module")
def jobs():
    with planner() as one:
        said = run_ranks("dynamic_worker.py", WORLD, *CASES, timeout=400, PLANNER=one.address)
    ranks = [[json.loads(line) for line in text.splitlines() if line.startswith('{"case"')] for text in said]
    return {case: [rank[i] for rank in ranks] for i, case in enumerate(CASES)}


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
        assert rank["plain"]["collectives"] == 4 * [11] and rank["planned"]["guards"]
        assert sources.count("agreed before") == 2 and set(sources[2:]) == {"agreed before"}
        assert rank["planned"]["collectives"][2:] == rank["planned"]["collectives"][:2]
        assert sum(rank["planned"]["collectives"][:2]) <= 4


def test_a_rank_compiles_alone(jobs):
    pairs = [len(rank["planned"]["collectives"]) // 2 for rank in jobs["last_on_rank_3"]]
    assert pairs[0] == pairs[1] == pairs[2] < pairs[3]


def test_ranks_of_other_sizes_run_the_first_ranks_plan(jobs):
    """Also where that one's batch is of one sample, or another's batch is as long as its sequences."""
    for case in ("uneven", "uneven_by_default"):
        first = [rank["planned"]["plans"][0] for rank in jobs[case]]
        assert all(source != "agreed before" for _, _, source in first) and len({plan for _, plan, _ in first}) == 1


def test_what_the_router_decides_stays_alone_and_the_parameters_share_buckets(jobs):
    """Six exchanges of tokens and counts in the forward, four in the backward; what else there is, parameters and gradients, is one
    bucket each."""
    for rank in jobs["routed"]:
        assert rank["plain"]["collectives"] == [11, 9] and rank["planned"]["collectives"] == [7, 5]
