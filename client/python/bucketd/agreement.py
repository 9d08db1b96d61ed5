"""Never two plans in one job: ranks compare what they hold before anyone runs it.

Through torch.distributed's key-value store, not with a collective: a rank that is late, dead or has another graph must
show up as an error with its number, not as a hang. For each scope (one compiled graph) every rank posts a record; the
first rank of the scope, its leader, reads all of them and posts one verdict, which every rank obeys. That is three store
operations a rank and one wait for each rank at the leader.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time

from .errors import AgreementError, BucketdError, EmbeddedError

# A rank that waits for the leader's verdict waits this much longer than the leader waits for records.
_GRACE = 10.0
# The leader, which often hosts the store, stays this long after bad news so that the others can read it.
_LINGER = 5.0
_MISSING_SHOWN = 16


@dataclasses.dataclass(frozen=True)
class Verdict:
    unplanned: bool = False  # all ranks leave this graph untouched
    why: str = ""


class Agreement:
    """The agreement of `ranks` through `store`, a torch.distributed Store of this object's own (clone one: a wait
    holds a connection), or of one process where store is None. Not thread-safe. A scope is a string that names one
    compiled graph on every rank; it is used once."""

    def __init__(self, store, rank: int, ranks, fallback: str = "error", deadline: float = 600.0):
        self.store = store
        self.rank = rank
        self.ranks = tuple(ranks)
        self.fallback = fallback
        self.deadline = deadline

    @property
    def leader(self) -> bool:
        return self.rank == self.ranks[0]

    def agree(self, scope: str, record: dict) -> Verdict:
        """Posts what this rank holds (flat, JSON, equal on all ranks) and returns when all ranks hold the same.

        AgreementError, on every rank, if they do not, if one failed, or if one says nothing in time.
        """
        return self._settle(scope, {"held": record}, None)

    def fail(self, scope: str, error: BaseException) -> Verdict:
        """Posts this rank's failure. Returns a verdict if all ranks fall back to the untouched graph; raises `error`."""
        return self._settle(scope, failure_record(error), error)

    # -- both sides

    def _settle(self, scope: str, post: dict, error: BaseException | None) -> Verdict:
        if self.store is None:
            return self._obey(scope, self._judge({self.rank: post}), error)
        try:
            self.store.set(_key(scope, self.rank), json.dumps(post))
            if self.leader:
                verdict = self._collect(scope, post)
                self._announce(scope, verdict)
            elif error is not None and not self._may_fall_back(post):
                self.store.set(_key(scope, f"{self.rank}/heard"), "")
                raise error
            else:
                verdict = self._await_verdict(scope)
                self.store.set(_key(scope, f"{self.rank}/heard"), "")
        except BucketdError:
            raise
        except Exception as failure:
            if failure is error:
                raise
            lost = AgreementError(f"{scope}: the job's key-value store failed: {failure}")
            raise lost from (error or failure)
        return self._obey(scope, verdict, error)

    def _obey(self, scope: str, verdict: dict, error: BaseException | None) -> Verdict:
        if verdict["outcome"] == "same" and error is None:
            return Verdict()
        if verdict["outcome"] == "unplanned":
            return Verdict(unplanned=True, why=verdict["why"])
        if error is not None:
            raise error
        raise AgreementError(f"{scope}: {verdict['why']}")

    def _may_fall_back(self, post: dict) -> bool:
        return self.fallback == "unplanned" and post.get("leaves_unplanned", False)

    # -- the leader

    def _collect(self, scope: str, own: dict) -> dict:
        """Reads every rank's record; stops at the first failure, which decides."""
        until = time.monotonic() + self.deadline
        posts = {}
        for rank in self.ranks:
            posts[rank] = own if rank == self.rank else self._read(_key(scope, rank), until)
            if posts[rank] is None:
                return {"outcome": "error", "why": self._missing(scope)}
            if "failure" in posts[rank]:
                break
        return self._judge(posts)

    def _judge(self, posts: dict[int, dict]) -> dict:
        for rank, post in posts.items():
            if "failure" in post:
                outcome = "unplanned" if self._may_fall_back(post) else "error"
                return {"outcome": outcome, "why": f"rank {rank}: {post['failure']}"}
        why = difference({rank: post["held"] for rank, post in posts.items()})
        return {"outcome": "error" if why else "same", "why": why}

    def _announce(self, scope: str, verdict: dict) -> None:
        self.store.set(_key(scope, "verdict"), json.dumps(verdict))
        if verdict["outcome"] != "error" or len(self.ranks) == 1:
            return
        heard = [_key(scope, f"{rank}/heard") for rank in self.ranks if rank != self.rank]
        try:
            self.store.wait(heard, datetime.timedelta(seconds=_LINGER))
        except Exception:  # somebody is late or gone; the verdict stands
            pass

    def _missing(self, scope: str) -> str:
        silent = [r for r in self.ranks if not self.store.check([_key(scope, r)])]
        shown = ranks_text(silent[:_MISSING_SHOWN]) + (" ..." if len(silent) > _MISSING_SHOWN else "")
        return f"no word from {shown} within {self.deadline:g} s"

    # -- the others

    def _await_verdict(self, scope: str) -> dict:
        verdict = self._read(_key(scope, "verdict"), time.monotonic() + self.deadline + _GRACE)
        if verdict is None:
            raise AgreementError(
                f"{scope}: no verdict from rank {self.ranks[0]} within {self.deadline + _GRACE:g} s; "
                f"{self._missing(scope)}")
        return verdict

    def _read(self, key: str, until: float):
        left = max(0.001, until - time.monotonic())
        try:
            self.store.wait([key], datetime.timedelta(seconds=left))
        except Exception:
            if time.monotonic() < until - 0.05:  # a store counts milliseconds, and may be early by one
                raise
            return None
        return json.loads(self.store.get(key))


