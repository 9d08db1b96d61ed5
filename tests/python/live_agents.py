"""Real bucket-agent daemons for tests that look at them from outside."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess

from live_server import SidePort
from waiting import wait_for

from bucketd import embedded

BINARY = pathlib.Path(embedded.find_binary()).with_name("bucket-agent")
# They end with us, however we do.
WITH_US = [shutil.which("setpriv"), "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class _Program(SidePort):
    """A bucket-agent with a side port, its log at `log`."""

    def __init__(self, log: pathlib.Path, command: str, *arguments: str):
        self.log = log
        with open(log, "a") as stderr:
            self.process = subprocess.Popen([*WITH_US, BINARY, command, "--http", "127.0.0.1:0", *arguments],
                                            stdout=subprocess.PIPE, stderr=stderr, text=True)
        said = self.process.stdout.readline()
        serves = re.search(r"side port http://(\S+)\n", said)
        assert serves, said + self.said()
        self.http = serves[1]

    def said(self) -> str:
        return self.log.read_text()

    def end(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)
        return self.process.returncode


class Agent(_Program):
    """One daemon of a group on this machine: small messages, many probes. `folder` is the group's."""

    def __init__(self, folder: pathlib.Path, planner: str, rank: int, size: int, *flags: str, group: str = "dp", sweep: int = 16384,
                 interface: str = "", probe_every: str = "300ms"):
        self.rank, self.folder = rank, folder
        transport = ("--interface", interface) if interface else ("--unix-folder", f"{folder}/ring")
        self.ready_file = folder / f"ready.{rank}"
        self.ready_file.unlink(missing_ok=True)
        super().__init__(
            folder / f"log.{rank}", "daemon", "--planner", planner, "--group", group, "--rank", str(rank), "--size", str(size), *transport,
            "--probe-every", probe_every, "--timeout", "20s", "--sweep-bytes", str(sweep), "--ready-file", str(self.ready_file), *flags)

    def ready(self) -> bool:
        return self.page("/readyz").startswith("ok")

    def epoch(self) -> int:
        return int(self.metric("bucket_agent_epoch"))

    def wait_until_ready(self) -> dict:
        wait_for(self.ready, f"rank {self.rank} to be ready; it said {self.said()}")
        return json.loads(wait_for(lambda: self.ready_file.exists() and self.ready_file.read_text(), "the ready file"))


@contextlib.contextmanager
def agents(folder: pathlib.Path, planner: str, size: int, *flags: str, **options: str):
    """A whole group that is ready; a list, in which a test may put others."""
    started = []
    try:
        started += [Agent(folder, planner, rank, size, *flags, **options) for rank in range(size)]
        for one in started:
            one.wait_until_ready()
        yield started
    finally:
        for one in started:
            one.end(signal.SIGKILL)


class Watcher(_Program):
    """A bucket-agent that passes on what trainers report at `socket`."""

    def __init__(self, folder: pathlib.Path, *flags: str):
        self.socket = str(folder / "trainers")
        super().__init__(folder / "watch.log", "watch", "--telemetry", self.socket, *flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def total(self, name: str, *labels: str) -> float:
        """Over all series of that name that have these labels."""
        lines = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", self.metrics(), re.MULTILINE)
        return sum(float(value) for series, value in lines if all(label in series for label in labels))
