"""Where a server may die: a row for each mark in its code (server/store/crash_point.h), with who dies there and what leads to it.
test_crashes.py goes through them with servers that obey (tests/server/crash_points.cc)."""

from __future__ import annotations

import dataclasses
import mmap
import pathlib
import re
import struct

_SERVER = pathlib.Path(__file__).resolve().parents[2] / "server"
_CALL = re.compile(r"\bCrashPoint\(([^;]*)\);")
_ORDER = struct.Struct("=iii500s")  # as in crash_points.cc


def marks() -> list[str]:
    """All that stand in the server's code."""
    return [place for file in sorted(_SERVER.rglob("*.cc")) for call in _CALL.findall(file.read_text())
            for place in re.findall(r'"([^"]+)"', call)]


@dataclasses.dataclass(frozen=True)
class Row:
    """`at`: places that one thread passes in this order; at the last the process dies. `role`: whose process. `led_by`: a function of
    test_crashes.py. `first`: in every run of the suite, the others behind the marker full."""

    at: str
    role: str
    led_by: str
    first: bool = False

    def __str__(self) -> str:
        return f"{self.role}, {self.at}".replace(" > ", ", ")


def _around(write: str, after: str, role: str, led_by: str, *first: str) -> list[Row]:
    """Before it, with half of it said, with all of it said and nothing heard, and after."""
    ways = [f"{write}: to be {after}", f"{write}: to be {after} > store: half sent", f"{write}: to be {after} > store: sent", f"{write}: {after}"]
    return [Row(at, role, led_by, at in first) for at in ways]


ROWS = [
    # What a job goes through, at the replica that has it.
    *_around("lease", "taken", "anybody", "a_new_job"),
    *_around("plan", "saved", "owner", "training", "plan: to be saved > store: half sent"),
    *_around("agreement", "kept", "owner", "training", "agreement: to be kept > store: sent"),
    Row("agreement: kept > agreement: one answered", "owner", "training", True),
    Row("plan: lease taken", "owner", "training"),
    Row("lease: to be given back", "owner", "training"),
    Row("lease: given back", "owner", "training"),
    *_around("unplanned", "kept", "owner", "planning_is_off"),
    # At the two ends of a forwarded call.
    Row("forward: sent", "edge", "training"),
    Row("forward: received", "owner", "training"),
    Row("forward: graph brought", "edge", "training"),
    Row("forward: to be answered", "owner", "training"),
    Row("forward: answered", "owner", "training", True),
    Row("forward: answer came", "edge", "training"),
    Row("forward: plan read", "edge", "training"),
    Row("forward: to be presented anew", "edge", "the_owners_drain"),
    # Who is up, and what the dead leave.
    *_around("beat", "written", "owner", "training"),
    Row("beat: written", "edge", "training"),
    *_around("death", "written", "anybody", "the_owners_death"),
    Row("lease: taken over", "anybody", "the_owners_death"),
    Row("sweep: a lease to go", "starts", "a_start_after_a_death"),
    Row("sweep: a lease gone", "starts", "a_start_after_a_death"),
    Row("sweep: a pin to go", "starts", "a_start_when_pins_are_old"),
    Row("sweep: a pin gone", "starts", "a_start_when_pins_are_old"),
    # Its orderly end.
    Row("drain: begun", "owner", "its_drain"),
    Row("drain: jobs to be handed over", "owner", "its_drain"),
    Row("drain: jobs to be handed over > lease: to be given back > store: sent", "owner", "its_drain"),
    Row("drain: jobs handed over", "owner", "its_drain", True),
    Row("drain: callers told", "owner", "its_drain"),
    Row("drain: calls ended", "owner", "its_drain"),
    *_around("leave", "written", "edge", "its_drain"),
    # What operators and agents tell it.
    *_around("promotion", "kept", "edge", "a_promotion", "promotion: to be kept > store: sent"),
    Row("import: version kept, its name not", "edge", "an_import"),
    *_around("switch", "kept", "edge", "the_switch"),
    Row("release: one record gone", "edge", "a_release"),
    Row("release: holds to go", "edge", "a_release"),
    *_around("samples", "kept", "edge", "a_report"),
    *_around("epochs", "taken", "starts", "a_start"),
    # Its tables.
    *_around("schema", "made", "starts", "no_tables"),
    *_around("schema", "expanded", "starts", "tables_of_before", "schema: to be expanded > store: sent"),
]


class Orders:
    """The file that servers look into for where to die."""

    def __init__(self, folder: str):
        self._path = pathlib.Path(folder, "order")
        self._path.write_bytes(bytes(_ORDER.size))
        with open(self._path, "r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _ORDER.size)
        self.number = 0

    def environment(self, replica: int) -> dict[str, str]:
        return {"CRASH_POINTS": str(self._path), "CRASH_POINTS_OF": str(replica + 1)}

    def give(self, places: str, replica: int | None = None) -> None:
        """To that replica, or to whoever comes there first."""
        self.take_back()
        self.number += 1
        _ORDER.pack_into(self._mapped, 0, 0, self.number - 1, 0 if replica is None else replica + 1, places.encode())
        struct.pack_into("=i", self._mapped, 0, self.number)

    def take_back(self) -> None:
        struct.pack_into("=i", self._mapped, 0, 0)

    def was_obeyed(self) -> bool:
        return self.number == struct.unpack_from("=i", self._mapped, 4)[0]
