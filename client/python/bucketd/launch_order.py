"""The plan's order of launches and waits through Inductor's scheduler, and in the code that came out.

Inductor fuses kernels after it has lowered the graph, and a fused kernel stands where its first member stood: one that
reads what a wait brings drags the wait in front of launches that the plan has before it. KeepOrder tells the scheduler the
plan's order as dependencies before it fuses, so that it makes no such kernel; check() reads the code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import fx
from torch._inductor.codegen.wrapper import pexpr
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.dependencies import WeakDep
from torch._inductor.utils import is_collective, is_wait

from . import bucket_lowerings, bucket_ops
from .errors import InductorOrderError
from .ops import facts

_OPS = r"torch\.ops\._c10d_functional\."
_LAUNCH = re.compile(rf"(?:(\w+) = )?{_OPS}(?!wait_tensor)(\w+)\.default\((.*)\)$")
_OURS = re.compile(r"torch\.ops\.bucketd\.(start|wait)_\.default\(.*, (\d+, \d+)\)$")
_WAIT = re.compile(rf"{_OPS}wait_tensor\.default\((?:reinterpret_tensor\()?(\w+)")
_SAME = re.compile(r"(\w+) = (\w+)(?:\[\d+\]|; del \2  # reuse)?$")
_SHAPE = re.compile(r"assert_size_stride\((\w+), \(([\d, ]*)\), .*_c10d_functional")
_DEF = re.compile(r"\s*def (\w+)\(")
_PARTITION = re.compile(r"self\.partitions\[(\d+)\]\(")


class KeepOrder(CustomSchedulerPass):
    """Makes launches, waits and heavy kernels (matrix products and the like) keep the graph's order, whatever is fused.

    Launches and waits are a chain. A heavy kernel follows the launch or wait before it and precedes the next one; between
    two of them the kernels are free. `then` is somebody else's pass in this place, which goes first.
    """

    def __init__(self, then=None):
        self.then = then

    def uuid(self):
        own = ("bucketd", 3)  # what this package does to the code, and which version of that
        if self.then is None:
            return own
        theirs = self.then.uuid() if isinstance(self.then, CustomSchedulerPass) else None
        return (*own, theirs) if theirs is not None else None

    def __call__(self, nodes):
        if self.then is not None:
            nodes = self.then(nodes)
        event, since = None, []
        for node in nodes:
            if _is_event(node.node):
                for before in [event, *since] if event is not None else since:
                    _after(node, before)
                event, since = node, []
            elif node.is_extern() or node.is_template():
                if event is not None:
                    _after(node, event)
                since.append(node)
        return _refresh(nodes)


def _is_event(node) -> bool:
    return is_wait(node) or is_collective(node) or bucket_lowerings.is_start(node) or bucket_lowerings.is_wait(node)


def _after(node, before) -> None:
    for name in before.get_buffer_names():
        # Named by its operation, it is no dependency that a fusion could make superfluous.
        node.add_fake_dep(WeakDep(name, mutating_buf=node.get_name(), is_fake=True))


def _refresh(nodes):
    """With what the scheduler knows of ancestors, by which it judges fusions, made new."""
    from torch._inductor.virtualized import V

    scheduler = V.graph.scheduler
    scheduler.nodes = scheduler.topological_sort_schedule(nodes)
    scheduler.compute_ancestors()
    return scheduler.nodes


@dataclass(frozen=True)
class Launch:
    """One launch: by what is called, what it is given beside tensors, and what it makes."""

    operator: str
    settings: str  # "'sum', 4, '0'"
    shape: tuple[int, ...] | None  # of its one result; None where that is not told

    def matches(self, other: Launch) -> bool:
        shapes = self.shape == other.shape or None in (self.shape, other.shape)
        return (self.operator, self.settings) == (other.operator, other.settings) and shapes

    def __str__(self) -> str:
        return f"{self.operator}({self.settings})" + (f" of {list(self.shape)}" if self.shape is not None else "")


@dataclass(frozen=True)
class Wait:
    launch: int  # the place among the launches of the one that it waits for


Events = list[Launch | Wait]


def of_graph(gm: fx.GraphModule) -> Events:
    """Launches and waits of an aten-level graph, in order."""
    events: Events = []
    launched: dict[fx.Node, int] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        known = facts(node.target)
        source = node.args[0] if node.args else None
        if node.target is bucket_ops.START:
            launched[node] = sum(isinstance(event, Launch) for event in events)
            events.append(_of_bucket(", ".join(map(str, node.args[-2:]))))
        elif node.target is bucket_ops.WAIT:
            events.append(Wait(launched[source]))
        elif known.wait and source in launched:
            events.append(Wait(launched[source]))
            launched[node] = launched[source]
        elif known.name.startswith("_c10d_functional.") and not known.wait:
            launched[node] = sum(isinstance(event, Launch) for event in events)
            events.append(_launch_of(node))
        elif source in launched and node.target.__name__ == "getitem":
            launched[node] = launched[source]
    return events


def _of_bucket(runner_and_number: str) -> Launch:
    """One of the executor's."""
    return Launch("bucketd.start", runner_and_number, None)


