"""Buckets as operators: what stands in a planned graph where libbucket_executor runs a bucket.

    start(inp, order, kind, group_size, runner, bucket)   -> the order that the next start takes, and this one's wait
    wait(started, inp, kind, group_size, runner, bucket)  -> the results

A graph has these two. They are functional: no result shares memory with an operand or another result, and nobody has the results
before the wait. `order` and `started`, tensors of no elements, run from start to start and from a start to its wait: launches
then have one order, the plan's, for every compiler that keeps data flow. `inp` is an operand of wait() too, so that nobody
reuses or writes what a collective still reads. `kind` is "all_gather", "reduce_scatter" or "all_reduce".

    start_(inp, out, order, runner, bucket), wait_(out, inp, order, runner, bucket)

do the work, in memory that the caller owns; Inductor's code has them (bucket_lowerings.py). The runner (executor.Runner) holds
all tensors of a bucket from its start to its wait, so a caller that drops one takes nothing from under a collective.

Their autograd rule is a refusal: plans are applied behind AOTAutograd's partitioner, or to a joint graph that holds the gradients
already, and no bucket of a plan is another one's gradient. Without the rule, whoever differentiates a planned graph would get
gradients that lack a part, and a warning.
"""

from __future__ import annotations

import functools
import itertools
import weakref

import torch

from .errors import ExecutorError

_library = torch.library.Library("bucketd", "DEF")
# In a CUDA graph nothing of them would be run again: Inductor leaves them out of what it captures.
_define = functools.partial(_library.define, tags=(torch.Tag.cudagraph_unsafe,))
_define("start(Tensor[] inp, Tensor order, str kind, int group_size, int runner, int bucket) -> Tensor")
_define("wait(Tensor started, Tensor[] inp, str kind, int group_size, int runner, int bucket) -> Tensor[]")
_define("start_(Tensor[] inp, Tensor(a!)[] out, Tensor(b!) order, int runner, int bucket) -> ()")
_define("wait_(Tensor(a!)[] out, Tensor[] inp, Tensor(b!) order, int runner, int bucket) -> ()")

START = torch.ops.bucketd.start.default
WAIT = torch.ops.bucketd.wait.default
START_IN_PLACE = torch.ops.bucketd.start_.default
WAIT_IN_PLACE = torch.ops.bucketd.wait_.default
for _op in (START, WAIT):
    torch.fx.node.has_side_effect(_op)  # a start without its wait would leave the other ranks alone

_numbers = itertools.count()
_runners: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def enter(runner) -> int:
    """The number by which graphs name the runner, for as long as somebody else holds it."""
    number = next(_numbers)
    _runners[number] = runner
    return number


def watcher(gm):
    """What goes around the function that runs `gm`, a planned graph: its runner hears where each run begins and ends, if it wants to."""
    number = next((node.args[4] for node in gm.graph.find_nodes(op="call_function", target=START)), None)
    if not getattr(_runners.get(number), "watches", False):
        return lambda run: run

    def around(run):
        @functools.wraps(run)
        def watched(*args):
            _runner(number).begins()
            results = run(*args)
            _runner(number).ends()
            return results

        return watched

    return around


def _runner(number: int):
    runner = _runners.get(number)
    if runner is None:
        raise ExecutorError(f"executor {number} is gone: it lives as long as the backend, or the step, that made it")
    return runner


def check_executors() -> None:
    """ExecutorError where a bucket that has been waited for is not right: on a GPU its error may come behind the wait, and then its
    results are undefined. The host waits for all that this rank has launched."""
    for runner in list(_runners.values()):
        runner.check()


def result_shape(shape, kind: str, group_size: int) -> list:
    """Of one member, by the shape that goes in."""
    if kind == "all_gather":
        return [shape[0] * group_size, *shape[1:]]
    return [shape[0] // group_size, *shape[1:]] if kind == "reduce_scatter" else list(shape)


def _results(inp, kind, group_size):
    return [x.new_empty(result_shape(x.shape, kind, group_size)) for x in inp]


def _start(inp, order, kind, group_size, runner, bucket):
    _start_in_place(inp, _results(inp, kind, group_size), order, runner, bucket)
    return order.new_empty(0)


def _wait(started, inp, kind, group_size, runner, bucket):
    return _runner(runner).wait(bucket)


def _start_in_place(inp, out, order, runner, bucket):
    _runner(runner).start(bucket, [x.contiguous() for x in inp], out)


def _wait_in_place(out, inp, order, runner, bucket):
    _runner(runner).wait(bucket)


for _name, _run, _fake in (("start", _start, lambda inp, order, *_: order.new_empty(0)),
                           ("wait", _wait, lambda started, inp, kind, group_size, *_: _results(inp, kind, group_size)),
                           ("start_", _start_in_place, lambda *_: None), ("wait_", _wait_in_place, lambda *_: None)):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"bucketd::{_name}", _fake, lib=_library)


def _refuse(ctx, *_):
    raise ExecutorError("a bucket that the executor runs has no gradient of its own: plan the joint graph, or forward and backward "
                        "behind AOTAutograd")


torch.library.register_autograd("bucketd::wait", _refuse, lib=_library)
