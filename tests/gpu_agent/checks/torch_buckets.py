"""torch_buckets.py [--ranks 2] LIBRARY [cpu]: buckets of torch's tensors on this machine's GPU, through the Python client and LIBRARY
(libbucket_executor.so).

What is to be seen is that torch's memory pool, streams, communicators and allocator go with the executor as they should: with one rank, and
with two that are processes, as a trainer's are, whose buckets have two lanes. One GPU takes two where torch's NCCL is 2.30 or newer and
NCCL_MULTI_RANK_GPU_ENABLE=1. Prints a line for each check; exits with 1 where one is wrong, with 3 where there is no torch that sees a GPU. Of
the client it wants the executor's modules, and neither gRPC nor protobuf. On the CPU (a test of this file) there is no graph.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import types

import check_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
REPLAYS = 100


def line(step, what, figure, bound, holds):
    """Of the first rank, and of others that are wrong."""
    if step.rank == 0 or not holds:
        what = what if step.ranks == 1 else f"{what}, {step.ranks} processes" + (f", rank {step.rank}" if step.rank else "")
        print(f"CHECK|{what}|{figure}|{bound}|{'right' if holds else 'WRONG'}", flush=True)
    return holds


class Step:
    """All buckets of the plan, beside what torch.distributed makes of the same tensors."""

    def __init__(self, torch, dist, runner, graph, plan, shapes, dtypes, device):
        from bucketd import bucket_ops

        self.torch, self.dist, self.runner, self.device = torch, dist, runner, device
        self.rank, self.ranks, self.steps = dist.get_rank(), dist.get_world_size(), 200 if device else 40
        self.number, self.order = bucket_ops.enter(runner), torch.empty(0, device=device)
        self.kinds = [graph.nodes[bucket.members[0]].op for bucket in plan.buckets]
        self.shapes = [[(dtypes[dtype], into, out) for dtype, into, out in shapes(graph, plan, k)] for k in range(len(plan.buckets))]

    def inputs(self):
        return [[self.torch.randn(into, device=self.device).to(dtype) for dtype, into, _ in members] for members in self.shapes]

    def outputs(self):
        return [[self.torch.empty(out, dtype=dtype, device=self.device) for dtype, _, out in members] for members in self.shapes]

    def run(self, inputs, outputs):
        """By the operators that Inductor's code has."""
        ops = self.torch.ops.bucketd
        for bucket in range(len(self.shapes)):
            ops.start_(inputs[bucket], outputs[bucket], self.order, self.number, bucket)
        for bucket in range(len(self.shapes)):
            ops.wait_(outputs[bucket], inputs[bucket], self.order, self.number, bucket)
        return outputs

    def functional(self, inputs):
        """By those that planned graphs have."""
        ops, order, started = self.torch.ops.bucketd, self.order, []
        for bucket, kind in enumerate(self.kinds):
            order = ops.start(inputs[bucket], order, kind, self.ranks, self.number, bucket)
            started.append(order)
        return [ops.wait(token, inputs[bucket], self.kinds[bucket], self.ranks, self.number, bucket) for bucket, token in enumerate(started)]

    def reference(self, inputs):
        results = []
        for kind, members, of in zip(self.kinds, self.shapes, inputs, strict=True):
            for (dtype, _, shape), x in zip(members, of, strict=True):
                out = self.torch.empty(shape, dtype=dtype, device=self.device)
                if kind == "all_gather":
                    self.dist.all_gather_into_tensor(out, x)
                elif kind == "reduce_scatter":
                    self.dist.reduce_scatter_tensor(out, x)
                else:
                    out.copy_(x)
                    self.dist.all_reduce(out)
                results.append(out)
        return results

    def same(self, found, wanted):
        flat = [x for bucket in found for x in bucket]
        return all(self.torch.equal(x, y) for x, y in zip(flat, wanted, strict=True))


def bits(step):
    right = 0
    for k in range(step.steps):
        inputs = step.inputs()
        found = step.functional(inputs) if k % 2 else step.run(inputs, step.outputs())
        right += step.same(found, step.reference(inputs))
    return line(step, "torch's tensors, bits of torch.distributed", f"{right} of {step.steps} steps", "all", right == step.steps)


def churn(step):
    """Nobody but the runner holds what is in flight, and what is freed is written over at once."""
    right = 0
    for k in range(step.steps):
        seed = step.steps * step.rank + k
        step.torch.manual_seed(seed)
        wanted = [x.clone() for x in step.reference(step.inputs())]
        for bucket in range(len(step.shapes)):
            step.torch.manual_seed(seed)
            step.runner.start(bucket, step.inputs()[bucket], step.outputs()[bucket])
            garbage = [step.torch.full(shape, 7.0, device=step.device) for members in step.shapes for _, shape, _ in members for _ in range(4)]
            del garbage
        right += step.same([step.runner.wait(bucket) for bucket in range(len(step.shapes))], wanted)
    return line(step, "torch's allocator gives memory out again at once", f"{right} of {step.steps} steps", "all", right == step.steps)


