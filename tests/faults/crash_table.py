"""Where a server may die: each mark in its code (server/store/crash_point.h) in each role that a replica may have there, with what leads
to that, or why nothing does. test_crashes.py goes through them with servers that obey (tests/server/crash_points.cc)."""

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
    """`at`: places that one thread passes in this order; at the last the process dies. `role`: of it, then. `led_by`: a function of
    crash_scenes.py or crash_roles.py. `first`: in every run of the suite, the others behind the marker full."""

    at: str
    role: str
    led_by: str
    first: bool = False

    def __str__(self) -> str:
        return f"{self.role}, {self.at}".replace(" > ", ", ")


ROLES = {
    "owner": "it has the job whose ranks train, and computes their plans",
    "edge": "ranks come to it, their job is another one's, and it brings the graphs that they upload",
    "holder": "it computes a plan that a caller without a job asked it for",
    "bystander": "whoever it is that finds another one dead and does its work, or is asked for what it does not have",
    "drainer": "it was told to end, while something of the others' went on",
    "starter": "it begins",
}


class Never(str):
    """Why no process of that role comes to that place, or as what else it does."""


def _around(write: str, after: str) -> list[str]:
    """Before it, with half of it said, with all of it said and nothing heard, and after."""
    return [f"{write}: to be {after}", f"{write}: to be {after} > store: half sent", f"{write}: to be {after} > store: sent", f"{write}: {after}"]


def _cells(others: str, **roles: str | Never) -> dict[str, str | Never]:
    """By role the scene that leads it there. `others`: why all that are not named do not come there."""
    assert roles.keys() <= ROLES.keys()
    return {role: roles.get(role, Never(others)) for role in ROLES}


_ENDS = Never("it takes nothing on any more")
_AS_AN_EDGE = Never("it is an edge, to the job, and what it computes does not come into it")
_OPERATORS = "whoever is told does it, and what else it does makes no difference"

# Places, and who comes to them. Where a scene has several that could, whoever comes first dies.
MATRIX: list[tuple[list[str], dict[str, str | Never]]] = [
    # What a job goes through, at the replica that has it.
    (_around("lease", "taken"), _cells("nobody asks it for anything", owner="a_new_job", holder="a_plan_without_a_job", drainer=_ENDS,
                                       edge=Never("whoever takes a job's lease is its owner; who comes second says the same and writes nothing"))),
    (["lease: taken over"], _cells("the one who had it is dead: whoever takes it is none of these yet", bystander="the_owners_death",
                                   holder="the_holders_death")),
    (["plan: lease taken"], _cells("it computes nothing", owner="training", holder="a_plan_without_a_job", drainer=_ENDS)),
    (_around("plan", "saved"), _cells("it computes nothing", owner="training", holder="a_plan_without_a_job", drainer="a_drain_while_a_graph_arrives")),
    (["lease: to be given back", "lease: given back"],
     _cells("it has none", owner="its_drain", holder=Never("it goes with the plan that is saved"), drainer=Never("as owner"))),
    (_around("agreement", "kept")[:3], _cells("whoever has the job agrees, and nobody else", owner="training",
                                              drainer=Never("ranks that gather are told DRAINING, so that no writing begins"))),
    (["agreement: kept", "agreement: kept > agreement: one answered"],
     _cells("whoever has the job agrees, and nobody else", owner="training", drainer="a_drain_while_a_pin_is_written")),
    (_around("unplanned", "kept"), _cells("whoever has the job finds that out, and nobody else", owner="planning_is_off",
                                          drainer=Never("a generation that begins is told DRAINING"))),
    # At the two ends of a forwarded call.
    (["forward: sent", "forward: graph brought"],
     _cells("it is the owner to those who ask it, or nobody asks", edge="training", drainer=Never("calls that come are told DRAINING and go nowhere"))),
    (["forward: received"], _cells("it is asked where the job is another one's", owner="training", drainer=Never("it says so before it reads the call"),
                                   bystander=Never("whoever had the job is another process by now, which says so before it reads the call"))),
    (["forward: to be answered", "forward: answered"],
     _cells("nobody forwards to it", owner="training", bystander="a_stale_word", drainer="an_owners_drain_while_a_rank_waits")),
    (["forward: answer came", "forward: plan read"],
     _cells("it forwards nothing", edge="training", drainer="an_edges_drain_while_a_rank_waits")),
    (["forward: to be presented anew"], _cells("it forwards nothing", edge="the_owners_drain", bystander="the_owners_death",
                                               drainer=Never("as an edge: the calls that wait there, until they end"))),
    # Who is up, and what the dead leave.
    (_around("beat", "written"), _cells("", owner="training", edge="training", holder=_AS_AN_EDGE, bystander=_AS_AN_EDGE, starter="a_start",
                                        drainer=Never("the one that says so is the next row"))),
    ([f"drain: jobs to be handed over > {at}" for at in _around("beat", "written")], _cells("it does not drain", drainer="its_drain")),
    (_around("death", "written"), _cells("whoever looks first, which is nobody's choice", bystander="the_owners_death")),
    (["sweep: a lease to go", "sweep: a lease gone"], _cells("once a minute, as after a start", starter="a_start_after_a_death")),
    (["sweep: a pin to go", "sweep: a pin gone"], _cells("once a minute, as after a start", starter="a_start_when_pins_are_old")),
    # Its orderly end.
    (["drain: begun", "drain: jobs to be handed over", "drain: jobs handed over", "drain: callers told", "drain: calls ended",
      *_around("leave", "written")],
     _cells("", owner="its_drain", edge="its_drain", holder=_AS_AN_EDGE, bystander=_AS_AN_EDGE, starter=Never("it has taken nothing on yet"),
            drainer=Never("these are what it goes through, as owner or edge"))),
    (["drain: jobs to be handed over > lease: to be given back > store: sent"], _cells("it has no job", owner="its_drain",
                                                                                       drainer=Never("as owner"))),
    # What operators and agents tell it.
    (_around("promotion", "kept"), _cells(_OPERATORS, owner="a_promotion", edge="a_promotion")),
    (["import: version kept, its name not"], _cells(_OPERATORS, owner="an_import", edge="an_import")),
    (_around("switch", "kept"), _cells(_OPERATORS, owner="the_switch", edge="the_switch")),
    (["release: one record gone", "release: holds to go"], _cells(_OPERATORS, owner="a_release", edge="a_release")),
    (_around("samples", "kept"), _cells(_OPERATORS, owner="a_report", edge="a_report")),
    (_around("epochs", "taken"), _cells("numbers are taken in advance, at the first meeting after a start", starter="a_start")),
    # Its tables.
    (_around("schema", "made"), _cells("it has its tables", starter="no_tables")),
    (_around("schema", "expanded"), _cells("it has its tables", starter="tables_of_before")),
]

FIRST = {
    ("plan: to be saved > store: half sent", "owner"), ("agreement: to be kept > store: sent", "owner"),
    ("agreement: kept > agreement: one answered", "owner"), ("forward: answered", "owner"), ("drain: jobs handed over", "owner"),
    ("promotion: to be kept > store: sent", "edge"), ("schema: to be expanded > store: sent", "starter"),
    ("plan: to be saved > store: sent", "holder"), ("lease: taken over", "holder"), ("plan: saved", "drainer"),
    ("agreement: kept", "drainer"), ("forward: to be answered", "drainer"), ("forward: plan read", "drainer"), ("forward: to be answered", "bystander"),
}

ROWS = [Row(at, role, cell, (at, role) in FIRST)
        for places, cells in MATRIX for at in places for role, cell in cells.items() if not isinstance(cell, Never)]


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
