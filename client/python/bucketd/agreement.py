"""Never two plans in one job: ranks compare what they hold before anyone runs it.

Through torch.distributed's key-value store, not with a collective: a rank that is late, dead or has another graph must
show up as an error with its number, not as a hang. For each scope (one compiled graph) every rank posts a record; the
first rank of the scope, its leader, reads all of them and posts one verdict, which every rank obeys. That is five store
operations a rank, with those that say where it is and ask whether one was interrupted, and one wait for each rank at the leader.
A plan takes two rounds: one before any rank changes its graph, one when all have compiled what they made of it.

A rank that is interrupted (Ctrl-C) ends what the others wait for. It may be caught: in a notebook the training is begun again. So the
ranks then go on in another part of the store, a new attempt, where nothing is left of the one that was interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable

from . import background, collector, quiet
from .errors import AgreementError, BucketdError, InterruptedRank

# A rank that waits for the leader's verdict waits this much longer than the leader waits for records.
_GRACE = 10.0
# The leader, which often hosts the store, stays this long after bad news so that the others can read it.
_LINGER = 5.0
_MISSING_SHOWN = 16
# A rank that waits looks so often whether another one was interrupted, or stopped, but not more often than for what it waits for.
_LOOK = 0.5
# And whether what it waits for is there: often at first, and then so seldom that the store, one thread of one process, bears thousands of
# ranks (500 of them that wait for 20 s take 5 % of a core).
_LEAST_PAUSE, _MOST_PAUSE = 0.005, 1.0
# The leader, before it ends with what it heard so: the others are to hear it, too.
_STAY = 4 * _LOOK
STOPPED = "stopped"
INTERRUPTED = "was interrupted"
ENDED = "was interrupted and has ended"
# The field of a record that tells whether ranks have one graph.
GRAPH = "graph digest"
# Of what a failure says to the other ranks: a compiler's may be megabytes.
_MOST_TEXT = 4000


@dataclasses.dataclass(frozen=True)
class Verdict:
    unplanned: bool = False  # all ranks leave this graph untouched
    why: str = ""


class LeaderFailed(Exception):
    """The leader has nothing that this rank could go on with; its verdict says why."""


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
        self._at = ""

    @property
    def leader(self) -> bool:
        return self.rank == self.ranks[0]

    def arrive(self, scope: str) -> None:
        """For others who wait in vain: this rank is at that scope now, and at none that it has not been at yet."""
        self._at = scope
        if self.store is not None:
            with contextlib.suppress(Exception):  # what comes next will find out
                self.store.set(f"at/{self.rank}", scope)

    def apart(self) -> str:
        """What to add to an error where ranks wait in vain for each other since they are at different scopes; else ""."""
        if self.store is None or not self._at:
            return ""
        at = {rank: self.store.get(f"at/{rank}").decode() for rank in self.ranks if self.store.check([f"at/{rank}"])}
        by_scope = {scope: [rank for rank in at if at[rank] == scope] for scope in at.values() if not self._is_over(scope)}
        if len(by_scope) < 2:
            return ""
        where = ", ".join(f"{ranks_text(ranks)} at {scope}" for scope, ranks in by_scope.items())
        return f"; {where}: some ranks compiled a graph with collectives that others did not, or in another order"

    def _is_over(self, scope: str) -> bool:
        """Whether ranks went on from there: who was there last is late, at most."""
        key = f"{scope}/verdict"
        return self.store.check([key]) and json.loads(self.store.get(key))["outcome"] != "error"

    def agree(self, scope: str, record: dict) -> Verdict:
        """Posts what this rank holds (JSON; a field may have entries by ranks: difference()) and returns when all ranks hold the same.

        AgreementError, on every rank, if they do not, if one failed, or if one says nothing in time.
        """
        return self._settle(scope, {"held": record}, None)

    def fail(self, scope: str, error: BaseException) -> Verdict:
        """Posts this rank's failure. Returns a verdict if all ranks fall back to the untouched graph, which they do if every
        failure leaves that and every rank was told to; raises `error`."""
        return self._settle(scope, _failure(error, isinstance(error, BucketdError) and error.leaves_unplanned), error)

    def confirm(self, scope: str, error: BaseException | None = None) -> None:
        """Behind agree(), when this rank has done what was agreed on: returns when all ranks have. If one could not, by an `error`, every
        rank raises: those that could would launch collectives that it does not."""
        self._settle(f"{scope}/done", {"held": {}} if error is None else _failure(error, False), error)

    @contextlib.contextmanager
    def telling_of_interrupts(self):
        """Around what a rank does while others may wait for it: if this one is interrupted, their waits end with its number."""
        try:
            yield
        except KeyboardInterrupt:
            self.say_stopped(INTERRUPTED)
            raise

    def say_stopped(self, why: str) -> None:
        """Waits of the others for this rank, of which there may be some or none, end with its number and `why`."""
        if self.store is not None:
            if why == INTERRUPTED:
                atexit.register(self.say_stopped, ENDED)
            # In a thread, since the store may not answer.
            background.run(lambda: set_stopped(self.store, self.rank, why)).join(_LOOK)

    def is_over(self) -> bool:
        """Whether a rank was interrupted: those who come back, and this one is here, begin a new attempt()."""
        if self.store is None or not _was_interrupted(self.store):
            return False
        atexit.unregister(self.say_stopped)
        return True

    # -- both sides

    def _settle(self, scope: str, post: dict, error: BaseException | None) -> Verdict:
        post = {**post, "fallback": self.fallback}
        if self.store is None:
            return self._obey(scope, self._judge({self.rank: post}), error)
        try:
            self.store.set(f"{scope}/{self.rank}", json.dumps(post))
            if self.leader:
                verdict = self._collect(scope, post)
                self._announce(scope, verdict)
            elif error is not None and not _may_fall_back(post):
                verdict = self._read(f"{scope}/verdict", time.monotonic() + _LINGER)
                if verdict is not None and verdict["why"] == f"rank {self.ranks[0]}: {post['failure']}":
                    quiet.in_a_line(error, self.ranks[0])
                self.store.set(f"{scope}/{self.rank}/heard", "")
                raise error
            else:
                verdict = self._await_verdict(scope)
                self.store.set(f"{scope}/{self.rank}/heard", "")
        except InterruptedRank:
            if self.leader:
                time.sleep(_STAY)
            raise
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
        differ = AgreementError(f"{scope}: {verdict['why']}")
        raise differ if self.leader else quiet.in_a_line(differ, self.ranks[0])

    # -- the leader

    def _collect(self, scope: str, own: dict) -> dict:
        """Reads every rank's record; stops at a failure that decides. One that may be fallen back from does not: another rank's
        own failure may be of the other kind."""
        until = time.monotonic() + self.deadline
        posts = {}
        for rank in self.ranks:
            posts[rank] = own if rank == self.rank else self._read(f"{scope}/{rank}", until)
            if posts[rank] is None:
                return {"outcome": "error", "why": self._missing(scope)}
            if "failure" in posts[rank] and not _may_fall_back(posts[rank]):
                break
        return self._judge(posts)

    def _judge(self, posts: dict[int, dict]) -> dict:
        failed = {rank: post for rank, post in posts.items() if "failure" in post}
        for rank, post in failed.items():
            if not _may_fall_back(post):
                return {"outcome": "error", "why": f"rank {rank}: {post['failure']}"}
        why = difference({rank: {"fallback": post["fallback"], **({} if failed else post["held"])} for rank, post in posts.items()})
        if failed and not why:
            rank, post = next(iter(failed.items()))
            return {"outcome": "unplanned", "why": f"rank {rank}: {post['failure']}"}
        return {"outcome": "error" if why else "same", "why": why}

    def _announce(self, scope: str, verdict: dict) -> None:
        self.store.set(f"{scope}/verdict", json.dumps(verdict))
        if verdict["outcome"] != "error" or len(self.ranks) == 1:
            return
        heard = [f"{scope}/{rank}/heard" for rank in self.ranks if rank != self.rank]
        with contextlib.suppress(Exception):  # somebody is late or gone; the verdict stands
            wait_for(self.store, heard, time.monotonic() + _LINGER)

    def _missing(self, scope: str) -> str:
        silent = [r for r in self.ranks if not self.store.check([f"{scope}/{r}"])]
        shown = ranks_text(silent[:_MISSING_SHOWN]) + (" ..." if len(silent) > _MISSING_SHOWN else "")
        return f"no word from {shown} within {self.deadline:g} s (deadline= is half of that; ranks= names those that run " \
               f"this program, where others run another one){self.apart()}"

    # -- the others

    def _await_verdict(self, scope: str) -> dict:
        verdict = self._read(f"{scope}/verdict", time.monotonic() + self.deadline + _GRACE)
        if verdict is None:
            raise AgreementError(
                f"{scope}: no verdict from rank {self.ranks[0]} within {self.deadline + _GRACE:g} s; "
                f"{self._missing(scope)}")
        return verdict

    def _read(self, key: str, until: float):
        return json.loads(self.store.get(key)) if wait_for(self.store, [key], until) else None


def attempt(store) -> tuple[int, object]:
    """The first one in which no rank was interrupted: its number, and where in `store` it is."""
    import torch.distributed as dist

    number = 0
    while _was_interrupted(store):
        number, store = number + 1, dist.PrefixStore("again", store)
    return number, store


def _was_interrupted(store) -> bool:
    return store.check([STOPPED]) and store.get(STOPPED).decode().endswith(INTERRUPTED)


def set_stopped(store, rank: int, why: str) -> None:
    """The first word stands. Who is interrupted ends this attempt; who stops for good, the one that the others are at."""
    with contextlib.suppress(Exception):  # the others will find the store gone
        own = own_connection(store)
        if why != INTERRUPTED:
            _, own = attempt(own)
        own.compare_set(STOPPED, "", f"rank {rank} {why}")


def _failure(error: BaseException, leaves_unplanned: bool) -> dict:
    text = str(error)
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]} ..."
    return {"failure": f"{type(error).__name__}: {text}", "leaves_unplanned": leaves_unplanned}


def _may_fall_back(post: dict) -> bool:
    return post["fallback"] == "unplanned" and post.get("leaves_unplanned", False)


def difference(held: dict[int, dict]) -> str:
    """What differs between the ranks' records, field by field: `numerics: exact on rank 3, eager_order on ranks 0-2`.
    "" if nothing does. Where a field has entries by ranks ("0-3, 8"), those ranks have to hold the same there."""
    found = []
    fields = dict.fromkeys(name for record in held.values() for name in record)
    for name in fields:
        by_rank = {rank: record.get(name) for rank, record in held.items()}
        entries = dict.fromkeys(members for value in by_rank.values() if isinstance(value, dict) for members in value)
        for members in entries:
            among = {rank: (by_rank[rank] or {}).get(members, "") for rank in _ranks_of(members) if rank in held}
            found.extend(_sides(f"{name} of {ranks_text(among)}", among))
        if not entries:
            found.extend(_sides(name, by_rank))
    help_ = "start all of them with one script, options and installation"
    if any(each.startswith(f"{GRAPH}: ") for each in found):
        help_ += ", and compile nothing that some ranks do and others do not (`if rank == 0: ...`)"
    return f"the ranks differ: {'; '.join(found)}; {help_}" if found else ""


def _sides(what: str, by_rank: dict[int, object]) -> list[str]:
    by_value: dict[str, list[int]] = {}
    for rank, value in by_rank.items():
        by_value.setdefault(str(value), []).append(rank)
    sides = (f"{value[:64] or 'nothing'} on {ranks_text(ranks)}" for value, ranks in by_value.items())
    return [f"{what}: {', '.join(sides)}"] if len(by_value) > 1 else []


def ranks_text(ranks) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {spans_text(ranks)}"


def spans_text(ranks) -> str:
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _ranks_of(spans: str) -> list[int]:
    ends = ([int(end) for end in span.split("-")] for span in spans.split(", "))
    return [rank for first, *last in ends for rank in range(first, (last or [first])[0] + 1)]


def distributed():
    """torch.distributed, where it is initialized; else None."""
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


def alone() -> bool:
    """Whether torch.distributed's groups are fake: this process stands for all their ranks."""
    return "fake" in distributed().get_backend()


