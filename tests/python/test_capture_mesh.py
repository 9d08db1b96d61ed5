"""Process groups by their role, on real device meshes over a fake process group: only one process is needed."""

import concurrent.futures
import datetime

import pytest
import torch
import torch.distributed as dist
from fx_graphs import Builder, result
from layered_graphs import options
from planners import planner
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketd
from bucketd import canonical, twins, wire
from bucketd.capture import capture_graph
from bucketd.client import PlannerClient
from bucketd.mesh import GroupRoles, Meshes, creation_order, identities, mesh_message, ranks_on_one_node
from bucketd.normalize import normalize
from bucketd.step_context import CaptureContext


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def roles(groups):
    return [(g.mesh_dim, g.lane, g.size) for g in groups]


def meshes_of(*several):
    meshes = Meshes()
    for mesh in several:
        meshes.add(mesh)
    return meshes


def used(meshes, *groups):
    found = GroupRoles(meshes)
    for group in groups:
        found.index(group.group_name)
    return found


def test_a_dimensions_own_group_has_lane_0_even_if_a_twin_is_used_first(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    twin, other = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])
    found = used(meshes_of(mesh), twin, mesh.get_group("tp"), other, mesh.get_group("dp"), twin)
    assert roles(found.groups) == [("tp", 1, 4), ("tp", 0, 4), ("tp", 2, 4), ("dp", 0, 2)]
    assert found.index(twin.group_name) == 0


def twin_of(group):
    return dist.distributed_c10d._resolve_process_group(twins._twin_of(group))


def test_a_twin_has_its_groups_ranks_in_their_order(world):
    assert dist.get_process_group_ranks(twin_of(dist.new_group([3, 0, 2], sort_ranks=False))) == [3, 0, 2]


def test_a_twin_has_its_groups_patience():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    twin = twin_of(dist.new_group([0], timeout=datetime.timedelta(minutes=47)))
    assert twin._get_backend(torch.device("cpu")).options._timeout == datetime.timedelta(minutes=47)
    dist.destroy_process_group()


def test_twins_have_the_lanes_of_their_creation_whichever_is_used_first(world):
    meshes = meshes_of(init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp")))
    first, idle, second = (dist.new_group([0, 1, 2, 3]) for _ in range(3))
    assert roles(used(meshes, first, second).groups) == [("tp", 1, 4), ("tp", 2, 4)]
    assert roles(used(meshes, second, first).groups) == [("tp", 2, 4), ("tp", 1, 4)]
    assert roles(used(meshes, second).groups) == [("tp", 1, 4)], "what the graph does not use does not count"
    assert identities(used(meshes, second, first, dist.group.WORLD).groups) == {
        "0-3": f"tp#2 is group {second.group_name}, tp#1 is group {first.group_name}", "0-7": "world#0 is group 0"}
    assert idle.group_name not in {g.name for g in used(meshes, second).groups}


def test_groups_of_no_dimension_are_numbered_as_they_were_created(world):
    row, column = dist.new_group([0, 1]), dist.new_group([0, 2])
    whole = dist.new_group(list(range(8)))
    assert roles(used(Meshes(), column, row).groups) == [("group1", 0, 2), ("group0", 0, 2)]
    assert roles(used(Meshes(), whole, dist.group.WORLD).groups) == [("world", 1, 8), ("world", 0, 8)]


def test_of_two_meshes_with_one_name_the_older_has_it_whichever_is_seen_first(world):
    older, newer = (init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp")) for _ in range(2))
    for meshes in (meshes_of(older, newer), meshes_of(newer, older)):
        found = used(meshes, newer.get_group("tp"), older.get_group("tp"))
        assert roles(found.groups) == [("tp", 1, 4), ("tp", 0, 4)]


def test_ranks_that_swap_two_groups_over_the_same_ranks_are_told_so(world):
    meshes = meshes_of(init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp")))
    pair = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])

    def graph_of(rank):
        one, other = reversed(pair) if rank == 2 else pair
        b = Builder()
        b.context.meshes = meshes
        p, q = b.parameter("a.weight", 2, 3), b.parameter("b.weight", 2, 3)
        a = b.wait(b.gather(p, 4, one.group_name))
        c = b.wait(b.gather(q, 4, other.group_name))
        captured = capture_graph(b.output([a, c], [result(), result()]), b.context, "fw")
        return normalize(captured.raw).graph, mesh_message(captured.raw)

    graphs = [graph_of(rank) for rank in range(4)]
    with planner() as one, concurrent.futures.ThreadPoolExecutor(4) as pool:

        def ask(rank):
            graph, message = graphs[rank]
            return PlannerClient(one.address).get_plan(
                lambda: wire.to_proto(graph), canonical.digest(graph), message, options(), deadline=30,
                job=bucketd.Job("swapped").at("0/fw", [rank], 4))

        told = [asked.exception(timeout=60) for asked in [pool.submit(ask, rank) for rank in range(4)]]
    assert [error.reason for error in told] == ["RANKS_DIFFER"] * 4
    first = next(i for i, node in enumerate(graphs[0][0].nodes) if node.collective)
    assert all(error.metadata["node"] == str(first) for error in told), told[0]
    for part in ("rank 2 presented", "ranks 0, 1 and 3 presented", "lane is 2 against 1"):
        assert part in str(told[0])


def test_a_slice_of_a_mesh_brings_its_siblings_in_the_meshs_order(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    meshes = Meshes()
    meshes.add(mesh["tp"])
    assert [(d.name, d.size) for d in meshes.dims()] == [("dp", 2), ("tp", 4)]


def test_ranks_of_a_node_come_from_the_launcher(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    context = CaptureContext()
    context.meshes.add(mesh)
    # tp stays inside a node of four; each group of dp has one rank in each of two nodes.
    assert [(d.name, d.size, d.ranks_per_node) for d in context.meshes.dims()] == [("dp", 2, 1), ("tp", 4, 0)]
    assert ranks_on_one_node(range(8)) == 4 and ranks_on_one_node([0, 1]) == 0


def test_groups_of_no_named_dimension_are_the_world_or_numbered(world):
    mesh = init_device_mesh("cpu", (2, 4))
    meshes = meshes_of(mesh)
    pair, quad, everyone = mesh.get_group(0), mesh.get_group(1), dist.group.WORLD
    found = used(meshes, quad, everyone, pair)
    by_creation = {name: number for number, name in enumerate(creation_order())}
    numbers = sorted((by_creation[g.group_name], g) for g in (pair, quad))
    names = {group: f"group{number}" for number, (_, group) in enumerate(numbers)}
    assert roles(found.groups) == [(names[quad], 0, 4), ("world", 0, 8), (names[pair], 0, 2)]
    assert [(d.name, d.size) for d in meshes.dims(found.groups)] == [(names[quad], 4), ("world", 8), (names[pair], 2)]


def test_a_world_that_a_dimension_names_has_the_dimensions_name(world):
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("fsdp",))
    meshes = Meshes()
    meshes.add(mesh)
    found = GroupRoles(meshes)
    found.index(mesh.get_group().group_name)
    assert roles(found.groups) == [("fsdp", 0, 8)]


def test_a_flattened_dimension_is_known_by_its_name(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    flat = mesh["replicate", "shard"]._flatten("dp")
    meshes = Meshes()
    meshes.add(mesh["shard"])
    found = GroupRoles(meshes)
    found.index(flat.get_group().group_name)
    assert roles(found.groups) == [("dp", 0, 8)]
    assert [d.name for d in meshes.dims()] == ["replicate", "shard", "dp"]
