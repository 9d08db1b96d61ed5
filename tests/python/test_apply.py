"""The graph that a plan makes, node by node, and what is refused before anything is made."""

import dataclasses

import pytest
import torch
from any_plan import any_plan
from fx_graphs import Builder, aten, c10d, result, value
from plannable import GROUPED, PACKED, Plannable
from planners import planner
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import bucketd
from bucketd import apply, plan
from bucketd._wire.proto import plan_pb2
from bucketd.errors import PlanRejected


def calls(module):
    return [(n.target, *n.args) for n in module.graph.nodes if n.op == "call_function"]


def called(module, target):
    return [n for n in module.graph.nodes if n.target is target]


def gathers(world=4):
    builder = Builder()
    a = builder.parameter("a", 3, 2, dtype=torch.bfloat16)
    b = builder.parameter("b", 5, dtype=torch.bfloat16)
    waits = [builder.wait(builder.gather(x, world, group="7")) for x in (a, b)]
    return Plannable(builder, builder.output(waits))


def scatters():
    builder = Builder()
    a, b = builder.input("a", 8, 3), builder.input("b", 20)
    waits = [builder.wait(builder.scatter(x, "avg", 4, group="7")) for x in (a, b)]
    return Plannable(builder, builder.output(waits), "bw")


def reductions():
    builder = Builder()
    a, b = builder.input("a", 2, 3), builder.input("b")
    waits = [builder.wait(builder.reduce(x, group="7")) for x in (a, b)]
    return Plannable(builder, builder.output(waits), "bw")


def test_a_planned_graph_is_the_graph_that_was_given_and_there_is_no_second_one(monkeypatch):
    """Its nodes are moved; only the members of buckets go."""
    builder = Builder()
    waits = [builder.wait(builder.gather(builder.parameter(f"{name}.weight", 2, 3))) for name in "ab"]
    module = builder.output([builder.call(aten.relu.default, wait) for wait in waits], [result(), result(1)])
    members, before = {*waits, *(wait.args[0] for wait in waits)}, set(module.graph.nodes)
    plans, made, init = [], [], fx.Graph.__init__
    monkeypatch.setattr(fx.Graph, "__init__", lambda graph, *rest, **more: made.append(graph) or init(graph, *rest, **more))
    with planner() as one:
        planned = bucketd.plan_pass(module, kind="fw", context=builder.context, address=one.address, mode="manual", buckets="a+b",
                                    numerics="exact", memory_limit="4x", on_plan=plans.append)
    assert planned is module is plans[0].module and not made
    assert len(plans[0].plan.buckets) == 1
    assert before - set(module.graph.nodes) == members


def test_packs_gathers_into_one_flat_buffer_in_payload_order():
    case = gathers()
    first, second = case.starts
    module = case.apply(case.merge([second, first], PACKED))
    (gather,) = called(module, c10d.all_gather_into_tensor.default)
    assert gather.args[1:] == (4, "7")
    assert [tuple(n.meta["val"].shape) for n in gather.args[0].args[0]] == [(5,), (6,)]
    (split,) = called(module, aten.split_with_sizes_copy.default)
    assert split.args[1:] == ([5, 6], 1) and tuple(split.args[0].meta["val"].shape) == (4, 11)
    assert [tuple(n.meta["val"].shape) for n in module.graph.output_node().args[0]] == [(12, 2), (20,)]
    assert len(called(module, c10d.wait_tensor.default)) == 1


def test_packs_scatters_by_rows_of_ranks():
    case = scatters()
    module = case.apply(case.merge(case.starts, PACKED))
    (scatter,) = called(module, c10d.reduce_scatter_tensor.default)
    assert scatter.args[1:] == ("avg", 4, "7")
    (cat,) = called(module, aten.cat.default)
    assert [tuple(n.meta["val"].shape) for n in cat.args[0]] == [(4, 6), (4, 5)] and cat.args[1] == 1
    assert [tuple(n.meta["val"].shape) for n in module.graph.output_node().args[0]] == [(2, 3), (5,)]


def test_packs_all_reduces_of_any_shape():
    case = reductions()
    module = case.apply(case.merge(case.starts, PACKED))
    (reduce,) = called(module, c10d.all_reduce.default)
    assert reduce.args[1:] == ("sum", "7") and tuple(reduce.meta["val"].shape) == (7,)
    assert [tuple(n.meta["val"].shape) for n in module.graph.output_node().args[0]] == [(2, 3), ()]


