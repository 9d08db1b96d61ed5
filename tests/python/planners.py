"""Planners of the tests' own: real ones, started and ended here."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time

from bucketd import embedded


class Planner:
    def __init__(self, process, address):
        self.process, self.address, self.pid = process, address, process.pid


@contextlib.contextmanager
def planner(*flags: str, address: str = "", start_timeout: float = 60.0):
    """A `bucketd`, on a unix socket of its own unless `address` says another."""
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        ready = pathlib.Path(folder, "ready")
        log = open(pathlib.Path(folder, "log"), "w+")
        process = subprocess.Popen(
            [embedded.find_binary(), "--listen", address or f"unix:{folder}/socket", "--http", "", "--ready-file",
             str(ready), f"--exit-with-parent={os.getpid()}", "--drain-seconds", "1", "--lame-duck-ms", "0", *flags],
            stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + start_timeout
            while not ready.exists():
                log.seek(0)
                assert process.poll() is None and time.monotonic() < until, f"bucketd did not start: {log.read()}"
                time.sleep(0.01)
            yield Planner(process, json.loads(ready.read_text())["address"])
        finally:
            process.kill()  # a stopped one too
            process.wait()
            log.close()


def wait_until_stopped(pid: int, within: float = 10.0) -> None:
    """After SIGSTOP: until no thread of the process runs any more."""
    until = time.monotonic() + within
    tasks = pathlib.Path(f"/proc/{pid}/task")
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
        assert time.monotonic() < until, f"process {pid} does not stop"
        time.sleep(0.005)
