"""Canonical encoding and digest: proto/GRAPH.md §4."""

import copy
import hashlib
import time

import pytest

from bucketd import canonical
from bucketd.files import load_graph
from bucketd.graph import (
    Collective,
    CollectiveKind,
    Direction,
    DType,
    Graph,
    Group,
    Node,
    NodeKind,
    ReduceOp,
    Role,
    Slot,
    SlotKind,
    Tag,
    Tensor,
)
from bucketd.normalize import normalize


def small_graph():
    shard, full = Tensor(DType.BF16, (2, 300)), Tensor(DType.BF16, (8, 300))
    placeholder = Node(NodeKind.PLACEHOLDER, "placeholder", outputs=[shard], role=Role.PARAMETER, parameter="w")
    gather = Node(NodeKind.COLLECTIVE, "ag", [0], [full], module="m", direction=Direction.FORWARD)
    gather.collective = Collective(CollectiveKind.ALL_GATHER, 0, ReduceOp.NONE, Tag.FSDP_ALL_GATHER, "w")
    wait = Node(NodeKind.WAIT, "wait", [1], [full], alias_of=[1], module="m", direction=Direction.FORWARD)
    output = Node(NodeKind.OUTPUT, "output", [2], slots=[Slot(2, SlotKind.OUTPUT), Slot(None)])
    return Graph("small", [placeholder, gather, wait, output], [Group("dp", 0, 4)])


def test_encodes_a_small_graph_as_the_document_says():
    shape = b"\x08\x02"  # bf16, rank 2
    expected = (
        b"BKTG\x01"
        b"\x01" b"\x00\x02dp" b"\x00\x04"  # one group: "dp" is string 0
        b"\x04"
        # placeholder: kind 1, op, no inputs, one output; no aliases, no mutations, flags, flops, bytes; direction; module; role
        b"\x01" b"\x00\x0bplaceholder" b"\x00" b"\x01" + shape + b"\x02\xac\x02" b"\x00\x00\x00\x00\x00\x00"
        b"\x00\x00" b"\x01" b"\x00\x01w"
        b"\x05" b"\x00\x02ag" b"\x01\x01" b"\x01" + shape + b"\x08\xac\x02" b"\x00\x00\x00\x00\x00\x01"
        b"\x00\x01m" b"\x01\x00\x00\x01" b"\x04"  # "w" again: 1 + number 3
        b"\x06" b"\x00\x04wait" b"\x01\x01" b"\x01" + shape + b"\x08\xac\x02" b"\x01\x01\x00\x00\x00\x00\x01"
        b"\x06"  # "m" again: 1 + number 5
        b"\x07" b"\x00\x06output" b"\x01\x01" b"\x00" b"\x00\x00\x00\x00\x00\x00"
        b"\x03"  # "" again: 1 + number 2
        b"\x02" b"\x03\x01\x03" b"\x00\x00\x03"
    )
    assert canonical.encode(small_graph()) == expected
    assert canonical.digest(small_graph()) == hashlib.sha256(expected).digest()


def change(path, value):
    def apply(graph):
        *way, last = path
        at = graph
        for step in way:
            at = at[step] if isinstance(at, list) else getattr(at, step)
        if isinstance(at, list):
            at[last] = value
        else:
            assert getattr(at, last) != value
            setattr(at, last, value)

    return apply


