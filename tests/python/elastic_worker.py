"""A rank of a job of two torchrun agents, A and B ($AGENT), one rank each. argv: the planner's address, a folder for what each agent remembers.

It plans a small graph. In the job's first start the rank of agent B then fails, and that of agent A waits, as one does whose
collective never ends: of the two agents only B counts the restart. B fails only after A has left the barrier: one that stands in
it when its peer goes away would fail, too.
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
    waits = pathlib.Path(FOLDER) / "A.waits"
    if first and AGENT == "A":
        waits.touch()
        time.sleep(3600)
    if first:
        while not waits.exists():  # torchrun ends both ranks if this should never come
            time.sleep(0.01)
        sys.exit("agent B's rank fails")


main()
