"""One rank that meets trouble, or none. argv: the planner's address, and what to do:

  planned     a graph through bucketd.plan_pass
  impossible  the same with a memory limit that no plan keeps; nobody catches the error
  late        the same, but rank 1 never asks; all are interrupted
  patient     the same, but the planner does not answer; all are interrupted
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
from fx_graphs import Builder, result
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketd

ADDRESS, WHAT = sys.argv[1:]


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored when the tests began
    if WHAT == "alone":
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    else:
        dist.init_process_group("gloo")
    b = Builder()
    shards = [b.parameter(f"{name}.weight", 2, 3) for name in "ab"]
    gm = b.output([b.wait(b.gather(shard)) for shard in shards], [result(), result(1)])
    dist.barrier()
    print("there", flush=True)
    try:
        if WHAT == "late" and os.environ["RANK"] == "1":
            time.sleep(60)
        bucketd.plan_pass(gm, kind="fw", context=b.context, address=ADDRESS or None, mode="manual", buckets="a+b", numerics="exact", deadline=10,
                          memory_limit=1 if WHAT == "impossible" else "4x", executor="bucketd" if WHAT == "running" else None)
        if WHAT == "running":
            print("planned", flush=True)
            if os.environ["RANK"] == "1":
                time.sleep(60)
            gm(torch.ones(2, 3), torch.ones(2, 3))
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
        if WHAT == "running" and os.environ["RANK"] == "1":
            time.sleep(3)  # its end would wake the others
        sys.exit(7)


main()