@pytest.mark.parametrize("case,target", [
    (gathers, c10d.all_gather_into_tensor_coalesced.default),
    (scatters, c10d.reduce_scatter_tensor_coalesced.default),
    (reductions, c10d.all_reduce_coalesced.default),
])
def test_groups_collectives_with_one_wait_each(case, target):
    case = case()
    starts = case.starts
    module = case.apply(case.merge(starts[::-1], GROUPED))
    (together,) = called(module, target)
    own = [case.captured.nodes[case.normalized.raw_ids[s]] for s in starts]
    assert [n.name for n in together.args[0]] == [n.args[0].name for n in own[::-1]]
    assert together.args[1:] == own[0].args[1:]
    assert len(called(module, c10d.wait_tensor.default)) == 2
    before, after = case.gm.graph.output_node(), module.graph.output_node()
    assert [n.meta["val"].shape for n in after.args[0]] == [n.meta["val"].shape for n in before.args[0]]


def test_runs_nodes_in_the_order_of_the_plan():
    builder = Builder()
    x = builder.input("x", 4)
    ones = [builder.call(op, x) for op in (aten.neg.default, aten.abs.default, aten.exp.default)]
    case = Plannable(builder, builder.output(ones))
    made = plan_pb2.Plan(format_version=1, graph_digest=case.digest, node_count=5, order=[4 * i for i in (0, 3, 1, 2, 4)])
    module = case.apply(made)
    assert [target for target, *_ in calls(module)] == [aten.exp.default, aten.neg.default, aten.abs.default]
    got = module(torch.tensor([1.0, -2.0, 0.5, 3.0]))
    assert torch.equal(got[1], torch.tensor([1.0, 2.0, 0.5, 3.0]))


def test_keeps_the_signature_whatever_the_order_of_placeholders():
    builder = Builder()
    x, mesh, y = builder.input("x", 4), builder.mesh(), builder.input("y", 4)
    case = Plannable(builder, builder.output([builder.call(aten.sub.Tensor, x, y), mesh, None]))
    made = plan_pb2.Plan(format_version=1, graph_digest=case.digest, node_count=4, order=[4 * i for i in (1, 0, 2, 3)])
    module = case.apply(made)
    difference, token, nothing = module(torch.full((4,), 5.0), "a mesh", torch.full((4,), 2.0))
    assert difference.tolist() == [3.0] * 4 and token == "a mesh" and nothing is None


def test_passes_the_input_through_where_a_node_stands_for_nothing():
    """The longer ranks trace no pad; the plan has one, since the last rank's graph does."""
    builder = Builder()
    a, b = builder.parameter("a", 4, 2), builder.parameter("b", 4, 2)
    waits = [builder.wait(builder.gather(x)) for x in (a, b)]
    case = Plannable(builder, builder.output([builder.slice(w, 13) for w in waits]))
    assert case.normalized.raw_ids.count(-1) == 2
    module = case.apply(case.merge(case.starts, PACKED))
    assert not called(module, aten.constant_pad_nd.default)
    assert [tuple(n.meta["val"].shape) for n in module.graph.output_node().args[0]] == [(13, 2), (13, 2)]


def test_new_nodes_say_where_they_come_from():
    case = gathers()
    first = case.captured.nodes[case.normalized.raw_ids[case.starts[0]]]
    first.meta.update(stack_trace="model.py, line 7", partitioner_tag="is_forward", seq_nr=3, custom={"a": 1})
    module = case.apply(case.merge(case.starts, PACKED))
    made = [n for n in module.graph.nodes if n.op == "call_function"]
    assert made and all(n.meta["stack_trace"] == "model.py, line 7" for n in made)
    assert all(n.meta["partitioner_tag"] == "is_forward" and n.meta["custom"] == {"a": 1} for n in made)
    assert all("val" in n.meta for n in made)


@pytest.mark.parametrize("seed", range(8))
def test_changes_nothing_before_apply_and_no_node_that_stays(seed):
    """What stays are the caller's own nodes, moved: whoever holds one still holds it, with its name and its meta."""
    case = scatters()
    before = str(case.gm.graph)
    own = {node: dict(node.meta) for node in case.gm.graph.nodes}
    made = any_plan(case.graph, case.digest, seed)
    edit = apply.prepare(case.gm, case.captured, case.normalized, case.digest, plan.parse(made.SerializeToString()))
    assert str(case.gm.graph) == before
    edit.apply()
    case.gm.graph.lint()
    gone = {n for b in made.buckets for m in b.members for n in (case.node(m), case.node(case.wait_of(m)))}
    assert gone.isdisjoint(case.gm.graph.nodes)
    assert all(node.meta == meta for node, meta in own.items() if node not in gone)
    assert set(own) - gone <= set(case.gm.graph.nodes)


