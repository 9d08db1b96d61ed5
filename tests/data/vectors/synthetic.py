"""Raw graphs by hand, for the rules that small real steps do not reach: `python tests/data/vectors/synthetic.py`.

Lanes, a group of no mesh dimension, writes and views of a wait behind which a slice is inserted, strides of 0 next to it, empty and
repeated output slots, several outputs, an ordered op, an attribute: rules.synthetic.json.gz. Broadcasts, functional and in place:
rules.broadcast.json.gz. Writes both and their digests.
"""

from __future__ import annotations

import json
from pathlib import Path

from bucketd.canonical import digest
from bucketd.files import save_graph
from bucketd.graph import (
    ORDERED,
    POINTWISE,
    VIEW,
    Collective,
    CollectiveKind,
    Direction,
    DType,
    Group,
    MeshDim,
    Node,
    NodeKind,
    RawGraph,
    ReduceOp,
    Role,
    Slot,
    SlotKind,
    Tag,
    Tensor,
)
from bucketd.memory import memory_bytes
from bucketd.normalize import normalize

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64


def tensor(dtype, *shape, stride=None):
    contiguous = []
    for size in reversed(shape):
        contiguous.insert(0, contiguous[0] * last if contiguous else 1)
        last = size
    return Tensor(dtype, shape, tuple(contiguous) if stride is None else stride)


class Maker:
    def __init__(self):
        self.nodes: list[Node] = []

    def add(self, kind, op, inputs=(), outputs=(), **fields):
        node = Node(kind, op, list(inputs), list(outputs), direction=Direction.BACKWARD, **fields)
        node.name = f"n{len(self.nodes)}"
        self.nodes.append(node)
        node.memory_bytes = memory_bytes(self.nodes, node)
        return len(self.nodes) - 1

    def call(self, op, inputs, *outputs, **fields):
        return self.add(NodeKind.CALL, op, inputs, outputs, **fields)

    def wait(self, start):
        return self.add(
            NodeKind.WAIT, "_c10d_functional.wait_tensor.default", [start], self.nodes[start].outputs, alias_of=[start]
        )

    def collective(self, op, source, out, *fields):
        made = self.add(NodeKind.COLLECTIVE, f"_c10d_functional.{op}.default", [source], [out], module="block.0")
        self.nodes[made].collective = Collective(*fields)
        return made


