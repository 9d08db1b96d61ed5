"""Rewrites an FX graph by a plan: nodes in the plan's order, buckets in place of their members.

In two steps, since all ranks must have agreed on a plan before one of them runs by it: prepare() checks the plan against
this rank's graph and changes nothing, and Edit.apply() changes the graph itself, moving its nodes instead of copying them.
What a bucket becomes, for members x_i with n_i elements, in payload order, on a group of W ranks:

  packed all-gather      cat of flattened x_i -> all_gather_into_tensor -> wait -> [W, S] -> columns n_i, copied out
  packed reduce-scatter  cat of x_i viewed [W, n_i / W], on dim 1 -> reduce_scatter_tensor -> wait -> pieces, copied out
  packed all-reduce      cat of flattened x_i -> all_reduce -> wait -> pieces, copied out
  grouped                one coalesced collective of all x_i -> one wait for each
  of the executor        bucket_ops' start of all x_i -> its wait, which gives all results

The pieces of a packed bucket are copies, contiguous and with storage of their own, as the results of the members were.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from . import bucket_ops, verify
from .errors import PlanRejected
from .fakes import Fakes
from .plan import Bucket, Plan, StepKind

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

_PLAIN = {
    "all_gather": c10d.all_gather_into_tensor.default,
    "reduce_scatter": c10d.reduce_scatter_tensor.default,
    "all_reduce": c10d.all_reduce.default,
}
_COALESCED = {
    "all_gather": c10d.all_gather_into_tensor_coalesced.default,
    "reduce_scatter": c10d.reduce_scatter_tensor_coalesced.default,
    "all_reduce": c10d.all_reduce_coalesced.default,
}
# What people and other passes look for on a node; new nodes have it from their bucket's first member.
_COPIED_META = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "seq_nr", "custom",
                "partitioner_tag", "autograd_backward")


def prepare(gm: fx.GraphModule, captured, normalized, digest: bytes, plan: Plan, runner=None) -> Edit:
    """The change that makes `gm` run by the plan, not made yet. PlanRejected if the plan is not one for it.

    `captured` and `normalized` are capture_graph() of `gm` and normalize() of that; `digest` is the digest of
    `normalized.graph`. With a `runner` (executor.Runner) those that it takes become bucket_ops' operators, which call
    that.
    """
    waits = verify.check_plan(normalized.graph, digest, plan)
    # Canonical id -> node of this rank; None where a normalised node stands for nothing here.
    own = [captured.nodes[raw] if raw >= 0 else None for raw in normalized.raw_ids]
    checks = _Checks(own, normalized.graph.nodes, plan)
    checks.order(gm.graph, waits)
    for k in range(len(plan.buckets)):
        checks.bucket(k)
    return Edit(gm, own, normalized.graph.nodes, plan, waits, runner)


class _Checks:
    """What verify cannot know: this rank's own graph, which has other shapes, and nodes of its own."""

    def __init__(self, own: list[fx.Node | None], nodes, plan: Plan):
        self.own, self.nodes, self.plan = own, nodes, plan

    def order(self, graph: fx.Graph, waits: dict[int, int]) -> None:
        """Every node has one place, behind its inputs."""
        place = {node: -1 for node in graph.find_nodes(op="placeholder")}
        place[graph.output_node()] = len(self.plan.order)
        for at, step in enumerate(self.plan.order):
            if step.kind == StepKind.NODE:
                place.setdefault(self.own[step.id], at)
            else:
                members = self.plan.buckets[step.id].members
                place.update((self.own[m if step.kind == StepKind.START else waits[m]], at) for m in members)
        lost = [n.name for n in graph.nodes if n not in place]
        if lost:
            raise PlanRejected(f"the plan says nothing of {', '.join(lost[:8])}", "order")
        for node in graph.nodes:
            at = place[node]
            for source in node.all_input_nodes:
                if place[source] >= at:
                    raise PlanRejected(f"{node} runs before its input {source}", "order")

    def bucket(self, k: int) -> None:
        bucket = self.plan.buckets[k]
        where = f"bucket {k}"
        starts = [self.own[m] for m in bucket.members]
        for node in starts:
            if node.target is not _PLAIN[bucket.kind] or len(node.args) < 2:
                raise PlanRejected(f"{node.name} is {node.target}, which no bucket can stand for", where)
            held = _shape(node.args[0])
            if bucket.kind == "reduce_scatter" and held is not None and (not held or held[0] % bucket.group_size):
                raise PlanRejected(
                    f"{node.name} reads {list(held)}, whose rows {bucket.group_size} ranks cannot share", where)
            # Everything but the tensor: (reduce op,) group size, group name. This rank's own name of the group.
            if node.args[1:] != starts[0].args[1:]:
                raise PlanRejected(
                    f"{starts[0].name} has {starts[0].args[1:]}, {node.name} has {node.args[1:]}", where)
        if bucket.packed:
            self._layout(bucket, where)

    def _layout(self, bucket: Bucket, where: str) -> None:
        for member in bucket.members:
            held = _shape(self.own[member].args[0])
            elements = self.nodes[self.nodes[member].inputs[0]].outputs[0].elements
            if held is not None and math.prod(held) != elements:
                raise PlanRejected(f"{self.own[member].name} reads {list(held)}, expected {elements} elements", where)


