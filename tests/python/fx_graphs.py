"""Aten-level FX graphs made by hand, as AOTAutograd would hand them over: values on the meta device, descriptors."""

from __future__ import annotations

import operator

import torch
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
    TangentAOTInput,
)

from bucketd.graph import Role
from bucketd.step_context import CaptureContext, InputInfo

c10d = torch.ops._c10d_functional
aten = torch.ops.aten


def value(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


class Builder:
    """Inputs are declared by role; each becomes an input of the context too."""

    def __init__(self):
        self.graph = torch.fx.Graph()
        self.context = CaptureContext()

    def _input(self, name, val, desc, info):
        node = self.graph.placeholder(name)
        node.meta.update(val=val, desc=desc)
        if info is not None:
            self.context.inputs.append(info)
        return node

    def parameter(self, fqn, *shape, dtype=torch.float32):
        desc = SubclassGetAttrAOTInput(PlainAOTInput(len(self.context.inputs)), "_local_tensor")
        return self._input(fqn.replace(".", "_"), value(*shape, dtype=dtype), desc, InputInfo(Role.PARAMETER, fqn))

    def input(self, name, *shape, dtype=torch.float32):
        desc = PlainAOTInput(len(self.context.inputs))
        return self._input(name, value(*shape, dtype=dtype), desc, InputInfo(Role.INPUT))

    def mesh(self, of=0):
        return self._input("mesh", object(), SubclassGetAttrAOTInput(PlainAOTInput(of), "device_mesh"), None)

    def saved(self, name, *shape, dtype=torch.float32):
        return self._input(name, value(*shape, dtype=dtype), None, None)

    def tangent(self, *shape):
        return self._input("tangents_1", value(*shape), TangentAOTInput(PlainAOTOutput(0)), None)

    def call(self, target, *args, **kwargs):
        node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        if str(target).startswith("_c10d_functional."):
            node.meta["val"] = self._collective(str(target), *values[0])
        else:
            node.meta["val"] = target(*values[0], **values[1])
        return node

    @staticmethod
    def _collective(target, first, *rest):
        if "all_gather" in target:
            return first.new_empty(first.shape[0] * rest[0], *first.shape[1:])
        if "reduce_scatter" in target:
            return first.new_empty(first.shape[0] // rest[1], *first.shape[1:])
        return first.new_empty(first.shape)

    def gather(self, x, size=4, group="0"):
        return self.call(c10d.all_gather_into_tensor.default, x, size, group)

    def scatter(self, x, op="sum", size=4, group="0"):
        return self.call(c10d.reduce_scatter_tensor.default, x, op, size, group)

    def reduce(self, x, op="sum", group="1"):
        return self.call(c10d.all_reduce.default, x, op, group)

    def wait(self, x):
        return self.call(c10d.wait_tensor.default, x)

    def cast(self, x, dtype=torch.bfloat16):
        return self.call(aten._to_copy.default, x, dtype=dtype)

    def pad(self, x, rows):
        return self.call(aten.constant_pad_nd.default, x, [0, 0] * (x.meta["val"].dim() - 1) + [0, rows], 0.0)

    def slice(self, x, rows):
        return self.call(aten.slice.Tensor, x, 0, 0, rows)

    def split_pad_cat(self, x, chunk, pads):
        """What DTensor puts in front of an uneven reduce-scatter: the last piece is padded."""
        pieces = self.call(aten.split.Tensor, x, chunk)
        parts = [self.getitem(pieces, i) for i in range(len(pieces.meta["val"]))]
        parts[-1] = self.pad(parts[-1], pads)
        return self.call(aten.cat.default, parts)

    def getitem(self, x, index):
        return self.call(operator.getitem, x, index)

    def output(self, slots, descriptors=None):
        node = self.graph.output(slots)
        if descriptors is not None:
            node.meta["desc"] = descriptors
        return torch.fx.GraphModule({}, self.graph)


def shape_env(gm):
    """Of the symbolic sizes of a graph's inputs; None: they have none."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) and getattr(size.node, "shape_env", None) is not None:
                return size.node.shape_env
    return None


def gradient(index):
    return SubclassGetAttrAOTOutput(GradAOTOutput(PlainAOTInput(index)), "_local_tensor")


def result(index=0):
    return PlainAOTOutput(index)
