"""The executor's buckets as operators: what compilers see of them, and whose memory is in use between a start and its wait."""

import re

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import bucketd
from bucketd import bucket_ops, launch_order
from bucketd.boxed import boxed
from bucketd.errors import ExecutorError
from bucketd.joint import _Step

RANKS = 2


def test_no_cuda_graph_captures_them():
    assert all(torch.Tag.cudagraph_unsafe in op.tags
               for op in (bucket_ops.START, bucket_ops.WAIT, bucket_ops.START_IN_PLACE, bucket_ops.WAIT_IN_PLACE))


class Late:
    """A collective at its slowest: it reads its inputs when it is waited for, as if all ranks held the same."""

    def __init__(self):
        self.started = {}
        self.launches = []
        self.number = bucket_ops.enter(self)

    def start(self, bucket, inputs, outputs):
        self.launches.append(bucket)
        assert all(x.is_contiguous() for x in [*inputs, *outputs])
        self.started[bucket] = inputs, outputs

    def wait(self, bucket):
        inputs, outputs = self.started.pop(bucket)
        for x, out in zip(inputs, outputs):
            out.copy_(torch.cat([x] * RANKS))
        return outputs


class Watching(Late):
    """One that hears of its runs."""

    watches = True

    def begins(self):
        self.launches.append("begins")

    def ends(self):
        self.launches.append("ends")


def start(runner, bucket, order, *inputs):
    return torch.ops.bucketd.start(inputs, order, "all_gather", RANKS, runner.number, bucket)


def wait(runner, bucket, started, *inputs):
    return torch.ops.bucketd.wait(started, inputs, "all_gather", RANKS, runner.number, bucket)


def step(runner):
    """Two buckets in flight over buffers that die between, one of which reads what is no buffer of its own."""

    def run(a, b):
        turned = (a * 2 + 1).t()  # a view of what nobody has stored
        first = start(runner, 0, torch.empty(0), turned, a)
        c = (a @ b).sin()
        second = start(runner, 1, first, c)
        d = ((a + 3) @ b).cos() @ a  # as large as what is in flight
        e = (d @ b).relu()
        x, y = wait(runner, 0, first, turned, a)
        (z,) = wait(runner, 1, second, c)
        return x.sum(0) + y.sum(0), z * 2, e

    return run


def expected(a, b):
    turned, c = (a * 2 + 1).t(), (a @ b).sin()
    e = (((a + 3) @ b).cos() @ a @ b).relu()
    return torch.cat([turned] * RANKS).sum(0) + torch.cat([a] * RANKS).sum(0), torch.cat([c] * RANKS) * 2, e


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def inputs():
    torch.manual_seed(0)
    return torch.randn(24, 24), torch.randn(24, 24)


def same(found, wanted):
    return all(torch.allclose(x, y, rtol=1e-5, atol=1e-4) for x, y in zip(found, wanted, strict=True))


def test_node_by_node_and_compiled_give_what_the_step_says():
    a, b = inputs()
    late = Late()
    assert same(step(late)(a, b), expected(a, b))
    gm = make_fx(step(late), tracing_mode="fake")(a, b)
    assert same(boxed(gm)([a, b]), expected(a, b))
    assert late.launches == [0, 1] * 2 and not late.started


@pytest.mark.parametrize("runner, heard", [(Watching, ["begins", 0, 1, "ends"]), (Late, [0, 1])])
def test_a_runner_that_watches_hears_of_all_that_its_graphs_function_does(runner, heard):
    a, b = inputs()
    runner = runner()
    gm = make_fx(step(runner), tracing_mode="fake")(a, b)
    plain = boxed(gm)

    def observed(given):
        runner.launches.append("called")
        try:
            return plain(given)
        finally:
            runner.launches.append("left")

    observed._boxed_call = True
    around = bucket_ops.watcher(gm)(observed)
    assert around._boxed_call  # AOTAutograd would unpack its inputs, and hold them
    assert same(around([a, b]), expected(a, b))
    whole = ["called", 0, 1, "left"]
    assert runner.launches == ([heard[0], *whole, heard[-1]] if len(heard) > 2 else whole)
    runner.launches.clear()
    joint = object.__new__(_Step)
    joint.run_by(gm)
    assert same(joint.forward([a, b]), expected(a, b))
    assert runner.launches == heard


