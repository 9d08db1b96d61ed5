"""Runs a worker script as the ranks of one small job, with gloo, and never longer than it may take."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
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
            process.communicate()

    def wait(self, timeout: float) -> list[tuple[int, str]]:
        """(exit status, output) of every rank; TimeoutError, with what they said, if they take longer."""
        until = time.monotonic() + timeout
        outputs = []
        for rank, process in enumerate(self.processes):
            try:
                output, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                for other in self.processes:
                    other.kill()
                said = "\n".join(f"--- rank {r}\n{p.communicate()[0]}" for r, p in enumerate(self.processes) if r >= rank)
                raise TimeoutError(f"rank {rank} still ran after {timeout} s\n{said}") from None
            outputs.append((process.returncode, output))
        return outputs


def run_ranks(script: str, world: int, *arguments: str, timeout: float, **environment: str) -> list[str]:
    """What the ranks said; AssertionError, with all of it, unless every one ended with status 0."""
    with Ranks(script, world, *arguments, **environment) as ranks:
        results = ranks.wait(timeout)
    said = "\n".join(f"--- rank {rank} ended with {status}\n{text}" for rank, (status, text) in enumerate(results))
    assert all(status == 0 for status, _ in results), said
    return [text for _, text in results]
