"""One rank of trainings of the example Llama by torch.compile, without a plan ("own") and with one ("planned"), a step each in turn.

    compile_worker.py '{"compiler": "inductor", "parallelism": "fsdp", "steps": 3, "bucketd": {...}}'

prints a line of JSON as titan_worker.py does.
"""

import json
import sys

import llama
import simple_fsdp
import torch
import torch.distributed as dist
import training
from compilations import Compilations, planned_graph
from torch.distributed.device_mesh import init_device_mesh

import bucketd

MESHES = {"fsdp": {"fsdp": 4}, "hsdp": {"replicate": 2, "shard": 2}, "ddp": {"ddp": 4}}


def main():
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dims = MESHES[asked["parallelism"]]
    mesh = init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))
    data = training.Data(llama.LlamaConfig().vocab, spread_bits=12)
    graphs, made = [], {name: Compilations() for name in ("own", "planned")}

    def run(name):
        model = simple_fsdp.shard(llama.build(llama.LlamaConfig(layers=2)), mesh, torch.bfloat16, torch.bfloat16,
                                  getattr(simple_fsdp, asked["parallelism"].upper()))
        unplanned = training.UNPLANNED if asked["compiler"] == "aot_eager" else asked["compiler"]
        planned = bucketd.backend(model=model, compiler=asked["compiler"], numerics="exact",
                                  on_plan=lambda it: graphs.append(planned_graph(it)), **asked["bucketd"])
        return training.Training(name, model, torch.compile(model, backend=unplanned if name == "own" else planned), data)

    # Its key does not tell torch 2.13's process groups apart: from the second start on, HSDP without a plan ran code for another rank's.
    torch._functorch.config.enable_autograd_cache = False
    runs = [run(name) for name in made]
    for k in range(asked["steps"]):
        for each in runs[:: -1 if k % 2 else 1]:
            with made[each.name].watching():
                each.step()
            print(f"{each.name}: step {k + 1}", flush=True)
    seen = {}
    for each in runs:
        came = each.result()
        seen[each.name] = dict(losses=came.losses, weights=came.weights + came.gradients, seconds=each.seconds, launches={},
                               **vars(made[each.name]))
    seen["planned"]["planned"] = graphs
    print(json.dumps(seen), flush=True)
    training.leave(0)


main()
