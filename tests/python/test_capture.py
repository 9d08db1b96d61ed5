"""FX graphs as raw graphs: roles, names, aliases, flags, tags."""

import itertools

import pytest
import torch
from fx_graphs import Builder, aten, c10d, gradient, result, shape_env, value
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from bucketd.capture import capture_graph
from bucketd.files import load_graph
from bucketd.graph import COMPUTE, ORDERED, POINTWISE, SYMBOLIC, VIEW, Direction, DType, GraphError, NodeKind, Role, SlotKind, Tag
from bucketd.mesh import mesh_message
from bucketd.normalize import normalize
from bucketd.sizes import UNBACKED, on_grid
from bucketd.step_context import CaptureContext, InputInfo, parameter_order, parse_source
from bucketd.tags import flatten, tag_joint


def tagged(gm):
    return {n.name.removesuffix("_default"): n.meta["bucketd"] for n in gm.graph.nodes if "bucketd" in n.meta}


def captured(fn, *inputs, kind="fw"):
    raw = capture_graph(make_fx(fn, tracing_mode="fake")(*inputs), CaptureContext(), kind).raw
    return raw, {node.name: node for node in raw.nodes}


# Names.


@pytest.mark.parametrize(
    "source, expected",
    [
        ("L['self']._modules['blocks']._modules['0']._parameters['weight']", ("L['self']", "blocks.0.weight", Role.PARAMETER)),
        ("L['s']._parameters['scale']", ("L['s']", "scale", Role.PARAMETER)),
        ("G['model']._modules['a']._buffers['freqs']", ("G['model']", "a.freqs", Role.BUFFER)),
        (
            "L['fn'].__closure__[0].cell_contents._modules['_orig_mod']._modules['head']._parameters['weight']",
            ("L['fn'].__closure__[0].cell_contents", "head.weight", Role.PARAMETER),
        ),
        (
            "L['self']._modules['layers']._modules['1']._modules['_checkpoint_wrapped_module']._parameters['w']",
            ("L['self']", "layers.1.w", Role.PARAMETER),
        ),
        ("L['tokens']", ("L['tokens']", "", Role.INPUT)),
    ],
)
def test_source_names_give_parameter_names(source, expected):
    assert parse_source(source) == expected


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(2, 2)
        self.a = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.ones(1))
        self.layers = nn.ModuleList([Inner(), Inner()])
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.layers[0].a.weight
        self.again = self.layers[1]


def test_t5_1_t5_2_parameters_come_in_post_order_each_once():
    assert parameter_order(Outer()) == [
        "layers.0.b.weight", "layers.0.b.bias", "layers.0.a.weight", "layers.0.a.bias", "layers.0.scale",
        "layers.1.b.weight", "layers.1.b.bias", "layers.1.a.weight", "layers.1.a.bias", "layers.1.scale",
        "own",
    ]  # fmt: skip


def test_the_order_is_eager_fsdp2s_own():
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    model = Outer()
    parameters, _ = _fsdp_init._get_managed_states(_fsdp_init._get_managed_modules((model,)))
    by_id = {id(p): n for n, p in model.named_parameters(remove_duplicate=False) if not n.startswith(("tied", "again"))}
    assert parameter_order(model) == [by_id[id(p)] for p in parameters]


# Nodes.


