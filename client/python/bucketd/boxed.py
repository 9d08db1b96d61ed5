"""A graph as a function: what fx.GraphModule.recompile() makes, in two thirds of its time, for compilers that run it node by node."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable
from typing import Any

from torch import fx

from . import collector

_WRITTEN = (int, bool, str, type(None))  # stand in the code as they are; other constants have names there


def boxed(gm: fx.GraphModule) -> Callable[[list], Any]:
    """`gm` as AOTAutograd calls it: with one list of inputs, which it empties, so that each dies at its last use.

    `gm` must be an aten-level graph: of placeholders, attributes, calls of functions and one output; ValueError names the
    node that is something else. Attributes are read when it runs; later changes of the graph do not reach it.
    """
    with collector.off():
        code = _Code(gm)
        exec(compile(code.text, code.scope["__name__"], "exec"), code.scope)
    run = code.scope["run"]
    run._boxed_call = True
    return run


class _Code:
    """The text of the function, and the scope in which operators and constants have names that no node has."""

    def __init__(self, gm: fx.GraphModule):
        self._nodes = list(gm.graph.nodes)
        self._taken = {node.name for node in self._nodes} | {"run"}
        self._functions: dict[object, str] = {}
        # Who prints a traceback finds the line by __loader__.
        self.scope: dict[str, Any] = {"__name__": f"<bucketd graph>.{id(self):x}", "__loader__": self}
        self._module = self._name("module", gm)
        given = self._name("inputs", None)
        inputs = [node.name for node in self._nodes if node.op == "placeholder"]
        unread = "".join(f"{node.name} = " for node in self._nodes if node.op == "placeholder" and not node.users)
        lines = [f"def run({given}):", f"    [{', '.join(inputs)}] = {given}", f"    {given}.clear(); {unread}None"]
        dying = self._last_uses()
        for node in self._nodes:
            if node.op != "placeholder":
                dead = dying.get(node)
                lines.append(f"    {self._statement(node)}; del {dead}" if dead else f"    {self._statement(node)}")
        self.text = "\n".join(lines) + "\n"

    def get_source(self, _name: str) -> str:
        return self.text

    def _last_uses(self) -> dict[fx.Node, str]:
        """node -> "a, b", the values that it is the last to read."""
        seen: set[fx.Node] = set()
        dying: dict[fx.Node, str] = {}
        for node in reversed(self._nodes):
            last = [source for source in node.all_input_nodes if source not in seen]
            seen.update(last)
            if node.op != "output":
                dying[node] = ", ".join([source.name for source in last])
        return dying

    def _statement(self, node: fx.Node) -> str:
        bound = f"{node.name} = " if node.users else ""
        if node.op == "output":
            return f"return {self._value(node.args[0])}"
        if node.op == "get_attr":
            return f"{bound}{self._name('attribute', operator.attrgetter(node.target))}({self._module})"
        if node.op != "call_function":
            raise ValueError(f"node {node.name} is a {node.op}; an aten-level graph has none")
        values = [self._value(value) for value in node.args]
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return f"{bound}{values[0]}[{values[1]}]"
        for name, value in node.kwargs.items():
            said = self._value(value)
            values.append(f"**{{{name!r}: {said}}}" if keyword.iskeyword(name) else f"{name}={said}")
        function = self._functions.get(node.target)
        if function is None:
            said = str(node.target) if hasattr(node.target, "_schema") else getattr(node.target, "__name__", "call")
            function = self._functions[node.target] = self._name(said, node.target)
        return f"{bound}{function}({', '.join(values)})"

    def _value(self, value: Any) -> str:
        kind = type(value)
        if kind is fx.Node:
            return value.name
        if kind in _WRITTEN:
            return repr(value)
        if not _holds_nodes(value):
            return self._name(f"constant_{len(self.scope)}", value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._value, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self._value(part)}' for key, part in value.items())}}}"
        if kind is slice:
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        parts = "".join(f"{self._value(part)}, " for part in value)
        return f"({parts})" if kind is tuple else f"{self._name(kind.__name__, kind)}({parts})"

    def _name(self, said: str, value: Any) -> str:
        name = re.sub(r"\W|^(?=\d)", "_", said)
        while name in self._taken or keyword.iskeyword(name):
            name += "_"
        self._taken.add(name)
        self.scope[name] = value
        return name


def _holds_nodes(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_nodes, value))
    if isinstance(value, dict):
        return any(map(_holds_nodes, value.values()))
    if isinstance(value, slice):
        return any(map(_holds_nodes, (value.start, value.stop, value.step)))
    return isinstance(value, fx.Node)
