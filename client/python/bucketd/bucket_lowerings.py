"""bucket_ops.py's operators in Inductor's code: start_ and wait_ in memory that Inductor gives and nobody reuses between them.

A lowering of our own, since Inductor's would copy an input that is no plain buffer once for the start and once more for the
wait: the first copy, which the collective reads, would be free memory in between.
"""

from __future__ import annotations

import weakref

from torch._inductor import ir
from torch._inductor.lowering import empty_strided, register_lowering
from torch._inductor.virtualized import V

from . import bucket_ops

# Of each graph that is being compiled: what its buckets read and write, by runner and bucket, from start to wait.
_in_flight: weakref.WeakKeyDictionary[object, dict[tuple[int, int], tuple[list, list]]] = weakref.WeakKeyDictionary()


def is_start(node) -> bool:
    return type(node) is ir.FallbackKernel and node.op_overload is bucket_ops.START_IN_PLACE


def is_wait(node) -> bool:
    return type(node) is ir.FallbackKernel and node.op_overload is bucket_ops.WAIT_IN_PLACE


@register_lowering(bucket_ops.START, type_promotion_kind=None)
def _start(inp, order, kind, group_size, runner, bucket):
    inp = [ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(x)) for x in inp]
    out = [empty_strided(bucket_ops.result_shape(x.get_size(), kind, group_size), None, dtype=x.get_dtype(), device=x.get_device())
           for x in inp]
    _in_flight.setdefault(V.graph, {})[runner, bucket] = inp, out
    ir.FallbackKernel.create(bucket_ops.START_IN_PLACE, inp, out, order, runner, bucket)
    return order


@register_lowering(bucket_ops.WAIT, type_promotion_kind=None)
def _wait(started, inp, kind, group_size, runner, bucket):
    inp, out = _in_flight[V.graph].pop((runner, bucket))
    ir.FallbackKernel.create(bucket_ops.WAIT_IN_PLACE, out, inp, started, runner, bucket)
    return out
