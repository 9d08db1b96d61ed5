"""A database that takes connections and does not answer: a commit waits for a standby that is dead, a table is locked. Who starts a
job meanwhile waits once at most for it, and a server that is told to end does not wait for it at all."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import time

import pytest
from live_postgres import Postgres, postgres
from live_server import Server, request_for, without_graph
from waiting import wait_for

from bucketd import embedded
from bucketd._wire.proto import planner_pb2

ONE_WAIT = 10  # seconds: of a call of the store


@pytest.fixture(scope="module")
def engine():
    with postgres() as made:
        yield made
        wait_for_standby(made, "")


@pytest.fixture(params=["alone", "replica"])
def server(request, engine, tmp_path):
    """With a plan in memory; what it keeps is committed."""
    wait_for_standby(engine, "")
    cluster = ("--cluster-address", f"unix:{tmp_path}/socket") if request.param == "replica" else ()
    url = engine.database()
    with Server(tmp_path, "--store", url, *cluster) as made:
        made.database = url.partition("@/")[2].partition("?")[0]
        made.stub.GetPlan(request_for(64), timeout=30)
        yield made


def psql(engine: Postgres, statement: str, database: str = "postgres") -> str:
    return subprocess.run(["psql", "-d", database, "-Atqc", statement], env=engine.environment, check=True, capture_output=True, text=True).stdout.strip()


def wait_for_standby(engine: Postgres, name: str) -> None:
    psql(engine, f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    psql(engine, "SELECT pg_reload_conf()")
    wait_for(lambda: psql(engine, "SHOW synchronous_standby_names") == name, "the engine to read its configuration")
    time.sleep(0.5)  # each session reads it by itself


def start_jobs(server: Server, pool, jobs: int, cold: int) -> list:
    """Their calls: jobs whose plan is in memory, and plans that are not."""
    requests = [without_graph(request_for(64), job=planner_pb2.Job(id=f"j{number}", generation=1, scope="s", rank=[0], size=1))
                for number in range(jobs)]
    requests += [request_for(80 + 8 * number) for number in range(cold)]
    return [pool.submit(server.stub.GetPlan, request, timeout=60) for request in requests]


def all_well(server: Server) -> bool:
    return server.page("/readyz") == "ok\n"


def test_while_no_commit_ends_all_are_answered_after_one_wait(engine, server):
    wait_for_standby(engine, "nobody")
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        assert all(call.result().HasField("plan") for call in start_jobs(server, pool, jobs=50, cold=6))
    assert time.monotonic() - began < ONE_WAIT + 5
    assert "without its store: writing fails" in server.page("/readyz")
    began = time.monotonic()
    assert server.stub.GetPlan(request_for(400), timeout=60).HasField("plan")
    assert time.monotonic() - began < 2, "nobody waits again"
    unpinned = server.metric('bucketd_agreements_unpinned_total{reason="store"}')
    assert unpinned >= 49, "one may be pinned: a commit that was told to wait is done when the wait ends"
    wait_for_standby(engine, "")
    wait_for(lambda: all_well(server), "the store to be written again", 15)


def test_while_a_table_is_locked_all_are_answered_after_one_wait(engine, server):
    lock = subprocess.Popen(["psql", "-d", server.database, "-qc", "BEGIN; LOCK TABLE bucketd_plan; SELECT pg_sleep(60)"],
                            env=engine.environment)
    try:
        wait_for(lambda: psql(engine, "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1", "the table to be locked")
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            assert all(call.result().HasField("plan") for call in start_jobs(server, pool, jobs=10, cold=10))
        assert time.monotonic() - began < ONE_WAIT + 5
    finally:
        psql(engine, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        lock.wait()
    wait_for(lambda: server.stub.GetPlan(request_for(400), timeout=60) and all_well(server), "the store to be read and written again", 15)


def test_who_is_told_to_end_does_not_wait_for_it(engine, server):
    wait_for_standby(engine, "nobody")
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        calls = start_jobs(server, pool, jobs=20, cold=8)
        time.sleep(1)
        began = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert time.monotonic() - began < 6, "a second of draining, and what is given back at the end"
        concurrent.futures.wait(calls)


def make_slow(engine: Postgres, server: Server, seconds: float) -> None:
    """To take a record away, a lease or a pin."""
    statements = (f"CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep({seconds}); RETURN OLD; END'",
                  "CREATE TRIGGER slow BEFORE DELETE ON bucketd_record FOR EACH ROW EXECUTE FUNCTION slowly()")
    for statement in statements:
        psql(engine, statement, server.database)


def test_who_is_told_to_end_does_not_go_on_with_a_release_that_is_slow(engine, server):
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        assert all(call.result().HasField("plan") for call in start_jobs(server, pool, jobs=20, cold=0))
        make_slow(engine, server, 2)
        bucketctl = pathlib.Path(embedded.find_binary()).with_name("bucketctl")
        release = subprocess.Popen([bucketctl, "pin", "j*", "--release", "--all", "--server", server.address])
        time.sleep(1)
        assert release.poll() is None
        began = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert time.monotonic() - began < 9, "a second of draining, and one for each thread that waits"
        assert release.wait(30) != 0, "half of it is none"
