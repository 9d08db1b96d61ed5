"""What a node of an FX graph holds, also where PyTorch leaves `meta["val"]` out.

Two kinds of nodes come without a value. An operator whose schema returns nothing (`aten._assert_async.msg`) holds
nothing. `run_and_save_rng_state` and `run_with_rng_state`, on GPUs `graphsafe_run_with_rng_state`, which the partitioner puts around
a random operator that the backward runs again, hold the operator's own result, the first one behind the generator's state.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from .graph import GraphError

_SAVES = "run_and_save_rng_state"
_RUNS = "run_with_rng_state"
_RUNS_ON_GPU = "graphsafe_run_with_rng_state"  # of a generator that CUDA graphs know, by a keyword


def value_of(node: torch.fx.Node) -> Any:
    """meta["val"], or what stands for it; GraphError, which names the node, where nothing can be known.

    A generator's state comes with a symbol for its size; here it has its size.
    """
    if _is_rng_state(node):
        return rng_state()
    if "val" in node.meta or node.op != "call_function" or returns_nothing(node.target):
        return node.meta.get("val")
    if _name(node.target) in (_SAVES, _RUNS, _RUNS_ON_GPU):
        return _parts(node)
    raise GraphError(
        f"node {node.name} has no value in its meta: the pass that inserted this {node.target} has to set meta['val']", node.name
    )


def returns_nothing(target: object) -> bool:
    return isinstance(target, torch._ops.OpOverload) and not target._schema.returns


def wraps(target: object) -> bool:
    return _name(target) in (_SAVES, _RUNS, _RUNS_ON_GPU)


def wrapped(node: torch.fx.Node) -> tuple[object, tuple[Any, ...], Any]:
    """(operator, its positional arguments, its result): those inside, for a node that runs an operator with a generator's state."""
    if _name(node.target) == _SAVES:
        return node.args[0], node.args[1:], (*value_of(node), None)[1]
    if _name(node.target) == _RUNS:
        return node.args[1], node.args[2:], value_of(node)
    if _name(node.target) == _RUNS_ON_GPU:
        return node.args[0], node.args[1:], value_of(node)
    return node.target, node.args, node.meta.get("val")


def is_nested(value: Any) -> bool:
    """Whether an element of a result is several values itself, so that its position says nothing about one tensor."""
    return isinstance(value, (tuple, list)) and any(isinstance(part, (tuple, list)) for part in value)


def rng_state() -> torch.Tensor:
    """Stands for a generator's state, whose size differs by kind of device and not by rank."""
    size = 16 if torch.cuda.is_available() else torch.get_rng_state().numel()
    return torch.empty(size, dtype=torch.uint8, device="meta")


def _parts(node: torch.fx.Node) -> Any:
    """A result of several values by those who read them; None for what nobody reads. One that is read whole is made anew."""
    if _name(node.target) != _SAVES and any(u.target is not operator.getitem for u in node.users):
        return _made(node)
    read = {u.args[1]: value_of(u) for u in node.users if u.target is operator.getitem}
    if _name(node.target) == _SAVES:
        read.setdefault(0, rng_state())
    return tuple(read.get(position) for position in range(max(read, default=-1) + 1))


def _made(node: torch.fx.Node) -> Any:
    """What the operator inside makes of values that stand for its arguments."""
    first = 0 if _name(node.target) == _RUNS_ON_GPU else 1
    kwargs = {name: value for name, value in node.kwargs.items() if name != "rng_state"}
    args, kwargs = torch.fx.node.map_arg((node.args[first + 1:], kwargs), value_of)
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    with contextlib.nullcontext() if mode is None else mode:
        return node.args[first](*args, **kwargs)


def _is_rng_state(node: torch.fx.Node) -> bool:
    if node.target is operator.getitem:
        return _name(node.args[0].target) == _SAVES and node.args[1] == 0
    users = list(node.users) if node.op == "placeholder" else []
    return bool(users) and all(_name(user.target) == _RUNS and user.args[0] is node for user in users)


@functools.cache
def _name(target: object) -> str:
    return target.name() if isinstance(target, torch._ops.HigherOrderOperator) else ""
