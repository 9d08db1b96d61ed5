"""Hints: numbers that stand for sizes which change from step to step.

A symbolic size is an expression of symbols. Each symbol gets a number, and the expression is computed from these, so that
sizes fit one another. Asking a SymInt itself for a number, or comparing it, would add a guard, and with it recompilations;
nothing here does.
"""

from __future__ import annotations

from typing import Any

import torch

# What a size that only the step itself finds out stands for: as many tokens for each expert, say.
UNBACKED = 64


def is_symbolic(size: Any) -> bool:
    if type(size) is int:
        return False
    known = getattr(getattr(size, "node", None), "maybe_as_int", None)
    return known is None or known() is None


class Hints:
    """A number for every size of one graph. A symbol has its value while the graph was traced, on a grid."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def __call__(self, size: Any) -> int:
        if type(size) is int:
            return size
        node = getattr(size, "node", None)
        if node is None:
            return int(size)
        known = node.maybe_as_int()
        if known is not None:
            return int(known)
        expression = getattr(node, "expr", None)
        if expression is None or node.shape_env is None:  # of a nested tensor
            return UNBACKED
        if expression not in self._known:
            self._known[expression] = self._compute(expression, node.shape_env)
        return self._known[expression]

    def static(self, value: Any) -> Any:
        """An argument of an operator with numbers in place of symbolic sizes; tensors lose their data, and keep their form."""
        if isinstance(value, torch.Tensor):
            if not any(map(is_symbolic, value.shape)):
                return value
            return torch.empty([self(size) for size in value.shape], dtype=value.dtype, device="meta")
        return self(value) if isinstance(value, torch.SymInt) else value

    def _compute(self, expression: Any, env: Any) -> int:
        import sympy

        numbers = {symbol: sympy.Integer(self._symbol(symbol, env)) for symbol in expression.free_symbols}
        try:
            return max(0, int(expression.xreplace(numbers)))
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):  # no number for these: a division by zero, say
            return UNBACKED

    def _symbol(self, symbol: Any, env: Any) -> int:
        traced = env.backed_var_to_val.get(symbol)
        return UNBACKED if traced is None else on_grid(int(traced))


def on_grid(size: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: close enough for costs, and few plans for many sizes."""
    if size <= 2:
        return max(0, size)
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power
