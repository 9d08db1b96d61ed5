"""Process groups by their role, on real device meshes over a fake process group: only one process is needed."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from bucketd.capture import CaptureContext
from bucketd.mesh import Meshes, mesh_message, ranks_on_one_node


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def roles(groups):
    return [(g.mesh_dim, g.lane, g.size) for g in groups]


def test_a_dimensions_own_group_has_lane_0_even_if_a_twin_is_used_first(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    twin, other = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])
    meshes = Meshes()
    meshes.add(mesh)
    found = meshes.roles()
    for group in (twin, mesh.get_group("tp"), other, mesh.get_group("dp"), twin):
        found.index(group.group_name)
    assert roles(found.groups) == [("tp", 1, 4), ("tp", 0, 4), ("tp", 2, 4), ("dp", 0, 2)]
    assert found.index(twin.group_name) == 0


def test_a_slice_of_a_mesh_brings_its_siblings_in_the_meshs_order(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    meshes = Meshes()
    meshes.add(mesh["tp"])
    assert [(d.name, d.size) for d in meshes.dims()] == [("dp", 2), ("tp", 4)]


def test_ranks_of_a_node_come_from_the_launcher(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    context = CaptureContext()
    context.meshes.add(mesh)
    message = mesh_message(context)
    # tp stays inside a node of four; each group of dp has one rank in each of two nodes.
    assert [(d.name, d.size, d.ranks_per_node) for d in message.dims] == [("dp", 2, 1), ("tp", 4, 0)]
    assert ranks_on_one_node(range(8)) == 4 and ranks_on_one_node([0, 1]) == 0


def test_groups_of_no_named_dimension_are_the_world_or_numbered(world):
    mesh = init_device_mesh("cpu", (2, 4))
    meshes = Meshes()
    meshes.add(mesh)
    found = meshes.roles()
    pair, quad, everyone = mesh.get_group(0), mesh.get_group(1), dist.group.WORLD
    for group in (quad, everyone, pair):
        found.index(group.group_name)
    assert roles(found.groups) == [("group0", 0, 4), ("world", 0, 8), ("group1", 0, 2)]
    assert [(d.name, d.size) for d in meshes.dims(found.groups)] == [("group0", 4), ("world", 8), ("group1", 2)]


def test_a_world_that_a_dimension_names_has_the_dimensions_name(world):
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("fsdp",))
    meshes = Meshes()
    meshes.add(mesh)
    found = meshes.roles()
    found.index(mesh.get_group().group_name)
    assert roles(found.groups) == [("fsdp", 0, 8)]


def test_a_flattened_dimension_is_known_by_its_name(world):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    flat = mesh["replicate", "shard"]._flatten("dp")
    meshes = Meshes()
    meshes.add(mesh["shard"])
    found = meshes.roles()
    found.index(flat.get_group().group_name)
    assert roles(found.groups) == [("dp", 0, 8)]
    assert [d.name for d in meshes.dims()] == ["replicate", "shard", "dp"]
