"""A store that fails while its server serves: a full disk, a lock, a file that is damaged. Plans go on, right and never lost in
silence; the counters, the status page and /readyz say what is wrong, and stop saying so when it is over."""

import concurrent.futures
import json
import os
import pathlib
import sqlite3
import subprocess
import time

import grpc
import pytest
from live_server import Server, ctl, request_for, without_graph
from small_disk import Disk
from waiting import wait_for

from bucketd import embedded
from bucketd._wire.proto import planner_pb2

HIT, COMPUTED = planner_pb2.PLAN_SOURCE_HIT, planner_pb2.PLAN_SOURCE_COMPUTED


def ask(server: Server, request) -> planner_pb2.PlanReply:
    reply = server.stub.GetPlan(request, timeout=60)
    assert reply.HasField("plan"), reply
    return reply.plan


def failure(server: Server, request) -> str:
    with pytest.raises(grpc.RpcError) as error:
        server.stub.GetPlan(request, timeout=60)
    return error.value.details()


def says_that_all_is_well(server: Server) -> bool:
    store = server.status()["store"]
    return server.page("/readyz") == "ok\n" and "writing" not in store and "reading" not in store and not store.get("error")


def says_that(what: str, why: str, server: Server) -> None:
    """Everywhere, and that calls are taken all the same."""
    trouble = server.status()["store"][what]
    assert why in trouble["why"] and int(trouble["since_ms"]) > 0
    ready = server.page("/readyz").splitlines()
    assert ready[0] == "ok" and f"{what} fails since" in ready[1] and why in ready[1]
    page = server.page("/statusz")
    assert "store fails" in page and why in page
    assert why in server.log.read_text()


def test_on_a_full_disk_plans_are_answered_and_not_kept_until_there_is_room(tmp_path):
    with Disk(tmp_path) as disk, Server(tmp_path, "--store-dir", f"{disk.path}/store", within=disk.within) as server:
        before = ask(server, request_for(8))
        assert says_that_all_is_well(server)
        disk.fill()
        computed = ask(server, request_for(16))
        assert computed.source == COMPUTED
        assert server.metric('bucketd_store_writes_total{result="no_space"}') == 1
        says_that("writing", "full", server)
        assert ask(server, without_graph(request_for(16))).plan == computed.plan, "from memory"
        assert ask(server, without_graph(request_for(8))).plan == before.plan
        assert server.metric('bucketd_store_reads_total{result="error",value="plan"}') == 0, "reading goes on"
        disk.free()
        ask(server, request_for(24))
        assert says_that_all_is_well(server)
        assert int(server.status()["store"]["failed_writes"]) == 1, "what was counted stays counted"
        assert int(server.status()["store"]["plans"]) == 2, "the one in between was not kept"


def no_space(server: Server) -> float:
    return server.metric('bucketd_store_writes_total{result="no_space"}')


def test_where_no_file_may_grow_further_plans_are_answered_and_not_kept(tmp_path):
    """As `ulimit -f` says: the kernel then sends a signal that ends whoever does not ignore it."""
    within = ("bash", "-c", 'ulimit -f 1024; exec "$@"', "bash")
    with Server(tmp_path, "--store-dir", str(tmp_path / "store"), within=within) as server:
        width = 8
        while not server.status()["store"].get("writing"):
            assert width < 8 * 1000, "there was room for all of them"
            ask(server, request_for(width))
            width += 8
        says_that("writing", "", server)
        assert ask(server, request_for(8)).source == HIT


