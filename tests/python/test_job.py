"""Jobs: what the client says of its ranks, what ranks hear when they do not agree, and what happens when nobody asks."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import socket
import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from layered_graphs import MESH, ask, layers, options
from planners import planner
from ranks import Ranks

import bucketd
from bucketd import asking, canonical, job, starts, wire
from bucketd.agreement import Agreement, LeaderFailed
from bucketd.client import PlannerClient
from bucketd.errors import AgreementError, BucketdError, EmbeddedError, GraphRefused, PlannerError
from bucketd.session import Session
from bucketd.settings import Settings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "client" / "python" / "examples"
WORLD = 4


@pytest.fixture(scope="module")
def running():
    with planner() as one:
        yield one


# -- what a job is called


def from_environment(monkeypatch, run, restarts):
    for name, value in (("TORCHELASTIC_RUN_ID", run), ("TORCHELASTIC_RESTART_COUNT", restarts)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    return job.resolve("torchrun")


def test_torchrun_names_the_job_and_the_planner_counts_its_starts(monkeypatch):
    assert from_environment(monkeypatch, "llama-17", "3") == bucketd.Job("llama-17", None)
    assert job.resolve(True) == bucketd.Job("llama-17", None)
    assert bucketd.Job("llama-17").generation == 0
    with pytest.raises(ValueError, match="which generation"):
        job.resolve(True).at("0/fw", [0], 1)


@pytest.mark.parametrize("run,restarts", [(None, None), ("llama-17", None), (None, "0"), ("llama-17", "many")])
def test_without_torchrun_the_error_says_what_is_missing(monkeypatch, run, restarts):
    with pytest.raises(ValueError, match="TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT are not set"):
        from_environment(monkeypatch, run, restarts)


def test_a_run_without_a_name_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="--rdzv-id"):
        from_environment(monkeypatch, "none", "0")


def test_what_is_no_job_is_refused():
    assert job.resolve(None) is None and job.resolve(False) is None
    with pytest.raises(ValueError, match='expected "torchrun" or a bucketd.Job'):
        job.resolve("llama")
    with pytest.raises(ValueError):
        bucketd.Job("")
    with pytest.raises(ValueError):
        bucketd.Job("llama", -1)


def test_rank_and_world_come_from_the_launcher_where_torch_has_none(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert job.rank_and_world() == (3, 8)
    monkeypatch.setenv("RANK", "8")
    assert job.rank_and_world() == (0, 1)


def test_ranks_that_nothing_brings_together_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Session(Settings.of(ranks=[3])).agreement.rank == 3
    for ranks, why in (([4], "does not contain this process, rank 3"), ([2, 3], "nobody brings them together")):
        with pytest.raises(BucketdError, match=f"^{re.escape(f'ranks={ranks}')}.*{why}"):
            assert Session(Settings.of(ranks=ranks)).agreement


def test_a_job_and_a_rank_that_plans_for_all_exclude_each_other():
    with pytest.raises(ValueError, match="exclude each other"):
        bucketd.backend(embedded="rank0", job=bucketd.Job("llama"))


@pytest.mark.parametrize("said", [{"deadline": 0}, {"deadline": "300"}, {"executor_timeout": -1.0}, {"ranks": [0, 1, 0]},
                                  {"reorder": 3}, {"cost_profile": 1}, {"address": 9460}])
def test_a_value_that_cannot_be_is_refused_where_it_is_said(said):
    with pytest.raises(ValueError, match=f"^{next(iter(said))}=.*: expected"):
        bucketd.backend(**said)


def test_ranks_that_only_a_planner_could_bring_together_start_none_of_their_own():
    asker = asking.Asker(Settings.of(job=bucketd.Job("apart"), deadline=2), Agreement(None, 1, (0, 1)), 0)
    with pytest.raises(EmbeddedError, match="init_process_group first"):
        asker.ask("0/fw", layers(), canonical.digest(layers()), MESH, options())


# -- what the planner answers


def ask_as(to, graph, ranks, size=WORLD, scope="0/fw", made_of=options(), of=bucketd.Job("llama"), **more):
    return to.get_plan(lambda: wire.to_proto(graph), canonical.digest(graph), MESH, made_of,
                       **{**dict(deadline=30), **more}, job=of.at(scope, ranks, size))


def all_ranks(address, graph_of, **more):
    """What each rank got or was told; each asks on a connection and a thread of its own."""
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(WORLD) as pool:
        asked = [pool.submit(ask_as, PlannerClient(address), graph_of(rank), [rank], **more) for rank in range(WORLD)]
        return [one.exception(timeout=60) or one.result() for one in asked]


def test_all_ranks_get_one_plan(running):
    replies = all_ranks(running.address, lambda rank: layers(8), of=bucketd.Job("one plan"))
    assert len({reply.plan for reply in replies}) == 1, replies


def test_ranks_with_another_graph_are_named_to_all(running):
    found = all_ranks(running.address, lambda rank: layers(16 if rank == 2 else 8), of=bucketd.Job("two graphs"))
    assert [error.reason for error in found] == ["RANKS_DIFFER"] * WORLD, found
    assert all("rank 2" in str(error) for error in found), found


def test_a_rank_that_does_not_come_is_named(running):
    to = PlannerClient(running.address)
    with pytest.raises(PlannerError) as caught:
        ask_as(to, layers(8), [0, 1, 3], of=bucketd.Job("one short"), deadline=2)
    assert caught.value.reason == "RANKS_MISSING" and "rank 2" in str(caught.value)


def test_one_call_may_speak_for_all_ranks_and_the_next_generation_gets_the_same(running):
    to = PlannerClient(running.address)
    first = ask_as(to, layers(24), range(WORLD), of=bucketd.Job("restarted", 0))
    again = ask_as(to, layers(24), range(WORLD), of=bucketd.Job("restarted", 1))
    assert again.source == "pinned" and again.plan == first.plan
    with pytest.raises(PlannerError) as caught:
        ask_as(to, layers(24), range(WORLD), of=bucketd.Job("restarted", 0))
    assert caught.value.reason == "GENERATION_OVER"
    assert bucketd.release(bucketd.Job("restarted"), running.address) == 1
    assert bucketd.release(bucketd.Job("restarted"), running.address) == 0


def test_a_job_without_ranks_is_refused(running):
    with pytest.raises(PlannerError) as caught:
        ask_as(PlannerClient(running.address), layers(8), [])
    assert caught.value.reason == "JOB_INVALID"


def test_a_job_changes_nothing_for_those_without_one(running):
    assert ask(PlannerClient(running.address), layers(8)).plan


# -- which start of a job this is


def numbered(to, job_name="starts", ranks=(0, 1), deadline=20.0, store=True, forget=True):
    """What each rank, a thread here, takes for its job, at one start of the job that torchrun calls `job_name`."""
    import concurrent.futures

    if forget:
        starts._known.clear()  # as in a process of this start
    store = dist.HashStore() if store else None

    def of(rank):
        agreement = Agreement(store, rank, ranks, "error", 2 * deadline)
        try:
            return starts.numbered(bucketd.Job(job_name, None), agreement, to, "0/fw", deadline)
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(of, ranks))


def test_each_start_is_the_generation_after_the_planners_last_one_on_all_ranks(running):
    to = PlannerClient(running.address)
    answers = []
    for size in (2, 2, 4):  # a restart, and one with more ranks
        found = numbered(to, "counted", tuple(range(size)))
        assert len(set(found)) == 1, found
        answers.append(ask_as(to, layers(24), range(size), size, of=found[0]).source)
        assert found[0].generation == len(answers)
    assert answers[1:] == ["pinned", "pinned"]
    assert ask_as(to, layers(32), range(2), 2, of=numbered(to, "counted")[0]).plan  # a launch anew, with another model
    bucketd.release(bucketd.Job("counted"), running.address)
    assert numbered(to, "counted")[0].generation == 1


def test_all_backends_of_a_start_are_of_one_generation(running):
    to = PlannerClient(running.address)
    first = numbered(to, "several")
    ask_as(to, layers(24), range(2), 2, of=first[0])
    assert numbered(to, "several", forget=False) == first


def test_starts_that_came_to_no_plan_do_not_wait_for_each_other(running):
    begin = time.monotonic()
    assert [numbered(PlannerClient(running.address), "unlucky")[0].generation for _ in range(12)] == [1] * 12
    assert time.monotonic() - begin < 8  # an upload that does not come is awaited for ten


def test_ranks_without_rank_0_count_for_themselves(running):
    found = numbered(PlannerClient(running.address), "staged", (2, 3))
    assert found == [bucketd.Job("staged/2", 1)] * 2


def test_where_the_planner_does_not_say_which_start_it_is_all_ranks_hear_it():
    found = numbered(PlannerClient("127.0.0.1:1"), deadline=1.0)
    assert [error.reason for error in found] == ["UNREACHABLE"] * 2 and "rank 0 was told" in str(found[1]), found


def test_where_the_first_rank_fails_before_it_asks_nobody_waits_for_its_generation():
    store = dist.HashStore()
    agreements = [Agreement(store, rank, (0, 1), "error", 60.0) for rank in range(2)]
    with pytest.raises(GraphRefused):
        starts.give_up(agreements[0], "0/fw")
        agreements[0].fail("0/fw", GraphRefused("no graph"))
    begin = time.monotonic()
    with pytest.raises(LeaderFailed):
        starts.numbered(bucketd.Job("unasked", None), agreements[1], None, "0/fw", 60.0)
    with pytest.raises(AgreementError, match="0/fw: rank 0: GraphRefused: no graph"):
        agreements[1].agree("0/fw", {})
    assert time.monotonic() - begin < 5


@pytest.mark.slow
@pytest.mark.parametrize("fallback", ["error", "unplanned"])
@pytest.mark.parametrize("early", [True, False], ids=["it has no graph", "it has an option that is refused"])
def test_where_the_first_rank_fails_the_others_hear_why_at_once(running, early, fallback):
    with Ranks("failing_leader_worker.py", 2, running.address, secrets.token_hex(8), str(int(early)), fallback) as ranks:
        (_, first), (status, other) = ranks.wait(60)
    if fallback == "unplanned":
        assert "stays without a plan" in first and "went on" in first and "went on" in other, first + other
    else:
        assert status and "0/fw: rank 0: " in other and "within" not in other, other
        assert ("KeyError: 'missing'" if early else "refused here") in other

def test_without_a_store_torchrun_counts(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert numbered(None, store=False) == [bucketd.Job("starts", 3)] * 2


def test_a_generation_that_the_launcher_gave_stays(running):
    agreement = Agreement(None, 4, (4, 5), "error", 1.0)
    for given in (0, 7):
        assert starts.numbered(bucketd.Job("given", given), agreement, None, "0/fw", 1.0) == bucketd.Job("given", given)


def test_another_number_of_ranks_in_one_generation_is_told_what_it_takes(running):
    to = PlannerClient(running.address)
    ask_as(to, layers(8), range(2), 2, of=bucketd.Job("grown"))
    with pytest.raises(PlannerError, match="a job that goes on with another number of ranks needs a higher generation"):
        ask_as(to, layers(8), range(4), 4, of=bucketd.Job("grown"))


# -- the hang, and the error that replaces it


def two_orders(running, job_name, order):
    with Ranks("order_worker.py", 2, "bucketd", order, PLANNER=running.address, JOB=job_name) as ranks:
        return ranks.wait(120, grace=30)


@pytest.mark.slow
def test_ranks_with_other_orders_hang_where_nobody_compares():
    with Ranks("order_worker.py", 2, "plain", "other") as ranks:
        for process in ranks.processes:
            assert "step runs\n" in process.stdout, "a rank ended before its step ran"
        with pytest.raises(TimeoutError) as caught:
            ranks.wait(5)
    assert "step ended" not in str(caught.value) and "Error" not in str(caught.value)


@pytest.mark.slow
def test_ranks_with_one_order_do_not():
    with Ranks("order_worker.py", 2, "plain", "same") as ranks:
        assert [status for status, text in ranks.wait(120) if "step ended" in text] == [0, 0]


@pytest.mark.slow
def test_ranks_with_other_orders_are_told_apart_by_the_planner(running):
    found = two_orders(running, "two orders", "other")
    assert [status for status, _ in found] == [3, 3], found
    for _, text in found:
        assert "AgreementError" in text and "RANKS_DIFFER" in text, text
        assert "rank 0" in text and "rank 1" in text and "first differ at node" in text, text
        assert "all_reduce" in text or "all_gather" in text, text


@pytest.mark.slow
def test_ranks_with_one_order_run_by_their_plan(running):
    found = two_orders(running, "one order", "same")
    assert [status for status, text in found if "step ended" in text] == [0, 0], found


# -- a job of torchrun


@pytest.mark.slow
def test_a_restarted_job_gets_the_plans_that_it_had(running, tmp_path):
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "client" / "python"), OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD), "--max-restarts", "1",
         str(EXAMPLES / "train_job.py"), "--address", running.address, "--fail-at", "2", "--steps", "3", "--release",
         "--out-dir", str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=300)
    # The first start fails at length; what matters stands at the end.
    assert done.returncode == 0, f"torchrun ended with {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    assert not (tmp_path / "start-0.json").exists(), "it did not fail"
    found = json.loads((tmp_path / "start-1.json").read_text())
    assert len(found["answers"]) == WORLD and set(found["answers"][0]) == {"0/fw", "0/bw"}
    for answer in found["answers"]:
        assert {scope: plan for scope, (plan, _) in answer.items()} == {s: p for s, (p, _) in found["answers"][0].items()}
        assert {source for _, source in answer.values()} == {"pinned"}
    assert "released 2 plans" in done.stdout


@pytest.mark.slow
def test_ranks_of_two_agents_of_which_one_counted_the_restart_agree_again(running, tmp_path):
    """With a store that is new at each start, as gloo wants it. One that lives on: test_meeting.py."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = os.pathsep.join(map(str, (ROOT / "client" / "python", ROOT / "tests" / "python")))
    name, agents = f"two-agents-{secrets.token_hex(4)}", []
    try:
        for agent in "AB":
            environment = dict(os.environ, AGENT=agent, PYTHONPATH=folders, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
            agents.append(subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", f"is_host={int(agent == 'A')}",
                 "--rdzv-id", name, "--local-addr", "127.0.0.1", "--monitor-interval", "0.2",
                 str(HERE / "elastic_worker.py"), running.address, str(tmp_path)],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        said = [agent.communicate(timeout=200)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait()
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(text[-4000:] for text in said)
    found = [json.loads(line) for agent in "AB" for line in (tmp_path / f"{agent}.json").read_text().splitlines()]
    again = [one for one in found if not one["first"]]
    assert {one["agent"]: one["count"] for one in again} == {"A": "0", "B": "1"}, "both agents counted, so this shows nothing\n" + "\n".join(said)
    assert len({one["plan"] for one in found}) == 1 and len(again) == 4
    assert {one["source"] for one in again if one["job"]} == {"pinned"}
