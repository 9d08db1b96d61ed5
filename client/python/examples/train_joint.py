#!/usr/bin/env python3
"""Trains a small Llama with the whole step in one graph: forward, loss and backward, planned as one.

    torchrun --nproc-per-node 4 client/python/examples/train_joint.py

The backward gathers parameters again (--keep: it keeps them). --split takes the planned graph apart, and autograd runs the
backward as ever. Beside it trains the same step without a plan. Without --address the ranks start a planner of their own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import warnings

os.environ.setdefault("KINETO_LOG_LEVEL", "6")
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

import llama  # noqa: E402
import simple_fsdp  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import bucketd  # noqa: E402


class OneCall(training.Training):
    """A step whose one call does the backward too."""

    def _forward_backward(self) -> None:
        tokens, targets, scale = self.data.step(self.done, dist.get_rank())
        self.losses.append(self.call(tokens, targets, tangent=scale).item())
        self.done += 1


def train(name: str, arguments, mesh, planned: bool, on_plan) -> training.Result:
    config = llama.LlamaConfig(layers=arguments.layers)
    model = simple_fsdp.shard(llama.build(config), mesh, torch.bfloat16, torch.bfloat16)
    data = training.Data(config.vocab)
    tokens, targets, _ = data.step(0, dist.get_rank())
    reshard = not arguments.keep
    if planned:
        step = bucketd.joint_step(
            model, (tokens, targets), reshard=reshard, split=arguments.split, mode=arguments.mode,
            address=arguments.address, numerics=arguments.numerics, cost_profile="cpu_loopback", on_plan=on_plan)
    else:
        step = bucketd.trace_joint(model, (tokens, targets), reshard=reshard).step()
    run = (training.Training if planned and arguments.split else OneCall)(name, model, step, data)
    for _ in range(arguments.steps - 1):
        run.step()
    run.profiled_step()
    return run.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of the planner: HOST:PORT or unix:PATH")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--numerics", default="exact", choices=("eager_order", "exact", "free"))
    parser.add_argument("--keep", action="store_true", help="the backward keeps gathered parameters")
    parser.add_argument("--split", action="store_true", help="into a forward and a backward")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="of each run; the first one traces, the last is profiled")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps: expected 3 or more")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    plans: list = []
    runs = [train(name, arguments, mesh, name == "planned", plans.append) for name in ("unplanned", "planned")]
    same = runs[0].weights == runs[1].weights and runs[0].gradients == runs[1].gradients
    if dist.get_rank() == 0:
        for planned in plans:
            print(f"one graph of {len(planned.captured.nodes)} nodes: {planned.plan.summary(planned.source)}")
            print(planned.plan.table())
        for run in runs:
            print(f"{run.name:10} {sum(run.collectives.values()):4} collectives a step, median {statistics.median(run.step_ms):7.1f} ms, "
                  f"last loss {run.losses[-1]:.4f}")
        print(f"weights and every step's gradients are {'equal, bit for bit' if same else 'DIFFERENT'}")
    # Only exact plans promise the bits of the unplanned step.
    return 0 if same or arguments.numerics != "exact" else 1


if __name__ == "__main__":
    training.leave(main())
