"""Two real servers on one folder, as in a rolling restart, told things at the same moment: what one of them has answered the
other one does not undo."""

import json
import threading

import grpc
import pytest
from live_server import Server, ctl, request_for
from waiting import wait_for

from bucketd import plan
from bucketd._wire.proto import agent_pb2, agent_pb2_grpc, planner_pb2

ROUNDS = 6


@pytest.fixture
def both(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    store = ("--store-dir", str(tmp_path / "store"))
    with Server(folders[0], *store) as one, Server(folders[1], *store) as other:
        yield one, other


def race(both, act) -> list:
    """act(server, which) of both at once; what came of it."""
    barrier, came = threading.Barrier(2), [None, None]

    def run(which: int) -> None:
        barrier.wait(30)
        try:
            came[which] = act(both[which], which)
        except Exception as error:
            came[which] = error

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for result in came:
        if isinstance(result, Exception):
            raise result
    return came


def a_profile(server: Server, tmp_path, gamma_us: float) -> int:
    shown = json.loads(ctl("costs", "show", "slow_network", "--json", server=server))
    path = tmp_path / f"profile-{gamma_us}.json"
    path.write_text(json.dumps({**shown, "gamma_us": gamma_us}))
    return int(json.loads(ctl("costs", "import", str(path), "--name", "site", "--json", server=server))["version"]["version"])


def test_no_version_no_promotion_and_no_sample_of_either_is_lost(both, tmp_path):
    sample = {"kind": "all_gather", "dtype": "bf16", "group_size": 8, "bytes": 4096, "picoseconds": 1000}

    def act(server: Server, which: int) -> list[int]:
        made = []
        for number in range(ROUNDS):
            made.append(a_profile(server, tmp_path, 1.5 + number + 100 * which))
            ctl("costs", "promote", f"site@{made[-1]}", server=server)
            path = tmp_path / f"samples-{which}-{number}.json"
            path.write_text(json.dumps({"profile": "site", "reporter": f"host{which}-{number}", "samples": [sample]}))
            ctl("costs", "report", str(path), server=server)
        return made

    made = race(both, act)
    assert sorted(made[0] + made[1]) == list(range(1, 2 * ROUNDS + 1)), "no number was given twice"
    was_promoted = set()
    for _ in range(2 * ROUNDS - 1):
        back = json.loads(ctl("costs", "rollback", "site", "--json", server=both[0]))
        was_promoted |= {int(back["before"]), int(back["version"]["version"])}
    assert was_promoted == set(made[0] + made[1])
    latest = lambda server: next(v["version"] for v in json.loads(ctl("costs", "list", "--json", server=server))["profiles"]  # noqa: E731
                                 if v["name"] == "site" and v.get("promoted"))
    wait_for(lambda: latest(both[0]) == latest(both[1]), "the other server to follow")
    for server in both:
        (held,) = json.loads(ctl("costs", "list", "--json", server=server))["samples"]
        assert (held["samples"], held["reporters"]) == (2 * ROUNDS, 2 * ROUNDS)


def test_one_generation_of_a_job_runs_with_one_profile_whichever_server_its_scopes_come_to(both, tmp_path):
    versions = [a_profile(both[0], tmp_path, gamma) for gamma in (1.5, 2.5)]
    for generation in range(1, ROUNDS + 1):
        # The other server hears of it within a second; until then each knows another one.
        ctl("costs", "promote", f"site@{versions[generation % 2]}", server=both[generation % 2])

        def act(server: Server, which: int, generation: int = generation) -> str:
            job = planner_pb2.Job(id="train", generation=generation, scope=f"{which}/fw", rank=[0], size=1, fresh=True)
            request = request_for(8, job=job)
            request.options.cost_profile = "site@latest"
            for _ in range(20):
                try:
                    return plan.parse(server.stub.GetPlan(request, timeout=60).plan.plan).cost_profile
                except grpc.RpcError as error:
                    assert "another server of this store was first" in error.details(), error.details()
            raise AssertionError("never answered")

        got = race(both, act)
        assert got[0] == got[1] and got[0] in {f"site@{v}" for v in versions}


def test_no_epoch_is_given_twice(both):
    def act(server: Server, which: int) -> list[int]:
        agents = agent_pb2_grpc.AgentsStub(server.channel)
        return [agents.Rendezvous(agent_pb2.RendezvousRequest(group=f"group{which}", rank=0, size=1, endpoint="unix:/none"),
                                  timeout=30).epoch for _ in range(500)]

    given = race(both, act)
    assert all(epochs == sorted(epochs) for epochs in given)
    assert len(set(given[0] + given[1])) == 1000
