"""Rewrites an FX graph by a plan: nodes in the plan's order, buckets in place of their members.

The new module is built completely beside the old one, which is never touched: a plan that cannot be applied leaves
nothing half done. What a bucket becomes, for members x_i with n_i elements, in payload order, on a group of W ranks:

  packed all-gather      cat of flattened x_i -> all_gather_into_tensor -> wait -> [W, S] -> columns n_i, copied out
  packed reduce-scatter  cat of x_i viewed [W, n_i / W], on dim 1 -> reduce_scatter_tensor -> wait -> pieces, copied out
  packed all-reduce      cat of flattened x_i -> all_reduce -> wait -> pieces, copied out
  grouped                one coalesced collective of all x_i -> one wait for each

The pieces of a packed bucket are copies, contiguous and with storage of their own, as the results of the members were.
"""

from __future__ import annotations

import contextlib
import operator

import torch
from torch import fx
from torch._guards import detect_fake_mode

from . import verify
from .errors import PlanRejected
from .graph import ITEM_SIZE
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


def apply_plan(gm: fx.GraphModule, captured, normalized, digest: bytes, plan: Plan, runner=None) -> fx.GraphModule:
    """A new module that runs `gm` by the plan; `gm` stays as it is. PlanRejected if the plan is not one for it.

    `captured` and `normalized` are capture_graph() of `gm` and normalize() of that; `digest` is the digest of
    `normalized.graph`. With a `runner` (executor.Runner) buckets become calls of its start() and wait().
    """
    waits = verify.check_plan(normalized.graph, digest, plan)
    return _Rewrite(gm, captured, normalized, plan, waits, runner).run()


