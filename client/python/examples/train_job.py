#!/usr/bin/env python3
"""Trains a small Llama as one job of a planner that outlives it: all ranks get one plan, and the same one after a restart.

    bucketd --listen 127.0.0.1:9460 &
    torchrun --standalone --nproc-per-node 4 --max-restarts 1 client/python/examples/train_job.py \\
        --address 127.0.0.1:9460 --fail-at 2

In its first start rank 1 fails before step --fail-at; torchrun then starts all ranks again. What each start was
answered is printed, and written to --out-dir. With --agent, buckets are run by bucketd's executor, and the node's agent hears what
each of them took (deploy/measured.sh).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import warnings

warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

import llama  # noqa: E402
import simple_fsdp  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import bucketd  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True, help="of the planner: HOST:PORT or unix:PATH")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--fail-at", type=int, default=-1, help="step before which rank 1 of start 0 fails; -1: none")
    parser.add_argument("--job", help="its name, instead of torchrun's; with --generation")
    parser.add_argument("--generation", type=int, default=0)
    parser.add_argument("--cost-profile", help="of the planner")
    parser.add_argument("--agent", help="the socket of this node's bucket-agent")
    parser.add_argument("--release", action="store_true", help="the job is over: let go of its plans")
    parser.add_argument("--out-dir", type=pathlib.Path, help="gets start-N.json of rank 0")
    return parser.parse_args()


def train(arguments, job, start: int, planned: list) -> training.Training:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    config = llama.LlamaConfig(layers=arguments.layers)
    model = simple_fsdp.shard(llama.build(config), mesh, torch.bfloat16, torch.bfloat16)
    backend = bucketd.backend(
        mode=arguments.mode, address=arguments.address, model=model, job=job, on_plan=planned.append,
        cost_profile=arguments.cost_profile, agent=arguments.agent, executor="bucketd" if arguments.agent else None)
    run = training.Training("planned", model, torch.compile(model, backend=backend), training.Data(config.vocab))
    for step in range(arguments.steps):
        if step == arguments.fail_at and start == 0 and dist.get_rank() == 1:
            raise SystemExit("rank 1 fails, as it was told to")
        run.step()
    return run


def report(arguments, job, start: int, planned, run) -> None:
    answers = [None] * dist.get_world_size()
    dist.all_gather_object(answers, {each.scope: [each.plan.sha256, each.source] for each in planned})
    weights = training.over_all_ranks(training.digest(run.parameters))
    if dist.get_rank() != 0:
        return
    for scope in answers[0]:
        print(f"start {start}, {scope}: plan {answers[0][scope][0][:12]}, answers to ranks 0, 1, ...: "
              + ", ".join(answer[scope][1] for answer in answers), flush=True)
    for each in planned:
        print(f"start {start}, {each.scope}: {each.plan.summary()}, by {each.plan.cost_profile}", flush=True)
    print(f"loss {run.losses[0]:.4f} to {run.losses[-1]:.4f}, weights {weights[:12]}", flush=True)
    if arguments.out_dir is not None:
        record = {"job": job.id, "start": start, "answers": answers, "losses": run.losses, "weights": weights,
                  "plans": {each.scope: {"plan": each.plan.sha256, "buckets": len(each.plan.buckets),
                                         "cost_profile": each.plan.cost_profile} for each in planned},
                  "step_ms": [1000 * seconds for seconds in run.seconds], "counters": bucketd.counters()}
        (arguments.out_dir / f"start-{start}.json").write_text(json.dumps(record, indent=1) + "\n")


def join() -> None:
    """init_process_group, under a prefix of this start's own: torchrun keeps one store for all of them, and with it the addresses of
    ranks that are gone. Agents of several nodes count restarts each by itself: start those with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
    which makes a new store each time."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group("gloo")
        return
    store, rank, world = next(dist.rendezvous("env://"))
    dist.init_process_group("gloo", store=dist.PrefixStore(f"start {restarts()}", store), rank=rank, world_size=world)


def restarts() -> int:
    """Of this node's agent."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    join()
    # What job="torchrun" makes, or the next start of a job that its launcher names and counts itself.
    job = bucketd.Job(arguments.job, arguments.generation) if arguments.job else bucketd.Job.from_torchrun()
    planned: list = []
    if arguments.out_dir is not None:
        arguments.out_dir.mkdir(parents=True, exist_ok=True)
    start = arguments.generation if arguments.job else restarts()
    run = train(arguments, job, start, planned)
    report(arguments, job, start, planned, run)
    if arguments.release and dist.get_rank() == 0:
        print(f"released {bucketd.release(job, arguments.address)} plans")


if __name__ == "__main__":
    main()
    training.leave(0)
