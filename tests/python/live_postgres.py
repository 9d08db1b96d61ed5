"""A PostgreSQL of a test's own, on a socket in a folder that goes with it; without fsync."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from waiting import wait_for

BIN = "/usr/lib/postgresql/15/bin"
_AS = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


class Postgres:
    """`environment` is for its own client programs, which are then its administrator's."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PGHOST": str(folder), "PGUSER": "postgres"}

    def url(self, database: str) -> str:
        return f"postgres://bucketd@/{database}?host={self.folder}"

    def _answers(self) -> bool:
        return subprocess.run([f"{BIN}/pg_isready", "-q"], env=self.environment).returncode == 0


@contextlib.contextmanager
def postgres():
    """A running one, until the end of the block."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bucketd-pg-", dir=parent))
    if _AS:
        shutil.chown(folder, "postgres", "postgres")
    data, log = str(folder / "data"), open(folder / "log", "wb")
    quiet = {"stdout": log, "stderr": log, "cwd": "/", **_AS}
    subprocess.run([f"{BIN}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--locale=C", "--no-sync"], check=True, **quiet)
    server = subprocess.Popen([f"{BIN}/postgres", "-D", data, "-k", str(folder), "-h", "", "-c", "fsync=off", "-c", "shared_buffers=16MB"], **quiet)
    try:
        made = Postgres(folder)
        wait_for(made._answers, "PostgreSQL to serve")
        yield made
    finally:
        server.terminate()
        server.wait(30)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
