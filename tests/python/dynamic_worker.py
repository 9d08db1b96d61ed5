"""One rank of a job whose batches change: each case trains a model without a plan and with one; prints what came of both."""

import json
import os
import sys

import torch
import torch.distributed as dist
from expert_model import ExpertModel
from fx_graphs import shape_env
from sharded_model import Model
from simple_fsdp import shard
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import bucketd
from bucketd.torch_backend import boxed

RANK = int(os.environ["RANK"])
ADDRESS = os.environ.get("PLANNER", "")


class Compiled:
    """The graphs that a backend hands on, in order."""

    def __init__(self):
        self.graphs, self.envs = [], {}

    def __call__(self, gm, _inputs):
        launches = [str(n.target) for n in gm.graph.nodes if "_c10d_functional" in str(n.target)]
        self.graphs.append(sum("wait_tensor" not in name for name in launches))
        env = shape_env(gm)
        if env is not None:
            self.envs[id(env)] = env
        return boxed(gm)

    def told(self):
        return {"collectives": self.graphs, "guards": [len(env.guards) for env in self.envs.values()]}


def train(make, batches, backend, **options):
    """Bits of the weights after a step for each batch, which several forwards before one backward may share."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make()
    step = torch.compile(model, backend=backend, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for seed, batch in enumerate(batches):
        source = torch.Generator().manual_seed(10 * seed + RANK)
        shapes = batch if isinstance(batch, list) else [batch]
        sum(step(torch.randint(0, 13, shape, generator=source)) for shape in shapes).backward()
        optimizer.step()
        optimizer.zero_grad()
    local = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return [p.detach().view(torch.uint8).tolist() for p in local]


def both(make, batches, numerics="exact", **options):
    found = {}
    for way in ("plain", "planned"):
        seen, plans = Compiled(), []
        if way == "plain":
            backend = aot_autograd(fw_compiler=seen, bw_compiler=seen)
        else:
            backend = bucketd.backend(address=ADDRESS, deadline=60, numerics=numerics, compiler=seen, on_plan=plans.append)
        bits = train(make, batches, backend, **options)
        if folder := os.environ.get("GRAPHS"):
            for planned in plans[:2]:
                name = f"{planned.scope.replace('/', '.')}.rank{RANK}.{planned.digest.hex()}.json.gz"
                bucketd.save_graph(planned.captured.raw, os.path.join(folder, name))
        found[way] = {"bits": bits, **seen.told(), "plans": [[p.scope, p.plan.sha256, p.source] for p in plans]}
    return found


class Cases:
    def __init__(self):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))

    def dense(self):
        return shard(Model(4, 7, blocks=1), self.mesh, torch.bfloat16, torch.float32)

    def experts(self):
        model = ExpertModel(8, self.mesh.get_group())
        for module in model.everywhere():
            shard(module, self.mesh, torch.bfloat16, torch.float32)
        return model

    def declared(self):
        """dynamic=True, and another length in every step."""
        return both(self.dense, [(2, length) for length in (5, 7, 12, 9, 5)], dynamic=True)

    def automatic(self):
        """PyTorch's default: another batch at step 2, a small one at the end."""
        return both(self.dense, [(4, 5), (6, 5), (6, 5), (2, 5)])

    def static_then_last(self):
        """Where PyTorch may not make sizes symbolic, another batch is another graph."""
        return both(self.dense, [(4, 5), (4, 5), (2, 5)], dynamic=False)

    def uneven(self):
        """Ranks that trace sizes of their own, from the first step on."""
        return both(self.dense, [(3 + RANK, 5), (3, 4 + 5 * RANK), (2, 9)], dynamic=True)

    def uneven_by_default(self):
        """The same without dynamic=True; the first rank's first batch is of one sample, which PyTorch makes a case of its own."""
        return both(self.dense, [(1 + RANK, 5), (2 + RANK, 5), (2, 5)])

    def last_on_rank_2(self):
        """Only one rank's last batch is small: only that rank compiles again."""
        return both(self.dense, [(4, 5), (4, 5), (2 if RANK == 2 else 4, 5), (1 if RANK == 2 else 4, 5), (3, 5)])

    def two_forwards_first(self):
        """Before the first backward there are two forwards, and one rank compiles for the second."""
        return both(self.dense, [[(4, 5), (6 if RANK == 2 else 4, 5)], (4, 5)], dynamic=False)

    def two_forwards_first_by_default(self):
        """The same where that rank makes its sizes symbolic, and compiles the backward with the forward."""
        return both(self.dense, [[(4, 5), (6 if RANK == 2 else 4, 5)], (4, 5)])

    def routed(self):
        """Tokens go where the router sends them: sizes that only the step knows."""
        torch._dynamo.config.capture_scalar_outputs = True
        try:
            return both(self.experts, [(2, 6), (2, 6), (3, 6), (5, 4)], dynamic=True, fullgraph=True)
        finally:
            torch._dynamo.config.capture_scalar_outputs = False


def main():
    dist.init_process_group("gloo")
    cases = Cases()
    for name in sys.argv[1:]:
        print(json.dumps({"case": name, "rank": RANK, **getattr(cases, name)()}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


main()
