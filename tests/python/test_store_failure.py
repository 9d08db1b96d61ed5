"""A store that fails while its server serves: a full disk, a lock, a file that is damaged. Plans go on, right and never lost in
silence; the counters, the status page and /readyz say what is wrong, and stop saying so when it is over."""

import errno
import os
import pathlib
import sqlite3

import grpc
import pytest
from live_server import Server, request_for, without_graph

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


class Disk:
    """Three MiB that only one server sees, in a namespace of its own."""

    def __init__(self, folder: pathlib.Path):
        self.path = folder / "disk"
        self.path.mkdir()
        privileges = () if os.geteuid() == 0 else ("--map-root-user",)
        self.within = ("unshare", "--mount", *privileges, "bash", "-c", 'mount -t tmpfs -o size=3m none "$0" && exec "$@"',
                       str(self.path))
        self.filler = None

    def fill(self, server: Server) -> None:
        self.filler = pathlib.Path(f"/proc/{server.process.pid}/root{self.path}/filler")
        with open(self.filler, "wb", buffering=0) as file, pytest.raises(OSError) as full:
            while True:
                file.write(bytes(4096))
        assert full.value.errno == errno.ENOSPC

    def free(self) -> None:
        self.filler.unlink()


def test_on_a_full_disk_plans_are_answered_and_not_kept_until_there_is_room(tmp_path):
    disk = Disk(tmp_path)
    with Server(tmp_path, "--store-dir", f"{disk.path}/store", within=disk.within) as server:
        before = ask(server, request_for(8))
        assert says_that_all_is_well(server)
        disk.fill(server)
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


def test_a_store_that_another_process_has_locked_keeps_nobody_from_a_plan(tmp_path):
    with Server(tmp_path, "--store-dir", str(tmp_path / "store")) as server:
        ask(server, request_for(8))
        other = sqlite3.connect(tmp_path / "store" / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert ask(server, request_for(16)).source == COMPUTED
        assert server.metric('bucketd_store_writes_total{result="error"}') == 1
        says_that("writing", "locked", server)
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
