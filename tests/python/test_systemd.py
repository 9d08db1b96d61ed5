"""The unit: what systemd says of it, and that a server speaks its protocol."""

import os
import pathlib
import signal
import socket
import subprocess

import pytest

from bucketd import embedded

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "bucketd.service"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    unit = tmp_path / "bucketd.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/bucketd", embedded.find_binary()))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and "bucketd" not in done.stderr, done.stderr


def test_the_unit_checks_the_file_that_it_starts_with():
    text = UNIT.read_text()
    assert text.count("--config /etc/bucketd/bucketd.toml") == 2 and "Type=notify" in text


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_the_service_manager_hears_of_ready_and_of_stopping(tmp_path, abstract):
    name = f"bucketd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(60)
        process = subprocess.Popen(
            [embedded.find_binary(), "--listen", f"unix:{tmp_path}/socket", "--http", "", "--lame-duck-ms", "0",
             f"--exit-with-parent={os.getpid()}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": ("@" if abstract else "") + name})
        try:
            first = manager.recv(4096).decode().splitlines()
            assert first == ["READY=1", f"STATUS=serves on unix:{tmp_path}/socket"]
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()
