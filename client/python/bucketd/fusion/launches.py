"""What a profiler shows of predicted kernels: which of them run as one function, and what that is called.

For CPUs Inductor writes kernels that follow each other, with no call between them, into one function. A function's name is made of the
operators that its nodes were before decomposition (`original_aten`), sorted, each once: `cpp_fused_add_mul_3`, `triton_poi_fused_relu_0`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from ..graph import Launch, Node
from ..memory import base_name
from .groups import Kernel
from .values import Lowered


def word(node: fx.Node) -> str:
    """What a node adds to a kernel's name, "" if nothing."""
    op = node.meta.get("original_aten")
    if isinstance(op, torch._ops.OpOverload):
        return op._overloadpacket.__name__
    return str(op.name()) if isinstance(op, torch._ops.HigherOrderOperator) else ""


def launches(nodes: Sequence[Node], lowered: Lowered, predicted: Sequence[tuple], words: Callable[[int], str],
             one_function: bool) -> tuple[tuple[Launch, ...], tuple[str, ...]]:
    """The launches of predicted kernels in the order in which they run, and the words that a name may have besides, of views and
    of what is called. `predicted`: each kernel with its fusion.Unit, or None where it costs nothing. `words`: of each node.
    `one_function`: what follows each other runs as one."""
    found: list[Launch] = []
    function: list = []  # its units so far
    named: set[int] = set()

    def close() -> None:
        parts = {part for unit in function for part in unit.parts}
        named.update(part for part in parts if base_name(nodes[part].op) != "cat")  # pieces carry no name of their cat
        if function:
            spoken = tuple(sorted({words(part) for part in parts} - {""}))
            found.append(Launch(tuple(dict.fromkeys(unit.node for unit in function)), spoken, False))
        function.clear()

    units = {id(kernel): unit for kernel, unit in predicted}
    for kernel in _scheduled([kernel for kernel, _ in predicted]):
        unit = units[id(kernel)]
        if unit is not None and not kernel.is_call:
            function.append(unit)
        # The whole of a cat is there when its pieces are: nothing runs in its place.
        if not one_function or kernel.is_call and base_name(nodes[lowered.loops[kernel.loops[0]].node].op) != "cat":
            close()
        if unit is not None and kernel.is_call:
            found.append(Launch((unit.node,), ("addmm" if len(unit.parts) > 1 else base_name(nodes[unit.node].op),), True))
    close()
    besides = {words(number) for number in range(len(nodes)) if number not in named}
    return tuple(found), tuple(sorted(besides - {""}))


def _scheduled(kernels: Sequence[Kernel]) -> list[Kernel]:
    """As the scheduler leaves them: each where its first loop stood, or else right behind the last that it waits for."""
    writer = {buffer: kernel for kernel in kernels for buffer in kernel.writes}
    ordered: list[Kernel] = []
    met: set[int] = set()
    for kernel in kernels:
        stack = [(kernel, False)]
        while stack:
            at, waited = stack.pop()
            if waited:
                ordered.append(at)
            elif id(at) not in met:
                met.add(id(at))
                before = {id(k): k for k in (writer.get(buffer) for buffer, _ in at.reads) if k is not None}
                stack.append((at, True))
                stack += [(k, False) for k in sorted(before.values(), key=lambda k: -k.first) if id(k) not in met]
    return ordered
