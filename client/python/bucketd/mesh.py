"""Process groups by their role: which mesh dimension a group belongs to, and on which lane.

Process-group names count up per process and differ between ranks; a role does not (proto/GRAPH.md §2, step 2).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .agreement import distributed, spans_text
from .graph import Group, MeshDim, RawGraph

if TYPE_CHECKING:  # an executor runs where protobuf is not
    from ._wire.proto import planner_pb2

TWIN = "+reductions"  # behind a group's name: its twin (twins.py)


@dataclass
class Meshes:
    """The device meshes that a step was seen to use."""

    device_type: str = ""
    _dims: dict[str, Group] = field(default_factory=dict)  # each dimension's own group, by its name, in order of the meshes
    _seen: set[int] = field(default_factory=set)

    def add(self, mesh: object) -> None:
        """`mesh` is a DeviceMesh. Dimensions of its root mesh come first, so that a slice brings its siblings too."""
        if mesh is None or id(mesh) in self._seen:
            return
        self._seen.add(id(mesh))
        self.device_type = self.device_type or mesh.device_type
        root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
        flattened = getattr(root, "_flatten_mapping", None) or {}
        for one in (root, mesh, *flattened.values()):
            self._add_dims(one)

    def _add_dims(self, mesh: object) -> None:
        group_names = getattr(mesh, "_dim_group_names", None) or []
        created = creation_order()
        for name, group_name in zip(mesh.mesh_dim_names or (), group_names):
            if name is None or group_name is None:
                continue
            known = self._dims.get(name)
            # Of two meshes with one name the older one has it, whichever a rank sees first.
            if known is not None and created.get(known.name, 0) <= created.get(group_name, 0):
                continue
            ranks = group_ranks(group_name)
            self._dims[name] = Group(name, 0, len(ranks), group_name, ranks)

    def dims(self, extra: Sequence[Group] = ()) -> list[MeshDim]:
        """Every dimension, then the roles of `extra` that belong to none."""
        groups: dict[str, Group] = {}
        for group in (*self._dims.values(), *extra):
            groups.setdefault(group.mesh_dim, group)
        return [MeshDim(name, group.size, ranks_on_one_node(group.ranks)) for name, group in groups.items()]

    def dim_of(self, group_name: str, ranks: tuple[int, ...]) -> Group | None:
        """The own group of the dimension that a group is of."""
        for dim in self._dims.values():
            if dim.name == group_name:
                return dim
        members = set(ranks)
        for dim in self._dims.values():
            if ranks and set(dim.ranks) == members:
                return dim
        return None


class GroupRoles:
    """Gives the process groups that one graph uses their roles.

    Groups that only their creation tells apart are numbered in the order of it, which their members share: a rank that
    swaps two of them has another graph. The list stays in order of first use. Only groups that the graph uses count, so
    that what else a job has made does not matter."""

    def __init__(self, meshes: Meshes) -> None:
        self._meshes = meshes
        self._sizes: dict[str, int] = {}  # by name, in order of first use
        self._index: dict[str, int] = {}

    def index(self, group_name: str, size: int = 0) -> int:
        """Of the group in `groups`. `size` is what the collective says, for groups that this process cannot look up."""
        self._sizes.setdefault(group_name, size)
        return self._index.setdefault(group_name, len(self._index))

    @property
    def groups(self) -> list[Group]:
        created = creation_order()
        lanes: dict[str, int] = {}  # mesh dimension -> the next lane that is free
        unnamed = itertools.count()
        roles = {}
        for name in sorted(self._sizes, key=lambda name: created.get(name, len(created))):
            ranks = group_ranks(name)
            size = len(ranks) or self._sizes[name]
            dim = self._meshes.dim_of(name, ranks)
            if dim is not None and dim.name == name:
                mesh_dim, lane = dim.mesh_dim, 0
            elif dim is None and size != world_size():
                mesh_dim, lane = f"group{next(unnamed)}", 0
            else:
                mesh_dim = "world" if dim is None else dim.mesh_dim
                lane = lanes.get(mesh_dim, 0 if dim is None else 1)
                lanes[mesh_dim] = lane + 1
            roles[name] = Group(mesh_dim, lane, size, name, ranks)
        return [roles[name] for name in self._sizes]


def creation_order() -> dict[str, int]:
    """When this process became a member of its groups, by their names: in the order that all members of one share, since
    they make it together. Empty without torch.distributed."""
    dist = distributed()
    if dist is None:
        return {}
    return {name: number for number, name in enumerate(dist.distributed_c10d._world.pg_names.values())}


def identities(groups: Sequence[Group]) -> dict[str, str]:
    """What the members of each group have to agree on, by who they are ("0-3, 8"): which groups they mean. A graph says by
    its roles how its groups differ from each other, not which of several alike it means; names are theirs in the whole job."""
    found: dict[str, str] = {}
    for group in groups:
        if group.ranks:
            members = spans_text(group.ranks)
            said = f"{group.mesh_dim}#{group.lane} is group {group.name}"
            if group.name.endswith(TWIN):  # it is yet to be made, and then named by how many there are
                said += f" after {len(creation_order())}"
            found[members] = f"{found[members]}, {said}" if members in found else said
    return found


def group_ranks(group_name: str) -> tuple[int, ...]:
    """Global ranks of a process group of this process, or of its twin, by name; empty where there is none of that name."""
    dist = distributed()
    if dist is None:
        return ()
    try:
        group = dist.distributed_c10d._resolve_process_group(group_name.removesuffix(TWIN))
        return tuple(dist.get_process_group_ranks(group))
    except (RuntimeError, ValueError, KeyError):
        return ()


def world_size() -> int:
    dist = distributed()
    return dist.get_world_size() if dist is not None else 1


def ranks_per_node() -> int:
    """Of the whole job, as the launcher says; else all ranks are taken to share one node."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else world_size()


def ranks_on_one_node(ranks: Sequence[int]) -> int:
    """How many of a group's ranks stand on the node of its first one; 0: all of them."""
    if not ranks:
        return 0
    per_node = ranks_per_node()
    here = sum(1 for rank in ranks if rank // per_node == ranks[0] // per_node)
    return 0 if here == len(ranks) else here


def mesh_message(raw: RawGraph) -> planner_pb2.Mesh:
    """The mesh of a step, and the groups of its graph that belong to no mesh dimension."""
    from ._wire.proto import planner_pb2

    message = planner_pb2.Mesh(device_type=raw.device_type)
    for dim in raw.mesh:
        message.dims.add(name=dim.name, size=dim.size, ranks_per_node=dim.ranks_per_node)
    return message
