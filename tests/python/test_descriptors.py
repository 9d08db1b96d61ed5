"""Descriptors say what a joint graph's outputs and inputs are: they must belong to it one by one, however it is nested."""

import pytest
import torch
from any_plan import any_plan
from fx_graphs import Builder, aten, gradient, result, value
from plannable import applied
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    SubclassGetAttrAOTInput,
    SubclassSizeAOTInput,
    SubclassStrideAOTInput,
)
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bucketd import canonical, normalize
from bucketd.capture import capture_graph
from bucketd.errors import GraphRefused
from bucketd.graph import Direction, GraphError, SlotKind, Tag
from bucketd.session import Session
from bucketd.settings import Settings
from bucketd.step_context import CaptureContext, base_descriptor
from bucketd.structure import structural_context
from bucketd.tags import META_KEY, flatten, output_slots, tag_if_it_can_be, tag_joint

NESTS = {
    "flat": lambda o, a, b: [o, a, b],
    "forward and gradients": lambda o, a, b: ((o,), (a, b)),
    "one level more": lambda o, a, b: ((o, a, b),),
    "lists in tuples": lambda o, a, b: (o, [a, [b]]),
}


def joint(nest, descriptors=None):
    """Two parameters, an output of both, and their gradients."""
    b = Builder()
    p1, p2 = b.parameter("p1", 2, 3), b.parameter("p2", 4, 5)
    whole1, whole2 = b.wait(b.gather(p1)), b.wait(b.gather(p2))
    o = b.call(aten.mm.default, whole1, b.call(aten.slice.Tensor, b.call(aten.t.default, whole2), 0, 0, 3))
    g1 = b.wait(b.scatter(b.call(aten.neg.default, whole1)))
    g2 = b.wait(b.scatter(b.call(aten.neg.default, whole2)))
    if descriptors is None:
        descriptors = [result(), gradient(0), gradient(1)]
    return b, b.output(nest(o, g1, g2), descriptors)


def slots(b, gm):
    return [(s.node.name if s.node else None, s.kind, s.parameter) for s in output_slots(gm, b.context, joint=True)]


EXPECTED = [("mm_default", SlotKind.OUTPUT, ""), ("wait_tensor_default_2", SlotKind.PARAMETER_GRADIENT, "p1"),
            ("wait_tensor_default_3", SlotKind.PARAMETER_GRADIENT, "p2")]


def test_T2_6a_flat_outputs_belong_to_flat_descriptors():
    assert slots(*joint(NESTS["flat"])) == EXPECTED


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_T2_6b_nested_outputs_belong_to_flat_descriptors(nest):
    b, gm = joint(nest)
    assert slots(b, gm) == EXPECTED
    tag_joint(gm, b.context)
    assert [n.meta[META_KEY] for n in gm.graph.nodes if META_KEY in n.meta] == [
        ("fsdp_ag", "p1"), ("fsdp_ag", "p2"), ("fsdp_rs", "p1"), ("fsdp_rs", "p2")]


def test_T2_6b_descriptors_may_be_nested_too():
    assert slots(*joint(NESTS["flat"], ((result(),), [gradient(0), (gradient(1),)]))) == EXPECTED


def test_T2_6c_pairing_the_two_as_they_stand_would_lose_a_gradient_and_tags_do_not():
    b, gm = joint(NESTS["forward and gradients"])
    output = gm.graph.output_node()
    naive = list(zip(output.args[0], output.meta["desc"]))
    assert len(naive) == 2 and isinstance(naive[1][0], tuple), "the second gradient has no descriptor, the first a tuple"
    tag_joint(gm, b.context)
    tags = {n.meta[META_KEY] for n in gm.graph.nodes if META_KEY in n.meta}
    assert ("fsdp_rs", "p1") in tags and ("fsdp_rs", "p2") in tags


def test_T2_6c_roles_that_are_guessed_from_structure_do_not_lose_one_either():
    b, gm = joint(NESTS["forward and gradients"])
    assert [i.role.name for i in structural_context(gm).inputs] == ["PARAMETER", "PARAMETER"]
    b, gm = joint(NESTS["flat"], [result(), gradient(0)])
    with pytest.raises(GraphError, match="3 slots and 2 descriptors"):
        structural_context(gm)


def test_T2_6d_another_number_is_an_error_with_both_and_the_first_that_do_not_belong_together():
    b, gm = joint(NESTS["flat"], [result(), gradient(0)])
    with pytest.raises(GraphError, match=r"3 slots and 2 descriptors; .* at 2$") as error:
        tag_joint(gm, b.context)
    assert error.value.node == "output"
    b, gm = joint(NESTS["flat"], [gradient(0), gradient(1)])  # the one of the result is missing
    with pytest.raises(GraphError, match=r"3 slots and 2 descriptors; .* at 0$"):
        capture_graph(gm, b.context, "joint")
    b, gm = joint(lambda o, a, b: [o, b], None)  # the first gradient is missing
    with pytest.raises(GraphError, match=r"2 slots and 3 descriptors; .* at 1$"):
        capture_graph(gm, b.context, "joint")


