"""A rank that trains with its buckets run by libbucket_executor. argv: what to do, a bucket's seconds, the file that
rank 0 writes.

  bits     the same training without a plan, with one through torch.distributed, with one through the executor, and with one
           where the library refuses reduce-scatters, as NCCL does of some dtypes
  starts   a step through the executor
  meshes   two models of one class, on groups of other ranks
  gone     several models and backends, one after the other; what is left of them
  forked   rank 0 has a child that ends as programs do, and trains on
  killed   rank 2 is gone, by SIGKILL, in the middle of a step; the others say what they heard, and when
"""

import gc
import json
import os
import pathlib
import signal
import sys
import time
import weakref

import llama
import simple_fsdp
import torch
import torch.distributed as dist
import training
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import bucketd
from bucketd import bucket_library, degraded, on_device
from bucketd.graph import CollectiveKind

STEPS = 3
# Each shard is whole and has an even number of elements: gloo and the executor cut there alike.
CONFIG = llama.LlamaConfig(vocab=32, dim=16, layers=1, heads=4, kv_heads=2, head_dim=4, hidden=24, branch_scale=True)


def trained(name: str, mesh, backend, steps: int = STEPS):
    # bf16 sums of gradients that lie far apart: another order of addition is another result.
    data = training.Data(CONFIG.vocab, spread_bits=6)
    model = simple_fsdp.shard(llama.build(CONFIG), mesh, torch.bfloat16, torch.bfloat16)
    run = training.Training(name, model, torch.compile(model, backend=backend(model)), data)
    for _ in range(steps):
        run.step()
    return run


def planned(planned_graphs: list, **more):
    return lambda model: bucketd.backend(model=model, on_plan=planned_graphs.append, **more)


def refuse_reduce_scatters() -> None:
    asked = bucket_library.refuses

    def refuses(device, bucket, ranks):
        return "no such sum here" if bucket.kind == CollectiveKind.REDUCE_SCATTER else asked(device, bucket, ranks)

    bucket_library.refuses = refuses


def bits(mesh, out: pathlib.Path) -> None:
    # As on a GPU, whose arena is torch's memory, which is asked for where a compiler's modes are on.
    on_device.Host.arena = lambda self, size: on_device.aligned(size, torch.device("cpu"))
    graphs: dict[str, list] = {"torch.distributed": [], "executor": [], "mixed": []}
    through_executor = dict(executor="bucketd", executor_timeout=float(sys.argv[2]))
    runs = {
        "unplanned": lambda model: training.UNPLANNED,
        "torch.distributed": planned(graphs["torch.distributed"]),
        "executor": planned(graphs["executor"], **through_executor),
        "mixed": planned(graphs["mixed"], **through_executor),
    }
    found = {}
    for name, backend in runs.items():
        torch._dynamo.reset()
        if name == "mixed":
            refuse_reduce_scatters()
        result = trained(name, mesh, backend).result()
        found[name] = {"weights": result.weights, "gradients": result.gradients, "losses": result.losses}
    for name in ("executor", "mixed"):
        found[name]["runs"] = [(bucket.kind, k in each.runner._begun) for each in graphs[name] for k, bucket in enumerate(each.plan.buckets)]
    found["torch.distributed"]["runners"] = [each.runner is None for each in graphs["torch.distributed"]]
    found["mixed"].update(refused=[text for each in graphs["mixed"] for text in each.runner.refused.values()],
                          takes=[each.runner.takes_text for each in graphs["mixed"]], counted=degraded.counters()["refused_buckets"])
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))


def meshes(mesh, out: pathlib.Path) -> None:
    """Both compile one code object; what the second one's graph is, is known from the first one's but for its ranks."""
    halves = [DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "fsdp"))["fsdp"] for ranks in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])]

    def both(make) -> list:
        torch._dynamo.reset()
        backend, found = make(None), []
        for half in halves:
            found.append(trained("half", half, lambda model: backend).result())
        return [(result.weights, result.gradients, result.losses) for result in found]

    graphs: list = []
    plain = both(lambda model: training.UNPLANNED)
    ours = both(lambda model: bucketd.backend(on_plan=graphs.append, executor="bucketd", executor_timeout=float(sys.argv[2])))
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"same": plain == ours, "other": plain[0] != plain[1], "takes": [each.runner.takes_text for each in graphs]}))


def gone(mesh, out: pathlib.Path) -> None:
    """Of torch.nn's own modules PyTorch keeps what is compiled, where they are sharded."""
    backends, threads = [], []

    def step(width):
        model = simple_fsdp.shard(torch.nn.Sequential(torch.nn.Linear(4, width)), mesh, torch.float32, torch.float32)
        backend = planned([], executor="bucketd", executor_timeout=float(sys.argv[2]))(model)
        torch.compile(model, backend=backend)(torch.ones(2, 4)).sum().backward()
        backends.append(weakref.ref(backend))

    for width in range(4, 8):
        step(width)
        torch._dynamo.reset()
        gc.collect()
        threads.append(len(os.listdir("/proc/self/task")))
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"left": sum(each() is not None for each in backends), "threads": threads}))


def starts(mesh, out: pathlib.Path) -> None:
    trained("executor", mesh, planned([], executor="bucketd", executor_timeout=float(sys.argv[2])), steps=1)


def forked(mesh, out: pathlib.Path) -> None:
    run = trained("executor", mesh, planned([], executor="bucketd", executor_timeout=float(sys.argv[2])), steps=1)
    if dist.get_rank() == 0:
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # it waited for ever
            sys.exit(3)
        out.write_text(json.dumps({"child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}))
    run.step()


def killed(mesh, out: pathlib.Path) -> None:
    run = trained("executor", mesh, planned([], executor="bucketd", executor_timeout=float(sys.argv[2])))
    if dist.get_rank() == 2:
        loaded = bucket_library.load()
        start = loaded.bucket_executor_start

        def die(*arguments):
            start(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        loaded.bucket_executor_start = die
    begin = time.monotonic()
    try:
        run.step()
    except bucketd.ExecutorError as error:
        record = {"said": str(error), "seconds": time.monotonic() - begin}
        out.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(record))
        os._exit(7)  # torch.distributed's connections to the dead rank are of no use either


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    {"bits": bits, "starts": starts, "meshes": meshes, "gone": gone, "forked": forked, "killed": killed}[sys.argv[1]](mesh, pathlib.Path(sys.argv[3]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