def beside(step):
    """torch's own collectives, and copies that fill the device, while buckets are under way."""
    torch, right = step.torch, 0
    busy = torch.zeros(2, 1 << 24 if step.device else 1 << 16, device=step.device)
    for k in range(step.steps):
        inputs, outputs = step.inputs(), step.outputs()
        own = torch.full((1000,), float(k + step.rank), device=step.device)
        for bucket in range(len(step.shapes)):
            step.runner.start(bucket, inputs[bucket], outputs[bucket])
            busy[1].copy_(busy[0])
            step.dist.all_reduce(own)
        found = [step.runner.wait(bucket) for bucket in range(len(step.shapes))]
        sums = own
        for _ in range(len(step.shapes)):
            sums = sums / step.ranks
        first = sum(k + rank for rank in range(step.ranks)) / step.ranks
        right += step.same(found, step.reference(inputs)) and bool((sums == first).all())
    order = "implicit" if os.environ.get("NCCL_LAUNCH_ORDER_IMPLICIT") == "1" else "not set"
    return line(step, f"torch's own all-reduces beside buckets, launch order {order}", f"{right} of {step.steps} steps", "all", right == step.steps)


def graph(step):
    torch = step.torch
    inputs, outputs = step.inputs(), step.outputs()
    step.run(inputs, outputs)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        step.run(inputs, outputs)
    right = 0
    for _ in range(REPLAYS):
        for bucket, fresh in zip(inputs, step.inputs(), strict=True):
            for x, y in zip(bucket, fresh, strict=True):
                x.copy_(y)
        captured.replay()
        right += step.same(outputs, step.reference(inputs))
    return line(step, "torch's graph of a step", f"{right} of {REPLAYS} replays", "all", right == REPLAYS)


def imports(library):
    """Of the client, what needs no planner; ImportError."""
    sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "client" / "python" / "examples")]
    # In place of the package's own front, which imports the planner's client.
    sys.modules["bucketd"] = types.ModuleType("bucketd")
    sys.modules["bucketd"].__path__ = [str(ROOT / "client" / "python" / "bucketd")]
    os.environ["BUCKETD_EXECUTOR"] = library
    import device_buckets
    import torch
    import torch.distributed as dist
    import training

    from bucketd import agreement, executor
    from bucketd import graph as of_client

    return torch, dist, device_buckets, executor, agreement, of_client, training


def run(modules, device, rank, size, meet):
    """One rank's checks. Ends the process."""
    torch, dist, device_buckets, executor, agreement, of_client, training = modules
    backend, on = {"cuda": ("nccl", torch.device("cuda", 0)), "cpu": ("gloo", None)}[device]
    store = dist.FileStore(meet, size) if meet else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, device_id=on)
    torch.manual_seed(rank)
    made, plan = device_buckets.graph_and_plan(size, dist.group.WORLD.group_name, lanes=size)
    runner = executor.Runner(made, plan, device, 30.0)
    runner.open("0/fw#1", agreement.Agreement(dist.PrefixStore("buckets", store) if meet else None, rank, range(size)), 1)
    dtypes = {of_client.DType.F32: torch.float32, of_client.DType.BF16: torch.bfloat16}
    step = Step(torch, dist, runner, made, plan, device_buckets.shapes, dtypes, on)
    held = [check(step) for check in (bits, churn, beside, graph)[:4 if on else 3]]
    if on:
        torch.cuda.synchronize()
    dist.barrier()  # nobody leaves under another's last step
    training.leave(0 if all(held) else 1)


def processes(arguments):
    """A process a rank; whether all are right, as an exit code."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--meet", f"{folder}/store", "--rank"]
        return 1 if any(check_ranks.run([[*command, str(rank)] for rank in range(arguments.ranks)])) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("device", nargs="?", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2), help="processes")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        modules = imports(arguments.library)
    except ImportError as error:
        print(f"torch's tensors: not here ({error})")
        return 3
    if arguments.device == "cuda" and not modules[0].cuda.is_available():
        print("torch: sees no GPU")
        return 3
    if arguments.ranks > 1 and arguments.rank is None:
        return processes(arguments)
    return run(modules, arguments.device, arguments.rank or 0, arguments.ranks, arguments.meet)


if __name__ == "__main__":
    sys.exit(main())
