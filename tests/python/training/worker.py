"""One rank of the proof: trains the example model in several ways, one after the other, and leaves what came out.

argv: a shape of SHAPES, the number of steps, and the file that rank 0 writes: a list by rank of reduce dtype -> run -> result.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import pathlib
import sys

os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import bucketd  # noqa: E402
import llama  # noqa: E402
import simple_fsdp  # noqa: E402
import training  # noqa: E402
from bucketd.capture import parameter_order  # noqa: E402

SHAPES = {
    # Each shard is whole and has an even number of elements.
    "even": llama.LlamaConfig(vocab=32, dim=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24, branch_scale=True),
    # No dimension divides by 4 ranks, some ranks hold nothing of a parameter; norms, wk, wv, w2 and the whole of a block
    # have an odd number of elements per rank.
    "odd": llama.LlamaConfig(vocab=13, dim=9, layers=2, heads=3, kv_heads=1, head_dim=2, hidden=7, branch_scale=True),
}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# So far apart that the smaller addends still reach into the last bits of the sum: bf16 keeps 8 bits, fp32 24.
SPREAD_BITS = {"bf16": 6, "fp32": 24}


class Proof:
    def __init__(self, shape: str, reduce_dtype: str, steps: int):
        self.config, self.steps = SHAPES[shape], steps
        self.reduce_dtype = DTYPES[reduce_dtype]
        self.data = training.Data(self.config.vocab, positions=9, spread_bits=SPREAD_BITS[reduce_dtype])
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        self.results: dict[str, dict] = {}

    def eager(self, name: str, rank_shift: int = 0) -> None:
        model = training.shard_eager(llama.build(self.config), self.mesh, torch.bfloat16, self.reduce_dtype)
        self._train(name, model, model, dataclasses.replace(self.data, rank_shift=rank_shift))

    def compiled(self, name: str, backend_of) -> None:
        torch._dynamo.reset()
        model = simple_fsdp.shard(llama.build(self.config), self.mesh, torch.bfloat16, self.reduce_dtype)
        self._train(name, model, torch.compile(model, backend=backend_of(model)), self.data)

    def planned(self, name: str, order=None, **options) -> None:
        """`order` makes another payload order of the model's eager one."""
        plans = []

        def backend_of(model):
            names = parameter_order(model)
            return bucketd.backend(param_order=order(names) if order else names, on_plan=plans.append, **options)

        self.compiled(name, backend_of)
        self.results[name]["plans"] = {p.scope.rsplit("/", 1)[-1]: _describe(p) for p in plans}

    def _train(self, name: str, model, call, data) -> None:
        run = training.Training(name, model, call, data)
        for _ in range(self.steps - 1):
            run.step()
        run.profiled_step()
        self.results[name] = dataclasses.asdict(run.result())


def _describe(planned) -> dict:
    return {
        "digest": planned.digest.hex(),
        "plan": planned.plan.sha256,
        "source": planned.source,
        "buckets": [[b.kind, b.packed, len(b.members)] for b in planned.plan.buckets],
        "diagnostics": [d.code for d in planned.plan.diagnostics],
    }


def prove(shape: str, reduce_dtype: str, steps: int) -> dict[str, dict]:
    proof = Proof(shape, reduce_dtype, steps)
    proof.eager("eager")
    proof.eager("eager, ranks shifted", rank_shift=1)
    proof.compiled("unplanned", lambda _: training.UNPLANNED)
    proof.planned("eager_order")
    proof.planned("exact", numerics="exact")
    if shape == "odd":
        proof.planned("payloads reversed", order=lambda names: names[::-1])
    return proof.results


def main() -> None:
    shape, steps, out = sys.argv[1:]
    torch.set_num_threads(1)
    gc.freeze()  # a tenth of the time of compiling
    dist.init_process_group("gloo")
    results = {reduce_dtype: prove(shape, reduce_dtype, int(steps)) for reduce_dtype in DTYPES}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
