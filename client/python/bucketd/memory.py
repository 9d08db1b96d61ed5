"""What an op's name and shapes tell without torch: proto/GRAPH.md §3."""

from __future__ import annotations

from .graph import ITEM_SIZE, VIEW, Node, NodeKind, Tensor

_GATHERS = frozenset({"embedding", "index", "index_select", "gather"})
_FILLS = frozenset({"zeros", "ones", "full", "arange"})

_ORDERED_PARTS = (
    "rand",
    "bernoulli",
    "dropout",
    "multinomial",
    "normal",
    "uniform",
    "poisson",
    "exponential",
    "rng_state",
    "_assert",
    "_local_scalar_dense",
    "print",
)


def base_name(op: str) -> str:
    """What stands between the first two dots: "aten.mm.default" -> "mm"."""
    parts = op.split(".", 2)
    return parts[1] if len(parts) > 1 else op


def is_ordered(op: str) -> bool:
    """Random, effectful and host-synchronising ops, whose relative order must stay."""
    base = base_name(op)
    return not base.endswith("_backward") and any(part in base for part in _ORDERED_PARTS)


def memory_bytes(nodes: list[Node], node: Node, strides: bool = True) -> int:
    """Of `node`, whose inputs are ids in `nodes`. Without `strides`, from shapes alone."""
    if node.kind != NodeKind.CALL or node.flags & VIEW:
        return 0
    base = base_name(node.op)
    if base.startswith(("empty", "new_empty")) or base == "detach":
        return 0
    written = sum(_bytes(t, strides) for t in node.outputs)
    if base in _FILLS or base.endswith("_like") or base.startswith("new_"):
        return written
    if base in _GATHERS:
        return 2 * written + sum(_node_bytes(nodes[i], strides) for i in node.inputs[1:])
    return written + sum(_node_bytes(nodes[i], strides) for i in node.inputs)


def _node_bytes(node: Node, strides: bool) -> int:
    return sum(_bytes(t, strides) for t in node.outputs)


def _bytes(tensor: Tensor, strides: bool) -> int:
    count = ITEM_SIZE[tensor.dtype]
    known = strides and tensor.stride is not None and len(tensor.stride) == len(tensor.shape)
    for axis, size in enumerate(tensor.shape):
        if known and tensor.stride[axis] == 0:
            size = min(size, 1)
        count *= size
    return count
