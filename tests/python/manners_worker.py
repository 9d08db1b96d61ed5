"""One rank that meets trouble, or none. argv: the planner's address, and what to do:

  planned     a graph through bucketd.plan_pass
  impossible  the same with a memory limit that no plan keeps; nobody catches the error
  late        the same, but rank 1 never asks; all are interrupted
  patient     the same, but the planner does not answer; all are interrupted
"""

import os
import signal
import sys
import time

import torch.distributed as dist
from fx_graphs import Builder, result

import bucketd

ADDRESS, WHAT = sys.argv[1:]


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored when the tests began
    dist.init_process_group("gloo")
    b = Builder()
    shards = [b.parameter(f"{name}.weight", 2, 3) for name in "ab"]
    gm = b.output([b.wait(b.gather(shard)) for shard in shards], [result(), result(1)])
    dist.barrier()
    print("there", flush=True)
    try:
        if WHAT == "late" and os.environ["RANK"] == "1":
            time.sleep(60)
        bucketd.plan_pass(gm, kind="fw", context=b.context, address=ADDRESS, mode="greedy", numerics="exact", deadline=10,
                          memory_limit=1 if WHAT == "impossible" else None)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
        sys.exit(7)


main()
