"""Which job this process is part of: what the planner needs to answer all ranks of it alike, also after a restart."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Literal

from ._wire.proto import planner_pb2
from .agreement import alone, distributed
from .client import PlannerClient
from .tls import Tls

_RUN_ID, RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


@dataclasses.dataclass(frozen=True)
class Job:
    """A job by the name that its launcher gave it.

    id          unique among the jobs of a tenant; the same on every rank, and after a restart
    generation  counts restarts; the same on every rank. A generation gets the plans that the one before it agreed on, where it
                presents the same graphs; a generation that is over gets none. None: the planner's last one and one more (starts.py)
    fresh       this generation gets new plans
    """

    id: str
    generation: int | None = 0
    fresh: bool = False

    def __post_init__(self):
        if not self.id:
            raise ValueError("a job has an id, the same on every rank")
        if self.generation is not None and self.generation < 0:
            raise ValueError(f"generation={self.generation}: expected 0 or more")

    @classmethod
    def from_torchrun(cls) -> Job:
        """By its run id (--rdzv-id). How often it has restarted its workers is no generation: its agents count that each by itself."""
        run, restarts = os.environ.get(_RUN_ID), os.environ.get(RESTARTS, "")
        if not run or not restarts.isdecimal():
            raise ValueError(f"job=\"torchrun\": {_RUN_ID} and {RESTARTS} are not set; start the ranks with torchrun, or "
                             f"say job=bucketd.Job(id, generation)")
        if run == "none":  # what torchrun calls every job that it was given no name for
            raise ValueError("job=\"torchrun\": this run has no name of its own; start torchrun with --rdzv-id NAME or "
                             "--standalone, or say job=bucketd.Job(id, generation)")
        return cls(run, None)

    def at(self, scope: str, ranks: Sequence[int], size: int) -> planner_pb2.Job:
        """For PlannerClient.get_plan: this job's `scope`, for which a call speaks as `ranks` of 0 .. size - 1."""
        if self.generation is None:
            raise ValueError(f"job {self.id}: nobody has said yet which generation this is")
        return planner_pb2.Job(id=self.id, generation=self.generation, scope=scope, rank=ranks, size=size, fresh=self.fresh)


def resolve(job: Job | Literal["torchrun"] | bool | None) -> Job | None:
    """What a user says with job=: None, True or "torchrun", or a Job."""
    if job is None or job is False:
        return None
    if job is True or job == "torchrun":
        return Job.from_torchrun()
    if isinstance(job, Job):
        return job
    raise ValueError(f"job={job!r}: expected \"torchrun\" or a bucketd.Job")


def release(job: Job | Literal["torchrun", True], address: str, tenant: str = "", deadline: float = 30.0, tls: Tls | None = None) -> int:
    """Lets go of the plans that the planner at `address` keeps for `job`; their number. For one rank, once, when the job
    has ended and will not be restarted: but for `bucketctl pin JOB --release`, nothing else releases them but their age. A job
    that starts again under its old name then gets new plans. Ranks without rank 0 under job="torchrun" are a job of their own, named
    `NAME/4` by the first of them."""
    named = resolve(job)
    if named is None:
        raise ValueError("release: expected a job")
    client = PlannerClient(address, tenant, tls=tls)
    try:
        return client.release_job(named.id, deadline)
    finally:
        client.close()


def rank_and_world() -> tuple[int, int]:
    """Of this process, as torch.distributed says, or else the launcher's RANK and WORLD_SIZE; (0, 1) if nobody does, and where
    groups are fake."""
    if (dist := distributed()) is not None:
        return (0, 1) if alone() else (dist.get_rank(), dist.get_world_size())
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
        return int(rank), int(world)
    return 0, 1
