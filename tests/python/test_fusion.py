"""The kernels and bytes that bucketd.fusion predicts, against those that Inductor schedules; and what is planned with them."""

import os
import pathlib
import subprocess
import time

import fusion_models
import pytest
import torch
import torch.distributed as dist
from fx_graphs import Builder, result
from inductor_counters import HEADER, compare, fake_mesh
from planners import planner

import bucketd
from bucketd import canonical, files, fusion
from bucketd.fusion import access
from bucketd.fusion.launches import launches
from bucketd.graph import POINTWISE, VIEW, DType, Node, NodeKind, Tensor
from bucketd.memory import base_name
from bucketd.normalize import normalize

VECTORS = pathlib.Path(__file__).resolve().parents[1] / "data" / "vectors"
ALWAYS = ("llama_scaled", "gates", "tied", "images", "dense", "contrast", "messages")
MODELS = {**fusion_models.OURS, **fusion_models.OTHERS, **fusion_models.KINDS, **fusion_models.LATER}


@pytest.fixture(scope="module")
def mesh():
    assert not dist.is_initialized(), "a test before this one left a process group behind"
    with fake_mesh() as made:
        yield made


@pytest.mark.parametrize("name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in MODELS])
def test_kernels_and_bytes_are_those_that_inductor_schedules(mesh, name):
    found = compare(MODELS[name](mesh))
    print(HEADER, *(each.row(name) for each in found), sep="\n")
    assert [each.kind for each in found] == ["fw", "bw"]
    for each in found:
        assert abs(each.kernel_ratio - 1) <= 0.1 and abs(each.byte_ratio - 1) <= 0.1, each.row(name)
        assert each.predicted_calls == each.calls
        assert each.kernels < each.alone_kernels  # else there is nothing to predict


@pytest.fixture(scope="module")
def sharded(mesh):
    return compare(fusion_models.OURS["sharded"](mesh))


def test_costs_stand_where_a_kernel_ends_and_nowhere_else(sharded):
    for each in sharded:
        nodes = each.normalized.graph.nodes
        priced = [n for n, node in enumerate(nodes) if node.memory_bytes or node.flops]
        # Kernels that copy views into one cat have only the cat to stand for them.
        cats = sum(node.op == "aten.cat.default" for node in nodes)
        assert 0 <= len(each.units) - len(priced) <= cats
        assert all(nodes[n].kind == NodeKind.CALL and not nodes[n].flags & VIEW for n in priced)
        assert sum(node.memory_bytes for node in nodes) == sum(unit.bytes for unit in each.units)
        assert [node.flops for node in nodes] == [node.flops for node in normalize(each.captured.raw).graph.nodes]
        assert canonical.digest(each.normalized.graph) != canonical.digest(normalize(each.captured.raw).graph)


def test_a_file_has_the_costs_that_the_plan_was_made_with(sharded, tmp_path):
    each = sharded[1]
    raw = each.normalized.as_raw(each.captured.raw)
    files.save_graph(raw, tmp_path / "fused.json.gz")
    again = files.load_graph(tmp_path / "fused.json.gz")
    assert again.costs == fusion.COSTS and files.load_graph(VECTORS / "fsdp_even.fw.rank0.json.gz").costs == ""
    digest = canonical.digest(each.normalized.graph)
    assert canonical.digest(normalize(again).graph) == digest
    binary = pathlib.Path(os.environ.get("BUCKETD_BIN", "build/bin")) / "bucketctl"
    said = subprocess.run([binary, "digest", tmp_path / "fused.json.gz"], capture_output=True, text=True, check=True).stdout
    assert digest.hex() in said


@pytest.mark.parametrize("name", ["fsdp_uneven", "fsdp_short", "hsdp_uneven", "fsdp_tp"])
@pytest.mark.parametrize("kind", ["fw", "bw", "joint"])
def test_ranks_with_uneven_shards_predict_the_same(name, kind):
    predicted = []
    for rank in (0, 3):
        nodes = normalize(files.load_graph(VECTORS / f"{name}.{kind}.rank{rank}.json.gz")).graph.nodes
        predicted.append(fusion.predict(nodes))
    assert predicted[0] == predicted[1]


def test_a_pass_in_front_of_inductor_plans_with_these_costs(mesh):
    plans = []
    with planner() as one:
        for fused in (False, True, True):
            b = Builder()
            waits = [b.wait(b.gather(b.parameter(f"{name}.weight", 2, 3))) for name in "ab"]
            gm = b.output([b.call(torch.ops.aten.relu.default, wait) for wait in waits], [result(), result(1)])
            bucketd.plan_pass(gm, kind="fw", context=b.context, address=one.address, mode="greedy", numerics="exact",
                              on_plan=plans.append, fused=fused)
    assert [p.normalized.graph.costs for p in plans] == ["", fusion.COSTS, fusion.COSTS]
    assert [p.source for p in plans] == ["computed", "computed" if plans[0].digest != plans[1].digest else "hit", "hit"]
    assert all(p.digest == canonical.digest(p.normalized.graph) for p in plans)


class Chain:
    """A graph by hand: every value 64 x 32 floats unless `shape` says another."""

    def __init__(self):
        self.nodes = []

    def add(self, op, *inputs, shape=(64, 32), stride=None, kind=NodeKind.CALL, flags=POINTWISE):
        strides = stride or tuple(torch.empty(shape, device="meta").stride())
        self.nodes.append(Node(kind, op, list(inputs), [Tensor(DType.F32, shape, strides)], flags=flags))
        return len(self.nodes) - 1

    def input(self, shape=(64, 32)):
        return self.add("placeholder", shape=shape, kind=NodeKind.PLACEHOLDER, flags=0)

    def kernels(self, *results, known=None):
        self.nodes.append(Node(NodeKind.OUTPUT, "output", list(results)))
        return [(unit.node, unit.bytes) for unit in fusion.predict(self.nodes, known)]


    def launches(self, *results, one_function=True):
        """[(operators, bearing nodes)], and operators that may be named besides."""
        self.nodes.append(Node(NodeKind.OUTPUT, "output", list(results)))
        words = [base_name(node.op) if node.kind == NodeKind.CALL else "" for node in self.nodes]
        found, weak = launches(self.nodes, *fusion._predicted(self.nodes, {}, "cpu"), words.__getitem__, one_function)
        return [(launch.words, launch.nodes) for launch in found], weak


ALL = 64 * 32 * 4


def test_elementwise_nodes_are_computed_where_they_are_read():
    g = Chain()
    x = g.input()
    for op in ("aten.neg.default", "aten.relu.default", "aten.mul.Tensor"):
        x = g.add(op, x)
    assert g.kernels(x) == [(3, 2 * ALL)]


def test_two_that_read_the_same_are_one_kernel_and_two_that_read_parts_are_not():
    g = Chain()
    x = g.input()
    assert g.kernels(g.add("aten.neg.default", x), g.add("aten.relu.default", x)) == [(2, 3 * ALL)]
    g = Chain()
    x = g.input()
    halves = [g.add("aten.slice.Tensor", x, shape=(32, 32), stride=(32, 1), flags=VIEW) for _ in range(2)]
    assert g.kernels(*(g.add("aten.neg.default", half, shape=(32, 32)) for half in halves)) == [(3, ALL), (4, ALL)]


@pytest.mark.parametrize("op, expected", [
    ("aten.neg.default", [(2, 2), (4, 2)]),  # computed twice
    ("aten.exp.default", [(2, 3), (4, 2)]),  # written by the first reader's kernel
])
def test_a_value_that_is_dear_to_compute_is_computed_once(op, expected):
    g = Chain()
    y = g.add(op, g.input())
    straight = g.add("aten.mul.Tensor", y)
    turned = g.add("aten.t.default", y, shape=(32, 64), stride=(1, 32), flags=VIEW)
    turned = g.add("aten.clone.default", turned, shape=(32, 64))
    assert g.kernels(straight, turned) == [(node, times * ALL) for node, times in expected]


def test_a_norm_is_one_kernel_and_a_sum_over_rows_another():
    g = Chain()
    x = g.input()
    mean = g.add("aten.mean.dim", g.add("aten.mul.Tensor", x, x), shape=(64, 1), flags=0)
    out = g.add("aten.mul.Tensor", x, g.add("aten.rsqrt.default", mean, shape=(64, 1)))
    column = g.add("aten.sum.dim_IntList", x, shape=(32,), flags=0)
    assert g.kernels(out, column, known={mean: (1,), column: (0,)}) == [(out, 2 * ALL), (column, ALL + 32 * 4)]


def test_a_dimension_that_two_were_merged_into_is_split_again():
    """As instance norms see images, whose channels are innermost: as one of all channels, and as images again."""
    images, one, parts = (2, 16, 8, 8), (1, 32, 8, 8), (2, 2, 8, 64)
    read = (((2, 1024),), ((16, 1),), ((8, 128),), ((8, 16),))
    merged = access.through_view(one, access.contiguous(one), images, access.contiguous(images), read)
    assert merged == (((1, 0),), ((2, 1024), (16, 1)), *read[2:])
    back = lambda shape: access.through_view(shape, access.contiguous(shape), one, access.contiguous(one), merged)  # noqa: E731
    assert back(images) == read
    assert back(parts) == (((2, 1024),), ((2, 8),), ((8, 1),), ((8, 128), (8, 16)))
    assert back((4, 8, 64)) == (((2, 1024), (2, 8)), ((8, 1),), ((8, 128), (8, 16)))


def test_what_a_call_reads_and_writes_moves():
    g = Chain()
    a, b = g.input(), g.input((32, 16))
    product = g.add("aten.mm.default", g.add("aten.relu.default", a), b, shape=(64, 16), flags=2)
    out = g.add("aten.neg.default", product, shape=(64, 16))
    small = 64 * 16 * 4
    assert g.kernels(out) == [(2, 2 * ALL), (3, ALL + 32 * 16 * 4 + small), (4, 2 * small)]


def test_two_that_depend_on_each_other_by_a_call_between_stay_apart():
    g = Chain()
    a = g.input((32, 32))
    first = g.add("aten.exp.default", a, shape=(32, 32))
    product = g.add("aten.mm.default", first, a, shape=(32, 32), flags=2)
    second = g.add("aten.add.Tensor", first, product, shape=(32, 32))
    third = g.add("aten.mul.Tensor", second, first, shape=(32, 32))
    units = g.kernels(third, first)
    assert [node for node, _ in units] == [first, product, third]


@pytest.mark.parametrize("one_function, expected", [
    (True, [(("neg", "relu"), (2, 3)), (("mm",), (4,)), (("sin",), (5,))]),
    (False, [(("neg",), (2,)), (("relu",), (3,)), (("mm",), (4,)), (("sin",), (5,))]),
])
def test_on_cpus_kernels_between_two_calls_are_one_function(one_function, expected):
    g = Chain()
    a, b = g.input(), g.input((32, 16))
    first, second = g.add("aten.neg.default", a), g.add("aten.relu.default", b, shape=(32, 16))
    product = g.add("aten.mm.default", first, second, shape=(64, 16), flags=2)
    assert g.launches(g.add("aten.sin.default", product, shape=(64, 16)), one_function=one_function) == (expected, ("mm",))


def test_a_kernel_runs_behind_what_it_waits_for():
    g = Chain()
    x = g.input((32, 32))
    early = g.add("aten.exp.default", x, shape=(32, 32))
    product = g.add("aten.mm.default", x, x, shape=(32, 32), flags=2)
    late = g.add("aten.sub.Tensor", early, product, shape=(32, 32))
    assert g.launches(late, early)[0] == [(("mm",), (product,)), (("exp", "sub"), (late,))]


def test_pieces_of_a_cat_are_one_function_that_may_be_named_after_it_or_not():
    g = Chain()
    a, b = g.input(), g.input()
    pieces = g.add("aten.neg.default", a), g.add("aten.sin.default", b)
    whole = g.add("aten.cat.default", *pieces, shape=(128, 32), flags=0)
    found, weak = g.launches(g.add("aten.abs.default", whole, shape=(128, 32)))
    assert [words for words, _ in found] == [("abs", "cat", "neg", "sin")] and weak == ("cat",)


def test_the_second_of_two_products_is_taken_along_with_their_sum():
    g = Chain()
    x = g.input((32, 32))
    one, two = (g.add("aten.mm.default", x, x, shape=(32, 32), flags=2) for _ in range(2))
    out = g.add("aten.add.Tensor", one, two, shape=(32, 32), flags=POINTWISE)
    assert g.launches(out)[0] == [(("mm",), (one,)), (("addmm",), (two,))]


IMAGES = (2, 8, 16, 16)
ALL_IMAGES = 2 * 8 * 16 * 16 * 4


def test_what_a_convolution_reads_has_its_channels_innermost_from_the_start():
    g = Chain()
    image, kernel = g.input(IMAGES), g.input((8, 8, 3, 3))
    kernel_bytes = 8 * 8 * 9 * 4
    first = g.add("aten.convolution.default", image, kernel, shape=IMAGES, flags=2)
    between = g.add("aten.relu.default", first, shape=IMAGES)
    second = g.add("aten.convolution.default", between, kernel, shape=IMAGES, flags=2)
    call = 2 * ALL_IMAGES + kernel_bytes
    # The kernel is copied for both at once; the images only at first.
    assert sorted(size for _, size in g.kernels(second)) == [3 * kernel_bytes, 2 * ALL_IMAGES, 2 * ALL_IMAGES, call, call]


def test_a_cat_that_joins_a_part_several_times_writes_it_as_often():
    g = Chain()
    x, pad = g.input(), g.add("aten.full.default", shape=(32, 32))
    whole = g.add("aten.cat.default", g.add("aten.neg.default", x), pad, shape=(192, 32), flags=0)
    sizes = [size for _, size in g.kernels(whole, known={whole: (0, 1, 1, 1, 1)})]
    assert sorted(sizes) == [ALL // 2] * 4 + [2 * ALL]


def test_padded_elements_are_other_ones():
    g = Chain()
    x = g.input()
    y = g.add("aten.exp.default", x)
    padded = g.add("aten.constant_pad_nd.default", y)
    out = g.add("aten.add.Tensor", y, padded)
    assert g.kernels(out, known={padded: (0,)}) == [(y, 2 * ALL), (out, 2 * ALL)]
    g = Chain()
    x = g.input()
    y = g.add("aten.exp.default", x)
    out = g.add("aten.add.Tensor", y, g.add("aten.neg.default", y))
    assert g.kernels(out) == [(out, 2 * ALL)]


@pytest.mark.parametrize("rows, kernels", [(128, 1), (129, 2)])
def test_two_that_share_little_stay_apart_where_much_room_could_be_taken_over(rows, kernels):
    g = Chain()
    x, weight, bias = g.input((rows, 32)), g.input((32, 32)), g.input((32,))
    products = [g.add("aten.mm.default", x, weight, shape=(rows, 32), flags=2) for _ in range(2)]
    scaled = [g.add("aten.mul.Tensor", product, bias, shape=(rows, 32)) for product in products]
    assert len(g.kernels(*scaled)) == 2 + kernels  # 32 elements for each of the 128 bytes that both read


def test_what_is_copied_into_an_input_is_written_although_nobody_reads_it():
    g = Chain()
    x, state = g.input(), g.input()
    mixed = g.add("aten.add.Tensor", x, state)
    copy = g.add("aten.copy_.default", state, mixed)
    g.nodes[copy].mutates = [state]
    assert g.kernels(x) == [(copy, 3 * ALL)]


def test_complex_numbers_are_calls():
    g = Chain()
    x = g.add("placeholder", kind=NodeKind.PLACEHOLDER, flags=0)
    g.nodes[x].outputs = [Tensor(DType.C64, (64, 32), (32, 1))]
    twice = g.add("aten.mul.Tensor", x, x)
    g.nodes[twice].outputs = [Tensor(DType.C64, (64, 32), (32, 1))]
    g.nodes.append(Node(NodeKind.OUTPUT, "output", [twice]))
    assert [unit.is_call for unit in fusion.predict(g.nodes)] == [True]


def test_a_thousand_blocks_take_no_more_than_ten_times_a_hundred():
    def chain(blocks):
        g = Chain()
        x = g.input((32, 32))
        for _ in range(blocks):
            y = g.add("aten.exp.default", g.add("aten.mul.Tensor", x, shape=(32, 32)), shape=(32, 32))
            y = g.add("aten.mm.default", y, x, shape=(32, 32), flags=2)
            x = g.add("aten.add.Tensor", g.add("aten.relu.default", x, shape=(32, 32)), y, shape=(32, 32))
        g.nodes.append(Node(NodeKind.OUTPUT, "output", [x]))
        return g.nodes

    def seconds(nodes):
        began = time.process_time()
        fusion.predict(nodes)
        return time.process_time() - began

    small, large = chain(100), chain(1000)
    seconds(small)
    assert min(seconds(large) for _ in range(2)) < 25 * min(seconds(small) for _ in range(3))
