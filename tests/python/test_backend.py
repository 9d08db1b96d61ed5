"""torch.compile through bucketd.backend: four gloo processes and a real planner, in good times and bad."""

import json
import os

import pytest
from planners import planner
from ranks import run_ranks

pytestmark = pytest.mark.slow

WORLD = 4


def run(*cases, timeout=400, **environment) -> dict[str, list[dict]]:
    """What every rank found in every case."""
    said = run_ranks("backend_worker.py", WORLD, *cases, timeout=timeout, **environment)
    ranks = [[json.loads(line) for line in text.splitlines() if line.startswith('{"case"')] for text in said]
    return {case: [rank[i] for rank in ranks] for i, case in enumerate(cases)}


def to(one):
    return dict(PLANNER=one.address, PLANNER_PID=str(one.pid))


def errors(found, kind):
    assert [rank.get("error") for rank in found].count(None) == 0, found
    return [rank["text"] for rank in found if rank["error"] == kind]


def alike(found, key="plans"):
    assert all(rank[key] == found[0][key] for rank in found), [rank.get(key, rank) for rank in found]
    return found[0][key]


@pytest.fixture(scope="module")
def good():
    with planner() as one:
        yield run("plain", "planned_exact", "planned_again", "private_planner", "first_rank_plans_for_all",
                  "nobody_answers_and_that_is_fine", "as_a_pass", "on_twins", "own_passes_partitioner_and_compiler", "checkpointed_attention",
                  "private_planner_killed_between_forward_and_backward", **to(one))


def bits(found):
    return [rank["bits"] for rank in found]


def test_a_planned_step_is_the_unplanned_one_bit_for_bit(good):
    assert bits(good["planned_exact"]) == bits(good["plain"])


def test_attention_with_dropout_that_a_checkpoint_runs_again_keeps_its_bits(good):
    for rank in good["checkpointed_attention"]:
        unplanned, planned = rank["bits"]
        assert planned == unplanned
        assert [buckets > 0 for _, buckets, *_ in rank["plans"].values()] == [True, True]


def test_every_rank_runs_the_same_plans_for_both_graphs(good):
    plans = alike([{"plans": {s: p[:2] for s, p in rank["plans"].items()}} for rank in good["planned_exact"]])
    assert set(plans) == {"0/fw", "0/bw"} and all(buckets for _, buckets in plans.values())


def test_registration_order_comes_from_the_compiled_module(good):
    for scope, (_, _, _, diagnostics) in good["planned_exact"][0]["plans"].items():
        assert "payload-order-unknown" not in diagnostics, scope


def test_one_rank_makes_the_planner_compute_and_later_ones_hit(good):
    sources = [rank["plans"]["0/fw"][2] for rank in good["planned_exact"]]
    assert sources.count("computed") == 1 and set(sources) <= {"computed", "joined", "hit"}
    again = [p[2] for rank in good["planned_again"] for p in rank["plans"].values()]
    assert set(again) == {"hit"}
    assert bits(good["planned_again"]) == bits(good["plain"])


def test_without_an_address_the_first_rank_starts_a_planner_for_all(good):
    found = good["private_planner"]
    assert bits(found) == bits(good["plain"])
    assert [bool(rank["started"]) for rank in found] == [True, False, False, False]
    plans = [{s: p[:2] for s, p in rank["plans"].items()} for rank in found]
    assert all(p == plans[0] for p in plans) and plans[0]
    assert not os.path.exists(f"/proc/{found[0]['started']}"), "the private planner outlived its run"


def test_a_private_planner_that_died_is_there_again_for_all_ranks(good):
    found = good["private_planner_killed_between_forward_and_backward"]
    assert bits(found) == bits(good["plain"])
    assert set(alike([{"plans": {s: p[:2] for s, p in rank["plans"].items()}} for rank in found])) == {"0/fw", "0/bw"}


def test_the_first_rank_can_plan_for_all(good):
    found = good["first_rank_plans_for_all"]
    assert bits(found) == bits(good["plain"])
    assert [rank["plans"]["0/fw"][2] for rank in found][1:] == ["handed over"] * 3


def test_all_ranks_go_without_a_plan_where_that_was_asked_for(good):
    found = good["nobody_answers_and_that_is_fine"]
    assert bits(found) == bits(good["plain"]) and alike(found) == {}


def test_where_planning_is_switched_off_jobs_and_those_who_asked_for_it_go_without_and_others_are_told():
    with planner() as one:
        ran = run("plain", "planning_is_switched_off", **to(one))
    found, plain = ran["planning_is_switched_off"], bits(ran["plain"])
    for without in ("job", "asked for"):
        ranks = [rank[without] for rank in found]
        assert all("error" not in rank and rank["plans"] == {} for rank in ranks), ranks
        assert bits(ranks) == plain
    told = [rank["error"] for rank in found]
    assert all("PLANNING_DISABLED" in rank["text"] and "the fabric is being serviced" in rank["text"] for rank in told), told
    again = [rank["on again"] for rank in found]
    assert bits(again) == plain and all(set(rank["plans"]) == {"0/fw", "0/bw"} for rank in again)


