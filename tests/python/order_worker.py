"""One of two ranks whose program runs the same collectives, but rank 1 in another order, if argv[2] is "other": what an
unordered set, a branch on the rank or a stale compiler cache does. argv[1] says who compiles:

plain    torch.compile without a plan: nobody compares anything
bucketd  bucketd.backend, with the planner at $PLANNER and the job's name in $JOB
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import bucketd

RANK = int(os.environ["RANK"])
OTHER = sys.argv[2] == "other"


def step(x, y, group):
    x, y = x + 1, y + 1  # inputs come in one order on both

    def reduced():
        return funcol.wait_tensor(funcol.all_reduce(x, "sum", group)) * 2

    def gathered():
        return funcol.wait_tensor(funcol.all_gather_tensor(y, 0, group)) + 1

    if RANK == 0 or not OTHER:
        a = reduced()
        b = gathered() + a.sum()
    else:
        b = gathered()
        a = reduced() + b.sum()
    return a, b


def plain(gm, inputs):
    from torch._dynamo.backends.debugging import aot_eager

    compiled = aot_eager(gm, inputs)

    def run(*arguments):
        print("step runs", flush=True)  # it was compiled: what takes long from here on are collectives
        return compiled(*arguments)

    return run


def backend(name):
    if name == "plain":
        return plain
    return bucketd.backend(address=os.environ["PLANNER"], job=bucketd.Job(os.environ["JOB"]), deadline=60)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    group = dist.group.WORLD
    compiled = torch.compile(step, backend=backend(sys.argv[1]), fullgraph=True)
    x, y = torch.ones(8), torch.ones(4)
    try:
        compiled(x, y, group)
    except Exception as error:
        inner = getattr(error, "inner_exception", error)
        print(f"{type(inner).__name__}: {inner}", flush=True)
        os._exit(3)  # the other rank's work must not hold this one up
    print("step ended", flush=True)
    os._exit(0)


main()