def test_views_writes_and_several_outputs_come_from_schemas():
    def step(x, y):
        a = x.view(-1)
        values, indices = y.sort()
        y.add_(1.0)
        y.copy_(x)
        first, second = torch.split(x, 2)
        return a, values, indices, first + second

    raw, by_name = captured(step, torch.ones(4, 3), torch.ones(4, 3))
    ids = {node.name: i for i, node in enumerate(raw.nodes)}
    x, y = ids["x_1"], ids["y_1"]
    assert by_name["view"].flags & VIEW and by_name["view"].alias_of == [x] and not by_name["view"].mutates
    assert by_name["add_"].mutates == by_name["add_"].alias_of == [y] and not by_name["add_"].flags & VIEW
    written = ids["add_"]  # what y is called after the first write; its alias_of leads back to y
    assert by_name["copy_"].mutates == by_name["copy_"].alias_of == [written] and by_name["copy_"].inputs == [written, x]
    sort = by_name["sort"]
    assert len(sort.outputs) == 2 and not sort.alias_of
    assert [(n.kind, n.index, n.alias_of) for n in raw.nodes if n.inputs == [ids["sort"]]] == [
        (NodeKind.GETITEM, 0, [ids["sort"]]), (NodeKind.GETITEM, 1, [ids["sort"]])
    ]
    split = by_name["split"]
    assert split.flags & VIEW and split.alias_of == [x] and len(split.outputs) == 2
    assert by_name["add"].flags == POINTWISE


def test_flags_and_flops_come_from_torchs_registries():
    raw, by_name = captured(
        lambda a, b: (torch.relu(a @ b), torch.nn.functional.dropout(a, 0.5), torch.rand_like(b)),
        torch.ones(4, 8), torch.ones(8, 3),
    )
    assert by_name["mm"].flags == COMPUTE and by_name["mm"].flops == 2 * 4 * 8 * 3
    assert by_name["mm"].memory_bytes == 4 * (32 + 24 + 12)
    assert by_name["relu"].flags == POINTWISE and by_name["relu"].flops == 0
    ordered = [n.op for n in raw.nodes if n.flags & ORDERED]
    assert "aten.rand_like.default" in ordered and len(ordered) >= 2


def test_memory_bytes_follow_the_kind_of_op():
    def step(table, index, x):
        return torch.nn.functional.embedding(index, table), torch.zeros_like(x), x.t(), x.expand(5, 2, 3) * 2.0

    _, by_name = captured(step, torch.ones(10, 4), torch.zeros(6, dtype=torch.int64), torch.ones(2, 3))
    assert by_name["embedding"].memory_bytes == 2 * (6 * 4 * 4) + 6 * 8
    assert by_name["zeros_like"].memory_bytes == 24
    assert by_name["t"].memory_bytes == 0
    # The expanded dimension has stride 0: it is read once, and written five times.
    assert by_name["mul"].memory_bytes == 24 + 5 * 24


