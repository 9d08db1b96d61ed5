"""A rank that trains with its buckets run by libbucket_executor and reported to an agent. argv: the agent's socket, steps, the file that
rank 0 writes, a file to wait for in the middle, or "".
"""

import json
import pathlib
import sys
import time

import executor_worker
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from bucketd import telemetry


def main() -> None:
    agent, steps, out, gate = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    planned: list = []
    options = dict(executor="bucketd", executor_timeout=60.0, agent=agent)
    run = executor_worker.trained("reported", mesh, executor_worker.planned(planned, **options), steps=steps)
    if gate:
        if dist.get_rank() == 0:
            out.with_suffix(".half").touch()
        while not pathlib.Path(gate).exists():
            time.sleep(0.05)
        # For longer than a trainer waits before it looks for an agent again, however fast its steps are.
        until, more = time.monotonic() + 3, torch.ones(1)
        while more:
            run.step()
            more[0] = time.monotonic() < until
            dist.broadcast(more, 0)
    if dist.get_rank() == 0:
        out.write_text(json.dumps({
            "dropped": telemetry.of(agent, "").dropped,
            "plans": [{"part": one.scope.rpartition("/")[2], "buckets": [[b.kind, b.bytes] for b in one.plan.buckets],
                       "exposed_s": one.plan.prediction.exposed_ps * 1e-12, "peak": one.plan.prediction.peak_bytes,
                       "watched": one.runner._memory._runs} for one in planned]}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
