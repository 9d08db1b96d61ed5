"""Runs a worker script as the ranks of one small job, with gloo, and never longer than it may take."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "client" / "python"


class _Nursery:
    """Warm processes (warm_ranks.py) that ranks are born of: two, since ranks with one seed of hashes would hide what hangs on it."""

    def __init__(self):
        self.channels: list[socket.socket] = []

    def birth(self, rank: int, request: dict, output: int, status: int) -> None:
        if not self.channels:
            self.channels = [self._start(), self._start()]
        socket.send_fds(self.channels[rank % 2], [json.dumps(request).encode()], [output, status])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # It ends when our end of the socket does, that is with us.
        subprocess.Popen([sys.executable, str(HERE / "warm_ranks.py"), str(theirs.fileno())], pass_fds=[theirs.fileno()],
                         stdin=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1", KINETO_LOG_LEVEL="6"))
        theirs.close()
        return ours


_NURSERY = _Nursery()


class Rank:
    """One process of a job: what a test needs of subprocess.Popen."""

    def __init__(self, rank: int, script: str, arguments: tuple[str, ...], environment: dict[str, str]):
        said, output = os.pipe()
        status, words = os.pipe()
        path = [str(CLIENT), str(CLIENT / "examples"), str(HERE)]
        environment["PYTHONPATH"] = os.pathsep.join([*path, environment.get("PYTHONPATH", "")])
        request = dict(script=str((HERE / script).resolve()), arguments=arguments, environment=environment, path=path)
        _NURSERY.birth(rank, request, output, words)
        os.close(output)
        os.close(words)
        self.stdout, self._status = os.fdopen(said), os.fdopen(status)
        self.pid = int(self._status.readline() or -1)
        assert self.pid > 0, "the process that ranks are born of has ended"
        self.returncode: int | None = None
        self.spoke = time.monotonic()  # a line, when rest() last heard one
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that killed it; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        with self._lock:  # who reads what it says may ask at the same time
            if self.returncode is None:
                self.returncode = int(self._status.readline() or -9)
            return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def rest(self) -> str:
        """What it says from now on, once it has ended."""
        text = ""
        for line in self.stdout:
            text, self.spoke = text + line, time.monotonic()
        self.wait()
        return text


class Ranks:
    """The processes of one job. Use as a context manager: none of them outlives it."""

    def __init__(self, script: str, world: int, *arguments: str, **environment: str):
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes = []
        for rank in range(world):
            env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world),
                       LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world), OMP_NUM_THREADS="1", **environment)
            self.processes.append(Rank(rank, script, arguments, env))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def wait(self, timeout: float, grace: float = 20.0, by_line: bool = False) -> list[tuple[int, str]]:
        """(exit status, output) of every rank; TimeoutError, with what they said, if they take longer, or `by_line` say nothing for longer.

        Once one has failed the others have `grace` seconds: they may wait for it for ever, and are then killed.
        """
        said: dict[int, str] = {}
        readers = [threading.Thread(target=lambda r=rank, p=process: said.update({r: p.rest()}), daemon=True)
                   for rank, process in enumerate(self.processes)]
        for reader in readers:
            reader.start()
        until, failed = time.monotonic() + timeout, False
        while any(reader.is_alive() for reader in readers) and time.monotonic() < until:
            next(reader for reader in readers if reader.is_alive()).join(0.2)
            if not failed and any(process.poll() not in (None, 0) for process in self.processes):
                failed, until = True, min(until, time.monotonic() + grace)
            elif by_line and not failed:
                until = max(process.spoke for process in self.processes) + timeout
        late = [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        for rank in late:
            self.processes[rank].kill()
        for reader in readers:
            reader.join()
        if late and not failed:
            text = "\n".join(f"--- rank {rank}\n{said[rank]}" for rank in late)
            raise TimeoutError(f"rank {late[0]} still ran after {timeout} s{' without a word' if by_line else ''}\n{text}")
        return [(process.returncode, said[rank]) for rank, process in enumerate(self.processes)]


def run_ranks(script: str, world: int, *arguments: str, timeout: float, by_line: bool = False, **environment: str) -> list[str]:
    """What the ranks said; AssertionError, with all of it, unless every one ended with status 0. `timeout` is as Ranks.wait() has it."""
    with Ranks(script, world, *arguments, **environment) as ranks:
        results = ranks.wait(timeout, by_line=by_line)
    said = "\n".join(f"--- rank {rank} ended with {status}\n{text}" for rank, (status, text) in enumerate(results))
    assert all(status == 0 for status, _ in results), said
    return [text for _, text in results]
