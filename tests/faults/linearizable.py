"""Whether what callers saw of one thing could have been seen if each call had taken effect at one moment between its begin and its
end. After Wing and Gong, one end at a time: of every order that is possible up to here only the state is kept that it leaves, and which
of the calls that have not ended have had their effect."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from history import NEVER, Call

# What the thing is after a call that finds it in this state; None: it cannot be the call's moment.
Model = Callable[[Hashable, Call], "Hashable | None"]


def register(state: Hashable, call: Call) -> Hashable | None:
    """"read" its value; "write" one; "swap": (the new one, what it was)."""
    if call.what == "read":
        return state if state == call.value else None
    if call.what == "write":
        return call.value
    new, before = call.value
    return new if state == before else None


def out_of_order(calls: Iterable[Call], start: Hashable, model: Model = register, lasting: float = NEVER) -> list[str]:
    """The first call that no order explains, as a sentence, or nothing. One that failed had its effect at any time until `lasting`
    seconds after its end, or never; one that failed to read says nothing. Failed calls that last make it slow if they are many."""
    calls = sorted((call for call in calls if not (call.error and call.what == "read")), key=lambda call: call.begin)
    moments = sorted([(call.begin, 0, at) for at, call in enumerate(calls)] +
                     [(call.end + (lasting if call.error else 0), 1, at) for at, call in enumerate(calls)])
    possible: set[tuple[Hashable, frozenset[int]]] = {(start, frozenset())}  # a state, and who had its effect and has not ended
    pending: set[int] = set()
    for moment, ends, at in moments:
        if moment == NEVER:
            break
        if not ends:
            pending.add(at)
            continue
        before = possible
        possible = {(state, done - {at}) for state, done in _after(possible, pending, calls, model) if at in done or calls[at].error}
        pending.discard(at)
        if not possible:
            states = sorted({str(state) for state, _ in before})
            others = [calls[other] for other in sorted(pending)]
            return [f"{calls[at]}: no order of {others} makes it so, from one of {states}"]
    return []


def _after(possible, pending: set[int], calls: list[Call], model: Model):
    """Every state that some of the pending calls lead to, in any order. Two things keep the number small: what only looks has its
    effect as soon as it can, since that hinders nobody; and of failed calls that ask the same, which never end, the oldest goes first."""
    seen = set()
    left = list(possible)
    while left:
        state, done = left.pop()
        done = done.union(at for at in pending - done if _only_looks(calls[at]) and model(state, calls[at]) is not None)
        if (state, done) in seen:
            continue
        seen.add((state, done))
        failed = set()
        for at in sorted(pending - done):
            call = calls[at]
            if call.error and (call.what, call.value) in failed:
                continue
            if call.error:
                failed.add((call.what, call.value))
            changed = None if _only_looks(call) else model(state, call)
            if changed is not None:
                left.append((changed, done | {at}))
    return seen


def _only_looks(call: Call) -> bool:
    return call.what == "read" or (call.what == "swap" and call.value[0] == call.value[1])
