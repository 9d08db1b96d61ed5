"""Training through Inductor by a plan: four gloo processes and a real planner."""

import json

import pytest
from planners import planner
from ranks import run_ranks

pytestmark = pytest.mark.slow

WORLD = 4
MODES = ("auto", "overlap", "transformer_block")


def run(cache, *cases, timeout=600, **environment) -> dict[str, list[dict]]:
    """What every rank found in every case, with Inductor's caches in `cache`."""
    with planner() as one:
        said = run_ranks("inductor_worker.py", WORLD, *cases, timeout=timeout, PLANNER=one.address,
                         TORCHINDUCTOR_CACHE_DIR=str(cache), **environment)
    ranks = [[json.loads(line) for line in text.splitlines() if line.startswith('{"case"')] for text in said]
    return {case: [rank[i] for rank in ranks] for i, case in enumerate(cases)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="module")
def trained(cache):
    return run(cache, "unplanned", *(f"planned:{mode}" for mode in MODES))


def in_order(found):
    for rank in found:
        assert rank["scopes"] == ["0/fw", "0/bw"]
        assert all(rank["buckets"])
        assert rank["code"] == rank["expected"]
        assert rank["planned"] == [" ".join(word[0] for word in text.split()) for text in rank["expected"]]


@pytest.mark.parametrize("mode", MODES)
def test_the_code_launches_and_waits_in_the_plans_order(trained, mode):
    in_order(trained[f"planned:{mode}"])


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_those_of_inductor_without_a_plan(trained, mode):
    for planned, unplanned in zip(trained[f"planned:{mode}"], trained["unplanned"]):
        assert (planned["weights"], planned["losses"]) == (unplanned["weights"], unplanned["losses"])
