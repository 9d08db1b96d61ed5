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


class Telemetry:
    """One process's ring. `agent` is the path of the agent's socket, `job` what the agent knows the job by."""

    def __init__(self, agent: str, job: str):
        name = "".join(c if c.isprintable() and c.isascii() else "?" for c in job)[:_JOB]
        loaded = library.load()
        self._handle = library.call(loaded.bucket_telemetry_open, agent.encode(), name.encode(), what="telemetry")
        self._had = _resident_bytes()

    def report(self, executor: int, options: library.Options, part: str, plan: Plan, buckets: Sequence[int]) -> None:
        """From then on, of every bucket of `executor`, a handle of the library that was opened with `options` for these of the plan."""
        wires = [plan.buckets[k].end_ps - plan.buckets[k].start_ps for k in buckets]
        said = library.Prediction(
            part=_PARTS.get(part, 0), total_ps=plan.prediction.total_ps, exposed_ps=plan.prediction.exposed_ps,
            peak_bytes=plan.prediction.peak_bytes, wire_ps=(ctypes.c_int64 * len(wires))(*wires))
        library.load().bucket_executor_report(executor, ctypes.byref(options), self._handle, ctypes.byref(said))

    def look_at_memory(self) -> None:
        """Once a run: the process's resident peak, which holds optimizer states too, is what the system knows for nothing."""
        self.peak(max(0, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._had))

    def peak(self, taken: int) -> None:
        """The most bytes that were taken so far."""
        library.load().bucket_telemetry_peak(self._handle, taken)

    @property
    def dropped(self) -> int:
        """Records that no agent has read in time."""
        return library.load().bucket_telemetry_dropped(self._handle)


@functools.cache
def of(agent: str, job: str) -> Telemetry:
    """This process's, for as long as it lives."""
    return Telemetry(agent, job)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