def failure_record(error: BaseException) -> dict:
    return {
        "failure": f"{type(error).__name__}: {error}",
        "leaves_unplanned": isinstance(error, BucketdError) and error.leaves_unplanned,
    }


def difference(held: dict[int, dict]) -> str:
    """What differs between the ranks' records, field by field: `numerics: exact on rank 3, eager_order on ranks 0-2`.
    "" if nothing does."""
    found = []
    fields = dict.fromkeys(name for record in held.values() for name in record)
    for name in fields:
        by_value: dict[str, list[int]] = {}
        for rank, record in held.items():
            by_value.setdefault(str(record.get(name)), []).append(rank)
        if len(by_value) > 1:
            sides = (f"{value[:64] or 'nothing'} on {ranks_text(ranks)}" for value, ranks in by_value.items())
            found.append(f"{name}: {', '.join(sides)}")
    return f"the ranks differ: {'; '.join(found)}" if found else ""


def ranks_text(ranks) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    ranks = sorted(ranks)
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def _key(scope: str, what) -> str:
    return f"{scope}/{what}"


def job_store(prefix: str):
    """A connection of our own to the job's key-value store, or None without torch.distributed."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    store = dist.distributed_c10d._get_default_store()
    try:
        store = store.clone()
    except Exception:  # a store that cannot be cloned is shared: only other users' waits are slower
        pass
    return dist.PrefixStore(prefix, store)


def await_key(store, key: str, deadline: float, missing: str, failure: type[BucketdError] = EmbeddedError):
    """What another rank sets; `failure`, which begins with `missing`, if it does not within the deadline."""
    until = time.monotonic() + deadline
    try:
        store.wait([key], datetime.timedelta(seconds=deadline))
        return store.get(key)
    except Exception as lost:
        why = f"within {deadline:g} s" if time.monotonic() >= until - 0.05 else f"({lost})"
        raise failure(f"{missing} {why}") from lost
