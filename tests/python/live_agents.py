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


class Agent(SidePort):
    """One daemon of a group on this machine: small messages, many probes. `folder` is the group's."""

    def __init__(self, folder: pathlib.Path, planner: str, rank: int, size: int, *flags: str, group: str = "dp", sweep: int = 16384,
                 interface: str = "", probe_every: str = "300ms"):
        self.rank, self.folder = rank, folder
        transport = ("--interface", interface) if interface else ("--unix-folder", f"{folder}/ring")
        self.log = folder / f"log.{rank}"
        self.ready_file = folder / f"ready.{rank}"
        self.ready_file.unlink(missing_ok=True)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [*WITH_US, BINARY, "daemon", "--planner", planner, "--group", group, "--rank", str(rank), "--size", str(size),
                 *transport, "--http", "127.0.0.1:0", "--probe-every", probe_every, "--timeout", "20s",
                 "--sweep-bytes", str(sweep), "--ready-file", self.ready_file, *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        said = self.process.stdout.readline()
        serves = re.search(r"side port http://(\S+)\n", said)
        assert serves, said + self.said()
        self.http = serves[1]

    def said(self) -> str:
        return self.log.read_text()

    def ready(self) -> bool:
        return self.page("/readyz").startswith("ok")

    def epoch(self) -> int:
        return int(self.metric("bucket_agent_epoch"))

    def wait_until_ready(self) -> dict:
        wait_for(self.ready, f"rank {self.rank} to be ready; it said {self.said()}")
        return json.loads(wait_for(lambda: self.ready_file.exists() and self.ready_file.read_text(), "the ready file"))

    def end(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)
        return self.process.returncode


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


class Watcher(SidePort):
    """A bucket-agent that passes on what trainers report at `socket`."""

    def __init__(self, folder: pathlib.Path, *flags: str):
        self.socket, self.log = str(folder / "trainers"), folder / "watch.log"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([*WITH_US, BINARY, "watch", "--telemetry", self.socket, "--http", "127.0.0.1:0", *flags],
                                            stdout=subprocess.PIPE, stderr=log, text=True)
        said = self.process.stdout.readline()
        serves = re.search(r"side port http://(\S+)\n", said)
        assert serves, said + self.log.read_text()
        self.http = serves[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)
        return self.process.returncode

    def total(self, name: str, *labels: str) -> float:
        """Over all series of that name that have these labels."""
        lines = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", self.metrics(), re.MULTILINE)
        return sum(float(value) for series, value in lines if all(label in series for label in labels))
