"""A rank that Dynamo would have run eagerly beside the other ranks' plan stops and says why; what others compile is left alone."""

import json

import pytest
from planners import planner
from ranks import run_ranks

pytestmark = pytest.mark.slow

AT_THE_LIMIT = ("limit", "own_backend", "own_pass")


@pytest.fixture(scope="module")
def cases():
    """By case what both ranks found."""
    names = (*AT_THE_LIMIT, "waited_for", "suppressed", "compiler", "stance", "backward", "others")
    with planner() as one:
        said = run_ranks("recompile_worker.py", 2, one.address, *names, timeout=300)
    ranks = [[json.loads(line) for line in text.splitlines() if line.startswith('{"case"')] for text in said]
    return {name: [next((found for found in rank if found["case"] == name), {}) for rank in ranks] for name in names}


@pytest.mark.parametrize("case", AT_THE_LIMIT)
def test_a_rank_that_may_not_compile_once_more_stops_and_is_told_how_it_may(cases, case):
    first, second = cases[case]
    assert "said" in first and "error" not in first, first
    assert second.get("error") == "EagerFallback" and "torch._dynamo.config.recompile_limit, 2, allows" in second["text"]
    assert "forward (" in second["text"] and "raise torch._dynamo.config.recompile_limit, or see with TORCH_LOGS=recompiles" in second["text"]
    assert sum("for the last time that torch._dynamo.config.recompile_limit, 2, allows" in text for text in second["said"]) == 1


def test_ranks_that_wait_for_one_that_stopped_hear_why(cases):
    first, second = cases["waited_for"]
    assert second["error"] == "EagerFallback"
    assert first["error"] == "InterruptedRank" and first["text"].startswith("rank 1 stopped: EagerFallback: forward (")


def test_errors_of_a_planned_graphs_compilation_are_not_suppressed(cases):
    for rank in cases["suppressed"]:
        assert rank["error"] == "RuntimeError" and rank["text"] == "no compiler on this machine"
        assert sum("suppress_errors (TORCHDYNAMO_SUPPRESS_ERRORS) is off from here on" in text for text in rank["said"]) == 1


def test_a_rank_where_inductor_fails_stops_those_where_it_does_not(cases):
    first, second = cases["compiler"]
    assert second["error"] == "RuntimeError" and second["text"] == "no compiler on this machine"
    assert first["error"] == "AgreementError" and first["text"] == "0/fw/done: rank 1: RuntimeError: no compiler on this machine"


@pytest.mark.parametrize("case", ["stance", "backward"])
def test_a_stance_that_lets_one_rank_run_eagerly_is_refused_by_those_that_have_the_plan(cases, case):
    first, _ = cases[case]
    assert first["error"] == "EagerFallback" and '"fail_on_recompile", which is an error there' in first["text"]


def test_what_another_backend_compiles_goes_on_eagerly_at_the_limit(cases):
    for rank in cases["others"]:
        assert "error" not in rank and rank["sums"] == [8, 16, 24, 32]
