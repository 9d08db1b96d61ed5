"""torch_buckets.py LIBRARY [cpu]: buckets of torch's tensors on this machine's GPU, through the Python client and LIBRARY (libbucket_executor.so).

One rank: what is to be seen is that torch's memory pool, streams, communicators and allocator go with the executor as they should. Prints
a line for each check; exits with 1 where one is wrong, with 3 where there is no torch that sees a GPU. Of the client it wants the executor's
modules, and neither gRPC nor protobuf. On the CPU (a test of this file) there is no graph.
"""

import os
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEPS, REPLAYS = 200, 100


def line(what, figure, bound, holds):
    print(f"CHECK|{what}|{figure}|{bound}|{'right' if holds else 'WRONG'}", flush=True)
    return holds


class Step:
    """All buckets of the plan, beside what torch.distributed makes of the same tensors."""

    def __init__(self, torch, dist, runner, graph, plan, shapes, dtypes, device):
        from bucketd import bucket_ops

        self.torch, self.dist, self.runner, self.device = torch, dist, runner, device
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
            order = ops.start(inputs[bucket], order, kind, 1, self.number, bucket)
            started.append(order)
        return [ops.wait(token, inputs[bucket], self.kinds[bucket], 1, self.number, bucket) for bucket, token in enumerate(started)]

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
    for k in range(STEPS):
        inputs = step.inputs()
        found = step.functional(inputs) if k % 2 else step.run(inputs, step.outputs())
        right += step.same(found, step.reference(inputs))
    return line("torch's tensors, bits of torch.distributed", f"{right} of {STEPS} steps", "all", right == STEPS)


def churn(step):
    """Nobody but the runner holds what is in flight, and what is freed is written over at once."""
    right = 0
    for k in range(STEPS):
        step.torch.manual_seed(k)
        wanted = [x.clone() for x in step.reference(step.inputs())]
        for bucket in range(len(step.shapes)):
            step.torch.manual_seed(k)
            step.runner.start(bucket, step.inputs()[bucket], step.outputs()[bucket])
            garbage = [step.torch.full(shape, 7.0, device=step.device) for members in step.shapes for _, shape, _ in members for _ in range(4)]
            del garbage
        right += step.same([step.runner.wait(bucket) for bucket in range(len(step.shapes))], wanted)
    return line("torch's allocator gives memory out again at once", f"{right} of {STEPS} steps", "all", right == STEPS)


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
    return line("torch's graph of a step", f"{right} of {REPLAYS} replays", "all", right == REPLAYS)


def main(library, device="cuda"):
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    # In place of the package's own front, which imports the planner's client.
    sys.modules["bucketd"] = types.ModuleType("bucketd")
    sys.modules["bucketd"].__path__ = [str(ROOT / "client" / "python" / "bucketd")]
    os.environ["BUCKETD_EXECUTOR"] = library
    try:
        import torch
        import torch.distributed as dist
        from device_buckets import graph_and_plan, shapes

        from bucketd import executor
        from bucketd.agreement import Agreement
        from bucketd.graph import DType
    except ImportError as error:
        print(f"torch's tensors: not here ({error})")
        return 3
    if device == "cuda" and not torch.cuda.is_available():
        print("torch: sees no GPU")
        return 3
    on = {"cuda": ("nccl", torch.device("cuda", 0)), "cpu": ("gloo", None)}[device]
    dist.init_process_group(on[0], store=dist.HashStore(), rank=0, world_size=1, device_id=on[1])
    made, plan = graph_and_plan(1, dist.group.WORLD.group_name)
    runner = executor.Runner(made, plan, device, 30.0)
    runner.open("0/fw#1", Agreement(None, 0, [0]), 1)
    step = Step(torch, dist, runner, made, plan, shapes, {DType.F32: torch.float32, DType.BF16: torch.bfloat16}, device)
    held = [check(step) for check in (bits, churn, graph)[:3 if device == "cuda" else 2]]
    if device == "cuda":
        torch.cuda.synchronize()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