def storages(graph):
    """Which values share storage: the first node of each, by node."""
    first = {}
    return {n.name: first.setdefault(n.meta["val"].untyped_storage()._cdata, n.name)
            for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}


@pytest.mark.parametrize("case", [gathers, scatters, reductions])
@pytest.mark.parametrize("mode", [PACKED, GROUPED])
def test_values_of_new_nodes_are_those_that_their_operators_make(case, mode):
    case = case()
    mode_of_values = FakeTensorMode()
    for node in case.gm.graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            with mode_of_values:
                node.meta["val"] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
    module = case.apply(case.merge(case.starts, mode))
    said = {n.name: n.meta["val"] for n in module.graph.nodes if "val" in n.meta}
    assert all(v.fake_mode is mode_of_values and v.device.type == "cpu" for v in said.values() if isinstance(v, torch.Tensor))
    shared = storages(module.graph)
    FakeTensorProp(module, mode_of_values).propagate_dont_convert_inputs(
        *[n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"])
    for node in module.graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            own = node.meta["val"]
            assert (own.shape, own.stride(), own.dtype) == (said[node.name].shape, said[node.name].stride(), said[node.name].dtype)
    assert storages(module.graph) == shared


def test_refuses_a_plan_for_another_graph_and_touches_nothing():
    case, other = gathers(), scatters()
    before = str(case.gm.graph)
    with pytest.raises(PlanRejected, match="it is for graph"):
        case.apply(other.merge(other.starts, PACKED))
    assert str(case.gm.graph) == before


def test_refuses_a_collective_that_writes_into_a_given_tensor():
    builder = Builder()
    a, b, out = builder.parameter("a", 3), builder.parameter("b", 3), builder.input("out", 12)
    node = builder.graph.call_function(c10d.all_gather_into_tensor_out.default, (a, 4, "0"), {"out": out})
    node.meta["val"] = value(12)
    case = Plannable(builder, builder.output([builder.wait(node), builder.wait(builder.gather(b))]))
    with pytest.raises(PlanRejected):
        case.apply(case.merge(case.starts, PACKED))


def test_refuses_offsets_other_than_those_it_would_build():
    case = gathers()
    made = case.merge(case.starts, PACKED)
    made.buckets[0].offsets[1] += 2
    with pytest.raises(PlanRejected, match="back to back"):
        case.apply(made)


def test_refuses_two_settings_in_one_bucket():
    case = scatters()
    made = case.merge(case.starts, PACKED)
    second = case.captured.nodes[case.normalized.raw_ids[case.starts[1]]]
    second.args = (second.args[0], "avg", 4, "8")  # another group than the one that was captured
    with pytest.raises(PlanRejected, match="bucket 0"):
        case.apply(made)


def test_refuses_a_plan_that_forgets_one_of_this_ranks_nodes():
    case = gathers()
    made = case.merge(case.starts, PACKED)
    extra = case.gm.graph.find_nodes(op="output")[0]
    with case.gm.graph.inserting_before(extra):
        stray = case.gm.graph.call_function(aten.neg.default, (case.captured.nodes[0],))
    with pytest.raises(PlanRejected, match=f"says nothing of {stray.name}"):
        case.apply(made)


def test_plans_describe_themselves():
    case = gathers()
    made = case.merge(case.starts, PACKED)
    made.buckets[0].name, made.buckets[0].end_ps = "block 0", 2_000_000
    made.prediction.total_ps, made.program_order.total_ps = 89, 100
    parsed = plan.parse(made.SerializeToString())
    assert parsed.summary("hit") == f"1 bucket, predicted -11 %, plan {parsed.sha256[:6]}, hit"
    both = dataclasses.replace(parsed, bits="both")
    assert both.summary().endswith(", bits of eager FSDP2 and of the unplanned graph")
    assert both.summary(inductor=True).endswith(", sums of eager FSDP2 and of the unplanned graph")
    says = dataclasses.replace(parsed, bits="neither").summary()
    assert says.endswith(", bits neither of eager FSDP2 nor of the unplanned graph")
    assert dataclasses.replace(parsed, program_order=parsed.prediction).speedup == 0
    head, _, row = parsed.table().splitlines()
    assert head.split()[:2] == ["bucket", "collective"]
    assert row.split() == "block 0 all_gather group0 (4) packed 2 bf16 88 0.0 - 2.0".split()
