"""What compiles a step's graphs lets go of all that it works with once the backward is compiled.

PyTorch keeps some compiled functions for good, even behind torch._dynamo.reset() (sharded modules of torch.nn, for one), and with each what
compiles, or has compiled, its backward. What a backend has open is not to stay for that when the backend is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def until_backward(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """`compiler`, as AOTAutograd and Inductor call it for the graphs of one step: the backward is the last one, and once it is compiled
    it is not compiled again."""
    held = [compiler]

    def compile_part(part, inputs, **more):
        compiled = held[0](part, inputs, **more)
        if more.get("is_backward"):
            held.clear()
        return compiled

    return compile_part