def test_T2_6e_an_empty_gradient_slot_stays_one():
    b, gm = joint(lambda o, a, b: ((o,), (None, b)))
    assert [kind for _, kind, _ in slots(b, gm)] == [SlotKind.OUTPUT, SlotKind.UNSPECIFIED, SlotKind.PARAMETER_GRADIENT]
    tag_joint(gm, b.context)
    tagged = {n.name: n.meta[META_KEY] for n in gm.graph.nodes if META_KEY in n.meta}
    assert ("fsdp_rs", "p2") in tagged.values() and ("fsdp_rs", "p1") not in tagged.values()


def test_T2_6f_two_gradients_of_one_parameter_are_an_error():
    b, gm = joint(lambda o, a, b: [o, b, b], [result(), gradient(1), gradient(1)])
    with pytest.raises(GraphError, match="slots 1 and 2 both claim to be the gradient"):
        tag_joint(gm, b.context)


def test_the_gradient_of_no_input_is_an_error():
    lost = GradAOTOutput(ParamAOTInput("q.weight"))
    b, gm = joint(NESTS["flat"], [result(), gradient(0), lost])
    with pytest.raises(GraphError, match=r"slot 2 is the gradient of ParamAOTInput\(target='q.weight'\), which is no input"):
        tag_joint(gm, b.context)
    capture_graph(gm, b.context, "bw")  # a backward has the gradients of inputs that it does not read


def plain(b, gm):
    """The same with descriptors of whole tensors."""
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            node.meta["desc"] = node.meta["desc"].base
    described = gm.graph.output_node().meta
    described["desc"] = [getattr(one, "base", one) for one in described["desc"]]
    return b, gm


def test_a_gradient_has_the_shape_and_dtype_of_its_parameter():
    b, gm = plain(*joint(NESTS["flat"], [result(), gradient(1), gradient(0)]))
    with pytest.raises(GraphError, match=r"slot 1 is wait_tensor_default_2, \[2, 3\] of .* gradient of p2, \[4, 5\] of"):
        tag_joint(gm, b.context)
    b, gm = joint(NESTS["flat"])
    gm.graph.output_node().args[0][1].meta["val"] = value(2, 3, dtype=torch.bfloat16)
    with pytest.raises(GraphError, match=r"slot 1 .* of torch.bfloat16, and claims .* of torch.float32"):
        tag_joint(gm, b.context)


def test_over_a_mesh_a_gradient_may_lie_otherwise_than_its_parameter():
    """An embedding's rows are sharded, its gradient comes sharded by columns: legal in eager, where autograd keeps both."""
    b, gm = joint(NESTS["flat"])
    gm.graph.output_node().args[0][1].meta["val"] = value(8, 1)
    assert tag_joint(gm, b.context) == 4
    gm.graph.output_node().args[0][1].meta["val"] = value(6)
    with pytest.raises(GraphError, match=r"slot 1 .*, \[6\] of"):
        tag_joint(gm, b.context)


def test_a_graph_that_cannot_be_tagged_is_refused_where_it_is_planned():
    b, gm = joint(lambda o, a, b: [o, b, b], [result(), gradient(1), gradient(1)])
    tag_if_it_can_be(gm, b.context)
    with pytest.raises(GraphRefused, match="slots 1 and 2 both claim to be the gradient"):
        Session(Settings.of())._capture(gm, b.context, "joint", False)


def test_sizes_and_strides_of_an_input_are_two_inputs():
    size, stride = (kind(PlainAOTInput(0), 1) for kind in (SubclassSizeAOTInput, SubclassStrideAOTInput))
    whole = SubclassGetAttrAOTInput(PlainAOTInput(0), "_local_tensor")
    assert len({base_descriptor(each) for each in (size, stride, whole)}) == 3
    assert base_descriptor(whole) == (PlainAOTInput(0), "_local_tensor")


def test_two_inputs_with_one_descriptor_are_an_error():
    b, gm = joint(NESTS["flat"])
    first, second = [n for n in gm.graph.nodes if n.op == "placeholder"]
    second.meta["desc"] = first.meta["desc"]
    with pytest.raises(GraphError, match="inputs p1 and p2 have one descriptor"):
        tag_joint(gm, b.context)


