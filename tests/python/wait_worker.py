"""A rank whose own code waits, as torch's functional collectives have it, around graphs whose buckets libbucket_executor runs.
argv: a bucket's seconds, the file that rank 0 writes: what each case gave without a plan and with one, bit by bit."""

import json
import pathlib
import sys
import warnings

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from sharded_model import sharded_model
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import bucketd

C10D = torch.ops._c10d_functional


def gather(x, group):
    return C10D.all_gather_into_tensor(x, dist.get_world_size(), group)


# What a module does with two parameters and an input. The gathers of the parameters are one bucket.


def waits_again(a, b, x, group):
    """On results that were waited for: as an operator, as a function, of a view, and of what was computed from one."""
    a = C10D.wait_tensor(funcol.all_gather_single(a, 0, group))
    b = funcol.wait_tensor(funcol.all_gather_single(b, 0, group))
    again = C10D.wait_tensor(a.t())
    return again @ b, funcol.wait_tensor(a.sum(0)), C10D.wait_tensor(b), C10D.wait_tensor(x) * 2


def takes_and_gives(a, b, x, group):
    """Its input as it came and as a view, and both results with a view of one."""
    a, b = funcol.all_gather_single(a, 0, group), funcol.all_gather_single(b, 0, group)
    return a, b, b.view(-1), x.view(-1), x + 1, funcol.all_gather_single(x, 0, group)


def leaves_under_way(a, b, x, group):
    """The waits for a gather of its input and for another one of a parameter are its caller's."""
    late = gather(b, group)
    a, b = funcol.all_gather_single(a, 0, group), funcol.all_gather_single(b, 0, group)
    return a + 1, b * 2, gather(x, group), late


def of_a_dtensor(a, b, x, group):
    """What DTensor makes of results and of its own, whose local part may be under way."""
    a, b = funcol.all_gather_single(a, 0, group), funcol.all_gather_single(b, 0, group)
    x = x.redistribute(placements=[Shard(0)])
    return DTensor.from_local(a, x.device_mesh, [Replicate()]).redistribute(placements=[Shard(0)]), (x * 2).full_tensor(), b


def plain(x, group):
    return x


def under_way(x, group):
    return funcol.all_reduce(x, "sum", group)


def dtensor(x, group):
    return DTensor.from_local(x, MESHES[0], [Shard(0)]).redistribute(placements=[Replicate()])


MESHES = []
# What the module does, how its parameters come, and how its input.
CASES = {"waits_again": (waits_again, plain, plain), "waits_again_under_way": (waits_again, under_way, under_way),
         "takes_and_gives": (takes_and_gives, under_way, under_way), "leaves_under_way": (leaves_under_way, plain, under_way),
         "of_a_dtensor": (of_a_dtensor, plain, dtensor)}


class Case(torch.nn.Module):
    def __init__(self, function, a, b, group):
        super().__init__()
        self.function, self.group = function, group
        self.a, self.b = (torch.nn.Parameter(x, requires_grad=False) for x in (a, b))

    def forward(self, x):
        return self.function(self.a, self.b, x, self.group)


def settled(tensor) -> list:
    """As a caller that does not know what it got: waited for twice, then its bits."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if isinstance(tensor, funcol.AsyncCollectiveTensor):
        tensor = tensor.wait()
    tensor = funcol.wait_tensor(C10D.wait_tensor(tensor))
    return tensor.detach().contiguous().view(torch.int32).tolist()


def run(case, group, backend) -> list:
    """Bits of two runs, of parameters and inputs that are new and whole numbers: sums are exact in any order."""
    torch._dynamo.reset()
    function, of_parameters, of_input = case
    generator = torch.Generator().manual_seed(dist.get_rank())
    a, b, *inputs = (torch.randint(-9, 10, (6, 6), generator=generator).float() for _ in range(4))
    module = Case(function, of_parameters(a, group), of_parameters(b, group), group)
    module = module if backend is None else torch.compile(module, backend=backend, fullgraph=True)
    return [[settled(found) for found in module(of_input(x, group))] for x in inputs]


def trained(mesh, backend) -> list:
    """A training step whose forward and backward results are waited for once more."""
    torch._dynamo.reset()
    model = sharded_model(mesh, 6, 8)
    loss = torch.compile(model, backend=backend(model))(torch.arange(10).reshape(2, 5) % 13)
    funcol.wait_tensor(loss).backward()
    return [settled(x) for x in (loss, *(p.grad.to_local() for p in model.parameters()))]


def main() -> None:
    torch.set_num_threads(1)
    torch._functorch.config.enable_autograd_cache = False  # where shards are uneven it takes one rank's code for another's (PyTorch 2.13)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    MESHES.append(mesh)
    group = mesh.get_group().group_name
    ours = dict(executor="bucketd", executor_timeout=float(sys.argv[1]))
    found = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for name, case in CASES.items():
            found[name] = {"eager": run(case, group, None)}
            for compiler in ("aot_eager", "inductor"):
                graphs = []
                backend = bucketd.backend(mode="greedy", memory_limit="9x", compiler=compiler, on_plan=graphs.append, **ours)
                found[name][compiler] = run(case, group, backend)
                found[name][f"{compiler} buckets"] = [
                    [len(bucket.members) for k, bucket in enumerate(each.plan.buckets) if k in each.runner._begun] for each in graphs]
        for compiler, unplanned in (("aot_eager", "aot_eager_default_partitioner"), ("inductor", "inductor")):
            found[f"trained {compiler}"] = [trained(mesh, lambda model, unplanned=unplanned: unplanned), trained(
                mesh, lambda model, compiler=compiler: bucketd.backend(model=model, compiler=compiler, **ours))]
    found["warned"] = [str(each.message) for each in warned]
    found["unwaited"] = c10d._get_work_registry_size()
    if dist.get_rank() == 0:
        pathlib.Path(sys.argv[2]).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
