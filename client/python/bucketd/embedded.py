"""A private planner for one run, where no planner's address is given.

The process that starts it (the first rank of a node) keeps it in a folder that only this user can enter, and it dies with
that process. Other ranks of the node get its address through the job's key-value store, and check who is behind the
socket before they speak to it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pathlib
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time

from . import native
from .errors import EmbeddedError

_PREFIX = "bucketd-run-"
START_TIMEOUT = 30.0
_MAX_SOCKET_PATH = 107
_STALE_AFTER = 60.0  # seconds: younger folders may be of a run that is about to take its lock


def find_binary() -> str:
    """$BUCKETD_BINARY, else the wheel's own, else `bucketd` in PATH, else that of the source tree that this package lies in."""
    named = os.environ.get("BUCKETD_BINARY")
    if named:
        if os.access(named, os.X_OK):
            return named
        raise EmbeddedError(f"BUCKETD_BINARY names {named}, which cannot be run")
    found = native.carried("bucketd") or shutil.which("bucketd") or native.built("bin/bucketd")
    if found:
        return found
    raise EmbeddedError("no planner: this package carries none, and there is no `bucketd` in PATH; give address= of one, install a "
                        "wheel that deploy/wheel.sh made, or let BUCKETD_BINARY name one")


class EmbeddedPlanner:
    """One private `bucketd`, started by the constructor. `address` is for PlannerClient."""

    def __init__(self, binary: str | None = None):
        self._pid = os.getpid()
        self._process = None
        try:
            base = run_folder()
            remove_stale(base, _PREFIX)
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))  # 0700 by contract of mkdtemp
        except OSError as error:
            raise _no_place(error) from error
        try:
            self._lock = locked(self.folder / "lock")
            self.socket = str(self.folder / "socket")
            if len(self.socket) > _MAX_SOCKET_PATH:
                raise EmbeddedError(f"{self.socket}: {len(self.socket)} characters, a socket's path has at most "
                                    f"{_MAX_SOCKET_PATH}; set XDG_RUNTIME_DIR to a shorter one")
            self._binary = binary or find_binary()
            self._start()
        except OSError as error:
            self.close()
            raise _no_place(error) from error
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    @property
    def alive(self) -> bool:
        """False in a forked child: the planner is its parent's."""
        return os.getpid() == self._pid and self._process is not None and self._process.poll() is None

    def revive(self) -> None:
        """Starts it again where it has ended, at its address, which others have. Does nothing in a forked child, as close()."""
        if os.getpid() != self._pid or self.alive:
            return
        try:
            (self.folder / "ready").unlink(missing_ok=True)
            self._start()
        except OSError as error:
            raise _no_place(error) from error

    def close(self) -> None:
        """Ends the planner and removes its folder. Does nothing in a forked child, which owns neither."""
        if os.getpid() != self._pid:
            return
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        binary, ready = self._binary, self.folder / "ready"
        log = self.folder / "log"
        command = [binary, "--listen", self.address, "--http", "", "--ready-file", str(ready), "--log-level", "warn",
                   f"--exit-with-parent={self._pid}", "--drain-seconds", "1", "--lame-duck-ms", "0"]
        with open(log, "wb") as out:
            try:
                # A session of its own: Ctrl-C is for the run, which may catch it and go on.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, close_fds=True, start_new_session=True)
            except OSError as error:
                raise EmbeddedError(f"cannot run {binary}: {error}") from error
        until = time.monotonic() + START_TIMEOUT
        while not ready.exists():
            if self._process.poll() is not None:
                raise EmbeddedError(
                    f"{binary} ended with {self._process.returncode} before it was ready: {_tail(log)}")
            if time.monotonic() > until:
                raise EmbeddedError(f"{binary} was not ready within {START_TIMEOUT:g} s: {_tail(log)}")
            time.sleep(0.01)
        check_peer(self.address, pid=self._process.pid)


def _no_place(error: OSError) -> EmbeddedError:
    return EmbeddedError(f"a private planner finds no place for its files, which XDG_RUNTIME_DIR, or else TMPDIR, names: {error}")


def check_peer(address: str, pid: int | None = None) -> None:
    """EmbeddedError unless the socket lies in a folder of this user's own and a process of this user (and of this pid,
    if one is given) answers on it."""
    path = address.removeprefix("unix:")
    folder = os.path.dirname(path)
    try:
        info = os.stat(folder)
    except OSError as error:
        raise EmbeddedError(f"{folder}: {error.strerror}; do all ranks of this node see one file system?") from error
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise EmbeddedError(f"{folder} belongs to user {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}, expected "
                            f"user {os.getuid()} with mode 700")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        try:
            connection.connect(path)
        except OSError as error:
            raise EmbeddedError(f"{address}: {error.strerror or error}") from error
        size = struct.calcsize("3i")
        peer_pid, peer_uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if peer_uid != os.getuid():
        raise EmbeddedError(f"{address} is served by user {peer_uid}, expected {os.getuid()}")
    if pid is not None and peer_pid != pid:
        raise EmbeddedError(f"{address} is served by process {peer_pid}, expected {pid}")


def node_identity() -> str:
    """Equal for processes that run under one kernel, and only for those."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def run_folder() -> str:
    """Where folders of a run belong."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    if named and os.path.isdir(named) and os.access(named, os.W_OK | os.X_OK):
        return named
    return tempfile.gettempdir()


def locked(path: pathlib.Path):
    """Held as long as this process lives: its folder is in use."""
    handle = open(path, "w")
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def remove_stale(base: str, prefix: str) -> None:
    """Folders of runs that were killed: ours by name and owner, and nobody holds their lock."""
    for folder in pathlib.Path(base).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            info = folder.lstat()
            if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or time.time() - info.st_mtime < _STALE_AFTER:
                continue
            with open(folder / "lock", "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _tail(log: pathlib.Path) -> str:
    try:
        text = log.read_text(errors="replace").strip()
    except OSError:
        return "(no output)"
    return text[-2000:] or "(no output)"
