"""What an operator tells about itself: aliases, writes, flags, FLOPs. Read from its schema and torch's registries."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from .graph import COMPUTE, DTYPE_NAMES, ORDERED, POINTWISE, VIEW, CollectiveKind, DType, ReduceOp
from .memory import CASTS, base_name, is_ordered
from .sizes import Hints
from .values import returns_nothing, wrapped, wraps

DTYPES: dict[torch.dtype, DType] = {getattr(torch, name): dtype for dtype, name in DTYPE_NAMES.items()}

# What stands for a dtype that there is no name for, by bytes of an element: a tensor that no collective touches is a size alone.
_BY_SIZE = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64, 16: DType.C128}


def described(dtype: torch.dtype) -> DType | None:
    """None: only where no element is so large."""
    return DTYPES.get(dtype) or _BY_SIZE.get(dtype.itemsize)


REDUCE_OPS = {op.name.lower(): op for op in ReduceOp if op != ReduceOp.NONE}

_COLLECTIVES = {
    "all_gather_into_tensor": CollectiveKind.ALL_GATHER,
    "all_gather_into_tensor_out": CollectiveKind.ALL_GATHER,
    "reduce_scatter_tensor": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter_tensor_out": CollectiveKind.REDUCE_SCATTER,
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_reduce_": CollectiveKind.ALL_REDUCE,
    "all_to_all_single": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "broadcast_": CollectiveKind.BROADCAST,
}
_C10D = ("_c10d_functional.", "c10d_functional.")

# Ops that share storage with their input although their schema does not say so.
_SILENT_VIEWS = frozenset({"aten._unsafe_view.default"})
# Elementwise although torch does not tag them so.
_POINTWISE_TOO = CASTS | {"aten.clone.default"}


@dataclasses.dataclass(frozen=True, slots=True)
class OpFacts:
    """What holds for every call of one operator."""

    name: str  # "aten.mm.default"; "higher_order.cond", "operator.add" and the like for what is no overload
    collective: CollectiveKind | None
    wait: bool
    cast: bool
    shares_first: bool  # the result stands on the first input's storage, whatever the schema says
    aliased: tuple[tuple[int | None, str, bool], ...]  # of arguments with an alias annotation: (position, name, is written)
    returns_alias: bool
    ordered: bool
    draws: bool  # from a random generator, by torch's word, unless its dropout is 0
    returns_nothing: bool
    pointwise: bool
    wraps: bool  # runs another operator, which values.wrapped() knows


@functools.cache
def facts(target: object) -> OpFacts:
    name = _name(target)
    own = name.startswith(_C10D)
    base = base_name(name)
    schema = target._schema if isinstance(target, torch._ops.OpOverload) else None
    arguments = schema.arguments if schema is not None else ()
    return OpFacts(
        name=name,
        collective=_COLLECTIVES.get(base) if own else None,
        wait=own and base == "wait_tensor",
        cast=name in CASTS,
        shares_first=target is operator.getitem or name in _SILENT_VIEWS or own and base == "wait_tensor",
        aliased=tuple((None if a.kwarg_only else i, a.name, a.alias_info.is_write)
                      for i, a in enumerate(arguments) if a.alias_info is not None),
        returns_alias=schema is not None and any(r.alias_info is not None for r in schema.returns),
        ordered=is_ordered(name),
        draws=schema is not None and torch.Tag.nondeterministic_seeded in target.tags and not base.endswith("_backward"),
        returns_nothing=returns_nothing(target),
        pointwise=schema is not None and (torch.Tag.pointwise in target.tags or name in _POINTWISE_TOO),
        wraps=schema is None and wraps(target),
    )


def _name(target: object) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module = (getattr(target, "__module__", "") or "").strip("_").rpartition(".")[2]
    name = getattr(target, "__name__", None) or type(target).__name__
    return f"{module}.{name}" if module else name


def argument(node: torch.fx.Node, name: str, default: Any = None) -> Any:
    """Of a call of an OpOverload; `default` where it is left out."""
    for position, schema in enumerate(node.target._schema.arguments):
        if schema.name == name:
            if position < len(node.args) and not schema.kwarg_only:
                return node.args[position]
            return node.kwargs.get(name, default)
    return default


def storage(node: torch.fx.Node, op: OpFacts) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """(nodes whose storage the outputs share, nodes that the call writes), by the operator's schema. `op` is facts(node.target)
    here and below: a lookup by operator costs more than most of what is asked of it."""
    if op.shares_first:
        return list(node.all_input_nodes[:1]), []
    if not op.aliased:
        return [], []
    shared: dict[torch.fx.Node, None] = {}
    written: dict[torch.fx.Node, None] = {}
    for position, name, is_write in op.aliased:
        given = position is not None and position < len(node.args)
        nodes = dict.fromkeys(_nodes(node.args[position] if given else node.kwargs.get(name)))
        if is_write:
            written |= nodes
        if op.returns_alias:
            shared |= nodes
    return list(shared), list(written)


def _nodes(value: Any) -> list[torch.fx.Node]:
    if isinstance(value, torch.fx.Node):
        return [value]
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(value, lambda n: found.append(n) or n)
    return found


def flags(node: torch.fx.Node, op: OpFacts, shared: list[torch.fx.Node], written: list[torch.fx.Node]) -> int:
    ordered = op.ordered or op.draws and argument(node, "dropout_p", 1) != 0 or op.returns_nothing and not written
    out = ORDERED if ordered else 0
    if formula(wrapped(node)[0] if op.wraps else node.target) is not None:
        out |= COMPUTE
    if op.pointwise:
        out |= POINTWISE
    views = shared and not written and shared[0] is node.all_input_nodes[0] and not (op.cast and _changes_dtype(node))
    return out | VIEW if views else out


def _changes_dtype(node: torch.fx.Node) -> bool:
    """A cast whose schema says "maybe an alias" is one only if the dtype stays."""
    before, after = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    return getattr(before, "dtype", None) != getattr(after, "dtype", None)


def formula(target: object) -> Callable[..., int] | None:
    return flop_registry.get(getattr(target, "overloadpacket", target))


def flops(node: torch.fx.Node, op: OpFacts, hints: Hints) -> int:
    """By torch's own count, on the shapes of the fake values; 0 where a formula does not take this call."""
    target, args, result = wrapped(node) if op.wraps else (node.target, node.args, node.meta.get("val"))
    count = formula(target)
    if count is None:
        return 0
    kwargs = {name: value for name, value in node.kwargs.items() if not op.wraps or name != "rng_state"}
    values = torch.fx.node.map_arg((args, kwargs), lambda n: pytree.tree_map(hints.static, n.meta.get("val")))
    try:
        return max(0, int(count(*values[0], **values[1], out_val=pytree.tree_map(hints.static, result))))
    except (TypeError, ValueError, AttributeError, AssertionError, IndexError):
        return 0
