"""A rank of a job whose rank 0 cannot go on. argv: the planner's address, the job, whether rank 0 has no graph at all, fallback=."""

import sys

import torch.distributed as dist
from fx_graphs import Builder, result

import bucketd
from bucketd import GraphRefused, mesh

ADDRESS, JOB, EARLY, FALLBACK = sys.argv[1:]


def refuse(raw):
    raise GraphRefused("refused here")


dist.init_process_group("gloo")
b = Builder()
gm = b.output([b.wait(b.gather(b.parameter("a.weight", 2, 3), size=2))], [result()])
if dist.get_rank() == 0:
    if int(EARLY):
        b.context.fault = KeyError("missing")
    else:
        mesh.mesh_message = refuse
bucketd.plan_pass(gm, kind="fw", context=b.context, address=ADDRESS, job=bucketd.Job(JOB, None), fallback=FALLBACK, deadline=100,
                  numerics="exact", mode="none")
print("went on", flush=True)
dist.barrier()
