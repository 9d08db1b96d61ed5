"""The graph that a plan is made for: the leader's, also where another rank traced other sizes.

Ranks whose batches differ have graphs that differ, in sizes that are fixed, in hints, or in what PyTorch made of a batch of one. Their
collectives are the same. So every rank asks for a plan of the leader's graph, and those that have another one follow it in theirs.
The leader hands out its digest, which is all that the others need as a rule, and the graph in its canonical encoding.
"""

from __future__ import annotations

import hashlib
import zlib

from . import canonical
from .agreement import Agreement, LeaderFailed, await_key
from .errors import AgreementError
from .following import same_collectives
from .graph import Graph


def hand_out(agreement: Agreement, scope: str, encoded: bytes) -> None:
    """For the leader. b"": it has no graph, and will say why."""
    if agreement.store is None or not agreement.leader:
        return
    agreement.store.set(f"{scope}/graph/encoded", zlib.compress(encoded, 1))
    agreement.store.set(f"{scope}/graph", hashlib.sha256(encoded).hexdigest() if encoded else "")


def receive(agreement: Agreement, scope: str, graph: Graph, digest: bytes, deadline: float) -> tuple[Graph, bytes]:
    """(graph, its digest) to have planned: the leader's, or this rank's own where the two launch different collectives, which the
    ranks will find out when they compare. LeaderFailed: the leader has none."""
    if agreement.store is None or agreement.leader:
        return graph, digest
    missing = f"no word from rank {agreement.ranks[0]}"
    leaders = bytes.fromhex(await_key(agreement.store, f"{scope}/graph", deadline, missing, agreement.apart).decode())
    if not leaders:
        raise LeaderFailed
    if leaders == digest:
        return graph, digest
    encoded = zlib.decompress(agreement.store.get(f"{scope}/graph/encoded"))
    if hashlib.sha256(encoded).digest() != leaders:
        raise AgreementError(f"{scope}: the graph of rank {agreement.ranks[0]} came damaged")
    other = canonical.decode(encoded)
    return (other, leaders) if same_collectives(other, graph) else (graph, digest)