def test_no_result_is_an_operand_or_another_result():
    """PyTorch looks once at what operators like these return, and promises an error where they share memory."""
    a, b = inputs()
    with torch._functorch.config.patch(check_custom_op_aliasing=True, error_on_custom_op_aliasing=True):
        compiled = torch.compile(step(Late()), backend=aot_autograd(fw_compiler=lambda gm, _: boxed(gm)))
        assert same(compiled(a, b), expected(a, b))


@pytest.mark.parametrize("runner, heard", [(Watching, ["begins", 0, 1, "ends"]), (Late, [0, 1])])
def test_inductors_code_launches_in_order_and_leaves_memory_in_flight_alone(runner, heard):
    a, b = inputs()
    late, codes = runner(), []

    def compiler(gm, inputs):
        code = bucketd.inductor.compile_fx_inner(gm, inputs, inner_compile=compile_fx_inner)
        codes.append(code.source_code)
        return code

    compiled = torch.compile(step(late), backend=aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table()))
    with torch._functorch.config.patch(enable_autograd_cache=False), torch._inductor.config.patch(force_disable_caches=True):
        assert same(compiled(a, b), expected(a, b))
    assert late.launches == heard
    (code,) = codes
    assert launch_order.of_code(code) == [launch_order._of_bucket(f"{late.number}, 0"), launch_order._of_bucket(f"{late.number}, 1"),
                                          launch_order.Wait(0), launch_order.Wait(1)]
    assert untouched(code) == 2


def untouched(code) -> int:
    """Buckets whose tensors nobody frees, reuses or writes between start and wait; all of them, or it raises."""
    lines = code[code.rindex("def call("):].splitlines()
    found = 0
    for at, line in enumerate(lines):
        if not (start := re.search(r"bucketd\.start_\.default\((.*), (\d+, \d+)\)$", line)):
            continue
        end = next(k for k, other in enumerate(lines) if "bucketd.wait_.default(" in other and other.endswith(f"{start[2]})"))
        held = set(re.findall(r"\b(?:buf|arg)\w+", start[1].rpartition(",")[0]))
        for between in lines[at + 1:end]:
            freed = set(re.findall(r"\w+", between.partition("del ")[2])) if "del " in between else set()
            assert not held & freed, f"{between.strip()} while {start[0]} is in flight"
        found += 1
    return found


def test_a_gradient_through_a_bucket_is_refused():
    a, b = inputs()
    late = Late()
    total = sum(x.sum() for x in step(late)(a.requires_grad_(), b))
    with pytest.raises(ExecutorError, match="has no gradient of its own: plan the joint graph"):
        total.backward()
    with torch.no_grad():
        assert same(step(late)(a, b), expected(a, b))


def test_shapes_are_the_collectives_own():
    with FakeTensorMode():
        x, order = torch.empty(6, 5), torch.empty(0)
        shapes = {kind: tuple(torch.ops.bucketd.wait(order, [x], kind, 3, 0, 0)[0].shape)
                  for kind in ("all_gather", "reduce_scatter", "all_reduce")}
    assert shapes == {"all_gather": (18, 5), "reduce_scatter": (2, 5), "all_reduce": (6, 5)}


def test_whoever_rewrites_a_graph_leaves_a_start_that_nobody_reads():
    a, b = inputs()
    gm = make_fx(lambda a, b: (start(Late(), 0, torch.empty(0), a), b + 1)[1], tracing_mode="fake")(a, b)
    gm.graph.eliminate_dead_code()
    assert [node.target for node in gm.graph.nodes].count(bucket_ops.START) == 1


def test_an_executor_that_is_gone_is_an_error():
    number = bucket_ops.enter(Late())
    with pytest.raises(ExecutorError, match=f"executor {number} is gone"):
        torch.ops.bucketd.start([torch.ones(2)], torch.empty(0), "all_reduce", 2, number, 0)