def test_higher_order_operators_and_attributes_are_nodes():
    def step(x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    raw, _ = captured(step, torch.ones(3))
    kinds = {node.op: node.kind for node in raw.nodes}
    assert kinds["higher_order.cond"] == NodeKind.CALL
    assert kinds["get_attr"] == NodeKind.GET_ATTR
    call = next(node for node in raw.nodes if node.op == "higher_order.cond")
    assert len(call.inputs) == 4 and [t.shape for t in call.outputs] == [(3,)]


def test_an_output_that_is_no_tensor_is_none():
    raw, by_name = captured(lambda x: (x.item(), x + 1), torch.ones(()))
    item = by_name["_local_scalar_dense"] if "_local_scalar_dense" in by_name else by_name["item"]
    assert item.outputs == [] and item.flags & ORDERED


def symbolic(step, *inputs):
    """A graph of `step` whose inputs have symbolic sizes, and their ShapeEnv."""
    gm = make_fx(step, tracing_mode="symbolic")(*inputs)
    return gm, shape_env(gm)


def test_symbolic_sizes_are_hints_on_a_grid_and_add_no_guard():
    gm, env = symbolic(lambda x, w: (x * 2).reshape(x.shape[0] * x.shape[1], 7) @ w, torch.ones(5, 2, 7), torch.ones(7, 5))
    before = len(env.guards)
    raw = capture_graph(gm, CaptureContext(), "fw").raw
    assert len(env.guards) == before
    shapes = {node.op: [t.shape for t in node.outputs] for node in raw.nodes}
    assert shapes["aten.mul.Tensor"] == [(6, 2, 7)] and shapes["aten.mm.default"] == [(12, 6)]  # 7 is a size that the program states
    mm = next(node for node in raw.nodes if node.op == "aten.mm.default")
    assert mm.flags == COMPUTE | SYMBOLIC and mm.flops == 2 * 12 * 7 * 6
    scalars = [node for node in raw.nodes if node.op in ("aten.sym_size.int", "operator.mul")]
    assert len(scalars) >= 2 and all(node.outputs == [] and not node.flags & SYMBOLIC for node in scalars)


def test_a_size_that_only_the_step_knows_is_a_constant():
    def step(x):
        kept = x.nonzero()
        return kept * 2

    gm, env = symbolic(step, torch.ones(5))
    raw = capture_graph(gm, CaptureContext(), "fw").raw
    (nonzero,) = (node for node in raw.nodes if node.op == "aten.nonzero.default")
    assert nonzero.outputs[0].shape == (UNBACKED, 1) and nonzero.flags & SYMBOLIC


def test_the_grid_is_near_and_coarse():
    assert [on_grid(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 1536, 1537)] == [
        0, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 1536, 2048]


def test_a_node_without_a_value_is_an_error_that_names_it():
    b = Builder()
    x = b.input("x", 3)
    y = b.call(aten.neg.default, x)
    gm = b.output([y])
    del y.meta["val"]
    with pytest.raises(GraphError, match="node neg_default has no value"):
        capture_graph(gm, b.context, "fw")


def test_collectives_waits_and_groups():
    b = Builder()
    p = b.parameter("a.weight", 2, 3)
    whole = b.wait(b.gather(p, 4, "7"))
    g = b.call(aten.mul.Tensor, whole, whole)
    piece = b.wait(b.scatter(g, "avg", 4, "9"))
    total = b.wait(b.call(c10d.all_reduce_.default, piece, "sum", "7"))
    total = b.wait(b.call(c10d.broadcast.default, total, 0, "7"))
    raw = capture_graph(b.output([total], [result()]), b.context, "fw").raw
    kinds = [(n.kind, n.collective.kind.name, n.collective.group, n.collective.reduce_op.name) for n in raw.nodes if n.collective]
    assert kinds == [(5, "ALL_GATHER", 0, "NONE"), (5, "REDUCE_SCATTER", 1, "AVG"), (5, "ALL_REDUCE", 0, "SUM"), (5, "BROADCAST", 0, "NONE")]
    assert [(g.name, g.mesh_dim, g.size) for g in raw.groups] == [("7", "group0", 4), ("9", "group1", 4)]
    in_place = next(n for n in raw.nodes if n.op == "_c10d_functional.all_reduce_.default")
    assert in_place.mutates == in_place.alias_of == in_place.inputs
    waits = [n for n in raw.nodes if n.kind == NodeKind.WAIT]
    assert len(waits) == 4 and all(w.alias_of == w.inputs and w.flags == 0 for w in waits)
    assert {d.name for d in mesh_message(raw).dims} == {"group0", "group1"}


@pytest.mark.parametrize(("dtype", "stands_for"), [(torch.float8_e8m0fnu, DType.U8), (torch.float8_e4m3fnuz, DType.U8), (torch.complex32, DType.U32)])
def test_a_dtype_without_a_name_is_bytes_and_no_collective_sends_it(dtype, stands_for):
    b = Builder()
    x = b.input("x", 4, 2)
    cast = b.cast(x, dtype)
    back = b.cast(cast, torch.float32)
    nodes = capture_graph(b.output([back], [result()]), b.context, "fw").raw.nodes
    assert [node.outputs[0].dtype for node in nodes[:3]] == [DType.F32, stands_for, DType.F32]
    assert nodes[1].outputs[0].bytes == 8 * dtype.itemsize and not nodes[1].flags & VIEW
    b = Builder()
    gathered = b.wait(b.gather(b.cast(b.input("x", 4, 2), dtype)))
    with pytest.raises(GraphError, match=f"all_gather_into_tensor_default sends a tensor of {dtype}, which no plan knows"):
        capture_graph(b.output([gathered], [result()]), b.context, "fw")


def test_a_coalesced_collective_is_an_ordinary_call():
    b = Builder()
    p = b.parameter("w", 2, 3)
    many = b.graph.call_function(c10d.all_gather_into_tensor_coalesced.default, ([p, p], 4, "0"))
    many.meta["val"] = [value(8, 3), value(8, 3)]
    one = b.wait(b.getitem(many, 0))
    raw = capture_graph(b.output([one]), b.context, "fw").raw
    assert [n.kind for n in raw.nodes[1:4]] == [NodeKind.CALL, NodeKind.GETITEM, NodeKind.CALL]
    assert raw.nodes[3].flags & VIEW and raw.nodes[3].alias_of == [2]


def test_direction_of_a_joint_graph_is_the_partitioners():
    b = Builder()
    x = b.input("x", 3)
    t = b.tangent(3)
    y, dx = b.call(aten.sin.default, x), b.call(aten.neg.default, t)
    for node, tag in ((x, "is_forward"), (t, "is_backward"), (y, "is_forward"), (dx, "is_backward")):
        node.meta["partitioner_tag"] = tag
    raw = capture_graph(b.output([y, dx], [result(), gradient(0)]), b.context, "joint").raw
    assert [n.direction for n in raw.nodes] == [
        Direction.FORWARD, Direction.BACKWARD, Direction.FORWARD, Direction.BACKWARD, Direction.UNSPECIFIED
    ]
    assert [n.role for n in raw.nodes[:2]] == [Role.INPUT, Role.TANGENT]
    assert [s.kind for s in raw.nodes[-1].slots] == [SlotKind.OUTPUT, SlotKind.INPUT_GRADIENT]


# Outputs and descriptors.


def two_gradients(nest):
    b = Builder()
    p1, p2 = b.parameter("p1", 2, 3), b.parameter("p2", 2, 3)
    o = b.call(aten.add.Tensor, p1, p2)
    g1, g2 = b.wait(b.scatter(b.wait(b.gather(p1)))), b.wait(b.scatter(b.wait(b.gather(p2))))
    return b, b.output(nest(o, g1, g2), [result(), gradient(0), gradient(1)])


@pytest.mark.parametrize("nest", [lambda o, a, b: [o, a, b], lambda o, a, b: ((o,), (a, b)), lambda o, a, b: ((o, a, b),)])
def test_nested_outputs_are_paired_with_flat_descriptors(nest):
    b, gm = two_gradients(nest)
    raw = capture_graph(gm, b.context, "joint").raw
    slots = raw.nodes[-1].slots
    assert [(s.kind, s.parameter) for s in slots] == [
        (SlotKind.OUTPUT, ""), (SlotKind.PARAMETER_GRADIENT, "p1"), (SlotKind.PARAMETER_GRADIENT, "p2")
    ]
    assert [n.collective.parameter for n in raw.nodes if n.collective] == ["p1", "p1", "p2", "p2"]


def test_more_slots_than_descriptors_is_an_error_with_both_lengths():
    b = Builder()
    x = b.input("x", 3)
    gm = b.output([x, None, x], [result(), None])
    with pytest.raises(GraphError, match="3 slots and 2 descriptors.* at 2"):
        capture_graph(gm, b.context, "fw")


def test_two_gradients_of_one_input_are_an_error():
    b = Builder()
    x = b.parameter("p", 3)
    gm = b.output([x, x], [gradient(0), gradient(0)])
    with pytest.raises(GraphError, match="slots 0 and 1 both claim to be the gradient"):
        tag_joint(gm, b.context)


def test_a_gradient_of_no_input_is_an_error():
    b = Builder()
    x = b.parameter("p", 3)
    with pytest.raises(GraphError, match="gradient of input 5, but there are 1 inputs"):
        tag_joint(b.output([x], [gradient(5)]), b.context)


def test_an_empty_gradient_slot_stays_empty():
    b = Builder()
    b.parameter("p", 3)
    raw = capture_graph(b.output([None], [gradient(0)]), b.context, "bw").raw
    assert [(s.node, s.kind) for s in raw.nodes[-1].slots] == [(None, SlotKind.UNSPECIFIED)]


# Tags.


def tag_of(build):
    """The tags of what `build(b, p, q)` makes; it returns output slots and descriptors."""
    b = Builder()
    p, q = b.parameter("m.p", 4, 4), b.parameter("m.q", 4, 4)
    slots, descriptors = build(b, p, q)
    for slot in flatten(slots):
        slot.meta["val"] = p.meta["val"]  # no test of tags is about shapes
    gm = b.output(slots, descriptors)
    tag_joint(gm, b.context)
    return tagged(gm)


def test_a_gather_of_one_parameter_is_tagged():
    assert tag_of(lambda b, p, q: ([b.wait(b.gather(b.cast(p)))], [result()])) == {
        "all_gather_into_tensor": ("fsdp_ag", "m.p")
    }
    # padded, with constants of its own
    assert tag_of(lambda b, p, q: ([b.wait(b.gather(b.pad(p, 2)))], [result()])) == {
        "all_gather_into_tensor": ("fsdp_ag", "m.p")
    }
    zeros = lambda b: b.call(aten.zeros.default, [4, 4], device="meta")  # noqa: E731
    assert tag_of(lambda b, p, q: ([b.wait(b.gather(b.call(aten.cat.default, [p, zeros(b)])))], [result()])) == {
        "all_gather_into_tensor": ("fsdp_ag", "m.p")
    }


def test_other_gathers_are_not():
    assert tag_of(lambda b, p, q: ([b.wait(b.gather(b.call(aten.mm.default, p, q)))], [result()])) == {}
    assert tag_of(lambda b, p, q: ([b.wait(b.gather(b.call(aten.zeros.default, [4, 4], device="meta")))], [result()])) == {}

    def of_a_saved_activation(b, p, q):
        return [b.wait(b.gather(b.call(aten.relu.default, b.saved("act", 4, 4))))], [result()]

    assert tag_of(of_a_saved_activation) == {}


def test_a_gather_whose_unfinished_result_is_read_is_not():
    def build(b, p, q):
        start = b.gather(p)
        return [b.wait(start), b.call(aten.view.default, start, [-1])], [result(), result(1)]

    assert tag_of(build) == {}


def test_a_scatter_that_ends_in_a_gradient_is_tagged():
    def build(b, p, q):
        return [b.cast(b.call(aten.view.default, b.wait(b.scatter(p)), [1, 4]))], [gradient(1)]

    assert tag_of(build) == {"reduce_scatter_tensor": ("fsdp_rs", "m.q")}


def test_other_scatters_are_not():
    assert tag_of(lambda b, p, q: ([b.call(aten.add.Tensor, b.wait(b.scatter(p)), b.saved("acc", 1, 4))], [gradient(1)])) == {}
    assert tag_of(lambda b, p, q: ((b.wait(b.scatter(p)), [q])[1:], [[result()]])) == {}  # nobody reads the wait
    assert tag_of(lambda b, p, q: ([b.wait(b.scatter(p))], [result()])) == {}


def test_a_scatter_of_several_gradients_takes_the_lowest_slot():
    def build(b, p, q):
        piece = b.wait(b.scatter(p))
        return [b.cast(piece), piece], [gradient(1), gradient(0)]

    assert tag_of(build)["reduce_scatter_tensor"] == ("fsdp_rs", "m.q")


def test_all_reduces_are_ddps_or_hsdps():
    ddp = lambda b, p, q: ([b.wait(b.reduce(p))], [gradient(0)])  # noqa: E731
    assert tag_of(ddp) == {"all_reduce": ("ddp_ar", "m.p")}
    used = lambda b, p, q: ([b.call(aten.mul.Tensor, b.wait(b.reduce(p)), q)], [gradient(0)])  # noqa: E731
    assert tag_of(used) == {}
    both = {"reduce_scatter_tensor": ("fsdp_rs", "m.p"), "all_reduce": ("hsdp_ar", "m.p")}
    eager = lambda b, p, q: ([b.wait(b.reduce(b.wait(b.scatter(p))))], [gradient(0)])  # noqa: E731
    assert tag_of(eager) == both
    dtensor = lambda b, p, q: ([b.wait(b.scatter(b.cast(b.wait(b.reduce(p)))))], [gradient(0)])  # noqa: E731
    assert tag_of(dtensor) == both
    # The pad of an uneven shard in between.
    uneven = lambda b, p, q: ([b.wait(b.scatter(b.split_pad_cat(b.wait(b.reduce(p)), 3, 2), "sum", 2))], [gradient(0)])  # noqa: E731
    assert tag_of(uneven) == both


def test_tags_ride_on_copies_of_a_node_and_are_their_own():
    b = Builder()
    p = b.parameter("p", 4, 4)
    start = b.gather(p)
    gm = b.output([b.wait(start)], [result()])
    tag_joint(gm, b.context)
    split = torch.fx.Graph()
    copy = split.node_copy(start, lambda n: split.placeholder(n.name))
    assert copy.meta["bucketd"] == ("fsdp_ag", "p")
    copy.meta["bucketd"] = ("other", "x")
    assert start.meta["bucketd"] == ("fsdp_ag", "p")


def test_the_chain_of_a_parameters_collective_belongs_to_its_module(vectors):
    for path, _ in vectors:
        raw = load_graph(path)
        for node in normalize(raw).graph.nodes:
            if node.collective is not None and node.collective.tag:
                assert node.module == node.collective.parameter.rpartition(".")[0]


def test_vectors_hold_every_kind_of_tag_and_collectives_without(vectors):
    seen = set()
    for path, _ in vectors:
        seen |= {n.collective.tag for n in load_graph(path).nodes if n.collective is not None}
    assert {Tag.NONE, Tag.FSDP_ALL_GATHER, Tag.FSDP_REDUCE_SCATTER, Tag.HSDP_ALL_REDUCE} <= seen


def test_captured_nodes_are_the_graphs_own():
    b = Builder()
    x = b.input("x", 3)
    gm = b.output([b.call(aten.neg.default, x)], [result()])
    done = capture_graph(gm, b.context, "fw")
    assert done.nodes == list(gm.graph.nodes)
    assert [n.name for n in done.raw.nodes] == [n.name for n in done.nodes]
    with pytest.raises(ValueError, match="must be one of fw, bw, joint"):
        capture_graph(gm, b.context, "inference")


def test_two_models_in_one_step_keep_their_names_apart():
    gm = torch.fx.GraphModule({}, torch.fx.Graph())
    for index, source in enumerate(itertools.chain.from_iterable(
        [(f"L['{m}']._modules['head']._parameters['weight']", ) for m in ("student", "teacher")]
    )):
        node = gm.graph.placeholder(f"p{index}")
        node.meta["example_value"] = value(2)
        node.meta["grapharg"] = type("Arg", (), {"source": type("Source", (), {"name": source})})
    context = CaptureContext.from_dynamo(gm)
    assert [i.parameter for i in context.inputs] == ["student.head.weight", "teacher.head.weight"]
    assert all(isinstance(i, InputInfo) and i.role == Role.PARAMETER for i in context.inputs)


def test_a_view_that_its_schema_hides_is_one_all_the_same():
    _, by_name = captured(lambda x: torch.ops.aten._unsafe_view.default(x.sin(), [6]), torch.ones(2, 3))
    view = by_name["_unsafe_view"]
    assert view.flags & VIEW and view.alias_of == view.inputs and view.memory_bytes == 0
