"""Captured-graph files: gzip JSON in the schema of tests/data/SCHEMA.md with the additions of proto/GRAPH.md §1."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import os
import zlib
from collections.abc import Mapping
from typing import Any

from .graph import (
    COMPUTE,
    DTYPE_NAMES,
    ORDERED,
    POINTWISE,
    SYMBOLIC,
    TAGS,
    VIEW,
    Collective,
    CollectiveKind,
    Direction,
    DType,
    GraphError,
    Group,
    Launch,
    MeshDim,
    Node,
    NodeKind,
    RawGraph,
    ReduceOp,
    Role,
    Slot,
    SlotKind,
    Tensor,
)
from .memory import is_ordered, memory_bytes

_COLLECTIVES = {
    CollectiveKind.ALL_GATHER: "ag",
    CollectiveKind.REDUCE_SCATTER: "rs",
    CollectiveKind.ALL_REDUCE: "ar",
    CollectiveKind.ALL_TO_ALL: "a2a",
    CollectiveKind.BROADCAST: "bc",
}
_ROLES = {
    Role.PARAMETER: "param",
    Role.BUFFER: "buffer",
    Role.INPUT: "input",
    Role.TANGENT: "tangent",
    Role.SAVED: "saved",
}
_SLOTS = {
    SlotKind.OUTPUT: "output",
    SlotKind.PARAMETER_GRADIENT: "grad",
    SlotKind.INPUT_GRADIENT: "grad",
    SlotKind.SAVED: "saved",
}
_DIRECTIONS = {Direction.FORWARD: "fw", Direction.BACKWARD: "bw"}

# The schema's cost model (H100 SXM): what a file is planned with until a profile says better.
COST_MODEL = {
    "peak_bf16": 989e12 * 0.7,
    "peak_fp32_tf32": 494.5e12 * 0.7,
    "hbm": 3.35e12 * 0.8,
    "launch_us": 4.0,
    "nvlink_busbw": 450e9 * 0.8,
    "nic_bw_per_gpu": 50e9 * 0.8,
    "alpha_us": 10.0,
    "hop_us": 2.0,
    "inter_hop_us": 6.0,
}


def _inverse(table: dict) -> dict:
    return {value: key for key, value in table.items()}


_TAGS = _inverse(TAGS)


def kernel_us(node: Node) -> float:
    if node.kind != NodeKind.CALL or (node.memory_bytes == 0 and node.flops == 0):
        return 0.0
    half = bool(node.outputs) and node.outputs[0].dtype in (DType.BF16, DType.F16)
    peak = COST_MODEL["peak_bf16"] if half else COST_MODEL["peak_fp32_tf32"]
    return max(node.flops / peak, node.memory_bytes / COST_MODEL["hbm"]) * 1e6 + COST_MODEL["launch_us"]


def collective_cost(kind: int, group: Group, gpus_per_node: int) -> tuple[float, float]:
    """(alpha in microseconds, bus bandwidth in bytes a second)."""
    per_node: dict[int, int] = {}
    for rank in group.ranks or range(group.size):
        node = rank // gpus_per_node if gpus_per_node else 0
        per_node[node] = per_node.get(node, 0) + 1
    here = max(per_node.values(), default=1)
    alpha = COST_MODEL["alpha_us"] + COST_MODEL["hop_us"] * (here - 1)
    busbw = COST_MODEL["nvlink_busbw"]
    if len(per_node) > 1:
        alpha += COST_MODEL["inter_hop_us"] * math.log2(len(per_node))
        busbw = min(busbw, COST_MODEL["nic_bw_per_gpu"] * here)
    return (2 * alpha if kind == CollectiveKind.ALL_REDUCE else alpha), busbw


def wire_factor(kind: int, size: int) -> float:
    """What part of a message crosses a rank's wire, over its bus bandwidth: as nccl-tests count."""
    if kind == CollectiveKind.BROADCAST:
        return 1.0 if size > 1 else 0.0
    return (size - 1) / max(size, 1) * (2 if kind == CollectiveKind.ALL_REDUCE else 1)


def message_bytes(nodes: list[Node], node: Node) -> int:
    out = node.outputs[0].bytes
    read = nodes[node.inputs[0]].outputs[0].bytes if node.inputs and nodes[node.inputs[0]].outputs else 0
    kind = node.collective.kind
    if kind == CollectiveKind.ALL_GATHER:
        return out
    return read if kind == CollectiveKind.REDUCE_SCATTER else max(out, read)


