"""One rank of the proof: trains cell after cell, and leaves what came out.

argv: the file that holds the cells, and the file that rank 0 writes: a list by rank of cell -> training.Result, and the
plans of a planned cell. An error ends the job.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import sys
import time
import traceback

os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import by_hand  # noqa: E402
import cells  # noqa: E402
import llama  # noqa: E402
import model as tiny  # noqa: E402
import simple_fsdp  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import bucketd  # noqa: E402
from bucketd.settings import Settings  # noqa: E402
from bucketd.step_context import parameter_order  # noqa: E402

MODELS = {
    # No dimension divides by 4 ranks, nor their halves by 2 or 3.
    "tiny": (tiny.build, tiny.Config()),
    # Each shard is whole and has an even number of elements.
    "llama even": (llama.build, llama.LlamaConfig(
        vocab=32, dim=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24, branch_scale=True)),
    # No dimension divides by 4 ranks, some ranks hold nothing of a parameter; norms, wk, wv, w2 and the whole of a block
    # have an odd number of elements per rank.
    "llama odd": (llama.build, llama.LlamaConfig(
        vocab=13, dim=9, layers=2, heads=3, kv_heads=1, head_dim=2, hidden=7, branch_scale=True)),
}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# So far apart that the smaller addends still reach into the last bits of the sum: bf16 keeps 8 bits, fp32 24.
SPREAD_BITS = {"bf16": 6, "fp32": 24}


@dataclasses.dataclass(frozen=True)
class Data(training.Data):
    copies: int = 1  # ranks side by side that work on one batch: those of tensor parallelism

    def step(self, step: int, rank: int):
        return super().step(step, rank // self.copies)


@functools.cache
def mesh_of(parallelism: str):
    names, sizes = zip(*cells.MESHES[parallelism])
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


class Run:
    def __init__(self, cell: cells.Cell, plans_of: dict):
        self.cell, self.plans_of = cell, plans_of
        build, config = MODELS[cell.model]
        self.model = build(config)
        self.kind = cell.parallelism.split()[0]
        self.mesh = mesh_of(cell.parallelism)
        self.dtypes = torch.bfloat16, DTYPES[cell.dtype]
        copies = 1
        if self.kind == "fsdp+tp":
            tiny.parallelize(self.model, self.mesh["tp"])
            self.mesh, copies = self.mesh["fsdp"], self.mesh["tp"].size()
        shift = copies if cell.twist == "ranks shifted" else 0
        self.data = Data(config.vocab, positions=9, spread_bits=SPREAD_BITS[cell.dtype], rank_shift=shift, copies=copies)
        self.plans: list = []

    def train(self) -> dict:
        run = {"eager": self.eager, "unplanned": self.unplanned, "planned": self.planned, "by hand": self.by_hand}
        step = run[self.cell.run]()
        for _ in range(self.cell.steps - 1):
            step.step()
        step.profiled_step()
        self.plans_of[self.cell] = [_describe(planned) for planned in self.plans]
        return {**dataclasses.asdict(step.result()), "plans": self.plans_of[self.cell]}

    def eager(self):
        if self.kind == "ddp":
            return by_hand.Reducer(str(self.cell), self.model, self.data, *self.dtypes, self.cell.twist == "buckets rebuilt")
        sharded = training.shard_eager(self.model, self.mesh, *self.dtypes)
        return training.Training(str(self.cell), sharded, sharded, self.data)

    def unplanned(self):
        return self._compiled(training.UNPLANNED)

    def planned(self):
        names = parameter_order(self.model)
        if self.cell.twist == "payloads reversed":
            names.reverse()
        options = dict(self.cell.options)
        own = {name: options.pop(name) for name in list(options) if name in Settings.__dataclass_fields__}
        return self._compiled(bucketd.backend(
            mode=self.cell.mode, numerics=self.cell.numerics, param_order=names, on_plan=self.plans.append, options=options,
            **own))

    def _compiled(self, backend):
        torch._dynamo.reset()
        placements = {"ddp": simple_fsdp.DDP, "hsdp": simple_fsdp.HSDP}.get(self.kind, simple_fsdp.FSDP)
        sharded = simple_fsdp.shard(self.model, self.mesh, *self.dtypes, placements)
        return training.Training(str(self.cell), sharded, torch.compile(sharded, backend=backend), self.data)

    def by_hand(self):
        buffers = by_hand.Buffers()
        if self.cell.mode:
            planned = dataclasses.replace(self.cell, run="planned", twist="")
            buffers = by_hand.Buffers.of(self.plans_of[planned])
        if self.cell.twist == "payloads reversed":
            buffers = by_hand.Buffers(*(tuple(names[::-1] for names in b) for b in dataclasses.astuple(buffers)))
        groups = [self.mesh.get_group(dim) for dim in range(self.mesh.ndim)]
        replicate = groups[0] if self.kind in ("ddp", "hsdp") else None
        shard = groups[-1] if self.kind != "ddp" else None
        return by_hand.ByHand(str(self.cell), self.model, self.data, *self.dtypes, replicate, shard, buffers)


def _describe(planned) -> dict:
    nodes = planned.normalized.graph.nodes
    return {
        "part": planned.scope.rsplit("/", 1)[-1],
        "digest": planned.digest.hex(),
        "plan": planned.plan.sha256,
        "source": planned.source,
        "run by": "torch.distributed" if planned.runner is None else planned.runner.takes_text,
        "bits": planned.plan.bits,
        "buckets": [{"kind": bucket.kind, "packed": bucket.packed, "mesh_dim": bucket.mesh_dim,
                     "parameters": [nodes[member].collective.parameter for member in bucket.members]}
                    for bucket in planned.plan.buckets],
        "diagnostics": [d.code for d in planned.plan.diagnostics],
    }


def main() -> None:
    wanted, out = map(pathlib.Path, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results, plans_of = {}, {}
    for cell in cells.load(wanted):
        begin = time.perf_counter()
        try:
            results[str(cell)] = Run(cell, plans_of).train()
        except Exception:
            # The other ranks may wait in a collective that this one will not join: end the job, not only the cell.
            print(f"cell {cell}:\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        results[str(cell)]["seconds"] = time.perf_counter() - begin
        dist.barrier()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
