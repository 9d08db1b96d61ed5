"""Planners of the tests' own: real ones, started and ended here."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import threading

from bucketd import embedded

_SHORT_END = ("--drain-seconds", "1", "--lame-duck-ms", "0")


class Planner:
    def __init__(self, process, address):
        self.process, self.address, self.pid = process, address, process.pid


@contextlib.contextmanager
def planner(*flags: str, address: str = "", start_timeout: float = 60.0, program: str = ""):
    """A `bucketd`, or another `program` that is one, on a unix socket of its own unless `address` says another."""
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        process = subprocess.Popen(
            [program or embedded.find_binary(), "--listen", address or f"unix:{folder}/socket", "--http", "",
             f"--exit-with-parent={os.getpid()}", *([] if "--drain-seconds" in flags else _SHORT_END), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = _Said(process.stdout)
        try:
            yield Planner(process, said.address(start_timeout))
        finally:
            process.kill()  # a stopped one too
            process.wait()
            said.reader.join()


class _Said:
    """What a planner prints, read as it comes, so that it never waits for its reader."""

    def __init__(self, stream):
        self._lines: list[str] = []
        self._address = ""
        self._decided = threading.Event()  # it serves, or has ended
        self.reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.reader.start()

    def _read(self, stream) -> None:
        with stream:
            for line in stream:
                self._lines.append(line)
                found = re.search(r"serves on (unix:[^\s,;\"]+|[^\s,;\"]+:\d+)", line)
                if found and not self._address:
                    self._address = found[1]
                    self._decided.set()
        self._decided.set()

    def address(self, timeout: float) -> str:
        decided = self._decided.wait(timeout)
        assert decided and self._address, f"bucketd did not start: {''.join(self._lines)}"
        return self._address


def wait_until_stopped(pid: int) -> None:
    """After SIGSTOP of a child: until none of its threads runs any more. Leaves its state for whoever waits for its end."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