class _Rewrite:
    def __init__(self, gm, captured, normalized, plan: Plan, waits: dict[int, int], runner):
        self.runner = runner
        self.gm = gm
        self.nodes = normalized.graph.nodes
        self.graph = normalized.graph
        self.plan = plan
        # Canonical id -> node of this rank; None where a normalised node stands for nothing here.
        self.own = [captured.nodes[raw] if raw >= 0 else None for raw in normalized.raw_ids]
        self.wait_of = waits
        self.out = fx.Graph(tracer_cls=gm.graph._tracer_cls)
        self.new: dict[fx.Node, fx.Node] = {}
        self.launched: dict[int, list[fx.Node]] = {}  # bucket -> what its wait waits for
        self.fake_mode = detect_fake_mode([n.meta.get("val") for n in gm.graph.nodes])

    def run(self) -> fx.GraphModule:
        for node in self.gm.graph.find_nodes(op="placeholder"):
            self._copy(node)
        for step in self.plan.order:
            if step.kind == StepKind.NODE:
                node = self.own[step.id]
                if node is not None and node.op not in ("placeholder", "output"):
                    self._copy(node)
            elif step.kind == StepKind.START:
                self._start(step.id)
            else:
                self._wait(step.id)
        self._copy(self.gm.graph.output_node())
        self._check_nothing_lost()
        self.out.set_codegen(self.gm.graph._codegen)
        self.out.lint()
        module = fx.GraphModule(self.gm, self.out, type(self.gm).__name__)
        module.meta.update(self.gm.meta)
        module.train(self.gm.training)
        return module

    def _copy(self, node: fx.Node) -> None:
        self.new[node] = self.out.node_copy(node, lambda source: self._value(source, node))

    def _value(self, source: fx.Node, reader) -> fx.Node:
        found = self.new.get(source)
        if found is None:
            raise PlanRejected(f"{reader} runs before its input {source}", "order")
        return found

    def _check_nothing_lost(self) -> None:
        started = {self.own[m] for b in self.plan.buckets for m in b.members}
        lost = [n.name for n in self.gm.graph.nodes if n not in self.new and n not in started]
        if lost:
            raise PlanRejected(f"the plan says nothing of {', '.join(lost[:8])}", "order")

    # -- buckets

    def _start(self, k: int) -> None:
        bucket = self.plan.buckets[k]
        starts = [self.own[m] for m in bucket.members]
        for node in starts:
            if node.target is not _PLAIN[bucket.kind] or len(node.args) < 2:
                raise PlanRejected(f"{node.name} is {node.target}, which no bucket can stand for", f"bucket {k}")
            held = _shape(node.args[0])
            if bucket.kind == "reduce_scatter" and held is not None and (not held or held[0] % bucket.group_size):
                raise PlanRejected(
                    f"{node.name} reads {list(held)}, whose rows {bucket.group_size} ranks cannot share", f"bucket {k}")
        # Everything but the tensor: (reduce op,) group size, group name. This rank's own name of the group.
        settings = starts[0].args[1:]
        for node in starts[1:]:
            if node.args[1:] != settings:
                raise PlanRejected(
                    f"{starts[0].name} has {settings}, {node.name} has {node.args[1:]}", f"bucket {k}")
        emit = _Emitter(self.out, self.fake_mode, starts[0])
        inputs = [self._value(node.args[0], node) for node in starts]
        if self.runner is not None:
            self.launched[k] = [emit(self.runner.start, k, inputs)]
        elif bucket.packed:
            flat = self._pack(emit, bucket, k, inputs)
            self.launched[k] = [emit(_PLAIN[bucket.kind], flat, *settings)]
        else:
            together = emit(_COALESCED[bucket.kind], inputs, *settings)
            self.launched[k] = [emit(operator.getitem, together, i) for i in range(len(inputs))]

    def _pack(self, emit, bucket: Bucket, k: int, inputs: list[fx.Node]) -> fx.Node:
        rows = bucket.group_size if bucket.kind == "reduce_scatter" else 1
        columns = [self._columns(bucket, i, rows) for i in range(len(inputs))]
        self._check_offsets(bucket, k, columns)
        if rows == 1:
            return emit(aten.cat.default, [emit(aten.reshape.default, x, [n]) for x, n in zip(inputs, columns)])
        parts = [emit(aten.reshape.default, x, [rows, n]) for x, n in zip(inputs, columns)]
        return emit(aten.reshape.default, emit(aten.cat.default, parts, 1), [rows * sum(columns)])

    def _columns(self, bucket: Bucket, i: int, rows: int) -> int:
        """Elements of member i in one rank's slice, from what this rank holds."""
        node = self.nodes[bucket.members[i]]
        elements = self.nodes[node.inputs[0]].outputs[0].elements
        held = _shape(self.own[bucket.members[i]].args[0])
        if held is not None and _elements(held) != elements:
            raise PlanRejected(f"{self.own[bucket.members[i]].name} reads {list(held)}, expected {elements} elements")
        return elements // rows

    def _check_offsets(self, bucket: Bucket, k: int, columns: list[int]) -> None:
        item = ITEM_SIZE[self.nodes[bucket.members[0]].outputs[0].dtype]
        built = [item * sum(columns[:i]) for i in range(len(columns))]
        if built != list(bucket.offsets) or item * sum(columns) != bucket.slice_bytes:
            raise PlanRejected(
                f"offsets {list(bucket.offsets)} in {bucket.slice_bytes} bytes, built are {built} in "
                f"{item * sum(columns)}", f"bucket {k}")

    def _wait(self, k: int) -> None:
        bucket = self.plan.buckets[k]
        old_waits = [self.own[self.wait_of[m]] for m in bucket.members]
        emit = _Emitter(self.out, self.fake_mode, self.own[bucket.members[0]])
        launched = self.launched.pop(k)
        if self.runner is not None:
            waits = self._results(emit, emit(self.runner.wait, k, launched[0]), old_waits)
        else:
            waits = [emit(c10d.wait_tensor.default, started) for started in launched]
            if bucket.packed:
                waits = self._unpack(emit, bucket, waits[0])
        for old, new in zip(old_waits, waits):
            self.new[old] = new

    def _results(self, emit, together: fx.Node, old_waits: list[fx.Node]) -> list[fx.Node]:
        """Of the runner's list: nobody can run the runner on fake tensors, and the old waits know what comes."""
        results = [emit(operator.getitem, together, i) for i in range(len(old_waits))]
        for new, old in zip(results, old_waits):
            new.meta.update({"val": old.meta["val"]} if "val" in old.meta else {})
        return results

    def _unpack(self, emit, bucket: Bucket, flat: fx.Node) -> list[fx.Node]:
        shapes = [list(self.nodes[m].outputs[0].shape) for m in bucket.members]
        sizes = [_elements(shape) for shape in shapes]
        if bucket.kind == "all_gather":
            world = bucket.group_size
            sizes = [n // world for n in sizes]
            flat = emit(aten.view.default, flat, [world, sum(sizes)])
            pieces = emit(aten.split_with_sizes_copy.default, flat, sizes, 1)
        else:
            pieces = emit(aten.split_with_sizes_copy.default, flat, sizes)
        return [
            emit(aten.view.default, emit(operator.getitem, pieces, i), shape) for i, shape in enumerate(shapes)
        ]


class _Emitter:
    """Appends calls to a graph, each with the fake tensor that it makes and the provenance of `first`."""

    def __init__(self, graph: fx.Graph, fake_mode, first: fx.Node):
        self.graph = graph
        self.fake_mode = fake_mode
        self.meta = {key: first.meta[key] for key in _COPIED_META if key in first.meta}

    def __call__(self, target, *args) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta.update(self.meta)
        sources = node.all_input_nodes
        known = isinstance(target, torch._ops.OpOverload) or target is operator.getitem
        if known and all("val" in source.meta for source in sources):
            with self.fake_mode or contextlib.nullcontext():
                node.meta["val"] = target(*fx.map_arg(args, lambda source: source.meta["val"]))
        return node


def _elements(shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _shape(node: fx.Node):
    val = node.meta.get("val")
    return tuple(val.shape) if isinstance(val, torch.Tensor) else None