def build() -> RawGraph:
    m = Maker()
    shard = m.add(
        NodeKind.PLACEHOLDER, "placeholder", outputs=[tensor(F32, 2, 3)], role=Role.PARAMETER, parameter="block.0.w"
    )
    mesh = m.add(NodeKind.PLACEHOLDER, "placeholder", opaque=True)
    gradient = m.add(NodeKind.PLACEHOLDER, "placeholder", outputs=[tensor(F32, 7, 3)], role=Role.SAVED)
    scalar = m.add(NodeKind.PLACEHOLDER, "placeholder", outputs=[tensor(F32)], role=Role.TANGENT)
    cast = m.call("aten._to_copy.default", [shard], tensor(BF16, 2, 3), flags=POINTWISE, module="block.0")
    fields = (CollectiveKind.ALL_GATHER, 0, ReduceOp.NONE, Tag.FSDP_ALL_GATHER, "block.0.w")
    whole = m.wait(m.collective("all_gather_into_tensor", cast, tensor(BF16, 8, 3), *fields))
    cut = m.call("aten.slice.Tensor", [whole], tensor(BF16, 7, 3), alias_of=[whole], flags=VIEW)
    constant = m.add(NodeKind.GET_ATTR, "get_attr", outputs=[tensor(I64, 7)])
    noise = m.call("aten.rand_like.default", [cut], tensor(BF16, 7, 3), flags=ORDERED)
    ordered = m.call("aten.sort.default", [noise], tensor(BF16, 7, 3), tensor(I64, 7, 3))
    index = m.add(NodeKind.GETITEM, "getitem", [ordered], [tensor(I64, 7, 3)], alias_of=[ordered], index=1)
    picked = m.call("aten.index_select.default", [cut, constant], tensor(BF16, 7, 3))
    fields = (CollectiveKind.ALL_TO_ALL, 1)
    swapped = m.wait(m.collective("all_to_all_single", picked, tensor(BF16, 7, 3), *fields))
    fields = (CollectiveKind.ALL_REDUCE, 2, ReduceOp.MAX)
    largest = m.wait(m.collective("all_reduce", swapped, tensor(BF16, 7, 3), *fields))
    pad = m.call("aten.constant_pad_nd.default", [gradient], tensor(F32, 8, 3))
    joined = m.call("aten.cat.default", [pad], tensor(F32, 8, 3))
    fields = (CollectiveKind.REDUCE_SCATTER, 0, ReduceOp.AVG, Tag.FSDP_REDUCE_SCATTER, "block.0.w")
    piece = m.wait(m.collective("reduce_scatter_tensor", joined, tensor(F32, 2, 3), *fields))
    spread = m.call("aten.expand.default", [scalar], tensor(F32, 2, 3, stride=(0, 0)), alias_of=[scalar], flags=VIEW)
    m.call("aten.mul.Tensor", [spread], tensor(F32, 2, 3), flags=POINTWISE)
    # These read the wait; after normalisation the slice, and count from shapes alone.
    scaled = m.call("aten.mul.Tensor", [piece, spread], tensor(F32, 2, 3), flags=POINTWISE)
    m.call("aten.add_.Tensor", [piece, scaled], tensor(F32, 2, 3), alias_of=[piece], mutates=[piece], flags=POINTWISE)
    flat = m.call("aten.view.default", [piece], tensor(F32, 6), alias_of=[piece], flags=VIEW)
    slots = [
        Slot(piece, SlotKind.PARAMETER_GRADIENT, "block.0.w"),
        Slot(mesh, SlotKind.PARAMETER_GRADIENT, "block.0.w"),
        Slot(None),
        Slot(flat, SlotKind.INPUT_GRADIENT),
        Slot(piece, SlotKind.SAVED),
        Slot(largest, SlotKind.OUTPUT),
        Slot(index, SlotKind.UNSPECIFIED),
    ]
    m.add(NodeKind.OUTPUT, "output", [piece, mesh, flat, largest, index], slots=slots)
    groups = [Group("dp", 0, 4, "4", (0, 1, 2, 3)), Group("dp", 1, 4, "9", (0, 1, 2, 3)), Group("group0", 0, 2, "7", (0, 2))]
    return RawGraph("rules", "bw", m.nodes, groups, [MeshDim("dp", 4, 2), MeshDim("group0", 2)], 8, 2, "cuda")


def build_broadcast() -> RawGraph:
    m = Maker()
    buffer = m.add(NodeKind.PLACEHOLDER, "placeholder", outputs=[tensor(BF16, 4, 3)], role=Role.BUFFER, parameter="block.0.seen")
    fields = (CollectiveKind.BROADCAST, 0)
    same = m.wait(m.collective("broadcast", buffer, tensor(BF16, 4, 3), *fields))
    doubled = m.call("aten.mul.Tensor", [same], tensor(BF16, 4, 3), flags=POINTWISE)
    start = m.collective("broadcast_", doubled, tensor(BF16, 4, 3), *fields)
    m.nodes[start].mutates = m.nodes[start].alias_of = [doubled]
    written = m.wait(start)
    m.add(NodeKind.OUTPUT, "output", [written], slots=[Slot(written, SlotKind.OUTPUT)])
    return RawGraph("broadcast", "bw", m.nodes, [Group("dp", 0, 4, "4", (0, 1, 2, 3))], [MeshDim("dp", 4, 2)], 4, 2, "cuda")


def main() -> None:
    here = Path(__file__).resolve().parent
    vectors = json.loads((here / "vectors.json").read_text())
    for file, raw in (("rules.synthetic.json.gz", build()), ("rules.broadcast.json.gz", build_broadcast())):
        save_graph(raw, here / file)
        vectors[file] = digest(normalize(raw).graph).hex()
    (here / "vectors.json").write_text(json.dumps(vectors, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