def save_graph(raw: RawGraph, path: str | os.PathLike[str], microseconds: Mapping[int, float] | None = None) -> None:
    """Gzip where the name ends in .gz. The same graph gives the same bytes. `microseconds`: what calls were measured to take; other
    calls then get the cost model's, scaled as the measured ones differ from it."""
    text = json.dumps(to_json(raw, microseconds), separators=(",", ":")).encode()
    write_whole(path, gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Nobody sees a part of it."""
    part = f"{os.fspath(path)}.part.{os.getpid()}"
    with open(part, "wb") as file:
        file.write(data)
    os.replace(part, path)


def compute_scale(raw: RawGraph, microseconds: Mapping[int, float]) -> float:
    """How many times as long as in the cost model the measured calls took."""
    modelled = sum(kernel_us(raw.nodes[node_id]) for node_id in microseconds)
    return sum(microseconds.values()) / modelled if modelled else 1.0


def to_json(raw: RawGraph, microseconds: Mapping[int, float] | None = None) -> dict[str, Any]:
    records = [_node_json(raw, node_id, node) for node_id, node in enumerate(raw.nodes)]
    if microseconds:
        scale = compute_scale(raw, microseconds)
        for node_id, record in enumerate(records):
            if raw.nodes[node_id].kind == NodeKind.CALL:
                record["est_us"] = round(microseconds.get(node_id, scale * record["est_us"]), 4)
            if node_id in microseconds:
                record["measured"] = True
    return {
        "schema": 1,
        "stated": 1,
        "name": raw.name,
        "kind": raw.kind,
        "world_size": raw.world_size,
        "gpus_per_node": raw.gpus_per_node,
        "device_type": raw.device_type,
        **({"costs": raw.costs} if raw.costs else {}),
        "mesh_shape": [dim.size for dim in raw.mesh],
        "mesh_dim_names": [dim.name for dim in raw.mesh],
        "mesh_dims": [{"name": d.name, "size": d.size, "ranks_per_node": d.ranks_per_node} for d in raw.mesh],
        "groups": {
            group.name or f"{group.mesh_dim}/{group.lane}": {
                "ranks": list(group.ranks),
                "mesh_dim": group.mesh_dim,
                "lane": group.lane,
                "size": group.size,
            }
            for group in raw.groups
        },
        "cost_model": COST_MODEL,
        **({"launches": [dataclasses.asdict(launch) for launch in raw.launches], "weak_words": raw.weak_words} if raw.launches else {}),
        "nodes": records,
    }


def _node_json(raw: RawGraph, node_id: int, node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {"id": node_id, "name": node.name, "op": node.op, "inputs": node.inputs}
    out["outputs"] = [_tensor_json(t) for t in node.outputs]
    out["est_us"] = round(kernel_us(node), 4)
    optional = {
        "module": node.module,
        "alias_of": node.alias_of,
        "mutates": node.mutates,
        "is_view": bool(node.flags & VIEW),
        "is_compute": bool(node.flags & COMPUTE),
        "pointwise": bool(node.flags & POINTWISE),
        "symbolic": bool(node.flags & SYMBOLIC),
        "flops": node.flops,
        "memory_bytes": node.memory_bytes,
        "direction": _DIRECTIONS.get(node.direction) if raw.kind == "joint" else None,
    }
    out.update({key: value for key, value in optional.items() if value})
    if node.kind == NodeKind.PLACEHOLDER:
        out["desc_kind"] = "mesh" if node.opaque else _ROLES.get(node.role)
        if node.parameter:
            out["fqn"] = node.parameter
    elif node.kind == NodeKind.GETITEM:
        out["index"] = node.index
    elif node.kind == NodeKind.WAIT:
        out["wait_of"] = node.inputs[0]
    elif node.kind == NodeKind.COLLECTIVE:
        out["coll"], out["est_us"] = _collective_json(raw, node)
    elif node.kind == NodeKind.OUTPUT:
        out["out_desc"] = [
            {"node": slot.node, "kind": _SLOTS.get(slot.kind), "fqn": slot.parameter or None} for slot in node.slots
        ]
    return out


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    out = {"shape": list(tensor.shape), "dtype": DTYPE_NAMES[tensor.dtype], "bytes": tensor.bytes}
    if tensor.stride is not None:
        out["stride"] = list(tensor.stride)
    return out


def _collective_json(raw: RawGraph, node: Node) -> tuple[dict[str, Any], float]:
    collective = node.collective
    group = raw.groups[collective.group]
    size = message_bytes(raw.nodes, node)
    alpha, busbw = collective_cost(collective.kind, group, raw.gpus_per_node)
    share = wire_factor(collective.kind, group.size)
    reduce_op = ReduceOp(collective.reduce_op)
    out = {
        "kind": _COLLECTIVES[collective.kind],
        "group": group.name or f"{group.mesh_dim}/{group.lane}",
        "group_size": group.size,
        "reduce_op": None if reduce_op == ReduceOp.NONE else reduce_op.name.lower(),
        "bytes": size,
        "alpha_us": alpha,
        "busbw": busbw,
    }
    if collective.tag:
        out["tag"] = _TAGS[collective.tag]
        out["param"] = collective.parameter
    return out, round(alpha + share * size / busbw * 1e6, 4)


def load_graph(path: str | os.PathLike[str]) -> RawGraph:
    """Of a file that does not state its flags ("stated" is absent), tags and the pointwise flag stay unset: plans for
    such files are made by the planner's own reader, and their digests are its business."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return from_json(json.loads(data))
    except (OSError, EOFError, zlib.error, RecursionError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{os.fspath(path)} is not a captured graph: {type(error).__name__}: {error}") from error


def from_json(file: dict[str, Any]) -> RawGraph:
    reader = _Reader(file)
    for node_id, record in enumerate(file["nodes"]):
        try:
            reader.add(node_id, record)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            where = f"node %{node_id} ({record.get('name', '') if isinstance(record, dict) else ''})"
            raise GraphError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
    raw = reader.raw
    for node in raw.nodes:
        if node.kind == NodeKind.CALL and not reader.stated:
            node.memory_bytes = memory_bytes(raw.nodes, node)
    return raw


class _Reader:
    _dtypes = _inverse(DTYPE_NAMES)
    _collectives = _inverse(_COLLECTIVES)
    _roles = _inverse(_ROLES)

    def __init__(self, file: dict[str, Any]) -> None:
        self.file = file
        self.stated = file.get("stated") == 1
        self.kind = file["kind"]
        self.group_table: dict[str, Any] = file.get("groups", {})
        self.lanes: dict[str, int] = {}
        self.index: dict[str, int] = {}
        self.raw = RawGraph(file.get("name", ""), self.kind, [], [])
        self.raw.world_size = file.get("world_size", 1)
        self.raw.gpus_per_node = file.get("gpus_per_node", 0)
        self.raw.device_type = file.get("device_type", "")
        self.raw.costs = file.get("costs", "")
        self.raw.weak_words = self._words("weak_words", file.get("weak_words", []))
        self.raw.launches = tuple(self._launch(f"launches[{at}]", record) for at, record in enumerate(file.get("launches", [])))
        self.raw.mesh = [MeshDim(d["name"], d["size"], d.get("ranks_per_node", 0)) for d in file.get("mesh_dims", ())]

    def _launch(self, where: str, record: dict[str, Any]) -> Launch:
        nodes = record["nodes"]
        if not nodes or not all(isinstance(n, int) and 0 <= n < len(self.file["nodes"]) for n in nodes):
            raise GraphError(f"{where}: expected ids of nodes, is {str(nodes)[:80]}")
        return Launch(tuple(nodes), self._words(f"{where}.words", record["words"]), bool(record["is_call"]))

    @staticmethod
    def _words(where: str, words: Any) -> tuple[str, ...]:
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise GraphError(f"{where}: expected names of operators, is {str(words)[:80]}")
        return tuple(words)

    def add(self, node_id: int, record: dict[str, Any]) -> None:
        op = record["op"]
        node = Node(self._kind(record), op, self._ids(node_id, record["inputs"]), name=record.get("name", ""))
        node.outputs = [self._tensor(t) for t in record["outputs"]]
        node.alias_of = self._ids(node_id, record.get("alias_of", []))
        node.mutates = self._ids(node_id, record.get("mutates", []))
        node.module = record.get("module") or ""
        node.flops = int(record.get("flops", 0))
        node.memory_bytes = int(record.get("memory_bytes", 0))
        node.direction = self._direction(record)
        if node.kind == NodeKind.CALL:
            node.flags |= VIEW if record.get("is_view") else 0
            node.flags |= COMPUTE if record.get("is_compute") else 0
            node.flags |= POINTWISE if record.get("pointwise") else 0
        if record.get("symbolic") and node.outputs:
            node.flags |= SYMBOLIC
        if node.kind in (NodeKind.CALL, NodeKind.COLLECTIVE) and is_ordered(op):
            node.flags |= ORDERED
        self._by_kind(node_id, node, record)
        self.raw.nodes.append(node)

    def _by_kind(self, node_id: int, node: Node, record: dict[str, Any]) -> None:
        if node.kind == NodeKind.PLACEHOLDER:
            kind = record.get("desc_kind")
            node.opaque = kind == "mesh" or not node.outputs
            node.role = self._roles.get(kind, Role.UNSPECIFIED)
            node.parameter = record.get("fqn") or ""
        elif node.kind == NodeKind.GETITEM:
            node.index = int(record["index"] if "index" in record else record["args"][1])
        elif node.kind == NodeKind.COLLECTIVE:
            node.collective = self._collective(record["coll"])
        elif node.kind == NodeKind.OUTPUT:
            node.slots = [self._slot(node_id, slot) for slot in record.get("out_desc", ())]

    @staticmethod
    def _kind(record: dict[str, Any]) -> NodeKind:
        named = {
            "placeholder": NodeKind.PLACEHOLDER,
            "output": NodeKind.OUTPUT,
            "get_attr": NodeKind.GET_ATTR,
            "getitem": NodeKind.GETITEM,
        }.get(record["op"])
        if named is not None:
            return named
        if "coll" in record:
            return NodeKind.COLLECTIVE
        return NodeKind.WAIT if record.get("wait_of") is not None else NodeKind.CALL

    @staticmethod
    def _ids(node_id: int, ids: list[Any]) -> list[int]:
        for other in ids:
            if not isinstance(other, int) or not 0 <= other < node_id:
                raise ValueError(f"it refers to node {other!r}, which does not come before it")
        return list(ids)

    def _tensor(self, record: dict[str, Any]) -> Tensor:
        stride = record.get("stride")
        shape = tuple(int(d) for d in record["shape"])
        return Tensor(self._dtypes[record["dtype"]], shape, None if stride is None else tuple(stride))

    def _direction(self, record: dict[str, Any]) -> Direction:
        text = self.kind if self.kind in ("fw", "bw") else record.get("direction")
        return {"fw": Direction.FORWARD, "bw": Direction.BACKWARD}.get(text, Direction.UNSPECIFIED)

    def _collective(self, record: dict[str, Any]) -> Collective:
        made = Collective(self._collectives[record["kind"]], self._group(record))
        made.reduce_op = ReduceOp[(record.get("reduce_op") or "none").upper()]
        if record.get("tag"):
            made.tag = TAGS[record["tag"]]
            made.parameter = record.get("param") or ""
        return made

    def _group(self, record: dict[str, Any]) -> int:
        name = record["group"]
        if name not in self.index:
            known = self.group_table.get(name, {})
            ranks = tuple(known.get("ranks", ()))
            size = known.get("size") or len(ranks) or record["group_size"]
            dim = known.get("mesh_dim")
            if not dim:
                unnamed = sum(1 for g in self.raw.groups if g.mesh_dim.startswith("group"))
                dim = "world" if size == self.raw.world_size else f"group{unnamed}"
            lane = known.get("lane")
            if lane is None:
                lane = self.lanes.get(dim, -1) + 1
                self.lanes[dim] = lane
            self.index[name] = len(self.raw.groups)
            self.raw.groups.append(Group(dim, lane, size, name, ranks))
        return self.index[name]

    def _slot(self, node_id: int, record: dict[str, Any]) -> Slot:
        if record.get("node") is None:
            return Slot(None)
        kind, fqn = record.get("kind"), record.get("fqn") or ""
        if kind == "grad":
            slot = SlotKind.PARAMETER_GRADIENT if fqn else SlotKind.INPUT_GRADIENT
        else:
            slot = {"output": SlotKind.OUTPUT, "saved": SlotKind.SAVED}.get(kind, SlotKind.UNSPECIFIED)
        return Slot(self._ids(node_id, [record["node"]])[0], slot, fqn)
