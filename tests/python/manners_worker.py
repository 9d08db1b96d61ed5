"""One rank that meets trouble, or none. argv: the planner's address, and what to do:

  planned     a graph through bucketd.plan_pass
  impossible  the same with a memory limit that no plan keeps; nobody catches the error
  late        the same, but rank 1 never asks; all are interrupted
  told        the same, and whoever waits says so; one is interrupted
  again       the same behind another graph; all are interrupted, and then all ask
  patient     the same, but the planner does not answer; all are interrupted
  twins       another graph, whose reduce-scatters get groups of their own; rank 1 makes none; all are interrupted
  running     the same with our own executor, and then the graph, but on rank 1; all are interrupted
  alone       the same as all ranks of fake groups
An address "" has the ranks start a planner of their own.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from fx_graphs import Builder, gradient, result
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketd
from bucketd import agreement, twins

ADDRESS, WHAT = sys.argv[1:]


def plan() -> torch.fx.GraphModule:
    kind = "joint" if WHAT == "twins" else "fw"
    b = Builder()
    shards = [b.parameter(f"{name}.weight", 2, 3) for name in "ab"]
    if WHAT == "twins":
        gm = b.output([b.wait(b.scatter(b.wait(b.gather(shard)))) for shard in shards], [gradient(0), gradient(1)])
    else:
        gm = b.output([b.wait(b.gather(shard)) for shard in shards], [result(), result(1)])
    return bucketd.plan_pass(
        gm, kind=kind, context=b.context, address=ADDRESS or None, mode="manual", buckets="a+b", numerics="exact", deadline=10,
        memory_limit=1 if WHAT == "impossible" else "4x", twin_groups=WHAT == "twins", executor="bucketd" if WHAT == "running" else None,
        on_plan=(lambda planned: print(planned.scope, planned.plan.sha256, flush=True)) if WHAT == "again" else None)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored when the tests began
    if WHAT == "alone":
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    else:
        dist.init_process_group("gloo")
    if WHAT == "again":
        plan()
    if WHAT in ("told", "again"):
        wait_for = agreement.wait_for
        agreement.wait_for = lambda *asked: print("waits", flush=True) or wait_for(*asked)
    dist.barrier()
    print("there", flush=True)
    try:
        if WHAT in ("late", "told", "again") and os.environ["RANK"] == "1":
            time.sleep(60)
        if WHAT == "twins":
            make = (lambda gm: time.sleep(60)) if os.environ["RANK"] == "1" else twins.open_twins
            twins.open_twins = lambda gm: print("planned", flush=True) or make(gm)
        gm = plan()
        if WHAT == "running":
            print("planned", flush=True)
            if os.environ["RANK"] == "1":
                time.sleep(60)
            gm(torch.ones(2, 3), torch.ones(2, 3))
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
        if WHAT == "again":
            plan()
            dist.barrier()
            return
        if WHAT == "running" and os.environ["RANK"] == "1":
            time.sleep(3)  # its end would wake the others
        sys.exit(7)


main()
