"""What the client refuses of a plan, and what it says about it."""

import pytest
from any_plan import any_plan
from small_graphs import Maker, two_gathers

from bucketd import canonical, plan, plan_file, verify
from bucketd._wire.proto import graph_pb2, plan_pb2
from bucketd.errors import PlanRejected
from bucketd.graph import ReduceOp

PACKED, GROUPED = plan_pb2.BUCKET_MODE_PACKED, plan_pb2.BUCKET_MODE_GROUPED


def node(i):
    return 4 * i


def start(k):
    return 4 * k + 1


def wait(k):
    return 4 * k + 2


def gathers_bucket(**changes):
    fields = dict(members=[2, 5], mode=PACKED, kind=graph_pb2.COLLECTIVE_KIND_ALL_GATHER, mesh_dim="dp", group_size=4,
                  dtype=graph_pb2.DTYPE_F32, bytes=128, offsets=[0, 12], slice_bytes=32)
    return plan_pb2.Bucket(**{**fields, **changes})


MERGED_ORDER = [node(0), node(1), start(0), wait(0), node(4), node(7), node(8)]


def message(graph, buckets=(), order=None, **changes):
    fields = dict(format_version=1, graph_digest=canonical.digest(graph), node_count=len(graph.nodes), buckets=buckets,
                  order=[node(i) for i in range(len(graph.nodes))] if order is None else order)
    return plan_pb2.Plan(**{**fields, **changes})


def check(graph, made):
    return verify.check_plan(graph, canonical.digest(graph), plan.parse(made.SerializeToString()))


def refusal(graph, made) -> str:
    with pytest.raises(PlanRejected) as caught:
        check(graph, made)
    return str(caught.value)


def test_takes_program_order():
    assert check(two_gathers(), message(two_gathers())) == {}


def test_takes_a_merge_and_names_the_waits_of_its_members():
    graph = two_gathers()
    assert check(graph, message(graph, [gathers_bucket()], MERGED_ORDER)) == {2: 3, 5: 6}


@pytest.mark.parametrize("copies, name", [(plan_pb2.COPY_STREAM_COMPUTE, "compute"), (plan_pb2.COPY_STREAM_COMM, "comm"), (0, "compute")])
def test_says_on_which_stream_a_bucket_copies(copies, name):
    graph = two_gathers()
    (bucket,) = plan.parse(message(graph, [gathers_bucket(copies=copies)], MERGED_ORDER).SerializeToString()).buckets
    assert bucket.copies == name and plan_file._bucket(bucket)["copies"] == name


@pytest.mark.parametrize("seed", range(20))
def test_takes_every_legal_plan(seed):
    make = Maker()
    sources = [make.placeholder((n,)) for n in (3, 5, 8, 2)]
    whole = [make.call(make.wait(make.gather(s)), shape=(4 * make.nodes[s].outputs[0].shape[0],)) for s in sources]
    noise = [make.random(w) for w in whole]
    scattered = [make.wait(make.scatter(w)) for w in whole]
    graph = make.done(*noise, *scattered)
    made = any_plan(graph, canonical.digest(graph), seed)
    assert len(check(graph, made)) == sum(len(b.members) for b in made.buckets)


def test_refuses_a_plan_for_another_graph():
    graph = two_gathers()
    assert "it is for graph 0000" in refusal(graph, message(graph, graph_digest=bytes(32)))


def test_refuses_another_number_of_nodes():
    graph = two_gathers()
    assert "it is for 8 nodes, this graph has 9" in refusal(graph, message(graph, node_count=8))


def test_refuses_bytes_that_are_no_plan():
    with pytest.raises(PlanRejected, match="no bucketd.v1.Plan"):
        plan.parse(b"\xff\xff\xff")


def test_refuses_a_format_of_the_future():
    with pytest.raises(PlanRejected, match="format version 2, this client reads 1"):
        plan.parse(plan_pb2.Plan(format_version=2).SerializeToString())


def test_refuses_an_order_element_without_meaning():
    with pytest.raises(PlanRejected, match=r"order\[1\]: element 7 has no meaning"):
        plan.parse(plan_pb2.Plan(format_version=1, order=[0, 7]).SerializeToString())


@pytest.mark.parametrize("changes,said", [
    (dict(members=[2]), "1 members, expected two or more"),
    (dict(members=[2, 2]), "is in bucket 0 already"),
    (dict(members=[2, 4]), "%4 (mm_4) is no collective"),
    (dict(members=[2, 99]), "there is no node 99"),
    (dict(mode=0), "mode 0, expected packed or grouped"),
    (dict(kind=graph_pb2.COLLECTIVE_KIND_REDUCE_SCATTER), "its members are ('all_gather', 'dp', 0, 4, '', 'f32')"),
    (dict(mesh_dim="tp"), "its members are ('all_gather', 'dp', 0, 4, '', 'f32')"),
    (dict(lane=1), "its members are"),
    (dict(group_size=8), "its members are"),
    (dict(dtype=graph_pb2.DTYPE_BF16), "its members are"),
    (dict(reduce_op=graph_pb2.REDUCE_OP_SUM), "its members are"),
    (dict(offsets=[0, 16]), "its members back to back have [0, 12] in 32"),
    (dict(slice_bytes=36), "its members back to back have [0, 12] in 32"),
    (dict(offsets=[]), "its members back to back have [0, 12] in 32"),
])
def test_refuses_a_bucket_that_is_not_what_it_says(changes, said):
    graph = two_gathers()
    text = refusal(graph, message(graph, [gathers_bucket(**changes)], MERGED_ORDER))
    assert said in text and "bucket 0" in text


