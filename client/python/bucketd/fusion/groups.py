"""Which loops Inductor's scheduler puts into one kernel.

Loops are joined in pairs, the pair that shares most bytes first, until no pair is left that may be: a reader and its writer where the
reader's loops run over the same elements in the same order, and two that read the same elements of a buffer. A call is never joined.
"""

from __future__ import annotations

import dataclasses
import math

from .access import Access
from .values import Loop, Lowered

# Torch 2.13's limits: torch._inductor.config and scheduler.py.
_MOST_LOOPS = 64
_MOST_SIDE_BY_SIDE = 16
_FARTHEST_SIDE_BY_SIDE = 64
_FEWEST_BYTES = 10
_ROUNDS = 10
_WINDOW = 16  # neighbours of one buffer that are tried with each other
_WORTH_SHARED = 32  # elements that a byte which two kernels share may keep from being taken over
_SEARCHED = 4000  # kernels that the search for a path looks at, before it assumes one


@dataclasses.dataclass(slots=True, eq=False)
class Kernel:
    loops: list[int]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    shape: tuple[int, ...] | None  # that all its loops compute; None: they differ
    first: int
    last: int
    reads: dict[tuple[int, object], int]  # (buffer, access) -> bytes
    writes: dict[int, Access | None]  # buffer -> how its loops write it; None: nobody joins what wrote it
    is_call: bool
    is_nest: bool = False  # loops of different depth under common outer ones

    @property
    def reduces(self) -> bool:
        return bool(self.inner)


def group(lowered: Lowered) -> list[Kernel]:
    return _Grouping(lowered).run()