def job_store(prefix: str):
    """A connection of our own to the job's key-value store, or None where there is nobody to meet."""
    dist = distributed()
    if dist is None or alone():
        return None
    return dist.PrefixStore(prefix, own_connection(dist.distributed_c10d._get_default_store()))


def own_connection(store):
    """To the same store, since a wait holds one. A store that cannot be cloned is shared: only other users' waits are slower."""
    try:
        return store.clone()
    except Exception:
        return store


def await_key(store, key: str, deadline: float, missing: str, apart: Callable[[], str] = lambda: "",
              failure: type[BucketdError] = AgreementError):
    """What another rank sets; `failure`, which begins with `missing`, if it does not within the deadline, and AgreementError if the ranks
    are `apart` (Agreement.apart)."""
    try:
        if wait_for(store, [key], time.monotonic() + deadline):
            return store.get(key)
        why = apart()
    except BucketdError:
        raise
    except Exception as lost:
        raise failure(f"{missing} ({lost})") from lost
    raise (AgreementError if why else failure)(f"{missing} within {deadline:g} s{why}")


def wait_for(store, keys: list[str], until: float) -> bool:
    """Whether all keys are set by then. InterruptedRank if a rank stopped."""
    return hearing_signals(lambda over: are_set(store, keys, until, over))


