"""One rank: the bytes that eager FSDP2 hands to its collectives, beside those that a plan's buckets hold.

argv: the cases, and the file that rank 0 writes: a list by rank of case -> what was found.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import model as tiny
import simple_fsdp
import torch
import torch.distributed as dist
import torch.nn as nn
import training
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import bucketd
from bucketd.step_context import parameter_order

PARAMETERS, GRADIENTS = torch.bfloat16, torch.float32


@dataclasses.dataclass(frozen=True)
class Case:
    config: tiny.Config
    mesh: tuple[tuple[str, int], ...] = (("fsdp", 4),)
    columns: bool = False  # matrices are sharded over their second dimension
    mixed: bool = False  # the gradients of norms are reduced in bf16, the others in fp32


CASES = {
    "uneven rows": Case(tiny.Config()),
    "columns": Case(tiny.Config(dim=8, hidden=12), columns=True),
    "uneven columns": Case(tiny.Config(dim=9, hidden=14), columns=True),
    "beside tensor parallelism": Case(tiny.Config(dim=2, hidden=8), (("fsdp", 2), ("tp", 2))),
    "uneven beside tensor parallelism": Case(tiny.Config(), (("fsdp", 2), ("tp", 2))),
    "mixed dtypes": Case(tiny.Config(), mixed=True),
}


def hexadecimal(tensor) -> str:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


class Recorder:
    """Eager's all-gather or reduce-scatter, which keeps what it is given."""

    def __init__(self, kind: str, unit: list[str], found: list):
        self.kind, self.unit, self.found = kind, unit, found

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op=None, async_op=False):
        self.found.append({"kind": self.kind, "parameters": self.unit, "bytes": hexadecimal(input_tensor)})
        if self.kind == "all_gather":
            return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        return dist.reduce_scatter_single(output_tensor, input_tensor, op, group=group, async_op=async_op)


class Layouts:
    def __init__(self, case: Case):
        self.case = case
        names, sizes = zip(*case.mesh)
        self.whole = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        self.mesh = self.whole["fsdp"]

    def build(self) -> nn.Module:
        model = tiny.build(self.case.config)
        if "tp" in self.whole.mesh_dim_names:
            tiny.parallelize(model, self.whole["tp"])
        return model

    def step(self, call) -> None:
        data = training.Data(self.case.config.vocab, positions=5)
        tokens, targets, _ = data.step(0, self.mesh.get_local_rank())
        call(tokens, targets).backward()

    def placement(self, parameter) -> Shard:
        return Shard(1 if self.case.columns and parameter.ndim == 2 else 0)

    def eager(self) -> list[dict]:
        model, found = self.build(), []
        policy = MixedPrecisionPolicy(PARAMETERS, GRADIENTS, cast_forward_inputs=False)
        for unit in (*model.layers, [model.norm, model.output], model.tok_embeddings):
            fully_shard(unit, mesh=self.mesh, mp_policy=policy, shard_placement_fn=self.placement)
            modules = unit if isinstance(unit, list) else [unit]
            own = {id(parameter) for module in modules for parameter in module.parameters()}
            order = parameter_order(model)
            named = {name: parameter for name, parameter in model.named_parameters() if id(parameter) in own}
            unit_order = [name for name in order if name in named]
            first = modules[0]
            first.set_custom_all_gather(Recorder("all_gather", unit_order, found))
            first.set_custom_reduce_scatter(Recorder("reduce_scatter", unit_order, found))
        fully_shard(model, mesh=self.mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_reshard_after_forward(False)
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.step(model)
        return found

    def planned(self) -> list[dict]:
        found: list[dict] = []
        self.train(lambda own, order: bucketd.backend(
            mode="transformer_block", param_order=order, on_plan=lambda planned: self.watch(planned, own, found)))
        return found

    def difference(self) -> float:
        """The largest one of a gradient with a plan that keeps every bit of sums, and without a plan."""
        with_plan, without = (self.train(make) for make in (
            lambda own, order: bucketd.backend(mode="transformer_block", numerics="exact", param_order=order), lambda own, order: "aot_eager"))
        return max(float((a - b).abs().max()) if a.numel() else 0.0 for a, b in zip(with_plan, without, strict=True))

    def train(self, make_backend) -> list[torch.Tensor]:
        """A step's gradients, this rank's parts."""
        model = self.build()
        own = {name: self.own(parameter.detach()) for name, parameter in model.named_parameters()}
        order = parameter_order(model)
        if self.case.mixed:
            for layer in model.layers:
                simple_fsdp.shard(layer.ffn_norm, self.mesh, PARAMETERS, PARAMETERS)
            simple_fsdp.shard(model.norm, self.mesh, PARAMETERS, PARAMETERS)
        simple_fsdp.shard(model, self.mesh, PARAMETERS, GRADIENTS)
        if self.case.columns:
            for module in model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and parameter.ndim == 2:
                        moved = distribute_tensor(parameter.detach().full_tensor(), self.mesh, [Shard(1)])
                        module._parameters[name] = nn.Parameter(moved)

        torch._dynamo.reset()
        self.step(torch.compile(model, backend=make_backend(own, order)))
        return [parameter.grad.to_local() for parameter in model.parameters()]

    def watch(self, planned, own: dict[str, str], found: list) -> None:
        """Makes the planned module tell what its collectives read."""
        graph, nodes, plan = planned.module.graph, planned.normalized.graph.nodes, planned.plan
        launches = [n for n in graph.nodes if n.op == "call_function" and _launches(n)]
        started = [plan.buckets[step.id] if step.kind == 1 else None for step in plan.order
                   if step.kind == 1 or (step.kind == 0 and nodes[step.id].collective is not None)]
        for node, bucket in zip(launches, started, strict=True):
            if bucket is None:
                continue
            names = [nodes[member].collective.parameter for member in bucket.members]
            record = {"kind": bucket.kind, "parameters": names, "dtype": bucket.dtype, "offsets": bucket.offsets,
                      "slice_bytes": bucket.slice_bytes}

            def tell(tensor, record=record):
                found.append({**record, "bytes": hexadecimal(tensor)})

            if bucket.kind == "all_gather":
                record["own"] = [own[name] for name in names]
            with graph.inserting_before(node):
                graph.call_function(tell, (node.args[0],))

    def own(self, parameter) -> str:
        """This rank's padded shard of a parameter, by hand: what it contributes to a gather."""
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        dim = self.placement(parameter).dim
        size, rank = self.mesh.size(), self.mesh.get_local_rank()
        rows = -(-local.shape[dim] // size)
        shard = local.movedim(dim, 0)[rank * rows :][:rows]
        padding = shard.new_zeros(rows - shard.shape[0], *shard.shape[1:])
        return hexadecimal(torch.cat([shard, padding]).movedim(0, dim).to(PARAMETERS))


def _launches(node) -> bool:
    name = str(node.target)
    return name.startswith("_c10d_functional.") and "wait_tensor" not in name


def outcome(call):
    try:
        return call()
    except Exception as error:
        inner = getattr(error, "inner_exception", error)
        return f"{type(inner).__name__}: {inner}"


def main() -> None:
    *names, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for name in names:
        layouts = Layouts(CASES[name])
        results[name] = {"planned": outcome(layouts.planned)}
        if not CASES[name].mixed:  # which eager refuses amid a backward, with other ranks waiting
            results[name]["eager"] = outcome(layouts.eager)
        if name == "uneven columns":
            results[name]["difference"] = outcome(layouts.difference)
        dist.barrier()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
