"""What this process says of its buckets to its node's agent (gpu_agent/telemetry): a record for each run of a bucket that
libbucket_executor runs. Buckets that torch.distributed runs are not in it: their times are the process group's, and Python could
only say when it asked.

An agent may come and go; nothing here waits for it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import resource
import stat
from collections.abc import Sequence

from . import bucket_library as library
from . import degraded
from .errors import ExecutorError
from .plan import Plan

log = logging.getLogger("bucketd")
_PARTS = {"fw": 1, "bw": 2, "joint": 3}  # GraphPart
_JOB = 47  # bytes
_HEARD = 100  # an agent that is there has the ring by that many runs; it is looked for then, and each so many more
_FEW = 1000  # records that may be lost though an agent reads: an executor that is closed loses those of its last run
_LOOKS = 8  # at memory: in so many runs of a plan, and in each of so many after them


class Telemetry:
    """One process's ring. `agent` is the path of the agent's socket, also written unix:/path; `job` what the agent knows the job by.
    ExecutorError where there can be no ring."""

    def __init__(self, agent: str, job: str):
        self._agent = agent.removeprefix("unix:")
        name = "".join(c if c.isprintable() and c.isascii() else "?" for c in job)[:_JOB]
        if name != job:
            log.warning("bucketd: the node's agent knows this job as %r, since a ring's name has at most %d characters, of ASCII: "
                        "--telemetry-job and panels need that one", name, _JOB)
        loaded = library.load()
        self._handle = library.call(loaded.bucket_telemetry_open, self._agent.encode(), name.encode(), what="telemetry")
        self._runs, self._warned, self._full = 0, False, False
        degraded.gauge("telemetry_dropped", lambda: self.dropped)

    def report(self, executor: int, options: library.Options, part: str, plan: Plan, buckets: Sequence[int]) -> None:
        """From then on, of every bucket of `executor`, a handle of the library that was opened with `options` for these of the plan."""
        wires = [plan.buckets[k].end_ps - plan.buckets[k].start_ps for k in buckets]
        said = library.Prediction(
            part=_PARTS.get(part, 0), exposed_ps=plan.prediction.exposed_ps,
            peak_bytes=plan.prediction.peak_bytes, wire_ps=(ctypes.c_int64 * len(wires))(*wires))
        if not library.load().bucket_executor_report(executor, ctypes.byref(options), self._handle, ctypes.byref(said)) and not self._full:
            self._full = True
            log.warning("bucketd: this process has more plans, or groups of them, than its node's agent hears of (30 and 16; graphs "
                        "that are compiled again for other sizes add to them): what the buckets of those beyond take is counted, and "
                        "compared with no prediction, or no cost sample for the planner")

    def ran(self) -> None:
        """A run of a plan has ended. Says once that nobody seems to listen."""
        self._runs += 1
        if self._warned or self._runs % _HEARD:
            return
        why = "" if _is_socket(self._agent) else "there is no socket"
        if not why and (lost := self.dropped) > _FEW:
            why = f"{lost} records were not read in time"
        if why:
            self._warned = True
            log.warning("bucketd: what buckets took does not reach an agent at %s (agent=, or BUCKETD_AGENT): %s", self._agent, why)

    @property
    def dropped(self) -> int:
        """Records that no agent has read in time, or that there was no time to make."""
        return library.load().bucket_telemetry_dropped(self._handle)


@functools.cache
def of(agent: str, job: str) -> Telemetry | None:
    """This process's, for as long as it lives; None, which is said, where there can be none: no training ends for that. BUCKETD_JOB, by
    which NCCL's profiler names the job as well, goes before `job`."""
    library.load()  # without which there is no executor either
    try:
        return Telemetry(agent, os.environ.get("BUCKETD_JOB") or job)
    except ExecutorError as error:
        log.warning("bucketd: no agent will hear what buckets take: %s", error)
        return None


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


class Memory:
    """The most that a run of one plan takes, as its prediction counts it: what was made for it `before` (bytes of all inputs but
    parameters and buffers, and of an arena that its buckets have for good), and what it takes beyond all that there was, from the
    call of its graph to its end. Seen where a run takes more than the process ever had, as the first ones do and the largest: `look`
    says the most so far, and how much is taken now."""

    def __init__(self, before: int, look):
        self.before, self._look = before, look
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
            self.most = max(self.most, most - self._begin[1] + self.before)
        self._begin = None


def resident() -> tuple[int, int]:
    """Of this process: the most that was resident, and what is."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, now
