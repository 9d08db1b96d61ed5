"""torch_training.py LIBRARY PLANNER [cpu]: a small Llama, trained by two processes on this machine's one GPU: by eager FSDP2, with a plan whose
buckets torch.distributed runs, and with one whose buckets LIBRARY (libbucket_executor.so) runs. PLANNER is the bucketd to start.

Prints a line for each: weights and gradients have the bits of eager FSDP2. Exits with 1 where one is wrong, with 3 where something is
not here: torch that sees a GPU, what the client imports (gRPC, protobuf, googleapis-common-protos), a planner that starts. One GPU takes two
ranks where torch's NCCL is 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1. They take turns there: times say nothing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types

import check_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
RANKS, STEPS = 2, 6


def imports(carried):
    """The client and its examples; ImportError. Any torch will do that has what they call, tried or not."""
    client = ROOT / "client" / "python"
    sys.path[:0] = [str(client), str(client / "examples")]
    if not (client / "bucketd" / "_wire" / "proto").exists():  # generated, and so no part of the sources: those that were carried
        wire = sys.modules["bucketd._wire"] = types.ModuleType("bucketd._wire")
        wire.__path__ = [str(client / "bucketd" / "_wire"), str(carried / "wire")]
    import torch

    import bucketd.needs_torch

    bucketd.needs_torch.TRIED = (".".join(torch.__version__.split(".")[:2]),)
    import google.rpc  # noqa: F401  what an error of the planner's would import
    import llama
    import simple_fsdp
    import training

    from bucketd import torch_backend  # noqa: F401

    return torch, bucketd, llama, simple_fsdp, training


def on(device, modules):
    """The examples' model and data, on a device."""
    torch, _, llama, _, training = modules

    class Model(llama.Llama):
        def angles(self, positions):
            half = self.config.head_dim // 2
            frequency = self.config.rope_base ** (-torch.arange(half, dtype=torch.float32, device=device) / half)
            angle = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequency
            return angle.cos(), angle.sin()

    class Data(training.Data):
        def step(self, step, rank):
            tokens, targets, scale = super().step(step % 2, rank)  # two batches over and over: the loss falls
            return tokens.to(device), targets.to(device), scale

    llama.Llama = Model
    return Data


class Trainings:
    def __init__(self, modules, device, address):
        self.torch, self.bucketd, self.llama, self.simple_fsdp, self.training = modules
        self.device, self.address = device, address
        wide = device.type == "cuda"
        size = 256 if wide else 64
        self.config = self.llama.LlamaConfig(vocab=512 if wide else 96, dim=size, hidden=size * 5 // 2, layers=3 if wide else 1, heads=4,
                                             kv_heads=2, head_dim=size // 4, branch_scale=True)
        self.data = on(device, modules)(self.config.vocab, positions=64 if wide else 16)
        self.mesh = self.torch.distributed.device_mesh.init_device_mesh(device.type, (RANKS,), mesh_dim_names=("fsdp",))

    def run(self, name, shard, backend=None):
        bf16 = self.torch.bfloat16
        model = shard(self.llama.build(self.config).to(self.device), self.mesh, bf16, bf16)
        call = model if backend is None else self.torch.compile(model, backend=backend(model))
        run = self.training.Training(name, model, call, self.data, lr=0.002)
        for _ in range(STEPS):
            run.step()
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
        self.bucketd.check_executors()
        return run.result()

    def eager(self):
        return self.run("eager FSDP2", self.training.shard_eager)

    def planned(self, plans, **more):
        return self.run("planned", self.simple_fsdp.shard, lambda model: self.bucketd.backend(
            mode="transformer_block", numerics="eager_order", model=model, address=self.address, on_plan=plans.append, **more))


def compared(what, found, eager, plans, by_us):
    """A line, and whether it is right: also that the plan's buckets were run by whom they should be, without which a plan that nobody
    followed would be right."""
    equal = {"weights": found.weights == eager.weights, "gradients": found.gradients == eager.gradients}
    buckets, ours = (sum(len(of) for of in all_of) for all_of in (
        [one.plan.buckets for one in plans], [one.runner.ours for one in plans if one.runner is not None]))
    right = all(equal.values()) and found.losses[-1] < found.losses[0] and buckets > 0 and ours == (buckets if by_us else 0)
    said = ", ".join(f"{name} {'equal' if same else 'DIFFER'}" for name, same in equal.items())
    return right, (f"CHECK|{what}|{said}, loss {found.losses[0]:.3f} to {found.losses[-1]:.3f}, {ours} of {buckets} buckets ours|all equal|"
                   f"{'right' if right else 'WRONG'}")


def rank_of_job(modules, arguments):
    torch, training = modules[0], modules[4]
    device = torch.device("cuda", 0) if arguments.device == "cuda" else torch.device("cpu")
    # What adds in any order would differ by itself.
    torch.use_deterministic_algorithms(True, warn_only=True)
    for flavour in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{flavour}_sdp")(False)
    store = torch.distributed.FileStore(arguments.meet, RANKS)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=arguments.rank, world_size=RANKS,
                                         device_id=device if device.type == "cuda" else None)
    trainings = Trainings(modules, device, arguments.address)
    eager, all_right = trainings.eager(), True
    for what, more in (("training with a plan", {}), ("training whose buckets our executor runs", {"executor": "bucketd", "executor_timeout": 30.0})):
        torch._dynamo.reset()
        plans = []
        right, line = compared(what, trainings.planned(plans, **more), eager, plans, bool(more))
        if arguments.rank == 0 or not right:
            print(line, flush=True)
        all_right = all_right and right
    training.leave(0 if all_right else 1)


@contextlib.contextmanager
def planner(program, folder):
    """Its address, or None where it does not start."""
    ready = pathlib.Path(folder) / "ready.json"
    said = open(pathlib.Path(folder) / "planner.log", "w+")
    served = subprocess.Popen([program, "--listen", f"unix:{folder}/planner.sock", "--http", "127.0.0.1:0", "--ready-file", str(ready)],
                              stdout=said, stderr=said, env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    try:
        until = time.monotonic() + 10
        while served.poll() is None and not ready.exists() and time.monotonic() < until:
            time.sleep(0.05)
        if not ready.exists():
            said.seek(0)
            print("the planner does not start:", said.read()[-300:])
        yield json.loads(ready.read_text())["address"] if ready.exists() else None
    finally:
        served.terminate()
        served.wait()
        said.close()


def job(arguments):
    with tempfile.TemporaryDirectory() as folder, planner(arguments.planner, folder) as address:
        if address is None:
            return 3
        command = [sys.executable, *sys.argv, "--address", address, "--meet", f"{folder}/store", "--rank"]
        environment = {**os.environ, "BUCKETD_EXECUTOR": arguments.library, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return 1 if any(check_ranks.run([[*command, str(rank)] for rank in range(RANKS)], environment)) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("planner")
    parser.add_argument("device", nargs="?", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        modules = imports(pathlib.Path(arguments.library).parent)
    except ImportError as error:
        print(f"a training: not here ({error})")
        return 3
    if arguments.device == "cuda" and not modules[0].cuda.is_available():
        print("torch: sees no GPU")
        return 3
    return rank_of_job(modules, arguments) if arguments.rank is not None else job(arguments)


if __name__ == "__main__":
    sys.exit(main())
