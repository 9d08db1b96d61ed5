"""What a traced step takes for granted, compared at each call: its inputs but for the contents of tensors, and the model's own tensors."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

# Of other things the type counts: what they hold may be anything.
_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_NOTHING = object()


class Inputs:
    """Positional inputs of a step: a graph has the numbers and texts among them as constants, and one place for each tensor."""

    def __init__(self, inputs: tuple):
        leaves, self._structure = pytree.tree_flatten(tuple(inputs))
        self._said = [_described(leaf) for leaf in leaves]

    def leaves(self, given: tuple) -> list:
        """Of `given`; ValueError where another step would have been traced for them."""
        leaves, structure = pytree.tree_flatten(given)
        for number, (said, leaf) in enumerate(itertools.zip_longest(self._said, leaves, fillvalue=_NOTHING)):
            now = None if leaf is _NOTHING else _described(leaf)
            if said is _NOTHING or now not in (said, (*said[:3], False)):  # what takes no gradient is not given one
                was = "none" if said is _NOTHING else _text(said)
                why = "" if said is not _NOTHING and said[0] == "tensor" else " (what is no tensor is a constant of the graph)"
                raise ValueError(f"input {number} is {_text(now)}; the step was traced for {was}{why}")
        if structure != self._structure:
            raise ValueError(f"the inputs are {_line(structure)}; the step was traced for {_line(self._structure)}")
        return leaves


def _line(structure: pytree.TreeSpec) -> str:
    return " ".join(str(structure).split())


def _described(leaf: Any) -> tuple:
    if isinstance(leaf, torch.Tensor):
        return "tensor", tuple(leaf.shape), leaf.dtype, leaf.requires_grad
    return "constant", type(leaf), repr(leaf) if isinstance(leaf, _VALUES) else None  # nan is nan


def _text(described: tuple | None) -> str:
    if described is None:
        return "None"
    kind, what, more, *takes = described
    return f"{list(what)} of {more}{' with a gradient' if any(takes) else ''}" if kind == "tensor" else more or f"a {what.__name__}"


class Tensors:
    """The model's parameters, or its buffers, by name: those that it has now, where they are like those that it had."""

    def __init__(self, model: torch.nn.Module, kind: str):
        """`kind` is "parameter" or "buffer"."""
        self._kind = kind
        self._places = {}  # name -> (where modules keep theirs, name there)
        for prefix, module in model.named_modules(remove_duplicate=False):
            held = module._parameters if kind == "parameter" else module._buffers
            self._places.update({f"{prefix}.{key}" if prefix else key: (held, key) for key, value in held.items() if value is not None})
        self._said = {name: _layout(held[key]) for name, (held, key) in self._places.items()}

    def now(self) -> dict[str, torch.Tensor]:
        """In the order of the model's named_parameters() or named_buffers(). ValueError where one is of another form, or some take
        gradients that took none, or the other way round."""
        found = {name: held.get(key) for name, (held, key) in self._places.items()}
        for name, tensor in found.items():
            layout, was = _layout(tensor) if tensor is not None else None, self._said[name]
            if layout != was:
                raise ValueError(f"{self._kind} {name} is {_shown(layout)}; the step was traced for {_shown(was)}: make it anew")
        return found


def _layout(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.requires_grad, tensor.placements if isinstance(tensor, DTensor) else None


def _shown(layout: tuple | None) -> str:
    if layout is None:
        return "gone"
    shape, dtype, takes, placements = layout
    return f"{list(shape)} of {dtype}{f' as {placements}' if placements else ''} with{'' if takes else 'out'} a gradient"


def hooked(parameters: dict[str, torch.Tensor]) -> str:
    """The first one's name with hooks of autograd's, which run where autograd gives it its gradient; ""."""
    return next((name for name, p in parameters.items() if p._backward_hooks or p._post_accumulate_grad_hooks), "")
