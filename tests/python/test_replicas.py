"""Three real servers on one PostgreSQL, whose jobs and computations they share: ranks of one job come to any of them, and whatever
happens to a server or to the database meanwhile, nobody waits in vain and nobody gets another plan than the others."""

import concurrent.futures
import contextlib
import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest
from certificates import Certificates
from live_postgres import postgres
from live_server import Server, ctl, request_for, without_graph
from planners import planner
from waiting import wait_for

from bucketd._wire.proto import planner_pb2, planner_pb2_grpc

COMPUTED = planner_pb2.PLAN_SOURCE_COMPUTED
DEAD_AFTER_MS = 4000


class Replica(Server):
    """One of them, in a folder of its own; `start` again after a kill."""

    def __init__(self, folder, url: str):
        folder.mkdir(exist_ok=True)
        self.folder, self.url = folder, url
        self.start()

    def start(self) -> None:
        socket = f"unix:{self.folder}/socket"
        super().__init__(self.folder, "--store", self.url, "--cluster-address", socket, "--cluster-dead-ms", str(DEAD_AFTER_MS))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def waiting_ranks(self) -> float:
        return self.metric("bucketd_agreement_waiting_ranks")

    def rank(self, request, rank: int, size: int, job: str = "train", timeout: float = 60, generation: int = 1):
        """One call, as a rank makes it."""
        named = planner_pb2.Job(id=job, generation=generation, scope="0/fw", rank=[rank], size=size)
        asks = planner_pb2.GetPlanRequest()
        asks.CopyFrom(request)
        asks.MergeFrom(planner_pb2.GetPlanRequest(job=named))
        return self.stub.GetPlan(asks, timeout=timeout)


@pytest.fixture(scope="module")
def engine():
    with postgres() as made:
        yield made


@pytest.fixture
def replicas(engine, tmp_path):
    url = engine.database()
    made = [Replica(tmp_path / which, url) for which in "abc"]
    try:
        for replica in made:
            wait_for(lambda replica=replica: replica.metric('bucketd_replicas{state="serving"}') == 3, "the replicas to see each other")
        yield made
    finally:
        for replica in made:
            replica.channel.close()
            replica.process.send_signal(signal.SIGCONT)
            replica.kill()


def at_once(*calls) -> list[concurrent.futures.Future]:
    pool = concurrent.futures.ThreadPoolExecutor(len(calls))
    futures = [pool.submit(call) for call in calls]
    pool.shutdown(wait=False)
    return futures


def plans_of(futures) -> set[bytes]:
    return {future.result(90).plan.plan for future in futures}


def total(replicas, series: str) -> float:
    return sum(replica.metric(series) for replica in replicas)


def test_ranks_that_are_spread_over_three_replicas_get_the_same_bytes(replicas):
    a, b, c = replicas
    futures = at_once(*(lambda r=r: replicas[r % 3].rank(request_for(8), r, 9) for r in range(9)))
    assert len(plans_of(futures)) == 1
    assert total(replicas, 'bucketd_plan_computations_total{result="ok"}') == 1
    assert total(replicas, 'bucketd_forwarded_calls_total{outcome="plan"}') == 6
    said = ctl("status", server=a)
    assert "(this one): serving" in said and str(b.address) in said and str(c.address) in said
    assert "on disk" not in said, "a database says itself what it takes there"


def test_a_plan_is_computed_once_though_all_replicas_are_asked_for_it_at_once(replicas):
    for width in range(8, 28):
        futures = at_once(*(lambda replica=replica, width=width: replica.stub.GetPlan(request_for(width), timeout=60)
                            for replica in replicas for _ in range(2)))
        sources = [future.result(90).plan.source for future in futures]
        assert sources.count(COMPUTED) == 1 and len(plans_of(futures)) == 1
    assert total(replicas, 'bucketd_plan_computations_total{result="ok"}') == 20


def test_ranks_whose_owner_is_killed_agree_elsewhere(replicas):
    a, b, c = replicas
    request = request_for(8)
    first = at_once(lambda: a.rank(request, 0, 4))
    wait_for(lambda: a.waiting_ranks() == 1, "the first rank to wait where its job is")
    others = at_once(lambda: b.rank(request, 1, 4), lambda: c.rank(request, 2, 4))
    wait_for(lambda: a.waiting_ranks() == 3, "the others to be forwarded")
    a.kill()
    with pytest.raises(grpc.RpcError) as cut_off:
        first[0].result(90)
    assert cut_off.value.code() == grpc.StatusCode.UNAVAILABLE
    others += at_once(lambda: b.rank(request, 0, 4), lambda: c.rank(request, 3, 4))
    assert len(plans_of(others)) == 1
    assert total([b, c], 'bucketd_leases_taken_over_total{of="job"}') == 1


