"""A PostgreSQL of a test's own, on a socket in a folder that goes with it; without fsync. Two of them: a primary and the standby
that it waits for with every commit."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from waiting import wait_for

BIN = "/usr/lib/postgresql/15/bin"
# By a program and not by subprocess's user=, which makes it fork: that is not for processes that are in a call of gRPC's.
_AS = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"] if os.geteuid() == 0 else []


class Postgres:
    """`environment` is for its own client programs, which are then its administrator's. One that was stopped may start again.
    `within`: a command that its programs run under."""

    def __init__(self, folder: pathlib.Path, within: tuple[str, ...] = ()):
        self.folder = folder
        self._as = [*within, *_AS]
        self.socket = str(folder / ".s.PGSQL.5432")
        self.environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PGHOST": str(folder), "PGUSER": "postgres"}
        self._log = open(folder / "log", "wb")
        self._process = None

    def url(self, database: str) -> str:
        return f"postgres://bucketd@/{database}?host={self.folder}"

    def database(self) -> str:
        """The URL of a new one."""
        name = f"test{time.monotonic_ns()}"
        subprocess.run(["createuser", "bucketd"], env=self.environment, stderr=subprocess.DEVNULL)
        subprocess.run(["createdb", "-O", "bucketd", name], env=self.environment, check=True)
        return self.url(name)

    def run(self, *command: str) -> None:
        """One of its programs, as whoever the engine runs as."""
        subprocess.run([*self._as, f"{BIN}/{command[0]}", *command[1:]], check=True, stdout=self._log, stderr=self._log, cwd="/", env=self.environment)

    def start(self, *settings: str) -> None:
        options = [part for setting in ("fsync=off", "shared_buffers=16MB", *settings) for part in ("-c", setting)]
        self._process = subprocess.Popen([*self._as, f"{BIN}/postgres", "-D", str(self.folder / "data"), "-k", str(self.folder), "-h", "", *options],
                                         stdout=self._log, stderr=self._log, cwd="/")
        wait_for(self._answers, "PostgreSQL to serve")

    def stop(self) -> None:
        """At once: whoever is connected is thrown out, and nobody comes in."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)

    def follow(self, primary: "Postgres") -> None:
        """From here on it is what `primary` has, and `primary` waits for it with every commit. REQUIRES: it does not run."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self.run("pg_basebackup", "-h", str(primary.folder), "-U", "postgres", "-D", str(self.folder / "data"), "-R", "-X", "stream",
                 "--checkpoint=fast", "--no-sync")
        self.start()
        primary.run("psql", "-qc", "ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.run("psql", "-qc", "SELECT pg_reload_conf()")

    def signal_all(self, number: signal.Signals) -> None:
        """To each of its processes."""
        postmaster = self._process.pid
        children = pathlib.Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def remove(self) -> None:
        if self.runs():
            self.stop()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        return subprocess.run([f"{BIN}/pg_isready", "-q"], env=self.environment).returncode == 0


def _folder() -> pathlib.Path:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bucketd-pg-", dir=parent))
    if _AS:
        shutil.chown(folder, "postgres", "postgres")
    return folder


@contextlib.contextmanager
def postgres(*settings: str, within: tuple[str, ...] = (), initdb: tuple[str, ...] = ()):
    """A running one, until the end of the block."""
    made = Postgres(_folder(), within)
    try:
        made.run("initdb", "-D", str(made.folder / "data"), "-U", "postgres", "-A", "trust", "--locale=C", "--no-sync", *initdb)
        made.start(*settings)
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def primary_and_standby():
    """What the first one commits is at the second one before it is acknowledged."""
    with postgres("wal_level=replica", "max_wal_senders=4") as primary:
        standby = Postgres(_folder())
        try:
            standby.follow(primary)
            yield primary, standby
        finally:
            standby.remove()
