"""Twins of process groups: reduce-scatters of gradients on groups of their own, over the same ranks as the all-gathers'.

PyTorch runs what one group is given one after the other and two groups' side by side, and so does the planner: a twin is
another lane of its mesh dimension. The graph is captured and planned with names that stand for twins; the groups are made
when all ranks have agreed to run the plan, so that none of them waits here for one that has failed.
"""

from __future__ import annotations

import functools
import weakref

import torch.distributed as dist
from torch import fx
from torch.distributed import distributed_c10d as c10d

from .agreement import hearing_signals
from .capture import group_name_of, tag_once
from .mesh import TWIN, creation_order
from .reshard import copy_module
from .step_context import CaptureContext
from .tags import META_KEY

# By group: its twin's name, as long as there is that group.
_twins: weakref.WeakKeyDictionary[dist.ProcessGroup, str] = weakref.WeakKeyDictionary()


def on_twins(gm: fx.GraphModule, context: CaptureContext, kind: str) -> fx.GraphModule:
    """A copy of `gm` in which reduce-scatters of gradients name the twins of their groups, which are not there yet."""
    tag_once(gm, context, kind)
    out = copy_module(gm)
    out.graph.set_codegen(gm.graph._codegen)
    out.meta.update(gm.meta)
    for node in out.graph.nodes:
        if node.meta.get(META_KEY, ("",))[0] == "fsdp_rs":
            node.update_arg(len(node.args) - 1, group_name_of(node.args[-1], node) + TWIN)
    return out


def open_twins(gm: fx.GraphModule) -> None:
    """Puts the twins' own names into the graph of `gm`, and makes those that are missing. For all ranks of a group at once."""
    named = [node for node in gm.graph.nodes if node.args and isinstance(node.args[-1], str) and node.args[-1].endswith(TWIN)]
    created = list(creation_order())  # in this order ranks of several groups do not wait for each other in a circle
    for name in sorted({node.args[-1].removesuffix(TWIN) for node in named}, key=created.index):
        own = _twin_of(c10d._resolve_process_group(name))
        for node in named:
            if node.args[-1] == name + TWIN:
                node.update_arg(len(node.args) - 1, own)


def _twin_of(group: dist.ProcessGroup) -> str:
    if group not in _twins:
        ranks, options = dist.get_process_group_ranks(group), group._get_backend(group._device_types[0]).options
        make = functools.partial(dist.new_group, ranks, timeout=getattr(options, "_timeout", None), backend=dist.get_backend(group),
                                 sort_ranks=False, use_local_synchronization=True, group_desc=f"reduce-scatters of {group.group_name}")
        _twins[group] = hearing_signals(lambda _: make()).group_name  # it waits for the group's other ranks
    return _twins[group]
