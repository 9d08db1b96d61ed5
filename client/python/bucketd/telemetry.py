"""What this process says of its buckets to its node's agent (gpu_agent/telemetry): a record for each run of a bucket that
libbucket_executor runs. Buckets that torch.distributed runs are not in it: their times are the process group's, and Python could
only say when it asked.

An agent may come and go; nothing here waits for it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
from collections.abc import Sequence

from . import bucket_library as library
from .plan import Plan

_PARTS = {"fw": 1, "bw": 2, "joint": 3}  # GraphPart
_JOB = 47  # bytes
_LOOKS = 8  # at memory: in so many runs of a plan, and in each of so many after them


class Telemetry:
    """One process's ring. `agent` is the path of the agent's socket, `job` what the agent knows the job by."""

    def __init__(self, agent: str, job: str):
        name = "".join(c if c.isprintable() and c.isascii() else "?" for c in job)[:_JOB]
        loaded = library.load()
        self._handle = library.call(loaded.bucket_telemetry_open, agent.encode(), name.encode(), what="telemetry")

    def report(self, executor: int, options: library.Options, part: str, plan: Plan, buckets: Sequence[int]) -> None:
        """From then on, of every bucket of `executor`, a handle of the library that was opened with `options` for these of the plan."""
        wires = [plan.buckets[k].end_ps - plan.buckets[k].start_ps for k in buckets]
        said = library.Prediction(
            part=_PARTS.get(part, 0), total_ps=plan.prediction.total_ps, exposed_ps=plan.prediction.exposed_ps,
            peak_bytes=plan.prediction.peak_bytes, wire_ps=(ctypes.c_int64 * len(wires))(*wires))
        library.load().bucket_executor_report(executor, ctypes.byref(options), self._handle, ctypes.byref(said))

    @property
    def dropped(self) -> int:
        """Records that no agent has read in time."""
        return library.load().bucket_telemetry_dropped(self._handle)


@functools.cache
def of(agent: str, job: str) -> Telemetry:
    """This process's, for as long as it lives."""
    return Telemetry(agent, job)


class Memory:
    """The most that a run of one plan takes, as its prediction counts it: what was made for it before (`inputs` bytes: all but
    parameters and buffers), and what it takes beyond all that there was. Seen where a run takes more than the process ever had,
    as the first ones do and the largest: `look` says the most so far, and how much is taken now."""

    def __init__(self, inputs: int, look):
        self._inputs, self._look = inputs, look
        self._runs, self._begin = 0, None
        self.most = 0

    def begins(self) -> None:
        """A look takes tens of microseconds, and most runs take no more than those before them."""
        self._begin = self._look() if self._runs < _LOOKS or self._runs % _LOOKS == 0 else None
        self._runs += 1

    def ends(self) -> None:
        if self._begin is None:
            return
        most, _ = self._look()
        if most > self._begin[0]:
            self.most = max(self.most, most - self._begin[1] + self._inputs)
        self._begin = None


def resident() -> tuple[int, int]:
    """Of this process: the most that was resident, and what is."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, now
