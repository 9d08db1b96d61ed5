"""Normalisation: proto/GRAPH.md §2. Graphs are built as two ranks see them."""

import copy

import pytest
from fx_graphs import Builder, aten, gradient, result

from bucketd.canonical import digest
from bucketd.capture import capture_graph
from bucketd.files import load_graph
from bucketd.graph import VIEW, NodeKind, RawGraph, Role
from bucketd.normalize import normalize
from bucketd.step_context import InputInfo


def gather_step(rows, rank, width=3, world=4, twice=False, cut=True):
    """A parameter of `rows` rows over `world` ranks, cast and gathered; `rank` holds its share."""
    chunk = -(-rows // world)
    mine = max(0, min(chunk, rows - rank * chunk))
    b = Builder()
    shard = b.parameter("layer.weight", mine, width)
    mesh = b.mesh()
    x = b.input("x", 5, width)
    uses = []
    for _ in range(2 if twice else 1):
        at = b.cast(shard)
        if mine < chunk:
            at = b.pad(at, chunk - mine)
        whole = b.wait(b.gather(at, world))
        if cut and rows % world:
            whole = b.slice(whole, rows)
        uses.append(b.call(aten.mm.default, b.cast(x), b.call(aten.t.default, whole)))
    gm = b.output([uses[-1], mesh, None], [result(0), result(1), None])
    return capture_graph(gm, b.context, "fw").raw


def scatter_step(rows, rank, width=3, world=4, users="cast"):
    """A gradient of `rows` rows, reduced and scattered; short ranks slice what they get."""
    chunk = -(-rows // world)
    mine = max(0, min(chunk, rows - rank * chunk))
    b = Builder()
    b.context.inputs.append(InputInfo(Role.PARAMETER, "layer.weight"))  # the backward does not read it
    g = b.saved("g", rows, width)

    def piece():
        whole = b.split_pad_cat(g, chunk, chunk * world - rows) if rows % world else g
        made = b.wait(b.scatter(whole, "sum", world))
        return b.slice(made, mine) if mine < chunk else made

    one = piece()
    if users == "cast":
        one = b.cast(b.cast(one))
    if users == "sum":  # of a tied parameter's two gradients
        one = b.cast(b.call(aten.add.Tensor, one, piece()))
    gm = b.output(((one, None),), [gradient(0), None])
    return capture_graph(gm, b.context, "bw").raw



@pytest.mark.parametrize("rows", [4, 6, 7, 9])
@pytest.mark.parametrize("make", [gather_step, scatter_step])
def test_every_rank_has_one_digest(make, rows):
    digests = {digest(normalize(make(rows, rank)).graph) for rank in range(4)}
    assert len(digests) == 1


def test_a_parameter_with_fewer_rows_than_ranks_too():
    # 3 rows over 4 ranks: chunks 1, 1, 1, 0.
    assert len({digest(normalize(gather_step(3, rank)).graph) for rank in range(4)}) == 1
    assert len({digest(normalize(scatter_step(3, rank)).graph) for rank in range(4)}) == 1


@pytest.mark.parametrize("rows", [3, 7, 9])
def test_the_sum_of_a_tied_parameters_gradients_is_one_on_all_ranks(rows):
    assert len({digest(normalize(scatter_step(rows, rank, users="sum")).graph) for rank in range(4)}) == 1


def test_inserts_the_pad_that_short_ranks_have_and_says_that_it_stands_for_nothing():
    long, short = normalize(gather_step(7, 0)), normalize(gather_step(7, 3))
    inserted = [i for i, raw_id in enumerate(long.raw_ids) if raw_id == -1]
    assert [long.graph.nodes[i].op for i in inserted] == ["aten.constant_pad_nd.default"]
    assert -1 not in short.raw_ids
    pad = long.graph.nodes[inserted[0]]
    gather = long.graph.nodes[inserted[0] + 1]
    assert gather.kind == NodeKind.COLLECTIVE and gather.inputs == inserted
    assert (pad.module, pad.direction) == (gather.module, gather.direction) == ("layer", gather.direction)
    # 2 rows of 3 bf16, read and written.
    assert pad.memory_bytes == 24


def test_gives_placeholder_casts_and_pad_the_padded_shape():
    graph = normalize(gather_step(7, 3)).graph
    assert [n.outputs[0].shape for n in graph.nodes[:1]] == [(2, 3)]
    cast = next(n for n in graph.nodes if n.op == "aten._to_copy.default" and n.inputs == [0])
    assert cast.outputs[0].shape == (2, 3)


def test_a_parameter_that_is_gathered_twice_is_padded_for_each_gather():
    long = normalize(gather_step(7, 0, twice=True))
    assert long.raw_ids.count(-1) == 2
    assert len({digest(normalize(gather_step(7, rank, twice=True)).graph) for rank in range(4)}) == 1


def test_inserts_the_slice_and_lets_every_user_of_the_wait_read_it():
    done = normalize(scatter_step(7, 0, users="none"))
    (inserted,) = [i for i, raw_id in enumerate(done.raw_ids) if raw_id == -1]
    node, wait = done.graph.nodes[inserted], done.graph.nodes[inserted - 1]
    assert node.op == "aten.slice.Tensor" and node.flags == VIEW
    assert node.inputs == node.alias_of == [inserted - 1]
    assert node.outputs[0].shape == wait.outputs[0].shape == (2, 3)
    assert done.graph.nodes[-1].slots[0].node == inserted
    assert len({digest(normalize(scatter_step(7, rank, users="none")).graph) for rank in range(4)}) == 1


def test_opaque_inputs_go_and_their_slots_become_empty():
    raw = gather_step(8, 0)
    assert any(node.opaque for node in raw.nodes)
    graph = normalize(raw).graph
    assert not any(node.opaque for node in graph.nodes)
    assert [slot.node is None for slot in graph.nodes[-1].slots] == [False, True, True]
    assert all((s.kind, s.parameter) == (0, "") for s in graph.nodes[-1].slots[1:])


def test_an_even_graph_changes_by_nothing_else():
    raw = gather_step(8, 0)
    done = normalize(raw)
    assert done.raw_ids == [i for i, node in enumerate(raw.nodes) if not node.opaque]
    assert [n.op for n in done.graph.nodes] == [n.op for n in raw.nodes if not n.opaque]


def test_a_slice_to_the_full_size_makes_no_shard_uneven():
    b = Builder()
    shard = b.parameter("w", 2, 3)
    whole = b.slice(b.wait(b.gather(shard)), 8)
    raw = capture_graph(b.output([whole], [result()]), b.context, "fw").raw
    assert -1 not in normalize(raw).raw_ids


def test_normalising_twice_changes_nothing(vectors):
    for path, expected in vectors:
        once = normalize(load_graph(path)).graph
        again = normalize(RawGraph(once.name, "joint", copy.deepcopy(once.nodes), once.groups))
        assert -1 not in again.raw_ids and digest(again.graph).hex() == expected, path.name


def test_leaves_the_raw_graph_alone(vectors):
    path, _ = next(v for v in vectors if v[0].name == "fsdp_uneven.joint.rank3.json.gz")
    raw = load_graph(path)
    before = copy.deepcopy(raw)
    normalize(raw)
    assert raw == before


def test_a_rank_that_differs_in_another_way_gives_another_digest():
    reference = digest(normalize(scatter_step(7, 0)).graph)
    odd = scatter_step(7, 3)
    at = next(i for i, n in enumerate(odd.nodes) if n.kind == NodeKind.COLLECTIVE)
    for breakage in (
        lambda raw: setattr(raw.nodes[at].collective, "reduce_op", 2),
        lambda raw: setattr(raw.nodes[at], "op", "_c10d_functional.reduce_scatter_tensor_out.default"),
        lambda raw: setattr(raw.groups[0], "size", 2),
        lambda raw: setattr(raw.groups[0], "mesh_dim", "tp"),
        lambda raw: raw.nodes[-1].inputs.append(0),
    ):
        raw = copy.deepcopy(odd)
        breakage(raw)
        assert digest(normalize(raw).graph) != reference
    assert digest(normalize(odd).graph) == reference


def test_everything_that_names_a_sliced_wait_names_the_slice():
    import synthetic

    raw = synthetic.build()
    done = normalize(raw)
    (cut,) = [i for i, node in enumerate(done.graph.nodes) if done.raw_ids[i] == -1 and node.op == "aten.slice.Tensor"]
    at = {done.graph.nodes[i].op: done.graph.nodes[i] for i in range(cut + 1, len(done.graph.nodes))}
    assert at["aten.add_.Tensor"].mutates == at["aten.add_.Tensor"].alias_of == [cut]
    assert at["aten.view.default"].inputs == at["aten.view.default"].alias_of == [cut]
    assert [slot.node for slot in at["output"].slots].count(cut) == 2 and cut - 1 not in at["output"].inputs


def test_bytes_are_counted_from_shapes_alone_only_next_to_what_changed():
    import synthetic

    done = normalize(synthetic.build())
    far, near = [node for node in done.graph.nodes if node.op == "aten.mul.Tensor"]
    assert far.memory_bytes == 4 + 24  # one stored element, read six times
    assert near.memory_bytes == 24 + 24 + 24