def are_set(store, keys: list[str], until: float, over: threading.Event) -> bool:
    """Whether all keys are set by then, or once it is `over`. InterruptedRank if a rank stopped.

    It asks again and again, which adds up to an eighth to a wait, and at most a second. store.wait() would not, but nothing ends that, and
    a process that ends with a thread in there aborts (background.py)."""
    begun = looked = time.monotonic()
    while not store.check(keys):
        now = time.monotonic()
        if now - looked >= _LOOK:
            looked = now
            if store.check([STOPPED]):
                raise quiet.in_a_line(InterruptedRank(store.get(STOPPED).decode()))
        pause = max(_LEAST_PAUSE, min(_MOST_PAUSE, (now - begun) / 8))
        if now >= until or background.ending.is_set() or over.wait(min(until - now, pause)):
            return False
    return True


def hearing_signals(call):
    """What `call(over)` returns or raises. It may block in C++, where no signal is heard: a thread makes it, and this one hears them.
    After one nobody waits for the call, and `over` is set."""
    ended: queue.SimpleQueue = queue.SimpleQueue()
    over = threading.Event()

    def make() -> None:
        try:
            ended.put((call(over), None))
        except Exception as error:
            ended.put((None, error))

    try:
        background.run(make)
        try:
            result, error = ended.get(timeout=_LOOK)
        except queue.Empty:
            with collector.on():
                result, error = ended.get()
    finally:
        over.set()
    if error is not None:
        raise error
    return result