class Edit:
    """A plan that fits a graph. apply() makes it run by that, once, and cannot be refused any more."""

    def __init__(self, gm: fx.GraphModule, own: list[fx.Node | None], nodes, plan: Plan, waits: dict[int, int], runner):
        self.graph, self.own, self.nodes, self.plan, self.waits, self.runner = gm.graph, own, nodes, plan, waits, runner
        self.ours = runner.ours if runner is not None else {}
        self.launched: dict[int, list[fx.Node]] = {}  # bucket -> what its wait waits for
        self.fakes = Fakes(gm.graph)
        self.order: fx.Node | None = None  # what the next bucket of the runner's takes: bucket_ops' order

    def apply(self) -> None:
        """Changes the graph. The module's code is the old one until its next recompile()."""
        end = self.graph.output_node()
        with self.graph.inserting_before(end):
            for step in self.plan.order:
                if step.kind == StepKind.START:
                    self._start(self.plan.buckets[step.id], step.id)
                elif step.kind == StepKind.WAIT:
                    self._wait(self.plan.buckets[step.id], step.id)
                elif (node := self.own[step.id]) is not None and node.op not in ("placeholder", "output"):
                    end.prepend(node)
        for bucket in self.plan.buckets:
            for member in bucket.members:
                self.graph.erase_node(self.own[self.waits[member]])
                self.graph.erase_node(self.own[member])

    def _start(self, bucket: Bucket, k: int) -> None:
        starts = [self.own[m] for m in bucket.members]
        settings = starts[0].args[1:]
        inputs = [node.args[0] for node in starts]
        emit = _Emitter(self.graph, starts[0], self.fakes)
        if k in self.ours:
            self.launched[k] = [self._start_ours(emit, bucket, k, inputs)]
        elif bucket.packed:
            flat = self._pack(emit, bucket, inputs)
            self.launched[k] = [emit(_PLAIN[bucket.kind], flat, *settings, shape=[self._results(bucket)])]
        else:
            shapes = [self.nodes[m].outputs[0].shape for m in bucket.members]
            together = emit(_COALESCED[bucket.kind], inputs, *settings, shape=shapes)
            self.launched[k] = emit.parts(together)

    def _start_ours(self, emit: _Emitter, bucket: Bucket, k: int, inputs: list[fx.Node]) -> fx.Node:
        if self.order is None:
            self.order = emit.order()
        self.order = emit(bucket_ops.START, inputs, self.order, bucket.kind, bucket.group_size, self.runner.number, k, shape=[0])
        return self.order

    def _results(self, bucket: Bucket) -> int:
        """Elements of a packed bucket's result."""
        return sum(self.nodes[m].outputs[0].elements for m in bucket.members)

    def _pack(self, emit: _Emitter, bucket: Bucket, inputs: list[fx.Node]) -> fx.Node:
        rows = bucket.group_size if bucket.kind == "reduce_scatter" else 1
        columns = [self.nodes[self.nodes[m].inputs[0]].outputs[0].elements // rows for m in bucket.members]
        whole = sum(columns)
        if rows == 1:
            return emit(aten.cat.default, [emit.reshape(x, [n]) for x, n in zip(inputs, columns)], shape=[whole])
        parts = [emit.reshape(x, [rows, n]) for x, n in zip(inputs, columns)]
        return emit.reshape(emit(aten.cat.default, parts, 1, shape=[rows, whole]), [rows * whole])

    def _wait(self, bucket: Bucket, k: int) -> None:
        olds = [self.own[self.waits[m]] for m in bucket.members]
        emit = _Emitter(self.graph, self.own[bucket.members[0]], self.fakes)
        launched = self.launched.pop(k)
        shapes = [self.nodes[m].outputs[0].shape for m in bucket.members]
        if k in self.ours:
            inputs = launched[0].args[0]
            news = emit.parts(
                emit(bucket_ops.WAIT, launched[0], inputs, bucket.kind, bucket.group_size, self.runner.number, k, shape=shapes))
        elif bucket.packed:
            flat = emit(c10d.wait_tensor.default, launched[0], shape=[self._results(bucket)])
            news = self._unpack(emit, bucket, flat, shapes)
        else:
            news = [emit(c10d.wait_tensor.default, one, shape=shape) for one, shape in zip(launched, shapes)]
        for old, new in zip(olds, news):
            old.replace_all_uses_with(new)

    def _unpack(self, emit: _Emitter, bucket: Bucket, flat: fx.Node, shapes) -> list[fx.Node]:
        rows = bucket.group_size if bucket.kind == "all_gather" else 1
        sizes = [math.prod(shape) // rows for shape in shapes]
        if rows > 1:
            flat = emit.reshape(flat, [rows, sum(sizes)], aten.view.default)
            pieces = emit(aten.split_with_sizes_copy.default, flat, sizes, 1, shape=[(rows, n) for n in sizes])
        else:
            pieces = emit(aten.split_with_sizes_copy.default, flat, sizes, shape=[(n,) for n in sizes])
        return [emit.reshape(x, list(shape), aten.view.default) for x, shape in zip(emit.parts(pieces), shapes)]


class _Emitter:
    """Inserts calls into a graph, each with the fake tensor that it makes and the provenance of `first`."""

    def __init__(self, graph: fx.Graph, first: fx.Node, fakes: Fakes):
        self.graph, self.fakes = graph, fakes
        self.meta = {key: first.meta[key] for key in _COPIED_META if key in first.meta}
        self.like = first.meta["val"]

    def __call__(self, target, *args, shape=None) -> fx.Node:
        """`shape` of the result, or a list of them; None: there is nothing that a fake tensor could stand for."""
        node = self._call(target, args)
        if shape is not None:
            many = bool(shape) and not isinstance(shape[0], int)
            node.meta["val"] = [self.fakes.empty(one, self.like) for one in shape] if many else self.fakes.empty(shape, self.like)
        return node

    def reshape(self, source: fx.Node, shape: list[int], target=aten.reshape.default) -> fx.Node:
        node = self._call(target, (source, shape))
        node.meta["val"] = self.fakes.reshape(source.meta["val"], shape)
        return node

    def parts(self, source: fx.Node) -> list[fx.Node]:
        """Of a node with several results."""
        nodes = []
        for i, value in enumerate(source.meta["val"]):
            nodes.append(self._call(operator.getitem, (source, i)))
            nodes[-1].meta["val"] = value
        return nodes

    def order(self) -> fx.Node:
        """The first of a graph's, which no start has taken. On no "meta", whatever the values of the graph are on: PyTorch would
        take the operators that get it for ones that compute nothing."""
        device = torch.device("cpu") if self.like.device.type == "meta" else self.like.device
        node = self._call(aten.empty.memory_format, ([0],), dict(dtype=self.like.dtype, device=device))
        node.meta["val"] = self.fakes.empty([0], self.like)
        return node

    def _call(self, target, args, kwargs=None) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(self.meta)
        return node


def _shape(node: fx.Node):
    val = node.meta.get("val")
    return tuple(val.shape) if isinstance(val, torch.Tensor) else None
