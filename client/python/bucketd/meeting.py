"""How the ranks of one start of a job find each other in a key-value store that may hold what an earlier start left there.

Nothing that a rank knows by itself is of this start alone, and the same on all ranks: each of torchrun's agents counts its own failures,
what starts anew since a node comes or goes counts nowhere, and the store may outlive all of them. A broadcast would be of this start, but
hang where a rank compiles nothing. So both sides say what nobody has said before: a rank says hello with a word that it draws, and waits
for an answer to that word; the first rank answers every hello that there is, old ones too, with a word that it draws. What they say from
then on stands under the first rank's word.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import secrets
import threading
import time

from . import background
from .agreement import ENDED, INTERRUPTED, are_set, await_key, own_connection, ranks_text, set_stopped, spans_text
from .errors import AgreementError, BucketdError

log = logging.getLogger("bucketd")

# The first rank looks this often who has come.
_POLL = 0.05
# A rank that is interrupted waits this long for an answer, to tell those who have met that it does not come.
_LAST_LOOK = 0.4


@dataclasses.dataclass(frozen=True)
class Met:
    """`number`: of the first rank's meetings, so that what several backends say of one job has several names; the same at each start.
    `word`: of this meeting alone, 14 hexadecimal digits; "" where there was nobody to meet."""

    number: int
    word: str = ""

    @property
    def epoch(self) -> int:
        """Of connections: they refuse those that are left of another meeting."""
        return int(self.word or "0", 16)


class Meetings:
    """Those of one process, which come in the same order on all ranks of each. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._of: collections.Counter = collections.Counter()  # by ranks
        self._led: collections.Counter = collections.Counter()  # by the first of them

    def meet(self, store, rank: int, ranks: tuple[int, ...], deadline: float) -> Met:
        """Of `ranks`, at `store`; None: there is nobody to meet. The first rank waits for nobody: it answers from a thread, until all
        have come or nobody can wait any more. AgreementError on another one that gets no answer within the deadline."""
        with self._lock:
            met = Met(self._led[ranks[0]])
            if store is not None:
                try:
                    meeting = _Meeting(store, f"{spans_text(ranks)}#{self._of[ranks]}", ranks, deadline)
                    met = meeting.lead(met.number) if rank == ranks[0] else meeting.come(rank)
                except BucketdError:
                    raise
                except Exception as failure:
                    raise AgreementError(f"the job's key-value store failed: {failure}") from failure
            self._of[ranks] += 1
            self._led[ranks[0]] += 1
            return met


@dataclasses.dataclass(frozen=True)
class _Meeting:
    store: object
    name: str
    ranks: tuple[int, ...]
    deadline: float

    def lead(self, number: int) -> Met:
        met = Met(number, secrets.token_hex(7))
        store = own_connection(self.store)
        background.run(lambda: self._answer(store, met))
        return met

    def _answer(self, store, met: Met) -> None:
        here = {str(rank): f"{met.word}/here/{rank}" for rank in self.ranks[1:]}
        until = time.monotonic() + 2 * self.deadline  # of a rank that comes late, too
        silent: set[int] = set()  # hellos that are counted, and not there yet; who died in between leaves one for ever
        counted = answered = 0
        try:
            while time.monotonic() < until and not background.ending.is_set():
                now = store.add(f"{self.name}/hellos", 0)
                silent.update(range(counted + 1, now + 1))
                counted = now
                for hello in [each for each in silent if store.check([f"{self.name}/hello/{each}"])]:
                    rank, answer = store.get(f"{self.name}/hello/{hello}").decode().split()
                    if not store.check([here[rank]]):  # else it belongs to another start
                        store.set(answer, f"{met.number} {met.word}")
                    silent.remove(hello)
                    answered += 1
                if answered >= len(here) and store.check(list(here.values())):
                    return
                background.ending.wait(_POLL)
        except Exception as lost:
            log.log(logging.DEBUG if background.ending.is_set() else logging.WARNING,
                    "bucketd: ranks that compile later will not hear of this one: the job's key-value store failed: %s", lost)

    def come(self, rank: int) -> Met:
        mine = f"answer/{secrets.token_hex(7)}"
        hello = self.store.add(f"{self.name}/hellos", 1)
        self.store.set(f"{self.name}/hello/{hello}", f"{rank} {mine}")
        try:
            missing = f"no word from {ranks_text(self.ranks[:1])}"
            apart = lambda: " (deadline= is half of that)"
            number, word = await_key(self.store, mine, self.deadline, missing, apart).decode().split()
        except KeyboardInterrupt:
            background.run(lambda: self._say_stopped(mine, rank)).join(2 * _LAST_LOOK)  # the store may not answer
            raise
        atexit.unregister(set_stopped)
        self.store.set(f"{word}/here/{rank}", "")
        return Met(int(number), word)

    def _say_stopped(self, mine: str, rank: int) -> None:
        import torch.distributed as dist

        with contextlib.suppress(Exception):
            store = self.store.clone()
            if are_set(store, [mine], time.monotonic() + _LAST_LOOK, background.ending):
                place = dist.PrefixStore(store.get(mine).decode().split()[1], store)
                set_stopped(place, rank, INTERRUPTED)
                atexit.register(set_stopped, place, rank, ENDED)


of_this_process = Meetings()
