"""A rank of a job of two torchrun agents, A and B ($AGENT), one rank each. argv: the planner's address, a folder for what each agent remembers.

It plans a small graph. In the job's first start the rank of agent B then fails, and that of agent A waits, as one does whose
collective never ends: of the two agents only B counts the restart.
"""

import json
import os
import pathlib
import sys
import time

import torch.distributed as dist
from fx_graphs import Builder, result

import bucketd

ADDRESS, FOLDER = sys.argv[1:]
AGENT = os.environ["AGENT"]


def main() -> None:
    mark = pathlib.Path(FOLDER) / f"{AGENT}.started"
    first = not mark.exists()
    mark.touch()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        bucketd.backend(address=ADDRESS)  # one more than the others have, which is of no account
    b = Builder()
    gm = b.output([b.wait(b.gather(b.parameter("a.weight", 2, 3), size=2))], [result()])
    for job in (None, "torchrun"):
        plans = []
        bucketd.plan_pass(gm, kind="fw", context=b.context, address=ADDRESS, job=job, deadline=20, numerics="exact", mode="none",
                          on_plan=plans.append)
        found = {"agent": AGENT, "first": first, "job": job, "count": os.environ["TORCHELASTIC_RESTART_COUNT"],
                 "source": plans[0].source, "plan": plans[0].plan.sha256}
        with open(pathlib.Path(FOLDER) / f"{AGENT}.json", "a") as file:
            file.write(json.dumps(found) + "\n")
    dist.barrier()
    if first:
        if AGENT == "A":
            time.sleep(3600)
        sys.exit("agent B's rank fails")


main()