class _Grouping:
    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.kernels = [self.kernel(number, loop) for number, loop in enumerate(lowered.loops)]
        self.of = list(range(len(self.kernels)))  # loop -> kernel that it is in
        self.writer = {buffer: number for number, loop in enumerate(lowered.loops) for buffer in loop.writes}
        self.largest = max(lowered.bytes.values(), default=0)

    def kernel(self, number: int, loop: Loop) -> Kernel:
        reads = {(buffer, access): self.lowered.bytes[buffer] for buffer, found in loop.reads.items() for access in found}
        own = None if loop.is_call or loop.is_barrier else loop.written
        writes = dict.fromkeys(loop.writes, own)
        return Kernel([number], loop.outer, loop.inner, loop.shape, number, number, reads, writes, loop.is_call)

    def run(self) -> list[Kernel]:
        for _ in range(_ROUNDS):
            pairs = self.pairs()
            joined = False
            for _, one, two in pairs:
                first, second = self.ordered(self.at(one), self.at(two))
                if first is not second and self.rank(first, second) is not None and not self.is_between(first, second):
                    self.join(first, second)
                    joined = True
            if not joined:
                break
        return sorted({id(k): k for k in map(self.at, range(len(self.of)))}.values(), key=lambda k: k.first)

    def at(self, loop: int) -> Kernel:
        return self.kernels[self.of[loop]]

    @staticmethod
    def ordered(one: Kernel, two: Kernel) -> tuple[Kernel, Kernel]:
        """The writer before its reader; else as the graph has them."""
        if any(buffer in two.writes for buffer, _ in one.reads):
            return two, one
        if any(buffer in one.writes for buffer, _ in two.reads):
            return one, two
        return (one, two) if one.first <= two.first else (two, one)

    def pairs(self) -> list[tuple[tuple, int, int]]:
        found: dict[tuple[int, int], tuple] = {}
        for buffer in self.lowered.bytes:
            touching = ([self.writer[buffer]] if buffer in self.writer else []) + self.lowered.readers.get(buffer, [])
            kernels = list(dict.fromkeys(self.of[n] for n in touching if not self.at(n).is_call))
            for place, one in enumerate(kernels):
                for two in kernels[place + 1 : place + 1 + _WINDOW]:
                    first, second = self.ordered(self.kernels[one], self.kernels[two])
                    key = (first.loops[0], second.loops[0])
                    if key in found:
                        continue
                    rank = self.rank(first, second)
                    if rank is not None:
                        found[key] = rank
        return sorted((rank, one, two) for (one, two), rank in found.items())

    def rank(self, first: Kernel, second: Kernel) -> tuple | None:
        """What sorts the pair, the best first; None: they stay apart, whatever else is joined."""
        if first.is_call or second.is_call or len(first.loops) + len(second.loops) > _MOST_LOOPS:
            return None
        shared = self.shared(first, second)
        if shared == 0:
            return None
        far = max(abs(first.first - second.last), abs(second.first - first.last))
        in_nest = False
        if self.takes_room(first, second, shared):
            return None
        if any(buffer in first.writes for buffer, _ in second.reads):
            fits = self.fits(first, second) and not first.reduces
            in_nest = not fits and self.under_one_loop(first, second)
            if not self.reads_match(first, second) or not (fits or in_nest):
                return None
        elif (
            shared < _FEWEST_BYTES
            or far > _FARTHEST_SIDE_BY_SIDE
            or len(first.loops) + len(second.loops) > _MOST_SIDE_BY_SIDE
            or not self.fits(first, second)
        ):
            return None
        return (in_nest, first.reduces != second.reduces, -shared, far)

    def takes_room(self, first: Kernel, second: Kernel, shared: int) -> bool:
        """Whether buffers that one of the two alone reads, and the other might take over, are much larger than what both share."""
        room = self.alone(first) & self.alone(second) if shared * _WORTH_SHARED < self.largest else ()
        return sum(count for _, count in room) > _WORTH_SHARED * shared

    def alone(self, kernel: Kernel) -> set[tuple[int, int]]:
        """(bytes of an element, elements) of the buffers that only this kernel reads, but for the graph's inputs."""
        items, outputs, readers = self.lowered.items, self.lowered.outputs, self.lowered.readers
        return {
            (items[buffer], self.lowered.bytes[buffer] // max(items[buffer], 1))
            for buffer, _ in kernel.reads
            if buffer in self.writer and buffer not in outputs and len(readers[buffer]) == 1
        }

    @staticmethod
    def fits(first: Kernel, second: Kernel) -> bool:
        """Whether both have the same loops, or `second` reduces what `first` computes one by one."""
        if first.is_nest or second.is_nest:
            return False
        if (first.outer, first.inner) == (second.outer, second.inner):
            return True
        if first.reduces:
            return False
        if first.outer == second.outer + second.inner:
            return True
        shorter = first if len(first.outer) < len(second.outer) else second
        one_loop = min(len(first.outer), len(second.outer)) == 1 and math.prod(first.outer) == math.prod(second.outer)
        return not second.reduces and one_loop and len(shorter.loops) == 1 and first.shape is not None and first.shape == second.shape

    @staticmethod
    def under_one_loop(first: Kernel, second: Kernel) -> bool:
        """Whether both have the same outer loops: rows that `first` reduces or computes, and what `second` does with each."""
        depth = min(len(first.outer), len(second.outer))
        return depth >= 1 and first.outer[:depth] == second.outer[:depth]

    @staticmethod
    def reads_match(first: Kernel, second: Kernel) -> bool:
        return all(
            access is not None and first.writes[buffer] is not None and access == (None, first.writes[buffer])
            for buffer, access in second.reads
            if buffer in first.writes
        )

    @staticmethod
    def shared(first: Kernel, second: Kernel) -> int:
        common = sum(first.reads[key] for key in first.reads.keys() & second.reads.keys() if _is_plain(key[1]))
        handed = sum(
            size for (buffer, access), size in second.reads.items() if buffer in first.writes and access == (None, first.writes[buffer])
        )
        return common + handed

    def is_between(self, first: Kernel, second: Kernel) -> bool:
        """Whether a third kernel has to run between the two."""
        return self.is_path(first, second) or self.is_path(second, first)

    def is_path(self, start: Kernel, end: Kernel) -> bool:
        """From `start` over a third kernel to `end`."""
        stack = [k for k in self.before(end) if k is not start]
        seen: set[int] = set()
        while stack:
            at = stack.pop()
            if at is start:
                return True
            if id(at) in seen or at is end or at.last < start.first:
                continue
            seen.add(id(at))
            if len(seen) > _SEARCHED:
                return True
            stack.extend(self.before(at))
        return False

    def before(self, kernel: Kernel) -> list[Kernel]:
        return [self.at(self.writer[buffer]) for buffer in dict.fromkeys(b for b, _ in kernel.reads) if buffer in self.writer]

    def join(self, first: Kernel, second: Kernel) -> None:
        was_nest = first.is_nest or second.is_nest
        depends = any(buffer in first.writes for buffer, _ in second.reads)
        in_nest = was_nest or depends and (first.reduces or not self.fits(first, second))
        for loop in second.loops:
            self.of[loop] = self.of[first.loops[0]]
        first.loops += second.loops
        if in_nest:
            depth = min(len(first.outer), len(second.outer))
            first.is_nest, first.outer = True, first.outer[:depth]
        elif second.reduces or len(second.outer) > len(first.outer):
            first.outer, first.inner = second.outer, second.inner
        first.shape = first.shape if first.shape == second.shape else None
        first.first, first.last = min(first.first, second.first), max(first.last, second.last)
        first.writes |= second.writes
        first.reads = {**first.reads, **second.reads}
        first.reads = {key: size for key, size in first.reads.items() if key[0] not in first.writes}


def _is_plain(access) -> bool:
    """Whether the elements are known: what is read by an index that is itself read is never known to be the same."""
    return access is not None and access[1] is not None