def _launch_of(node: fx.Node) -> Launch:
    settings = [_written(value) for value in fx.map_arg(node.args[1:], lambda size: size.meta.get("val"))]
    value = node.meta.get("val")
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) and all(type(n) is int for n in value.shape) else None
    return Launch(_plain(node.target._opname), ", ".join(settings), shape)


def _written(value: object) -> str:
    """As Inductor writes it: sizes that only the step finds out by their symbols."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    return pexpr(value.node.expr) if isinstance(value, torch.SymInt) else repr(value)


def _plain(name: str) -> str:
    """Inductor works in place where nobody else reads."""
    return name.removesuffix("_")


def of_code(source: str) -> Events:
    """The same of the Python that Inductor wrote: of its call(), in which each partition stands where it is called."""
    functions: dict[str, list[str]] = {}
    at: list[str] = []
    for line in source.splitlines():
        if begin := _DEF.match(line):
            at = functions[begin[1]] = []
        at.append(line.strip())
    reader = _Reader(functions)
    reader.read("call")
    return reader.events


class _Reader:
    def __init__(self, functions: dict[str, list[str]]):
        self.functions = functions
        self.events: Events = []
        self.launches: list[int] = []  # where they are in events
        self.launched: dict[str, int] = {}  # what holds the result of one

    def read(self, function: str) -> None:
        for line in self.functions.get(function, ()):
            if called := _PARTITION.search(line):
                self.read(f"partition_{called[1]}")
            elif ours := _OURS.match(line):
                self._ours(ours[1], ours[2])
            elif launch := _LAUNCH.match(line):
                self._launch(launch[1], launch[2], launch[3])
            elif wait := _WAIT.match(line):
                self.events.append(Wait(self.launched.get(wait[1], -1)))
            elif (made := _SHAPE.match(line)) and made[1] in self.launched:
                self._shape(self.launched[made[1]], tuple(int(n) for n in made[2].split(",") if n.strip()))
            elif (same := _SAME.match(line)) and same[2] in self.launched:
                self.launched[same[1]] = self.launched[same[2]]

    def _ours(self, what: str, bucket: str) -> None:
        if what == "wait":
            self.events.append(Wait(self.launched.get(bucket, -1)))
            return
        self.launched[bucket] = len(self.launches)
        self.launches.append(len(self.events))
        self.events.append(_of_bucket(bucket))

    def _launch(self, result: str | None, name: str, arguments: str) -> None:
        tensors, settings = _first_argument(arguments)
        held = [result] if result else re.findall(r"\w+", tensors)  # in place: where it was
        self.launched.update((one, len(self.launches)) for one in held)
        self.launches.append(len(self.events))
        self.events.append(Launch(_plain(name), settings, None))

    def _shape(self, launch: int, shape: tuple[int, ...]) -> None:
        at = self.launches[launch]
        made = self.events[at]
        self.events[at] = Launch(made.operator, made.settings, shape)


def _first_argument(arguments: str) -> tuple[str, str]:
    depth = 0
    for at, sign in enumerate(arguments):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and not depth:
            return arguments[:at], arguments[at + 1 :].strip()
    return arguments, ""


def check(planned: Events, source: str) -> str:
    """What the code's waits do otherwise than the plan, "" if nothing: that costs time, and changes no result.

    Raises InductorOrderError where the code's launches are others, or in another order: ranks would meet in different ones.
    """
    code = of_code(source)
    wanted, got = ([e for e in events if isinstance(e, Launch)] for events in (planned, code))
    for at in range(max(len(wanted), len(got))):
        pair = [str(events[at]) if at < len(events) else "nothing" for events in (wanted, got)]
        if at >= min(len(wanted), len(got)) or not wanted[at].matches(got[at]):
            hint = "; it has no launches that can be read" if not got else ""
            raise InductorOrderError(f"launch {at} is {pair[1]} in Inductor's code, {pair[0]} in the plan{hint}")
    shown, read = (_shown(events) for events in (planned, code))
    return "" if shown == read else f"the plan is {shown}, Inductor's code {read}"


def _shown(events: Events) -> str:
    """`L0 L1 w0 L2 w1 w2`: a second wait does nothing, nor does one for what nobody here launched."""
    count, words, waited = 0, [], {-1}
    for event in events:
        if isinstance(event, Launch):
            words.append(f"L{count}")
            count += 1
        elif event.launch not in waited:
            words.append(f"w{event.launch}")
            waited.add(event.launch)
    return " ".join(words)
