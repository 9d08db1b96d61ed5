"""Training through Inductor by a plan: three gloo processes and a real planner."""

import json

import pytest
from planners import planner
from ranks import run_ranks

pytestmark = pytest.mark.slow

WORLD = 3
MODES = ("auto", "transformer_block")
# Through torch.distributed, and through libbucket_executor.
CASES = ["planned:auto", "planned:transformer_block", "executor:auto"]


def run(cache, *cases, world=WORLD, timeout=600, **environment) -> dict[str, list[dict]]:
    """What every rank found in every case, with Inductor's caches in `cache`."""
    with planner() as one:
        said = run_ranks("inductor_worker.py", world, *cases, timeout=timeout, PLANNER=one.address,
                         TORCHINDUCTOR_CACHE_DIR=str(cache), **environment)
    ranks = [[json.loads(line) for line in text.splitlines() if line.startswith('{"case"')] for text in said]
    return {case: [rank[i] for rank in ranks] for i, case in enumerate(cases)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="module")
def trained(cache):
    return run(cache, "unplanned", *CASES)


@pytest.fixture(scope="module")
def again(cache, trained):
    """New processes, with the caches that the first ones left."""
    return run(cache, *CASES)


def in_order(found, mode="auto"):
    """Every rank's graphs and code launch and wait as their plans say, and the ranks' plans are the same."""
    for rank in found:
        assert rank["buckets"] and any(rank["buckets"]) == (mode != "none")
        assert rank["code"] == rank["expected"]
        assert rank["planned"] == [" ".join(word[0] for word in text.split()) for text in rank["expected"]]
        assert rank["plans"] == found[0]["plans"]


def bits(found):
    return [(rank["weights"], rank["losses"]) for rank in found]


@pytest.mark.parametrize("case", CASES)
def test_the_code_launches_and_waits_in_the_plans_order(trained, case):
    in_order(trained[case])
    assert trained[case][0]["scopes"] == ["0/fw", "0/bw"]


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_inductor_without_a_plan(trained, case):
    assert bits(trained[case]) == bits(trained["unplanned"])


def test_the_executor_runs_every_bucket_but_sums_that_gloo_adds_otherwise(trained):
    for rank in trained["executor:auto"]:
        assert rank["ran"].count(False) == len(rank["refused"]) and any(rank["ran"]) and len(rank["ran"]) == sum(rank["buckets"])
        assert all("gloo adds these sums in another order" in text for text in rank["refused"])


@pytest.mark.parametrize("case", CASES)
def test_a_second_start_finds_all_code_and_runs_the_same_plans(trained, again, case):
    first, second = trained[case], again[case]
    assert [rank["cache"] for rank in second] == [{"hit": 2}] * WORLD
    assert [(rank["plans"], rank["keys"]) for rank in second] == [(rank["plans"], rank["keys"]) for rank in first]
    in_order(second)
    assert bits(second) == bits(first)


def test_another_plan_is_another_key(trained):
    for rank in range(WORLD):
        order_of = {key: order for mode in MODES for order, key in
                    zip(trained[f"planned:{mode}"][rank]["expected"], trained[f"planned:{mode}"][rank]["keys"])}
        assert None not in order_of and len(set(order_of.values())) > 2
        for mode in MODES:
            found = trained[f"planned:{mode}"][rank]
            assert [order_of[key] for key in found["keys"]] == found["expected"]


def test_the_page_for_trainers_shows_what_works(cache, trained):
    """Its snippets, with a planner of the ranks' own."""
    for rank in run(cache, "page")["page"]:
        first, *others = rank["found"]
        assert others == pytest.approx([first] * 2, rel=1e-3)
        assert rank["own_plans"] == 1


@pytest.mark.parametrize("how", ["declared", pytest.param("automatic", marks=pytest.mark.full)])
def test_other_sequence_lengths_and_a_small_batch_train_as_without_a_plan(cache, how):
    """No graph is compiled, and none is guarded, for the plan's sake."""
    found = run(cache, f"lengths:{how}", world=2, timeout=1200)[f"lengths:{how}"]
    for rank in found:
        assert rank["found"] == rank["unplanned"]
        plain, planned = rank["compiled"]
        assert plain == planned and any(plain)
    in_order(found)


def test_tokens_that_travel_to_experts_train_as_without_a_plan(cache):
    """What an exchange sends is a number of the step: the plan has its node, Inductor's code a name of its own for it."""
    found = run(cache, "experts", world=2)["experts"]
    for rank in found:
        assert rank["found"] == rank["unplanned"]
    in_order(found)
    assert sum(word[0] == "L" for text in found[0]["code"] for word in text.split()) <= 7, "five exchanges, and a bucket each way"


@pytest.mark.full
@pytest.mark.parametrize("case", ["planned:manual", "planned:greedy", "planned:overlap", "planned:none", "executor:transformer_block"])
def test_every_other_mode_keeps_its_order_and_the_bits(cache, trained, case):
    found = run(cache, case)[case]
    in_order(found, case.partition(":")[2])
    assert bits(found) == bits(trained["unplanned"])


@pytest.mark.full
def test_ranks_with_and_without_cached_code_train_together(cache, trained, tmp_path):
    cold = {0: "miss", 1: "hit", 2: "miss"}
    found = run(cache, "planned:transformer_block", COLD="0,2", COLD_CACHE=str(tmp_path))["planned:transformer_block"]
    assert [rank["cache"] for rank in found] == [{kind: 2} for kind in cold.values()]
    in_order(found)
    assert bits(found) == bits(trained["unplanned"])


@pytest.mark.full
@pytest.mark.parametrize("case, scopes", [
    ("tied_accumulated_evaluated", ["0/fw", "0/bw", "1/fw"]),
    ("graph_breaks", None),
    ("blocks_alone", ["0/fw", "0/bw"]),
    ("checkpointed_attention", ["0/fw", "0/bw"]),
    ("own_stack", ["0/fw", "1/bw"]),
])
def test_what_people_train_has_the_bits_of_inductor_without_a_plan(cache, case, scopes):
    found = run(cache, case)[case]
    for rank in found:
        assert rank["found"] == rank["unplanned"]
        assert scopes is None or rank["scopes"] == scopes
    in_order(found)
