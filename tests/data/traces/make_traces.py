"""Makes the traces of this folder: four gloo processes under torch.profiler, `python make_traces.py OUT_DIR`.

Collectives in the functional and in the c10d form, in several sizes, for two profiled steps. What the profiler wrote is kept
as it stands, but for events that have nothing to do with communication (aten::*): they are most of the bytes.
"""
import argparse
import gzip
import json
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile, schedule

RANKS = 4
ROWS = (1, 64, 1024, 8192)  # of a rank's shard; 16 columns
KINDS = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
    "c10d::alltoall_base_": "all_to_all",
}
KEPT = ("gloo:", "c10d::", "_c10d_functional::", "ProfilerStep", "record_param_comms")


def functional_form(shard, full):
    functional.wait_tensor(functional.all_gather_tensor(shard, 0, dist.group.WORLD))
    functional.wait_tensor(functional.reduce_scatter_tensor(full, "sum", 0, dist.group.WORLD))
    functional.wait_tensor(functional.all_reduce(full.to(torch.bfloat16), "sum", dist.group.WORLD))


def c10d_form(shard, full):
    dist.all_gather_into_tensor(full, shard, async_op=True).wait()
    dist.reduce_scatter_tensor(shard.clone(), full)
    dist.all_reduce(full.to(torch.bfloat16))


def step():
    for rows in ROWS:
        shard, full = torch.ones(rows, 16), torch.ones(rows * RANKS, 16)
        functional_form(shard, full)
        c10d_form(shard, full)
    dist.all_to_all_single(torch.empty(256, 16), torch.ones(256, 16))
    dist.broadcast(torch.ones(256, 16), 0)
    dist.barrier()
    for tensor in functional.all_gather_into_tensor_coalesced([torch.ones(8), torch.ones(16)], dist.group.WORLD):
        functional.wait_tensor(tensor)


def trim(path, out):
    with gzip.open(path) as f:
        trace = json.load(f)
    del trace["traceName"]  # where the profiler wrote first
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["ph"] == "M" or e["name"].startswith(KEPT)]
    with open(out, "wb") as f, gzip.GzipFile(filename="", fileobj=f, mode="wb", mtime=0) as packed:
        packed.write(json.dumps(trace, separators=(",", ":")).encode())


def joined(folder):
    """What bucketctl should make of the traces, worked out here: position, kind, dtype, tensors, bytes, shortest and longest ps."""
    by_rank = []
    for rank in range(RANKS):
        with gzip.open(os.path.join(folder, f"gloo.rank{rank}.json.gz")) as f:
            events = sorted(json.load(f)["traceEvents"], key=lambda e: e["ts"])
        spans, calls = ([e for e in events if e["name"].startswith(prefix)] for prefix in ("gloo:", "c10d::"))
        by_rank.append(list(zip(spans, calls, strict=True)))
    lines = []
    for position, views in enumerate(zip(*by_rank, strict=True)):
        span, call = views[0]
        kind = KINDS.get(call["name"])
        if kind is None:
            continue
        dims, ctype = span["args"]["Input Dims"], span["args"]["Input type"][0]
        dtype, size = {"float": ("f32", 4), "c10::BFloat16": ("bf16", 2)}[ctype]
        full = sum(map(math.prod, dims)) * size * (RANKS if kind == "all_gather" else 1)
        ps = [round(s["dur"] * 1000) * 1000 for s, _ in views]
        lines.append(f"{position} {kind} {dtype} {len(dims)} {full} {min(ps)} {max(ps)}\n")
    with open(os.path.join(folder, "gloo.joined.txt"), "w") as f:
        f.writelines(lines)


def work(rank, folder, rendezvous):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as p:
        for _ in range(4):
            step()
            p.step()
    whole = f"{rendezvous}.rank{rank}.json.gz"
    p.export_chrome_trace(whole)
    trim(whole, os.path.join(folder, f"gloo.rank{rank}.json.gz"))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(work, args=(args.out, os.path.join(scratch, "rendezvous")), nprocs=RANKS)
    joined(args.out)