def planned(b, gm, seed=3):
    captured = capture_graph(gm, b.context, "joint")
    normalized = normalize.normalize(captured.raw)
    digest = canonical.digest(normalized.graph)
    made = any_plan(normalized.graph, digest, seed)
    assert made.buckets
    return applied(gm, captured, normalized, digest, made)


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_T2_6_a_planned_graph_has_the_nesting_and_the_descriptors_that_it_came_with(nest):
    b, gm = joint(nest)
    before, after = gm.graph.output_node(), planned(b, gm).graph.output_node()

    def shape_of(tree):
        return [type(tree).__name__, *map(shape_of, tree)] if isinstance(tree, (tuple, list)) else "leaf"

    assert shape_of(after.args[0]) == shape_of(before.args[0])
    assert after.meta["desc"] == before.meta["desc"]
    assert [tuple(n.meta["val"].shape) for n in flatten(after.args[0])] == [
        tuple(n.meta["val"].shape) for n in flatten(before.args[0])]


def test_T2_6_nested_inputs_stay_nested():
    """Placeholders are flat nodes; how the caller nests them is in the graph's code generator."""
    b = Builder()
    x, y = b.input("x", 3), b.input("y", 3)
    gm = b.output([b.call(aten.sub.Tensor, x, y)], [result()])
    nested = (({"first": torch.zeros(3)}, [torch.zeros(3)]), {})
    gm.graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(["a", "b"], pytree.tree_structure(nested), None)))
    gm.recompile()
    captured = capture_graph(gm, b.context, "joint")
    normalized = normalize.normalize(captured.raw)
    digest = canonical.digest(normalized.graph)
    made = any_plan(normalized.graph, digest, 0)
    module = applied(gm, captured, normalized, digest, made)
    assert [n.meta["desc"] for n in module.graph.nodes if n.op == "placeholder"] == [PlainAOTInput(0), PlainAOTInput(1)]
    for one in (gm, module):
        (got,) = one({"first": torch.full((3,), 5.0)}, [torch.full((3,), 3.0)])
        assert got.tolist() == [2.0] * 3


def test_T1_11_tags_survive_the_split_on_both_copies_of_a_gather_and_are_each_ones_own():
    """A parameter whose gather the partitioner repeats in the backward."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    b = Builder()
    p = b.parameter("m.p", 4, 4)
    p.name = "primals_1"
    x = b.input("primals_2", 16, 16)
    t = b.tangent(16, 4)
    start = b.gather(b.cast(p, torch.float64))
    whole = b.wait(start)
    o = b.call(aten.mm.default, b.cast(x, torch.float64), whole)
    out = b.cast(o, torch.float32)
    dt = b.cast(t, torch.float64)
    dx = b.cast(b.call(aten.mm.default, dt, b.call(aten.t.default, whole)), torch.float32)
    dw = b.call(aten.mm.default, b.call(aten.t.default, b.cast(x, torch.float64)), dt)
    dp = b.wait(b.scatter(b.cast(dw, torch.float32)))
    gm = b.output([out, dp, dx], [result(), gradient(0), GradAOTOutput(PlainAOTInput(1))])
    backward = {t, dt, dx, dw, dp} | set(dx.all_input_nodes) | set(dp.all_input_nodes) - {whole}
    for node in gm.graph.nodes:
        node.meta["partitioner_tag"] = "is_backward" if node in backward else "is_forward"
    for node in (whole, start, start.args[0]):
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = 0
    tag_joint(gm, b.context)
    fw, bw = min_cut_rematerialization_partition(gm, (), num_fwd_outputs=1)
    copies = [[n for n in part.graph.nodes if n.meta.get(META_KEY) == ("fsdp_ag", "m.p")] for part in (fw, bw)]
    assert [len(c) for c in copies] == [1, 1], "the gather is repeated"
    scatters = [n for n in bw.graph.nodes if n.meta.get(META_KEY) == ("fsdp_rs", "m.p")]
    assert len(scatters) == 1
    for part, kind, direction in ((fw, "fw", Direction.FORWARD), (bw, "bw", Direction.BACKWARD)):
        raw = capture_graph(part, b.context, kind).raw
        gathers = [n for n in raw.nodes if n.collective is not None and n.collective.tag == Tag.FSDP_ALL_GATHER]
        assert [(n.collective.parameter, n.direction) for n in gathers] == [("m.p", direction)]
    copies[1][0].meta[META_KEY] = ("other", "x")
    copies[1][0].meta.setdefault("custom", {})["mine"] = True
    for untouched in (start, copies[0][0]):
        assert untouched.meta[META_KEY] == ("fsdp_ag", "m.p") and "custom" not in untouched.meta


def test_a_graph_without_descriptors_has_outputs_and_nothing_else():
    b = Builder()
    x = b.input("x", 3)
    gm = b.output((x, None))
    assert [s.kind for s in output_slots(gm, CaptureContext(), joint=True)] == [SlotKind.OUTPUT, SlotKind.UNSPECIFIED]
