"""Runs a worker script as the ranks of one small job, with gloo, and never longer than it may take."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "client" / "python"


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
            env["PYTHONPATH"] = os.pathsep.join(
                [str(CLIENT), str(CLIENT / "examples"), str(HERE), env.get("PYTHONPATH", "")])
            self.processes.append(subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments], env=env, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def wait(self, timeout: float, grace: float = 20.0) -> list[tuple[int, str]]:
        """(exit status, output) of every rank; TimeoutError, with what they said, if they take longer.

        Once one has failed the others have `grace` seconds: they may wait for it for ever, and are then killed.
        """
        said: dict[int, str] = {}
        readers = [threading.Thread(target=lambda r=rank, p=process: said.update({r: p.communicate()[0]}), daemon=True)
                   for rank, process in enumerate(self.processes)]
        for reader in readers:
            reader.start()
        until, failed = time.monotonic() + timeout, False
        while any(reader.is_alive() for reader in readers) and time.monotonic() < until:
            next(reader for reader in readers if reader.is_alive()).join(0.2)
            if not failed and any(process.poll() not in (None, 0) for process in self.processes):
                failed, until = True, min(until, time.monotonic() + grace)
        late = [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        for rank in late:
            self.processes[rank].kill()
        for reader in readers:
            reader.join()
        if late and not failed:
            text = "\n".join(f"--- rank {rank}\n{said[rank]}" for rank in late)
            raise TimeoutError(f"rank {late[0]} still ran after {timeout} s\n{text}")
        return [(process.returncode, said[rank]) for rank, process in enumerate(self.processes)]


def run_ranks(script: str, world: int, *arguments: str, timeout: float, **environment: str) -> list[str]:
    """What the ranks said; AssertionError, with all of it, unless every one ended with status 0."""
    with Ranks(script, world, *arguments, **environment) as ranks:
        results = ranks.wait(timeout)
    said = "\n".join(f"--- rank {rank} ended with {status}\n{text}" for rank, (status, text) in enumerate(results))
    assert all(status == 0 for status, _ in results), said
    return [text for _, text in results]
