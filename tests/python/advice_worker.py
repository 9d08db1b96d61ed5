"""A rank that trains with eager FSDP2, as it was wrapped and as advised. argv: a folder, "odd" or "even" sizes, and what is applied:

  bucketctl  what `bucketctl advise` says of the step that is captured here, to a model that is not wrapped
  traced     what it says of traces of the eager training itself, to a model that is not wrapped
  by hand    the longest prefetching and no resharding, to a model that is wrapped by blocks
Rank 0 prints the advice and both trainings' weights, and all-gathers in a step.
"""

import json
import os
import pathlib
import subprocess
import sys

import llama
import simple_fsdp
import torch
import torch.distributed as dist
import training
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import bucketd

FOLDER, SIZES, WHAT = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
CONFIGS = {"even": llama.LlamaConfig(layers=4), "odd": llama.LlamaConfig(vocab=83, dim=30, layers=4, heads=3, kv_heads=1, head_dim=10, hidden=51)}
CONFIG = CONFIGS[SIZES]
UNITS = [["tok_embeddings"], *([f"layers.{i}"] for i in range(CONFIG.layers)), ["norm", "output"]]


def captured_advice(mesh) -> dict:
    """Of the step as a graph: the same model, sharded parameter by parameter, as a compiler sees it."""
    tokens, targets, _ = training.Data(CONFIG.vocab).step(0, dist.get_rank())
    for name, reshard in (("step", True), ("kept", False)):
        model = simple_fsdp.shard(llama.build(CONFIG), mesh, torch.float32, torch.float32)
        joint = bucketd.trace_joint(model, (tokens, targets), reshard=reshard)
        if dist.get_rank() == 0:
            bucketd.save_graph(joint.capture().raw, FOLDER / f"{name}.json.gz")
    if dist.get_rank() == 0:
        said = subprocess.run([pathlib.Path(os.environ["BUCKETD_BINARY"]).with_name("bucketctl"), "advise", FOLDER / "step.json.gz",
                               "--kept", FOLDER / "kept.json.gz", "--profile", "cpu_loopback", "--costs", "profile", "--memory-limit", "4x",
                               "--json"], check=True, stdout=subprocess.PIPE, text=True)
        (FOLDER / "advice.json").write_text(said.stdout)
    dist.barrier()
    return json.loads((FOLDER / "advice.json").read_text())


def traced_advice(run: training.Training) -> dict:
    """Of what torch.profiler writes of three steps, links included."""
    rank = dist.get_rank()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        for _ in range(3):
            run.step()
    profile.export_chrome_trace(str(FOLDER / f"rank{rank}.json.gz"))
    dist.barrier()
    if rank == 0:
        bucketctl = pathlib.Path(os.environ["BUCKETD_BINARY"]).with_name("bucketctl")
        traces = [FOLDER / f"rank{each}.json.gz" for each in range(dist.get_world_size())]
        subprocess.run([bucketctl, "costs", "import-trace", *traces, "--profile", "cpu_loopback", "--out", FOLDER / "links.json"], check=True,
                       stdout=subprocess.DEVNULL)
        said = subprocess.run([bucketctl, "advise", "--trace", traces[0], "--profile", FOLDER / "links.json", "--memory-limit", "4x", "--json"],
                              check=True, stdout=subprocess.PIPE, text=True)
        (FOLDER / "advice.json").write_text(said.stdout)
    dist.barrier()
    return json.loads((FOLDER / "advice.json").read_text())


def by_hand() -> dict:
    return {"units": UNITS, "prefetch_forward": 3, "prefetch_backward": 3, "reshard_after_forward": False}


def wrapped(model, mesh):
    for names in UNITS:
        modules = [model.get_submodule(name) for name in names]
        fully_shard(modules if len(modules) > 1 else modules[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def training_of(name: str, model) -> training.Training:
    return training.Training(name, model, model, training.Data(CONFIG.vocab, spread_bits=6))


def train(name: str, model) -> training.Result:
    run = training_of(name, model)
    for _ in range(3):
        run.step()
    run.profiled_step()
    return run.result()


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    before = train("as it was", wrapped(llama.build(CONFIG), mesh))
    if WHAT != "by hand":
        advice = captured_advice(mesh) if WHAT == "bucketctl" else traced_advice(training_of("traced", wrapped(llama.build(CONFIG), mesh)))
        advised = bucketd.apply_to_fully_shard(llama.build(CONFIG), FOLDER / "advice.json", mesh=mesh)
    else:
        advice = by_hand()
        advised = bucketd.apply_to_fully_shard(wrapped(llama.build(CONFIG), mesh), advice)
    after = train("advised", advised)
    if dist.get_rank() == 0:
        print(json.dumps({"advice": advice, "weights": [before.weights, after.weights], "gradients": [before.gradients, after.gradients],
                          "gathers": [run.collectives["all_gather"] for run in (before, after)]}))
    dist.destroy_process_group()


main()
