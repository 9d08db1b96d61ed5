"""What an address may name: one planner, several that share a store, or a name that stands for several; and the order in which
a call asks them.

    planner:9460   [::1]:9460   unix:/run/bucketd     one
    a:9460,b:9460                                     several: each call goes to one of them
    dns:///planners:9460                              all that the name stands for, looked up again as that changes; their
                                                      certificates name `planners`

The order is that of rendezvous hashing: by the SHA-256 of what the call is about and of the planner's address. So all ranks of a
job ask the same planner first and the same one next, however their lists are sorted; jobs spread over the planners; and where
one goes, nothing moves but what was asked there. client/addresses.h is the same for C++.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import socket
import threading
from collections.abc import Sequence

from .errors import PlannerError

_DNS = "dns:///"
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/,\[\]]+):(\d{1,5})")
_EXPECTED = "expected HOST:PORT, unix:/path, dns:///NAME:PORT, or several of them with commas between"


@dataclasses.dataclass(frozen=True)
class Server:
    """One planner: where it is, and whom its certificate has to name ("": the host of `target`)."""

    target: str
    name: str = ""


def parse(text: str) -> tuple[str, ...]:
    """The addresses that `text` lists. ValueError names the one that is invalid."""
    found: list[str] = []
    for entry in text.split(","):
        address = entry.strip()
        if not _valid(address):
            within = f" in address={text!r}" if address != text else ""
            raise ValueError(f"{address!r}{within} is no address of a planner; {_EXPECTED}")
        if address in found:
            raise ValueError(f"{address!r} is twice in address={text!r}")
        found.append(address)
    return tuple(found)


def is_name(address: str) -> bool:
    """Whether it stands for planners that have to be looked up."""
    return address.startswith(_DNS)


def look_up(address: str, patience: float) -> list[Server]:
    """The planners that a dns:/// address stands for now. UNREACHABLE if nobody says so within `patience` seconds."""
    host, port = _HOST_PORT.fullmatch(address.removeprefix(_DNS)).groups()
    answer: list = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # the latter: no name at all
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)  # which nothing can interrupt
    thread.start()
    thread.join(patience)
    if not answer or isinstance(answer[0], Exception):
        why = getattr(answer[0], "strerror", answer[0]) if answer else f"no answer within {patience:.1f} s"
        raise PlannerError("UNREACHABLE", f"{address}: the name is not known: {why}")
    numbers = {(f"[{to[0]}]" if family == socket.AF_INET6 else to[0], to[1]) for family, _, _, _, to in answer[0]}
    return [Server(f"{number}:{at}", host) for number, at in sorted(numbers)]


def in_order(servers: Sequence[Server], about: str) -> list[Server]:
    """Whom a call about `about` asks first, whom next, and so on."""
    weight = lambda server: hashlib.sha256(f"{about}\n{server.target}".encode()).digest()
    return sorted(servers, key=weight, reverse=True)


def _valid(address: str) -> bool:
    if address.startswith("unix:"):
        return len(address) > len("unix:")
    found = _HOST_PORT.fullmatch(address.removeprefix(_DNS))
    return found is not None and 0 < int(found[2]) < 65536
