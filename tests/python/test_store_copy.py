"""A store moves from a folder to a database, is backed up and restored, by the commands of the operators' page, and a job that was
pinned before gets its plan, the same bytes, wherever the store is by then."""

import contextlib
import os
import pathlib
import pty
import re
import sqlite3
import subprocess

import pytest
from live_postgres import postgres
from live_server import Server, ctl, request_for, without_graph

from bucketd import embedded
from bucketd._wire.proto import planner_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def database():
    with postgres() as running:
        yield running


def blocks() -> list[str]:
    """What the page tells to run, in its order."""
    text = (ROOT / "deploy" / "README.md").read_text()
    text = text[text.index("### Move, back up and restore"):]
    return re.findall(r"```sh\n(.*?)```", text[:text.index("\n## ")], re.DOTALL)


class Page:
    """Runs the page's commands where their names mean the test's own places."""

    def __init__(self, database, folder: pathlib.Path):
        self.database, self.folder = database, folder

    def run(self, block: str) -> str:
        block = re.sub(r"postgres://bucketd@db:5432/(\w+)", lambda match: f"'{self.database.url(match[1])}'", block)
        block = block.replace("/var/lib/bucketd", str(self.folder / "store"))
        binaries = pathlib.Path(embedded.find_binary()).parent
        environment = {**self.database.environment, "PATH": f"{binaries}:{self.database.environment['PATH']}"}
        done = subprocess.run(["bash", "-euxc", block], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def job(generation: int) -> planner_pb2.Job:
    return planner_pb2.Job(id="train", generation=generation, scope="0/fw", rank=[0], size=1)


def pinned(folder: pathlib.Path, store: str, request) -> bytes:
    """What the job's latest generation gets from a new server of `store`, also once everything that may go has gone."""
    folder.mkdir()
    with Server(folder, "--store", store) as server:
        ctl("evict", "--all", server=server)
    with Server(folder, "--store", store) as server:
        # A rank alone, which has no graph with it: what it gets comes from its pin.
        reply = server.stub.GetPlan(without_graph(request, job=job(4)), timeout=30)
        assert reply.plan.source == planner_pb2.PLAN_SOURCE_PINNED, reply
        return reply.plan.plan


def test_the_pages_commands_move_back_up_and_restore(database, tmp_path):
    make, move, move_what_changed, check, backup, restore, folder_backup = blocks()
    page, request, later = Page(database, tmp_path), request_for(8), request_for(16)
    page.run(make)
    (tmp_path / "first").mkdir()
    with Server(tmp_path / "first", "--store-dir", str(tmp_path / "store")) as server:
        server.stub.GetPlan(request_for(24, job=job(3)), timeout=30)
        assert "4 values copied, 0 were there already" in page.run(move), "a plan, its job's two records, an epoch"
        server.stub.GetPlan(later, timeout=30)
        plan = server.stub.GetPlan(request_for(8, job=job(4)), timeout=30).plan.plan
    said = page.run(move)
    assert "are others and stay as they were there (store copy has --replace)" in said, "a server may be using it"
    said = page.run(move_what_changed)
    assert "0 values copied" in said and "were others and are replaced" in said, said
    assert "replaced" not in page.run(move_what_changed)
    assert "the store is whole" in page.run(check)
    assert pinned(tmp_path / "moved", database.url("bucketd"), request) == plan
    page.run(backup)
    assert "the store is whole" in page.run(restore)
    assert pinned(tmp_path / "restored", database.url("restored"), request) == plan
    page.run(folder_backup)
    assert pinned(tmp_path / "from-bundle", str(tmp_path / "store-restored"), request) == plan


BUCKETCTL = pathlib.Path(embedded.find_binary()).with_name("bucketctl")


def run_ctl(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([BUCKETCTL, "store", *arguments], capture_output=True, text=True, timeout=120)


def test_an_export_is_of_the_tenant_that_is_named(tmp_path):
    store, bundle = str(tmp_path / "store"), str(tmp_path / "bundle")
    with Server(tmp_path, "--store-dir", store) as server:
        for width, tenant in ((8, ""), (8, "team"), (16, "team")):
            server.stub.GetPlan(request_for(width, tenant=tenant), timeout=30)
    for flags, count in (((), 3), (("--tenant", ""), 1), (("--tenant", "team"), 2)):
        assert f"{count} values, " in run_ctl("export", *flags, store, bundle).stdout, flags


def test_progress_has_left_the_terminal_when_what_was_done_is_said(tmp_path):
    store, to, empty, bundle = (str(tmp_path / name) for name in ("store", "to", "empty.bundle", "bundle"))
    with Server(tmp_path, "--store-dir", store) as server:
        server.stub.GetPlan(request_for(8), timeout=30)
    for arguments in (("export", "--tenant", "nobody", store, empty), ("export", store, bundle), ("import", empty, to)):
        assert run_ctl(*arguments).returncode == 0
    other = sqlite3.connect(f"{to}/store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the import waits for it, longer than a server would
    ours, theirs = pty.openpty()
    process = subprocess.Popen([BUCKETCTL, "store", "import", bundle, to], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"importing: 2 s" not in shown:
        shown += os.read(ours, 1000)
    other.execute("ROLLBACK")
    with contextlib.suppress(OSError):  # what a terminal says that nobody writes to any more
        while True:
            shown += os.read(ours, 1000)
    os.close(ours)
    other.close()
    assert process.wait(timeout=60) == 0
    assert b"\r\x1b[K1 values imported" in shown, shown


def test_what_cannot_be_copied_says_so_and_leaves_no_tables(database, tmp_path):
    subprocess.run(["createdb", "empty"], env=database.environment, check=True)
    none = run_ctl("copy", database.url("empty"), str(tmp_path / "to"))
    assert none.returncode != 0 and "there is no store of bucketd in this database" in none.stderr
    assert not (tmp_path / "to").exists()
    tables = subprocess.run(["psql", "-Atc", r"\dt", "empty"], env=database.environment, check=True, capture_output=True, text=True)
    assert tables.stdout == "", "looking makes nothing"
    for place in (str(tmp_path / "nowhere"), "postgres://bucketd:secret@127.0.0.1:1/x"):
        failed = run_ctl("copy", place, str(tmp_path / "to"))
        assert failed.returncode != 0 and place.replace(":secret", "") in failed.stderr, failed.stderr
        assert "secret" not in failed.stderr


def test_damage_is_left_out_told_and_named(database, tmp_path):
    subprocess.run(["createdb", "damaged"], env=database.environment, check=True)
    url = database.url("damaged").replace("bucketd@", "postgres@")
    with Server(tmp_path, "--store", url) as server:
        for width in (8, 16, 24):
            server.stub.GetPlan(request_for(width), timeout=30)
    change = "UPDATE bucketd_plan_chunk SET bytes = bytes || 'x' WHERE plan = (SELECT hash FROM bucketd_plan ORDER BY hash LIMIT 1)"
    subprocess.run(["psql", "-c", change, "damaged"], env=database.environment, check=True, capture_output=True)
    copied = run_ctl("copy", url, str(tmp_path / "to"))
    assert copied.returncode == 1 and "left out 1 damaged values" in copied.stderr, copied.stderr
    assert '"plans": 2,' in run_ctl("stats", "--json", str(tmp_path / "to")).stdout
    looked = run_ctl("verify", url)
    assert looked.returncode == 1 and "the value does not match its checksum" in looked.stdout
    assert run_ctl("verify", url).stdout == looked.stdout, "looking takes nothing away"