def test_reduce_scatters_run_on_twin_groups_where_that_was_asked_for(good):
    for rank in good["on_twins"]:
        assert rank["bits"] == 2 * [good["plain"][rank["rank"]]["bits"]]
        assert rank["lanes"] == [["all_gather", 0], ["reduce_scatter", 1]]
        assert rank["twins"] == [[[0, 1, 2, 3]], False]
        first, after, again = rank["there"]
        assert after == again == first + 1
    alike([{"plans": {s: p[:2] for s, p in rank["plans"].items()}} for rank in good["on_twins"]])


def test_passes_partitioner_and_compiler_are_chosen_apart(good):
    for rank in good["own_passes_partitioner_and_compiler"]:
        assert rank["bits"] == 3 * [good["plain"][rank["rank"]]["bits"]]
        forward, backward = rank["seen"][:3], rank["seen"][3:]
        for before, after, last in (forward, backward):
            assert (before[0], after[0], last) == ("before", "after", ["compiler"])
            assert before[2] == after[2] > 0
        assert forward[0][1] > forward[1][1] > 0, "the plan merges what stood there before"
        assert set(rank["plans"]) == {"0/fw", "0/bw"}


def test_somebody_elses_backend_can_use_the_pass(good):
    found = good["as_a_pass"]
    assert bits(found) == bits(good["plain"])
    plans = alike([{"plans": {s: p[:2] for s, p in rank["plans"].items()}} for rank in found])
    assert set(plans) == {"0/fw", "1/bw"} and all(buckets for _, buckets in plans.values())


@pytest.fixture(scope="module")
def bad():
    with planner() as one:
        yield run("groups_are_swapped_on_rank_1", "rank_1_cannot_compile_the_backward", "another_option_on_rank_3",
                  "another_graphs_plan_on_rank_2", "nobody_answers", "several_nodes", "killed_between_forward_and_backward", **to(one))


def test_a_rank_with_other_options_is_named_on_every_rank(bad):
    said = errors(bad["another_option_on_rank_3"], "AgreementError")
    assert len(said) == WORLD
    assert all("option numerics: exact on ranks 0-2, free on rank 3" in text for text in said)


def test_ranks_that_mean_two_groups_over_the_same_ranks_are_told_and_those_that_mean_one_share_a_plan(bad):
    found = bad["groups_are_swapped_on_rank_1"]
    for (digest, _), (again, source) in (rank["equal"] for rank in found):
        assert digest == again == found[0]["equal"][0][0] and source == "hit"
    said = errors(found, "AgreementError")
    assert len(said) == WORLD and all(rank["seconds"] < 5 for rank in found)
    assert all("process groups of ranks 0-1: group0#0 is group " in text for text in said)
    assert all(" on rank 0, group0#0 is group " in text and "on rank 1; start all of them with one script" in text for text in said), said


def test_a_rank_that_cannot_compile_what_it_planned_stops_those_that_could(bad):
    found = bad["rank_1_cannot_compile_the_backward"]
    assert [found[rank]["error"] for rank in range(WORLD)] == ["AgreementError", "OSError", "AgreementError", "AgreementError"], found
    assert all("rank 1: OSError: no space left" in found[rank]["text"] for rank in (0, 2, 3)), found


def test_a_plan_for_another_graph_is_refused_on_every_rank(bad):
    found = bad["another_graphs_plan_on_rank_2"]
    (own,) = errors(found, "PlanRejected")
    assert "it is for graph 000000000000" in own and found[2]["text"] == own
    said = errors(found, "AgreementError")
    assert len(said) == WORLD - 1 and all("rank 2: PlanRejected" in text for text in said)


def test_nobody_at_the_address_is_an_error_on_every_rank(bad):
    found = bad["nobody_answers"]
    assert errors(found, "PlannerError") + errors(found, "AgreementError")
    assert all("UNREACHABLE" in rank["text"] and rank["seconds"] < 60 for rank in found)


def test_a_private_planner_for_several_nodes_is_refused(bad):
    assert all("the ranks run on 2 nodes" in rank["text"] for rank in bad["several_nodes"])


def test_a_planner_killed_between_two_graphs_is_an_error_on_every_rank(bad):
    found = bad["killed_between_forward_and_backward"]
    assert all("UNREACHABLE" in rank["text"] and rank["seconds"] < 120 for rank in found), found
    assert list(alike([{"plans": list(rank["plans"])} for rank in found])) == ["0/fw"]


def test_a_planner_killed_during_an_upload_is_an_error_on_every_rank():
    with planner("--max-inline-bytes", "0", "--max-chunk-bytes", "1024") as one:
        found = run("killed_during_an_upload", **to(one))["killed_during_an_upload"]
    assert all("UNREACHABLE" in rank["text"] and rank["seconds"] < 120 for rank in found), found


def test_a_rank_that_never_comes_is_named_by_the_deadline():
    with planner() as one:
        found = run("rank_1_never_comes", **to(one))["rank_1_never_comes"]
    assert all("no word from rank 1 within 12 s" in found[rank]["text"] for rank in (0, 2, 3)), found