def test_whoever_was_answered_before_the_owner_died_has_what_the_others_get_later(replicas):
    a, b, c = replicas
    request = request_for(8)
    futures = at_once(lambda: a.rank(request, 0, 3), lambda: b.rank(request, 1, 3), lambda: c.rank(request, 2, 3))
    (plan,) = plans_of(futures)
    a.kill()
    again = at_once(lambda: b.rank(without_graph(request), 0, 3), lambda: c.rank(without_graph(request), 1, 3))
    assert plans_of(again) == {plan}


def test_an_owner_that_was_stopped_finds_what_stands_when_it_wakes(replicas):
    a, b, c = replicas
    request = request_for(8)
    first = at_once(lambda: a.rank(request, 0, 4, timeout=8))
    wait_for(lambda: a.waiting_ranks() == 1, "the first rank to wait where its job is")
    others = at_once(lambda: b.rank(request, 1, 4), lambda: c.rank(request, 2, 4))
    wait_for(lambda: a.waiting_ranks() == 3, "the others to be forwarded")
    a.process.send_signal(signal.SIGSTOP)
    with pytest.raises(grpc.RpcError):
        first[0].result(90)  # its deadline: nobody is there
    others += at_once(lambda: b.rank(request, 0, 4), lambda: b.rank(request, 3, 4))
    (plan,) = plans_of(others)
    a.process.send_signal(signal.SIGCONT)
    assert a.rank(request, 0, 4).plan.plan == plan
    wait_for(lambda: a.waiting_ranks() == 0, "it to forget who waited")
    (next_generation,) = plans_of(at_once(*(lambda r=r: replicas[r % 3].rank(request, r, 4, generation=2) for r in range(4))))
    assert next_generation == plan


def test_a_replica_that_drains_hands_its_jobs_over_and_leaves(replicas):
    a, b, c = replicas
    request = request_for(8)
    first = at_once(lambda: a.rank(request, 0, 3))
    wait_for(lambda: a.waiting_ranks() == 1, "the first rank to wait where its job is")
    other = at_once(lambda: b.rank(request, 1, 3))
    wait_for(lambda: a.waiting_ranks() == 2, "the other one to be forwarded")
    a.process.terminate()
    with pytest.raises(grpc.RpcError) as told:
        first[0].result(90)
    assert "shutting down" in told.value.details()
    began = time.monotonic()
    other += at_once(lambda: c.rank(request, 0, 3), lambda: c.rank(request, 2, 3))
    assert len(plans_of(other)) == 1
    assert time.monotonic() - began < DEAD_AFTER_MS / 1000, "nobody had to be found dead first"
    assert total([b, c], 'bucketd_leases_taken_over_total{of="job"}') == 0
    assert a.process.wait(30) == 0
    wait_for(lambda: b.metric('bucketd_replicas{state="serving"}') == 2, "the others to see it gone")


