"""What a bucket becomes, on numbers: the merged graph and the one it came from, run as all their ranks at once."""

import lockstep
import pytest
import torch
from any_plan import _fill, any_plan
from fx_graphs import Builder, aten, c10d
from plannable import GROUPED, PACKED, Plannable

from bucketd import ops
from bucketd._wire.proto import plan_pb2
from bucketd.errors import PlanRejected


class Case(Plannable):
    """A graph that all its ranks can run at once."""

    def __init__(self, builder, gm, world, kind="fw"):
        super().__init__(builder, gm, kind)
        self.world = world

    def inputs(self, seed=0):
        """Small whole numbers, of every rank its own: sums are exact, whatever their order."""
        generator = torch.Generator().manual_seed(seed)
        values = [n.meta["val"] for n in self.gm.graph.nodes if n.op == "placeholder"]
        return [[torch.randint(-50, 50, v.shape, generator=generator).to(v.dtype) for v in values] for _ in range(self.world)]

    def check(self, module, reuse=""):
        """That `module` computes what the graph does, bit for bit, on every rank."""
        inputs = self.inputs()
        for expected, got in zip(lockstep.run(self.gm, inputs), lockstep.run(module, inputs, reuse)):
            for a, b in zip(expected, got, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def one(module, target):
    (node,) = [n for n in module.graph.nodes if n.target is target]
    return node


def up_to(module, node):
    """The part of a graph that makes `node`, which it returns."""
    graph, new = torch.fx.Graph(), {}
    for own in module.graph.nodes:
        if own.op != "output":
            new[own] = graph.node_copy(own, new.__getitem__)
    graph.output([new[node]])
    return torch.fx.GraphModule({}, graph)


def casts(module):
    return [n for n in module.graph.nodes if n.target is aten._to_copy.default]


def gathers(world=2, cast=False):
    b = Builder()
    parameters = [b.parameter("a", 3, 2), b.parameter("b", 5)]
    if cast:
        parameters = [b.cast(p) for p in parameters]
    return Case(b, b.output([b.wait(b.gather(p, world)) for p in parameters]), world)


def scatters(op="sum", world=4):
    b = Builder()
    gradients = [b.input("a", 8, 3), b.input("b", 20), b.input("c", 4, 1, 5)]
    waits = [b.wait(b.scatter(g, op, world)) for g in gradients]
    return Case(b, b.output(waits), world, "bw")


def test_T7_1_a_packed_gather_holds_each_ranks_payloads_back_to_back():
    case = gathers(world=2)
    module = case.apply(case.merge(case.starts))
    case.check(module)
    payload = 3 * 2 + 5
    gather = one(module, c10d.all_gather_into_tensor.default)
    assert gather.meta["val"].shape == (2 * payload,) and gather.args[0].meta["val"].shape == (payload,)
    # Rank 1's slice begins at S. No rank is written into the graph: it is the same on all of them.
    inputs = case.inputs()
    for (flat,) in lockstep.run(up_to(module, one(module, c10d.wait_tensor.default)), inputs):
        assert torch.equal(flat[payload:], torch.cat([x.flatten() for x in inputs[1]]))


def test_T7_2_a_cast_stays_a_node_and_its_dtype_travels():
    # The plan says where every node runs, casts too, and the bucket takes what they make.
    case = gathers(cast=True)
    module = case.apply(case.merge(case.starts))
    case.check(module)
    gather = one(module, c10d.all_gather_into_tensor.default)
    assert gather.meta["val"].dtype == torch.bfloat16 and len(casts(module)) == 2
    assert all(n.meta["val"].dtype == torch.bfloat16 for n in module.graph.output_node().args[0])


def test_T7_3_a_cast_with_another_reader_is_made_once():
    b = Builder()
    shards = [b.cast(b.parameter(name, 3, 2)) for name in "pq"]
    waits = [b.wait(b.gather(s, 2)) for s in shards]
    case = Case(b, b.output([*waits, b.call(aten.neg.default, shards[0])]), 2)
    module = case.apply(case.merge(case.starts))
    case.check(module)
    assert len(casts(module)) == 2
    assert sorted(len(n.users) for n in casts(module)) == [1, 2]


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_T7_4_row_r_of_a_packed_scatter_is_rank_rs_chunk_of_every_member(op):
    case = scatters(op)
    module = case.apply(case.merge(case.starts[::-1]))
    case.check(module)
    flat = one(module, c10d.reduce_scatter_tensor.default).args[0]
    inputs = case.inputs()
    for (buffer,), own in zip(lockstep.run(up_to(module, flat), inputs), inputs):
        for r, row in enumerate(buffer.view(4, -1)):
            assert torch.equal(row, torch.cat([x.chunk(4)[r].flatten() for x in own[::-1]]))


def test_T7_5_two_reduce_ops_in_one_bucket_are_an_error():
    b = Builder()
    x, y = b.input("x", 8), b.input("y", 8)
    case = Case(b, b.output([b.wait(b.scatter(x, "sum")), b.wait(b.scatter(y, "avg"))]), 4, "bw")
    with pytest.raises(PlanRejected, match="bucket 0: .* differ in kind, group, reduce op or dtype"):
        case.apply(case.merge(case.starts))


def test_T7_6_two_readers_of_a_start_are_an_error():
    b = Builder()
    x, y = b.input("x", 8), b.input("y", 8)
    first, second = b.scatter(x), b.scatter(y)
    case = Case(b, b.output([b.wait(first), b.wait(second), b.call(aten.view.default, first, [2, 1])]), 4, "bw")
    made = plan_pb2.Plan(format_version=1, graph_digest=case.digest, node_count=len(case.graph.nodes))
    _fill(made.buckets.add(), case.graph, case.starts, PACKED)
    with pytest.raises(PlanRejected, match="bucket 0: .* must be read by one wait, and by nothing else"):
        case.apply(made)


@pytest.mark.parametrize("case,target", [
    (gathers, c10d.all_gather_into_tensor_coalesced.default),
    (scatters, c10d.reduce_scatter_tensor_coalesced.default),
])
def test_T7_7_a_grouped_bucket_is_one_start_and_a_wait_for_each_member(case, target):
    case = case()
    module = case.apply(case.merge(case.starts, GROUPED))
    case.check(module)
    start = one(module, target)
    waits = [n for n in module.graph.nodes if n.target is c10d.wait_tensor.default]
    assert len(waits) == len(case.starts) == len(start.args[0])
    assert [w.args[0].args for w in waits] == [(start, i) for i in range(len(waits))]


def test_T7_8_a_bucket_has_one_dtype():
    # Members of several dtypes in one buffer are not offered: each would need its own alignment, and no captured model has
    # gathers whose dtypes mix, since parameters are cast before they travel.
    b = Builder()
    p, q = b.parameter("p", 3, dtype=torch.bfloat16), b.parameter("q", 1)
    case = Case(b, b.output([b.wait(b.gather(p, 2)), b.wait(b.gather(q, 2))]), 2)
    for mode in (PACKED, GROUPED):
        with pytest.raises(PlanRejected, match="differ in kind, group, reduce op or dtype"):
            case.apply(case.merge(case.starts, mode))


@pytest.mark.parametrize("mode", [PACKED, GROUPED])
def test_T7_9_a_scatter_that_its_ranks_cannot_share_evenly_is_an_error(mode):
    b = Builder()
    x, y = b.input("x", 8), b.input("y", 7, 3)
    case = Case(b, b.output([b.wait(b.scatter(x)), b.wait(b.scatter(y))]), 4, "bw")
    with pytest.raises(PlanRejected, match=r"bucket 0: reduce_scatter\S* reads \[7, 3\], whose rows 4 ranks cannot share"):
        case.apply(case.merge(case.starts, mode))


def step(world=4):
    """Gathers that are used at once, gradients, their scatters and reductions, and views in between."""
    b = Builder()
    p = [b.parameter(f"p{i}", *shape) for i, shape in enumerate([(3, 2), (1, 5), (2, 4), (5,)])]
    whole = [b.wait(b.gather(b.call(aten.mul.Tensor, x, 2.0), world)) for x in p]
    used = [b.call(aten.mul.Tensor, b.call(aten.view.default, w, [-1]), 3.0) for w in whole]
    sums = [b.call(aten.neg.default, u) for u in used]
    pieces = [b.wait(b.scatter(b.call(aten.add.Tensor, s, u), "sum", world)) for s, u in zip(sums, used)]
    totals = [b.wait(b.reduce(b.call(aten.add.Tensor, s, 1.0), "sum", "0")) for s in sums]
    results = [b.call(aten.mul.Tensor, x, 0.5) for x in pieces + totals]
    return Case(b, b.output(results), world, "joint")


@pytest.mark.parametrize("seed", range(12))
def test_T7_10_memory_may_be_reused_once_its_last_reader_or_wait_has_run(seed):
    case = step()
    made = any_plan(case.graph, case.digest, seed)
    assert made.buckets
    case.check(case.apply(made), reuse="until wait")


def test_T7_10_a_buffer_is_not_free_between_start_and_wait():
    # What the test above would not notice, were collectives done with their input when they start.
    case = step()
    with pytest.raises(AssertionError):
        case.check(case.apply(any_plan(case.graph, case.digest, 0)), reuse="after last reader")


def test_T7_10_results_do_not_stand_on_the_buffer_that_they_came_in():
    case = gathers()
    module = case.apply(case.merge(case.starts))
    wait = one(module, c10d.wait_tensor.default)
    below = [n for n in module.graph.nodes if set(n.all_input_nodes) & {wait, *wait.users}]
    copies = [n for n in below if n.op == "call_function" and not ops.storage(n, ops.facts(n.target))[0]]
    assert [n.target for n in copies] == [aten.split_with_sizes_copy.default]