MEANINGFUL = {
    "shape": change(("nodes", 1, "outputs", 0, "shape"), (8, 301)),
    "dtype": change(("nodes", 1, "outputs", 0, "dtype"), DType.F16),
    "op": change(("nodes", 2, "op"), "wait2"),
    "edge": change(("nodes", 3, "inputs", 0), 1),
    "alias": change(("nodes", 2, "alias_of", 0), 0),
    "mutation": change(("nodes", 2, "mutates"), [1]),
    "flags": change(("nodes", 1, "flags"), 8),
    "flops": change(("nodes", 1, "flops"), 1),
    "memory bytes": change(("nodes", 1, "memory_bytes"), 1),
    "direction": change(("nodes", 1, "direction"), Direction.BACKWARD),
    "module": change(("nodes", 1, "module"), "n"),
    "role": change(("nodes", 0, "role"), Role.BUFFER),
    "parameter": change(("nodes", 0, "parameter"), "v"),
    "collective kind": change(("nodes", 1, "collective", "kind"), CollectiveKind.BROADCAST),
    "reduce op": change(("nodes", 1, "collective", "reduce_op"), ReduceOp.SUM),
    "tag": change(("nodes", 1, "collective", "tag"), Tag.NONE),
    "tagged parameter": change(("nodes", 1, "collective", "parameter"), "v"),
    "group size": change(("groups", 0, "size"), 8),
    "mesh dimension": change(("groups", 0, "mesh_dim"), "tp"),
    "lane": change(("groups", 0, "lane"), 1),
    "slot kind": change(("nodes", 3, "slots", 0, "kind"), SlotKind.SAVED),
    "slot": change(("nodes", 3, "slots", 1, "node"), 0),
}


@pytest.mark.parametrize("what", MEANINGFUL)
def test_every_meaningful_change_gives_another_digest(what):
    graph = small_graph()
    before = canonical.digest(graph)
    MEANINGFUL[what](graph)
    assert canonical.digest(graph) != before


def test_names_strides_and_ranks_are_no_part_of_the_digest():
    graph = small_graph()
    before = canonical.digest(graph)
    graph.name = "other"
    for node in graph.nodes:
        node.name += "_1"
        node.outputs = [Tensor(t.dtype, t.shape, (1,) * len(t.shape)) for t in node.outputs]
    graph.groups[0].name, graph.groups[0].ranks = "17", (4, 5, 6, 7)
    assert canonical.digest(graph) == before


def test_refuses_a_forward_reference():
    graph = small_graph()
    graph.nodes[1].inputs = [2]
    with pytest.raises(ValueError, match="node 1 refers to node 2"):
        canonical.encode(graph)


def test_recomputes_the_digest_of_every_vector(vectors):
    for path, expected in vectors:
        assert canonical.digest(normalize(load_graph(path)).graph).hex() == expected, path.name


def test_ranks_0_and_3_share_a_digest_although_their_raw_graphs_differ(vectors):
    digests, raws = {}, {}
    for path, expected in vectors:
        if ".rank" not in path.name:
            continue
        case, _ = path.name.split(".rank")
        digests.setdefault(case, set()).add(expected)
        raws.setdefault(case, []).append(len(load_graph(path).nodes))
    assert all(len(found) == 1 for found in digests.values())
    assert len(set().union(*digests.values())) == len(digests), "two steps share a digest"
    uneven = [case for case in raws if "uneven" in case or "short" in case]
    assert uneven and all(len(set(raws[case])) == 2 for case in uneven)


@pytest.mark.quiet
def test_twenty_seven_thousand_nodes_take_well_under_a_second(data):
    raw = load_graph(data / "graphs" / "llama3_70b_fsdp64.bw.json.gz")
    assert len(raw.nodes) > 26_000
    best = min(_seconds(raw) for _ in range(3))
    assert best < 1.5, f"normalising and hashing took {best:.2f} s of CPU time"


def _seconds(raw):
    start = time.process_time()
    canonical.digest(normalize(raw).graph)
    return time.process_time() - start


def test_what_is_encoded_can_be_read_again(data):
    for graph in (small_graph(), normalize(load_graph(data / "vectors" / "hsdp_uneven.bw.rank0.json.gz")).graph):
        encoded = canonical.encode(graph)
        assert canonical.encode(canonical.decode(encoded)) == encoded


def test_what_is_no_encoding_is_refused():
    encoded = canonical.encode(small_graph())
    for wrong in (b"", encoded[1:], encoded[:-1], encoded + b"\0"):
        with pytest.raises(ValueError, match="encoding"):
            canonical.decode(wrong)


def test_equal_graphs_encode_equally_however_they_were_made():
    graph = small_graph()
    assert canonical.encode(copy.deepcopy(graph)) == canonical.encode(graph)
