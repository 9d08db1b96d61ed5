"""Which generation of its job this start is, where nobody counts the starts for it: job="torchrun".

The planner's last one and one more, so it grows whatever was started anew, and wherever. torchrun's own count will not do: each agent has
its own, a new agent begins at 0, and it stays where a node comes or goes. So it may differ between ranks, fall, or be the same for another
number of ranks, each of which the planner refuses. The first rank asks the planner, and tells the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading

from .agreement import Agreement, LeaderFailed, await_key
from .client import PlannerClient
from .errors import PlannerError
from .job import RESTARTS, Job

_NONE = "-"  # instead of a generation; behind it, and a word, what the planner said

_lock = threading.Lock()
_known: dict[tuple[str, str, str], int] = {}  # of this process, for all of its backends: by planner, tenant and job


def numbered(job: Job, agreement: Agreement, planner: PlannerClient, scope: str, deadline: float) -> Job:
    """`job` with its generation, the same on all ranks of the agreement; as it is where it has one. PlannerError, on all ranks,
    where the planner does not say; LeaderFailed, where the first rank came to an end before it asked (give_up).

    Ranks that rank 0 is not among count for themselves, under a name of their own: rank 0 may have nothing to do with them."""
    if job.generation is not None:
        return job
    first = agreement.ranks[0]
    if first:
        job = dataclasses.replace(job, id=f"{job.id}/{first}")
    if agreement.store is None and len(agreement.ranks) > 1:  # without torch.distributed there is nothing else to go by
        return dataclasses.replace(job, generation=int(os.environ.get(RESTARTS, "0")))
    key = _key(scope)
    if not agreement.leader:
        missing = f"no generation of the job from rank {first}"
        said = await_key(agreement.store, key, agreement.deadline, missing, agreement.apart).decode()
        if said == _NONE:
            raise LeaderFailed
        if said[:1] == "-":
            reason, _, text = said[1:].partition(" ")
            raise PlannerError(reason, f"rank {first} was told: {text}")
        return dataclasses.replace(job, generation=int(said))
    try:
        generation = _next(job.id, planner, deadline)
    except PlannerError as error:
        _tell(agreement, key, f"-{error.reason} {error.message}")
        raise
    _tell(agreement, key, str(generation))
    return dataclasses.replace(job, generation=generation)


def give_up(agreement: Agreement, scope: str) -> None:
    """For the leader, which has failed: nobody waits any longer for what it may not have asked."""
    if agreement.store is None or not agreement.leader:
        return
    with contextlib.suppress(Exception):  # the agreement will find the store gone
        if not agreement.store.check([_key(scope)]):
            agreement.store.set(_key(scope), _NONE)


def _key(scope: str) -> str:
    return f"{scope}/generation"


def _tell(agreement: Agreement, key: str, text: str) -> None:
    if agreement.store is not None:
        agreement.store.set(key, text)


def _next(job_id: str, planner: PlannerClient, deadline: float) -> int:
    with _lock:
        key = planner.address, planner.tenant, job_id
        if key not in _known:
            _known[key] = planner.generation_of(job_id, deadline) + 1
        return _known[key]