def test_refuses_members_of_two_groups():
    make = Maker()
    a, b = make.placeholder((3,)), make.placeholder((5,))
    results = [make.wait(make.gather(a, group=0)), make.wait(make.gather(b, group=1))]
    graph = make.done(*results)
    bucket = gathers_bucket(members=[2, 4])
    assert "differ in kind, group, reduce op or dtype" in refusal(
        graph, message(graph, [bucket], [node(0), node(1), start(0), wait(0), node(6)]))


def test_refuses_members_of_two_reduce_ops():
    make = Maker()
    a, b = make.placeholder((8,)), make.placeholder((8,))
    results = [make.wait(make.scatter(a)), make.wait(make.scatter(b, ReduceOp.AVG))]
    graph = make.done(*results)
    bucket = plan_pb2.Bucket(members=[2, 4], mode=GROUPED)
    assert "differ in kind, group, reduce op or dtype" in refusal(
        graph, message(graph, [bucket], [node(0), node(1), start(0), wait(0), node(6)]))


def test_refuses_a_member_whose_result_is_read_before_its_wait():
    make = Maker()
    a, b = make.placeholder((3,)), make.placeholder((5,))
    gather, other = make.gather(a), make.gather(b)
    results = [make.wait(gather), make.wait(other), make.call(gather)]
    graph = make.done(*results)
    bucket = gathers_bucket(members=[2, 3])
    assert "must be read by one wait" in refusal(
        graph, message(graph, [bucket], [node(0), node(1), start(0), wait(0), node(6), node(7)]))


@pytest.mark.parametrize("order,said", [
    ([node(0), node(1), start(0), wait(0), node(7), node(4), node(8)], "%7 (mm_7) runs before its input %4 (mm_4)"),
    ([node(0), node(1), start(0), node(4), wait(0), node(7), node(8)], "%4 (mm_4) runs before its input %3"),
    ([node(0), start(0), node(1), wait(0), node(4), node(7), node(8)], "runs before its input %1"),
    ([node(0), node(1), wait(0), start(0), node(4), node(7), node(8)], "runs before its input"),
    ([node(0), node(1), start(0), wait(0), node(4), node(8)], "%7 (mm_7) is missing"),
    ([node(0), node(1), start(0), node(4), node(7), node(8)], "wait of bucket 0 is missing"),
    ([node(0), node(1), wait(0), node(4), node(7), node(8)], "start of bucket 0 is missing"),
    (MERGED_ORDER + [node(4)], "order[7]: node 4 stands twice"),
    (MERGED_ORDER + [wait(0)], "order[7]: wait 0 stands twice"),
    (MERGED_ORDER + [node(2)], "%2 (all_gather_2) is inside bucket 0"),
    (MERGED_ORDER + [node(6)], "%6 (wait_6) is inside bucket 0"),
    (MERGED_ORDER + [node(9)], "there is no node 9"),
    (MERGED_ORDER + [start(1)], "there is no bucket 1"),
])
def test_refuses_an_order_that_is_not_one(order, said):
    graph = two_gathers()
    assert said in refusal(graph, message(graph, [gathers_bucket()], order))


def test_refuses_a_bucket_whose_members_wait_for_each_other():
    make = Maker()
    first = make.wait(make.gather(make.placeholder((3,))))
    second = make.wait(make.gather(make.call(first, shape=(5,))))
    graph = make.done(second)
    bucket = gathers_bucket(members=[1, 4])
    assert "runs before its input" in refusal(
        graph, message(graph, [bucket], [node(0), start(0), wait(0), node(3), node(6)]))


def test_refuses_random_ops_that_changed_places():
    make = Maker()
    a = make.placeholder()
    graph = make.done(make.random(a), make.random(a))
    assert "keep their order" in refusal(graph, message(graph, order=[node(0), node(2), node(1), node(3)]))


def test_refuses_a_reader_that_an_in_place_op_overtook():
    make = Maker()
    a, b = make.placeholder(), make.placeholder()
    view = make.call(a, op="aten.view.default", alias_of=[a], flags=1)
    read = make.call(view)
    graph = make.done(read, make.write(a, b))
    assert "changed sides" in refusal(graph, message(graph, order=[node(i) for i in (0, 1, 2, 4, 3, 5)]))
    check(graph, message(graph))


def test_refuses_a_reader_that_overtook_an_in_place_op():
    make = Maker()
    a, b = make.placeholder(), make.placeholder()
    write = make.write(a, b)
    graph = make.done(make.call(a), write)
    assert "changed sides" in refusal(graph, message(graph, order=[node(i) for i in (0, 1, 3, 2, 4)]))


def test_refuses_an_in_place_op_on_what_a_collective_still_sends():
    make = Maker()
    a, b = make.placeholder((3,)), make.placeholder((3,))
    sent = make.wait(make.gather(a))
    graph = make.done(sent, make.write(a, b))
    assert "changed sides" in refusal(graph, message(graph, order=[node(i) for i in (0, 1, 2, 4, 3, 5)]))


def test_lets_a_program_write_what_a_collective_is_sending():
    make = Maker()
    a, b = make.placeholder((3,)), make.placeholder((3,))
    sent, write = make.gather(a), make.write(a, b)
    graph = make.done(make.wait(sent), write)
    check(graph, message(graph))
    assert "changed sides" in refusal(graph, message(graph, order=[node(i) for i in (0, 1, 3, 2, 4, 5)]))


def test_lets_readers_of_a_written_storage_change_places_among_themselves():
    make = Maker()
    a, b = make.placeholder(), make.placeholder()
    reads = [make.call(a), make.call(a)]
    graph = make.done(*reads, make.write(a, b))
    check(graph, message(graph, order=[node(i) for i in (0, 1, 3, 2, 4, 5)]))
