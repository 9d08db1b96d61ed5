"""One rank of the quickstart's model in a process that has trained nothing yet: takes two steps, and prints the seconds of each as JSON.

    first_step_worker.py unplanned|planned ADDRESS
"""

import json
import sys

import llama
import simple_fsdp
import torch
import torch.distributed as dist
import training
from torch.distributed.device_mesh import init_device_mesh

import bucketd


def main() -> None:
    how, address = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    config = llama.LlamaConfig(vocab=251, dim=57, hidden=155, layers=4, branch_scale=True)
    model = simple_fsdp.shard(llama.build(config), mesh, torch.bfloat16, torch.float32)
    backend = training.UNPLANNED if how == "unplanned" else bucketd.backend(model=model, address=address)
    run = training.Training(how, model, torch.compile(model, backend=backend), training.Data(config.vocab))
    dist.barrier()
    for _ in range(2):
        run.step()
        dist.barrier()
    print(json.dumps(run.seconds), flush=True)
    training.leave(0)


main()
