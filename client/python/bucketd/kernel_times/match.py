"""Which of a graph's launches each kernel of a run is, as far as that is certain.

A kernel's name is read as operators, and the kernels of a run are aligned with the launches that were predicted: by operators and in order.
Predictions are not perfect, so kernels may be missing on either side. A kernel has a launch only if every best alignment gives it that one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Launch, RawGraph
from .trace import GENERATED

_MOST_CELLS = 1 << 23  # of an alignment
_LONGEST_NAME = 1500

Key = tuple[bool, tuple[str, ...]]  # whether it is a call, operators


class Matcher:
    """Aligns runs with one graph's launches."""

    def __init__(self, graph: RawGraph) -> None:
        self._weak = frozenset(graph.weak_words)
        generated = [launch for launch in graph.launches if not launch.is_call]
        self._words = sorted(self._weak.union(*(launch.words for launch in generated)))
        self._keys = [self._key(launch) for launch in graph.launches]

    def align(self, names: Sequence[str]) -> list[int | str]:
        """Of each kernel of a run the launch, by number, or why it has none."""
        read = [self._read(name) for name in names]
        places: list[int | str] = [why if isinstance(why, str) else "kernels that the graph has no launch for there" for why in read]
        shown = [at for at, key in enumerate(read) if not isinstance(key, str)]
        if len(shown) * len(self._keys) > _MOST_CELLS:
            return ["kernels of a run too long to be aligned"] * len(names)
        known = set(self._keys)
        for at, place in zip(shown, sure_places(self._keys, [read[at] for at in shown]), strict=True):
            if place is not None:
                places[at] = place
            elif read[at] in known:
                places[at] = "kernels with several places in the graph"
        return places

    def _key(self, launch: Launch) -> Key:
        return launch.is_call, launch.words if launch.is_call else tuple(word for word in launch.words if word not in self._weak)

    def _read(self, name: str) -> Key | str:
        """Or why there is none."""
        generated = GENERATED.fullmatch(name)
        if generated is None:
            return True, (name.rpartition("::")[2],)
        if len(generated[1]) > _LONGEST_NAME:
            return "kernels whose name is too long"
        keys = self._readings(generated[1], 0, 0, {}) if generated[1] else {()}
        if len(keys) == 1:
            return False, next(iter(keys))
        return "kernels whose name can be read in several ways" if keys else "kernels of operators that the graph has not"

    def _readings(self, text: str, at: int, first: int, known: dict) -> frozenset[tuple[str, ...]]:
        """The operators, without weak ones, that `text` from `at` on may be made of: ascending, from the `first` on; at most two."""
        if at > len(text):
            return frozenset({()})
        if (at, first) not in known:
            made: set[tuple[str, ...]] = set()
            for place in range(first, len(self._words)):
                word = self._words[place]
                end = at + len(word)
                if text.startswith(word, at) and text[end : end + 1] in ("", "_") and len(made) < 2:
                    own = () if word in self._weak else (word,)
                    made.update(own + rest for rest in self._readings(text, end + 1, place + 1, known))
            known[at, first] = frozenset(sorted(made)[:2])
        return known[at, first]


def sure_places(expected: Sequence[object], shown: Sequence[object]) -> list[int | None]:
    """The place in `expected` that each of `shown` has in every longest common subsequence of the two; None: not one, or not in all.
    Time and memory are of the product of the lengths, but where the two are equal."""
    if list(expected) == list(shown):
        return list(range(len(shown)))
    width = len(shown) + 1
    after = [[0] * width for _ in range(len(expected) + 1)]  # the longest of what begins here
    for i in range(len(expected) - 1, -1, -1):
        row, below = after[i], after[i + 1]
        for j in range(width - 2, -1, -1):
            row[j] = below[j + 1] + 1 if expected[i] == shown[j] else max(below[j], row[j + 1])
    longest = after[0][0]
    places: list[int | None] = [None] * len(shown)
    sure = [True] * len(shown)
    before = [0] * width
    for i in range(len(expected) + 1):
        row = [0] * width
        for j in range(len(shown)):
            if before[j] + after[i][j + 1] == longest:
                sure[j] = False  # one leaves it out
            if i == len(expected):
                continue
            same = expected[i] == shown[j]
            if same and before[j] + 1 + after[i + 1][j + 1] == longest:
                sure[j] &= places[j] is None
                places[j] = i
            row[j + 1] = before[j] + 1 if same else max(before[j + 1], row[j])
        before = row if i < len(expected) else before
    return [place if certain else None for place, certain in zip(places, sure, strict=True)]
