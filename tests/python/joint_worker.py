"""One rank: trains a small model by joint graphs, planned and not, beside eager FSDP2. Prints what came out.

argv: a shape of SHAPES, a reduce dtype, the number of steps, and runs: "eager", or words of
  plain | exact | units    without a plan; a plan that keeps the bits of that; eager's units in eager's order
  one | split              forward and backward in one function, or taken apart
  keep | reshard           whether the backward keeps gathered parameters or gathers them again
  ddp | hsdp               instead of FSDP
  a mode of MODES          instead of transformer_block
  ours                     buckets are run by libbucket_executor
"""

import dataclasses
import json
import os
import sys

os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import simple_fsdp  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from sharded_model import Model  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402

import bucketd  # noqa: E402
from bucketd.tags import META_KEY  # noqa: E402

SHAPES = {"even": (8, 16), "odd": (9, 11)}  # width and hidden; odd: so is every number of elements per rank
VOCABULARY = 13
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SPREAD_BITS = {"bf16": 6, "fp32": 24}
PLANS = {"exact": dict(numerics="exact"), "units": dict(numerics="eager_order")}
MODES = {
    "none": dict(mode="none"),
    "auto": dict(mode="auto"),
    "manual": dict(mode="manual", buckets="embedding,blocks.0,blocks.1,head"),
    "greedy": dict(mode="greedy"),
    "overlap": dict(mode="overlap"),
}
EXECUTORS = {"ours": dict(executor="bucketd")}
# Mesh, and how parameters lie on it.
PARALLELISMS = {
    "fsdp": ({"fsdp": 4}, simple_fsdp.FSDP),
    "ddp": ({"ddp": 4}, simple_fsdp.DDP),
    "hsdp": ({"replicate": 2, "shard": 2}, simple_fsdp.HSDP),
}


class Step(Model):
    """Its loss."""

    def forward(self, tokens, targets):
        return super().forward(tokens + 0 * targets)


def build(width: int, hidden: int) -> Step:
    torch.manual_seed(0)
    return Step(width, hidden)


def shard_eager(model, mesh, dtype):
    """Eager FSDP2 over the units that a plan by blocks has."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=dtype, cast_forward_inputs=False)
    for unit in (*model.blocks, model.head, model.embedding, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    return model


class JointTraining(training.Training):
    """`call` does the backward too, and takes the loss's gradient."""

    def _forward_backward(self) -> None:
        tokens, targets, scale = self.data.step(self.done, dist.get_rank())
        self.losses.append(self.call(tokens, targets, tangent=scale).item())
        self.done += 1


class Runs:
    def __init__(self, shape, dtype, steps):
        self.sizes, self.dtype, self.steps = SHAPES[shape], DTYPES[dtype], steps
        self.data = training.Data(VOCABULARY, positions=7, spread_bits=SPREAD_BITS[dtype])
        self.meshes = {name: init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))
                       for name, (dims, _) in PARALLELISMS.items()}

    def train(self, name: str) -> dict:
        words, plans = set(name.split()), []
        (parallelism,) = words & set(PARALLELISMS) or {"fsdp"}
        mesh = self.meshes[parallelism]
        if name == "eager":
            model = shard_eager(build(*self.sizes), mesh, self.dtype)
            run = training.Training(name, model, model, self.data)
        else:
            placements = PARALLELISMS[parallelism][1]
            model = simple_fsdp.shard(build(*self.sizes), mesh, torch.bfloat16, self.dtype, placements)
            kind = training.Training if "split" in words else JointTraining
            run = kind(name, model, self.step(model, words, plans), self.data)
        for _ in range(self.steps - 1):
            run.step()
        run.profiled_step()
        return {**dataclasses.asdict(run.result()), "plans": [describe(p) for p in plans]}

    def step(self, model, words, plans):
        tokens, targets, _ = self.data.step(0, 0)
        reshard = "reshard" in words
        if "plain" in words:
            return bucketd.trace_joint(model, (tokens, targets), reshard=reshard).step()
        options = dict(mode="transformer_block")
        for word in sorted(words):
            options |= {**PLANS, **MODES, **EXECUTORS}.get(word, {})
        return bucketd.joint_step(model, (tokens, targets), reshard=reshard, split="split" in words,
                                  cost_profile="cpu_loopback", on_plan=plans.append, **options)


def describe(planned) -> dict:
    nodes = planned.captured.nodes
    tags = [n.meta[META_KEY][0] for n in nodes if META_KEY in n.meta]
    return {"plan": planned.plan.sha256, "run by": None if planned.runner is None else planned.runner.takes_text, "digest": planned.digest.hex(), "scope": planned.scope,
            "tags": {tag: tags.count(tag) for tag in sorted(set(tags))},
            "buckets": [[b.kind, b.packed, len(b.members), sides(planned, b)] for b in planned.plan.buckets]}


def sides(planned, bucket) -> list[str]:
    """Directions of a bucket's members."""
    return sorted({planned.normalized.graph.nodes[m].direction.name.lower() for m in bucket.members})


def main() -> None:
    shape, dtype, steps, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = Runs(shape, dtype, int(steps))
    results = {name: runs.train(name) for name in names}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        print("RESULTS " + json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
