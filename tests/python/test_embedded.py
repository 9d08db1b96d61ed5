"""The private planner of one run: its folder, who may speak to it, and that it never outlives its run."""

import concurrent.futures
import os
import pathlib
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile

import pytest
import torch.distributed as dist
from layered_graphs import MESH, layers, options

from bucketd import asking, canonical, embedded
from bucketd.agreement import Agreement
from bucketd.client import PlannerClient
from bucketd.errors import AgreementError, EmbeddedError
from bucketd.settings import Settings

CLIENT = pathlib.Path(embedded.__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def gone(pid, within=20.0) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], within)[0])
    finally:
        os.close(process)


def test_serves_behind_a_folder_of_our_own_and_leaves_nothing(own_runtime_folder):
    one = embedded.EmbeddedPlanner()
    pid = one._process.pid
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700
    assert one.folder.parent == own_runtime_folder
    assert PlannerClient(one.address).capabilities().modes
    assert one.alive
    one.close()
    assert gone(pid) and not one.alive and not list(own_runtime_folder.iterdir())


def test_without_a_place_for_its_files_it_is_an_error_that_may_be_fallen_back_from(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    with pytest.raises(EmbeddedError, match="XDG_RUNTIME_DIR, or else TMPDIR, names: .*No usable temporary directory"):
        embedded.EmbeddedPlanner()


def test_dies_with_the_process_that_started_it():
    script = "from bucketd.embedded import EmbeddedPlanner as E; e = E(); print(e._process.pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, PYTHONPATH=str(CLIENT)))
    pid = int(parent.stdout.readline())
    assert not gone(pid, within=0.2)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert gone(pid)


def test_one_that_died_is_there_again_when_it_is_asked(monkeypatch):
    monkeypatch.setattr(asking, "_private_planner", None)
    asker, digest = asking.Asker(Settings.of(), Agreement(None, 0, (0,)), 0), canonical.digest(layers())
    plan = asker.ask("0/fw", layers(), digest, MESH, options()).plan
    first = asking.private_planner()._process
    first.kill()
    first.wait()
    assert asker.ask("0/bw", layers(), digest, MESH, options()).plan == plan
    asking.private_planner().close()


def test_one_that_died_with_its_folder_is_an_error_that_may_be_fallen_back_from():
    one = embedded.EmbeddedPlanner()
    one.close()
    with pytest.raises(EmbeddedError, match="XDG_RUNTIME_DIR, or else TMPDIR, names: .*No such file"):
        one.revive()


def test_a_rank_that_does_not_come_is_named_to_all_who_wait_for_one():
    """As where an address is given, and whatever fallback says."""
    store = dist.HashStore()

    def ask(rank):
        me = Agreement(dist.PrefixStore("job", store), rank, (0, 1, 2), "unplanned", 1.0)
        with pytest.raises(AgreementError) as caught:
            asking.Asker(Settings.of(deadline=0.5), me, 0).ask("0/fw", layers(), canonical.digest(layers()), MESH, options())
        return str(caught.value)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert set(pool.map(ask, (0, 1))) == {"no word from rank 2 within 1 s (deadline= is half of that)"}


def test_what_interrupts_its_run_from_a_terminal_does_not_end_it():
    one = embedded.EmbeddedPlanner()
    try:
        assert os.getpgid(one._process.pid) != os.getpgrp()
    finally:
        one.close()


def test_removes_what_a_killed_run_left_but_not_what_is_in_use(own_runtime_folder, monkeypatch):
    monkeypatch.setattr(embedded, "_STALE_AFTER", -1.0)
    left = own_runtime_folder / "bucketd-run-left"
    left.mkdir()
    (left / "lock").touch()
    other = own_runtime_folder / "something-else"
    other.mkdir()
    first = embedded.EmbeddedPlanner()
    assert not left.exists() and other.exists()
    second = embedded.EmbeddedPlanner()
    assert first.folder.exists() and first.alive
    first.close()
    second.close()


def test_a_folder_that_others_may_enter_is_not_trusted():
    one = embedded.EmbeddedPlanner()
    try:
        os.chmod(one.folder, 0o755)
        with pytest.raises(EmbeddedError, match="mode 755, expected user .* with mode 700"):
            embedded.check_peer(one.address)
    finally:
        one.close()


def test_a_socket_that_another_process_serves_is_not_trusted(own_runtime_folder):
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(str(own_runtime_folder / "socket"))
        impostor.listen()
        address = f"unix:{own_runtime_folder}/socket"
        embedded.check_peer(address, pid=os.getpid())
        with pytest.raises(EmbeddedError, match=f"served by process {os.getpid()}, expected 1"):
            embedded.check_peer(address, pid=1)


def test_a_socket_that_is_not_there_is_an_error(own_runtime_folder):
    with pytest.raises(EmbeddedError, match="No such file"):
        embedded.check_peer(f"unix:{own_runtime_folder}/socket")
    with pytest.raises(EmbeddedError, match="do all ranks of this node see one file system"):
        embedded.check_peer(f"unix:{own_runtime_folder}/elsewhere/socket")


def test_a_binary_that_ends_at_once_is_an_error_with_what_it_said(tmp_path, own_runtime_folder):
    broken = tmp_path / "bucketd"
    broken.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EmbeddedError, match="ended with 3 before it was ready: out of luck"):
        embedded.EmbeddedPlanner(str(broken))
    assert not list(own_runtime_folder.iterdir())


def test_a_named_binary_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setenv("BUCKETD_BINARY", "/no/such/bucketd")
    with pytest.raises(EmbeddedError, match="BUCKETD_BINARY names /no/such/bucketd"):
        embedded.find_binary()


def test_a_path_too_long_for_a_socket_is_an_error(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(EmbeddedError, match="a socket's path has at most 107"):
        embedded.EmbeddedPlanner()
    assert not list(folder.iterdir())
