"""What an op's name and shapes tell without torch: proto/GRAPH.md §3."""

from __future__ import annotations

import functools
import math

from .graph import ITEM_SIZE, VIEW, Node, NodeKind, Tensor

CASTS = frozenset({"aten._to_copy.default", "prims.convert_element_type.default", "aten.to.dtype"})
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
    moves = _moves(node.op)
    total = 0 if moves == _NOTHING else _node_bytes(node, strides)
    if moves == _GATHERED:
        total *= 2
    if moves >= _GATHERED:
        for i in node.inputs[1 if moves == _GATHERED else 0 :]:
            total += _node_bytes(nodes[i], strides)
    return total


_NOTHING, _OUTPUTS, _GATHERED, _ALL = range(4)


@functools.lru_cache(4096)
def _moves(op: str) -> int:
    base = base_name(op)
    if base.startswith(("empty", "new_empty")) or base == "detach":
        return _NOTHING
    if base in _FILLS or base.endswith("_like") or base.startswith("new_"):
        return _OUTPUTS
    return _GATHERED if base in _GATHERS else _ALL


def _node_bytes(node: Node, strides: bool) -> int:
    total = 0
    for tensor in node.outputs:
        total += _bytes(tensor, strides)
    return total


def _bytes(tensor: Tensor, strides: bool) -> int:
    shape, stride = tensor.shape, tensor.stride if strides else None
    if stride is not None and 0 in stride and len(stride) == len(shape):  # expanded
        shape = [min(size, 1) if step == 0 else size for size, step in zip(shape, stride)]
    return math.prod(shape, start=ITEM_SIZE[tensor.dtype])