def test_a_replica_that_alone_is_cut_off_from_the_database_serves_as_an_edge(engine, tmp_path):
    url = engine.database()
    subprocess.run(["psql", "-qc", "CREATE ROLE cut_off LOGIN IN ROLE bucketd"], env=engine.environment, check=True)
    with contextlib.ExitStack() as stack:
        a, b, c = (Replica(tmp_path / which, url) for which in "abc")
        for replica in (a, b, c):
            stack.callback(replica.kill)
        request = request_for(8)
        for job in ("one", "two", "three", "four"):  # of which the hash gives some to the one that is cut off
            c.kill()
            c.url = url.replace("bucketd@", "cut_off@")
            subprocess.run(["psql", "-qc", "ALTER ROLE cut_off LOGIN"], env=engine.environment, check=True)
            c.start()
            first = at_once(lambda job=job: c.rank(request, 0, 3, job=job))
            wait_for(lambda: c.waiting_ranks() == 1, "the first rank to wait where its job is")
            others = at_once(lambda job=job: b.rank(request, 1, 3, job=job))
            wait_for(lambda: c.waiting_ranks() == 2, "the other one to be forwarded")
            subprocess.run(["psql", "-qc", "ALTER ROLE cut_off NOLOGIN", "-c", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE usename = 'cut_off'"], env=engine.environment, check=True, stdout=subprocess.DEVNULL)
            wait_for(lambda: c.metric("bucketd_replica_cut_off") == 1, "the replica to notice")
            wait_for(lambda: a.waiting_ranks() + b.waiting_ranks() == 2, "its rank to wait with the others")
            others += at_once(lambda job=job: a.rank(request, 2, 3, job=job))
            assert len(plans_of(first + others)) == 1


def test_while_the_database_is_away_hits_are_served_and_jobs_agree_without_a_pin(replicas, engine):
    a, b, c = replicas
    request = request_for(8)
    plan = a.stub.GetPlan(request, timeout=60).plan.plan
    engine.stop()
    try:
        assert a.stub.GetPlan(without_graph(request), timeout=60).plan.plan == plan
        for replica in replicas:
            wait_for(lambda replica=replica: replica.metric("bucketd_replica_cut_off") == 1, "the replica to notice")
            assert "cut off from the other replicas" in replica.page("/readyz")
            assert replica.page("/readyz").startswith("ok\n")
            assert "cut off" in replica.status()["cluster"]["trouble"]
        futures = at_once(*(lambda r=r: replicas[r % 3].rank(request_for(12), r, 6, job="away") for r in range(6)))
        assert len(plans_of(futures)) == 1
        assert total(replicas, 'bucketd_agreements_unpinned_total{reason="store"}') == 1
    finally:
        engine.start()
    for replica in replicas:
        wait_for(lambda replica=replica: replica.metric("bucketd_replica_cut_off") == 0, "the replica to be back")
    futures = at_once(*(lambda r=r: replicas[r].rank(request_for(16), r, 3, job="back") for r in range(3)))
    assert len(plans_of(futures)) == 1
    assert total(replicas, 'bucketd_leases_held{of="job"}') >= 1


def test_a_rolling_restart_fails_no_call_that_goes_elsewhere_when_it_is_told_to(replicas):
    request, answered, state = request_for(8), [], {"end": False, "over": False}
    replicas[0].stub.GetPlan(request, timeout=60)
    generation = threading.Barrier(3, action=lambda: state.update(over=state["end"]))

    def ask(rank: int, number: int) -> bytes:
        """At the next replica, once one says that it is not there; any other error is a failed call."""
        for attempt in range(1000):
            replica = replicas[(rank + attempt) % 3]
            try:
                return replica.rank(without_graph(request), rank, 3, generation=number, timeout=30).plan.plan
            except ValueError:  # it is being started, and the channel of the one before is closed
                time.sleep(0.02)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
                time.sleep(0.02)
        raise AssertionError("nobody answers")

    def run(rank: int) -> None:
        try:
            for number in range(1, 100_000):
                generation.wait(60)
                if state["over"]:
                    return
                answered.append(ask(rank, number))
        except BaseException:
            generation.abort()
            raise

    futures = at_once(*(lambda rank=rank: run(rank) for rank in range(3)))
    for replica in replicas:
        before = len(answered)
        wait_for(lambda before=before: len(answered) > before + 30 or generation.broken, "calls to be answered")
        replica.channel.close()
        replica.process.terminate()
        replica.process.communicate(timeout=60)
        assert replica.process.returncode == 0
        replica.start()
    before = len(answered)
    wait_for(lambda: len(answered) > before + 30 or generation.broken, "calls to be answered")
    state["end"] = True
    for future in futures:
        future.result(90)
    assert len(set(answered)) == 1


def test_operators_see_and_release_the_jobs_of_all_replicas_at_any_of_them(replicas):
    a, b, c = replicas
    request = request_for(8)
    waits = at_once(lambda: a.rank(request, 0, 3))
    wait_for(lambda: a.waiting_ranks() == 1, "the first rank to wait where its job is")
    waits += at_once(lambda: b.rank(request, 1, 3))
    wait_for(lambda: a.waiting_ranks() == 2, "the other one to be forwarded")
    listed = ctl("jobs", server=c)
    assert "waiting" in listed and f"unix:{a.folder}/socket" in listed and "missing here" not in listed
    b.process.send_signal(signal.SIGSTOP)
    assert f"unix:{b.folder}/socket: it did not answer within 2 s; jobs that it has are missing here" in ctl("jobs", server=c)
    assert "ranks that wait there wait on" in ctl("pin", "train", "--release", server=c, code=1)
    b.process.send_signal(signal.SIGCONT)
    assert ctl("pin", "train", "--release", server=c) == "released 0 plans of job train\n"
    for rank in waits:
        with pytest.raises(grpc.RpcError) as told:
            rank.result(90)
        assert "an operator released the job" in told.value.details()


PEERS = """
[[identity]]
names = ["URI:spiffe://example.org/train/*"]
tenant = "team-a"
roles = ["plan"]

[[identity]]
names = ["DNS:localhost"]
tenant = "*"
roles = ["{role}"]
"""


def secured(files: Certificates, url: str, role: str):
    """Two replicas that know each other by their certificates, whose identity has that role."""
    with contextlib.ExitStack() as stack:
        both = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"localhost:{free.getsockname()[1]}"
            both.append(stack.enter_context(planner("--store", url, "--cluster-address", address, *files.server_flags(PEERS.format(role=role)),
                                                    address=address)))
        yield both


@pytest.mark.parametrize("role", ["peer", "report"])
def test_with_tls_a_replica_may_call_others_if_its_certificate_has_the_role(engine, tmp_path, role):
    files = Certificates(tmp_path / "tls")
    files.make("server", "DNS:localhost")
    files.make("rank", "URI:spiffe://example.org/train/rank")
    read = lambda name: (files.folder / name).read_bytes()  # noqa: E731
    identity = grpc.ssl_channel_credentials(read("ca.pem"), read("rank.key"), read("rank.pem"))
    with contextlib.contextmanager(secured)(files, engine.database(), role) as both:
        channels = [grpc.secure_channel(one.address, identity) for one in both]
        stubs = [planner_pb2_grpc.PlannerStub(channel) for channel in channels]
        calls = [planner_pb2.Job(id="train", generation=1, scope="0/fw", rank=[rank], size=2) for rank in range(2)]
        first = at_once(lambda: stubs[0].GetPlan(request_for(8, job=calls[0]), timeout=20))
        time.sleep(0.5)  # its job is there then
        second = at_once(lambda: stubs[1].GetPlan(request_for(8, job=calls[1]), timeout=5))
        if role == "peer":
            assert len(plans_of(first + second)) == 1
        else:
            with pytest.raises(grpc.RpcError) as refused:
                second[0].result(90)
            assert "wants the role peer" in refused.value.details()
            first[0].cancel()
        for channel in channels:
            channel.close()


def test_where_the_others_cannot_reach_a_replica_they_say_so(tmp_path):
    """Its --cluster-address is one where nobody listens: jobs that it has have no ranks of others."""
    store = ("--store-dir", str(tmp_path / "store"), "--cluster-dead-ms", str(DEAD_AFTER_MS))
    for which in "ab":
        (tmp_path / which).mkdir()
    a = Server(tmp_path / "a", *store, "--cluster-address", f"unix:{tmp_path}/a/socket")
    b = Server(tmp_path / "b", *store, "--cluster-address", f"unix:{tmp_path}/nobody")
    try:
        wait_for(lambda: a.metric('bucketd_replicas{state="serving"}') == 2, "the replicas to see each other")
        request = request_for(8)
        named = planner_pb2.GetPlanRequest(job=planner_pb2.Job(id="train", generation=1, scope="0/fw", rank=[0], size=2))
        named.MergeFrom(request)
        first = b.stub.GetPlan.future(named, timeout=15)
        wait_for(lambda: b.metric("bucketd_agreement_waiting_ranks") == 1, "the first rank to wait where its job is")
        named.job.rank[:] = [1]
        second = a.stub.GetPlan.future(named, timeout=8)
        wait_for(lambda: "cannot ask the replica at" in a.page("/readyz"), "the page to say it")
        assert f"{tmp_path}/nobody" in ctl("status", server=a)
        assert a.log.read_text().count("is that its --cluster-address") == 1
        assert second.exception(20) is not None and first.exception(20) is not None
    finally:
        for server in (a, b):
            server.channel.close()
            server.process.kill()


@pytest.mark.parametrize(("address", "warns"), [("planner-1.invalid:9460", 1), ("127.0.0.1:9460", 0)])
def test_a_folder_is_no_store_for_replicas_on_several_machines(tmp_path, address, warns):
    with Server(tmp_path, "--store-dir", str(tmp_path / "store"), "--cluster-address", address) as server:
        server.process.terminate()
        wait_for(lambda: "stopped" in server.log.read_text(), "the server to end")
        assert server.log.read_text().count("name a database in --store") == warns


def test_of_two_replicas_with_one_address_the_first_takes_no_more_calls(tmp_path):
    store = ("--store-dir", str(tmp_path / "store"), "--cluster-dead-ms", str(DEAD_AFTER_MS), "--cluster-address", f"unix:{tmp_path}/a/socket")
    for which in "ab":
        (tmp_path / which).mkdir()
    a = Server(tmp_path / "a", *store)
    b = Server(tmp_path / "b", *store)
    try:
        wait_for(lambda: a.metric("bucketd_ready") == 0, "the first one to be told")
        with pytest.raises(grpc.RpcError) as refused:
            a.stub.GetPlan(request_for(8), timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "give each replica a --cluster-address of its own" in a.log.read_text()
        assert b.stub.GetPlan(request_for(8), timeout=60).plan.plan
    finally:
        for server in (a, b):
            server.channel.close()
            server.process.kill()
