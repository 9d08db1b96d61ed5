"""One rank of a job that trains a step with plans of a secured planner, whose files the environment names; prints its loss and what
it saw, as JSON."""

import json
import os
import sys

import torch
import torch.distributed as dist
from sharded_model import sharded_model
from torch.distributed.device_mesh import init_device_mesh

import bucketd

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
losses = []
for backend in ("eager", bucketd.backend(address=sys.argv[1], job=bucketd.Job("secured", 0))):
    torch._dynamo.reset()
    model = sharded_model(mesh, 6, 7)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    loss = torch.compile(model, backend=backend)(torch.randint(0, 13, (2, 5), generator=generator))
    loss.backward()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "counters": dict(bucketd.counters())}))
dist.destroy_process_group()