def test_a_disk_that_its_own_plans_have_filled_is_emptied_by_evicting_them(tmp_path):
    with Disk(tmp_path, mib=4) as disk, Server(tmp_path, "--store-dir", f"{disk.path}/store", within=disk.within) as server:
        width, kept = 8, 0
        while no_space(server) == 0:
            ask(server, request_for(width))
            width, kept = width + 8, int(server.status()["store"]["plans"])
        disk.fill()  # what little the last plan left
        assert kept > 100
        # One, and then all.
        key = json.loads(ctl("plans", "--json", "--limit", "1", server=server))["plans"][0]["key_sha256"]
        assert " and 1 from the store" in ctl("evict", "--key", key, server=server)
        assert f" and {kept - 1} from the store" in ctl("evict", "--all", server=server)
        assert int(server.status()["store"]["plans"]) == 0
        failed = no_space(server)
        for again in range(8, 8 + 8 * (kept // 2), 8):
            ask(server, request_for(again))
        assert no_space(server) == failed, "the room that they had is used again"
        assert int(server.status()["store"]["plans"]) == kept // 2


def test_on_a_full_disk_the_kill_switch_is_thrown_and_remembered(tmp_path):
    with Disk(tmp_path) as disk:
        store = ("--store-dir", f"{disk.path}/store")
        with Server(tmp_path, *store, within=disk.within) as server:
            disk.fill()
            assert "servers that share the store follow" in ctl("disable", "--why", "INC-7", server=server)
            assert "INC-7" in failure(server, request_for(8))
        disk.fill()
        with Server(tmp_path, *store, within=disk.within) as server:
            assert "INC-7" in failure(server, request_for(8)), "after a restart"
            assert "planning is off: INC-7" in server.page("/readyz")
            ctl("enable", server=server)
            assert ask(server, request_for(8)).source == COMPUTED


def test_where_the_store_cannot_be_written_the_kill_switch_holds_and_is_owed(tmp_path):
    with Server(tmp_path, "--store-dir", str(tmp_path / "store")) as server:
        other = sqlite3.connect(tmp_path / "store" / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert "not in the store yet" in ctl("disable", "--why", "INC-7", server=server)
        assert "INC-7" in failure(server, request_for(8))
        assert server.metric("bucketd_planning_enabled") == 0
        for page in ("/readyz", "/statusz"):
            assert "INC-7" in server.page(page) and "in the store yet" in server.page(page)
        assert "locked" in server.status()["planning"]["not_stored"]
        assert "locked" in ctl("status", server=server)
        other.execute("ROLLBACK")
        other.close()
        wait_for(lambda: server.status()["planning"].get("persisted"), "the setting to be stored")
    with Server(tmp_path, "--store-dir", str(tmp_path / "store")) as server:
        assert "INC-7" in failure(server, request_for(8))


def test_a_folder_that_everybody_may_write_to_is_refused_and_nobody_else_reads_a_store(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    run = subprocess.run([embedded.find_binary(), "--listen", f"unix:{tmp_path}/s", "--store-dir", open_to_all], capture_output=True,
                         text=True, timeout=60)
    assert run.returncode != 0 and f"chmod o-w {open_to_all}" in run.stderr
    mask = os.umask(0)
    try:
        with Server(tmp_path, "--store-dir", f"{open_to_all}/store") as server:
            ask(server, request_for(8))
            modes = {path.name: path.stat().st_mode & 0o777 for path in (open_to_all / "store").iterdir()}
    finally:
        os.umask(mask)
    assert (open_to_all / "store").stat().st_mode & 0o777 == 0o700
    assert {"store.db", "store.db-wal", "acknowledged", "reserve"} <= modes.keys() and set(modes.values()) == {0o600}
    # One that an earlier version made.
    (open_to_all / "store" / "store.db").chmod(0o644)
    with Server(tmp_path, "--store-dir", f"{open_to_all}/store"):
        assert (open_to_all / "store" / "store.db").stat().st_mode & 0o777 == 0o640


def test_a_store_that_another_process_has_locked_keeps_nobody_from_a_plan(tmp_path):
    with Server(tmp_path, "--store-dir", str(tmp_path / "store")) as server:
        ask(server, request_for(8))
        other = sqlite3.connect(tmp_path / "store" / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert ask(server, request_for(16)).source == COMPUTED
        assert server.metric('bucketd_store_writes_total{result="error"}') == 1
        says_that("writing", "locked", server)
        began = time.monotonic()
        jobs = [planner_pb2.Job(id=f"job {number}", generation=1, scope="s", rank=[0], size=1) for number in range(30)]
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            list(pool.map(lambda job: ask(server, without_graph(request_for(8), job=job)), jobs))
        assert time.monotonic() - began < 10, "who begins behind one that has waited in vain does not wait as long"
        other.execute("ROLLBACK")
        other.close()
        ask(server, request_for(24))
        assert says_that_all_is_well(server)


@pytest.mark.parametrize("damage", ["zeros", "noise", "empty"])
def test_a_store_that_is_damaged_under_a_server_never_gives_a_wrong_plan_nor_a_false_miss(tmp_path, damage):
    store = ("--store-dir", str(tmp_path / "store"), "--plan-cache-bytes", "1")  # every hit is read
    widths = range(8, 168, 8)
    with Server(tmp_path, *store) as server:
        plans = {width: ask(server, request_for(width)).plan for width in widths}
    with Server(tmp_path, *store) as server:
        assert ask(server, without_graph(request_for(8))).plan == plans[8]
        assert server.metric('bucketd_plan_requests_total{outcome="store_hit"}') == 1
        misses = server.metric('bucketd_store_reads_total{result="miss",value="plan"}')
        database = tmp_path / "store" / "store.db"
        size = database.stat().st_size
        with open(database, "r+b") as file:
            if damage == "empty":
                file.truncate(0)
            else:
                file.write(bytes(size) if damage == "zeros" else os.urandom(size))
        for width in widths:
            request = request_for(width)
            try:
                found = server.stub.GetPlan(without_graph(request, cached_only=True), timeout=60)
                assert found.plan.plan == plans[width]
            except grpc.RpcError as error:
                known = server.metric('bucketd_store_reads_total{result="damaged",value="plan"}')
                assert "the store cannot be read" in error.details() or known > 0, error.details()
            assert ask(server, request).plan == plans[width]
        assert server.metric('bucketd_store_reads_total{result="miss",value="plan"}') == misses, "none was a miss"
        failed = server.metric('bucketd_store_reads_total{result="error",value="plan"}')
        damaged = server.metric("bucketd_store_damage_total")
        assert failed + damaged > 0
        if failed:
            says_that("reading", "", server)


def test_a_copy_that_does_not_fit_says_which_place_is_full(tmp_path):
    whole = tmp_path / "whole"
    with Server(tmp_path, "--store-dir", str(whole)) as server:
        for width in range(8, 8 + 8 * 150, 8):
            ask(server, request_for(width))
    with Disk(tmp_path, mib=1) as disk:
        program = pathlib.Path(embedded.find_binary()).with_name("bucketctl")
        done = subprocess.run([*disk.within, program, "store", "copy", whole, f"{disk.path}/store"], capture_output=True, text=True)
    assert done.returncode != 0 and f"{disk.path}/store: " in done.stderr, done.stderr
    assert "full" in done.stderr
