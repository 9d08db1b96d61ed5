"""PyTorch's own overlap pass on a captured-graph file: what it merges, and the order that it leaves.

The graph is built again from the file's nodes on fake tensors, over a fake process group. Every node's time is the file's, as a
whole number of picoseconds (in place of milliseconds, which nothing compares with a constant), so that PyTorch's sums and
differences round no more than the planner's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import json
import operator
import pathlib
from unittest import mock

import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.fx_passes import bucketing, fsdp, memory_estimator, overlap_scheduling
from torch._prims import rng_prims
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

_COLLECTIVES = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
_MERGES = ("merge_all_gather_bucket", "merge_reduce_scatter_bucket", "merge_all_reduce_bucket")


@dataclasses.dataclass(frozen=True)
class Outcome:
    buckets: frozenset[frozenset[int]]  # ids of starts
    # Ids of compute nodes and of starts, a bucket's first member for the bucket, as the pass leaves them.
    order: tuple[int, ...]


def _value(argument, nodes):
    if isinstance(argument, dict) and set(argument) == {"n"}:
        return nodes[argument["n"]]
    if isinstance(argument, list):
        return [_value(item, nodes) for item in argument]
    if isinstance(argument, dict):
        return {name: _value(item, nodes) for name, item in argument.items()}
    if isinstance(argument, str) and argument.startswith("torch."):
        return getattr(torch, argument.removeprefix("torch."))
    if argument in ("inf", "-inf", "nan"):
        return float(argument)
    return argument


def _target(op: str):
    if op == "getitem":
        return operator.getitem
    if "." not in op:
        return getattr(rng_prims, op)
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


class Step:
    """A captured step as PyTorch's graph."""

    def __init__(self, path: pathlib.Path):
        self.file = self.read(path)
        self._make_groups()
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []
        self.constants = torch.nn.Module()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            for own in self.file["nodes"]:
                self.nodes.append(self._add(own))
            del mode
        self.id_of = {node.name: i for i, node in enumerate(self.nodes)}
        self.times = {node.name: round(own["est_us"] * 1e6) for node, own in zip(self.nodes, self.file["nodes"])}
        self.links = {}
        for own in self.file["nodes"]:
            if "coll" in own and "busbw" in own["coll"]:
                link = own["coll"]
                self.links[link["kind"], link["group"]] = (link["alpha_us"], link["busbw"], link["group_size"])

    @staticmethod
    def read(path: pathlib.Path) -> dict:
        return json.loads(gzip.decompress(path.read_bytes()))

    def _make_groups(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        world = self.file["world_size"]
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        self.groups = {name: dist.new_group(group["ranks"]).group_name for name, group in self.file["groups"].items()}

    def _add(self, own: dict) -> fx.Node:
        graph = self.graph
        if own["op"] == "placeholder":
            node = graph.placeholder(own["name"])
            shapes = own["outputs"]
            if shapes:
                only = shapes[0]
                node.meta["val"] = torch.empty_strided(only["shape"], only["stride"], dtype=getattr(torch, only["dtype"]))
            return node
        if own["op"] == "output":
            return graph.output([self.nodes[i] for i in own["inputs"]])
        args = _value(own.get("args", []), self.nodes)
        if own["op"].startswith("_c10d_functional."):
            args = [self.groups.get(argument, argument) if isinstance(argument, str) else argument for argument in args]
        kwargs = _value(own.get("kwargs", {}), self.nodes)
        if own["op"] == "get_attr":
            node = graph.create_node("get_attr", own["name"], (), {}, own["name"])
            only = own["outputs"][0]
            node.meta["val"] = torch.empty(only["shape"], dtype=getattr(torch, only["dtype"]))
            self.constants.register_buffer(own["name"], torch.zeros(only["shape"], dtype=node.meta["val"].dtype))
            return node
        wrapped = [_target(argument) if isinstance(argument, str) and argument.startswith("aten.") else argument for argument in args]
        node = graph.create_node("call_function", _target(own["op"]), tuple(wrapped), kwargs, own["name"])
        values, named = fx.map_arg((tuple(wrapped), kwargs), lambda n: n.meta["val"])
        call = node.target
        if own["op"] == "run_and_save_rng_state":
            node.meta["val"] = (torch.empty(16, dtype=torch.uint8), values[0](*values[1:], **named))
        elif own["op"] == "run_with_rng_state":
            node.meta["val"] = values[1](*values[2:], **named)
        else:
            node.meta["val"] = call(*values, **named)
        return node

    def outcome(self, *, collective_bucketing: bool = True, **options) -> Outcome:
        """Of schedule_overlap_bucketing with these arguments; uses the graph up."""
        module = fx.GraphModule(self.constants, self.graph)
        members = {node.name: (i,) for i, node in enumerate(self.nodes) if self._is_start(node)}
        with _recorded(members):
            overlap_scheduling.schedule_overlap_bucketing(
                module, collective_bucketing=collective_bucketing, custom_runtime_estimation=self._time, compute_estimator="analytical", **options)
        ids = {node.name: i for i, node in enumerate(self.nodes)}
        order, buckets = [], []
        for node in module.graph.nodes:
            if node.name in members:
                order.append(min(members[node.name]))
                buckets.append(frozenset(members[node.name]))
            elif node.name in ids and self.orders(self.file["nodes"][ids[node.name]]):
                order.append(ids[node.name])
        return Outcome(frozenset(bucket for bucket in buckets if len(bucket) > 1), tuple(order))

    @staticmethod
    def orders(own: dict) -> bool:
        """Whether a node of the file stands in an Outcome's order."""
        return bool("coll" in own or own.get("is_compute"))

    @staticmethod
    def _is_start(node: fx.Node) -> bool:
        return any(f"_c10d_functional.{name}" in str(node.target) for name in _COLLECTIVES)

    def _time(self, node: fx.Node, size: int | None) -> int:
        """`size`: of a collective's message; 0 asks for its latency."""
        if not self._is_start(node):
            return self.times.get(node.name, 0)
        if size is None and node.name in self.times:
            return self.times[node.name]
        kind = next(kind for kind, name in zip(("ag", "rs", "ar"), _COLLECTIVES) if name in str(node.target))
        group = next(name for name, own in self.groups.items() if own in node.args)
        alpha, busbw, ranks = self.links[kind, group]
        if size is None:
            size = max(_bytes(n) for n in (node, *node.all_input_nodes))
        rounds = 2 if kind == "ar" else 1
        return round(alpha * 1e6) + round(rounds * (ranks - 1) / ranks * 1e6 / busbw * size * 1e6)


def _bytes(node: fx.Node) -> int:
    return node.meta["val"].numel() * node.meta["val"].element_size()


@contextlib.contextmanager
def _recorded(members: dict[str, tuple[int, ...]]):
    """Enters every merged start into `members`, and takes what it stands for out."""
    def recording(merge):
        @functools.wraps(merge)
        def call(graph, bucket, *args, **kwargs):
            merged = sum((members.pop(node.name) for node in bucket), ())
            result = merge(graph, bucket, *args, **kwargs)
            starts = [node for node in result[0] if Step._is_start(node)]
            assert len(starts) == 1
            members[starts[0].name] = merged
            return result
        return call

    # Its tracker of memory looks away from the CPU's, where these tensors are.
    tracker = functools.partial(memory_estimator.MemoryTracker, device_filter=lambda device: True)
    with contextlib.ExitStack() as undo:
        undo.enter_context(mock.patch.object(overlap_scheduling, "MemoryTracker", tracker))
        # Asks triton for the memory's bandwidth; every node has a time of its own.
        undo.enter_context(mock.patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", lambda node: 0.0))
        for module in (bucketing, fsdp):
            for name in _MERGES:
                if hasattr(module, name):
                    undo.enter_context(mock.patch.object(module, name, recording(getattr(bucketing, name))))
        yield
