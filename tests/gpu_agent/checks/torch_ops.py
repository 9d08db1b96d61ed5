"""torch_ops.py OURS.tsv: the copies that torch's FSDP2 makes around its collectives, timed beside ours.

OURS.tsv is what `gpu_checks copies` wrote: shape, bytes of the parameters in bf16, seconds. Exits with 2 where torch is faster
somewhere, with 3 where there is no torch that sees a GPU.
"""

import statistics
import sys
import time

WORLD, PARAMETERS, REPEATS = 8, 64, 20


def shapes(torch, size, device):
    """What to run for parameters of `size` bytes, by the name of our shape."""
    chunk = size // 2 // PARAMETERS // WORLD
    sizes = [chunk] * PARAMETERS
    shards = [torch.rand(chunk, device=device) for _ in sizes]
    flat = torch.empty(chunk * PARAMETERS, dtype=torch.bfloat16, device=device)
    gathered = torch.empty(flat.numel() * WORLD, dtype=torch.bfloat16, device=device)
    parameters = [torch.empty(WORLD, chunk, dtype=torch.bfloat16, device=device) for _ in sizes]
    scattered = torch.empty(WORLD, flat.numel(), dtype=torch.float32, device=device)

    def ag_in():  # with mixed precision it casts first, then copies the casts to their place
        casts = flat.split(sizes)
        torch._foreach_copy_(casts, shards)
        torch.ops.fsdp.all_gather_copy_in(list(casts), gathered, sizes, flat.numel(), 0)

    def ag_out():
        torch.ops.fsdp.split_with_sizes_copy(gathered.view(WORLD, -1), sizes, dim=1, out=parameters)

    def rs_in():
        torch.ops.fsdp.chunk_cat(parameters, dim=0, num_chunks=WORLD, out=scattered)

    return {"ag_in": ag_in, "ag_out": ag_out, "rs_in": rs_in}


def seconds(torch, run, device):
    """The median of REPEATS runs, by the GPU's clock."""
    times = []
    for _k in range(REPEATS + 3):
        if device == "cpu":
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times[3:])


def main(path, device="cuda"):
    try:
        import torch
        import torch.distributed.fsdp._fully_shard._fsdp_collectives  # noqa: F401  registers the operators
    except ImportError as error:
        print(f"torch: not here ({error})")
        return 3
    if device == "cuda" and not torch.cuda.is_available():
        print("torch: sees no GPU")
        return 3
    ours = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            shape, size, took = line.split("\t")
            ours.setdefault(int(size), {})[shape] = float(took)
    print(f"torch {torch.__version__}")
    print(f"{'shape':8} {'MiB':>6} {'torch us':>10} {'ours us':>10} {'torch/ours':>10}")
    slower = 0
    for size, rows in sorted(ours.items()):
        runs = shapes(torch, size, device)
        for shape, took in rows.items():
            theirs = seconds(torch, runs[shape], device)
            slower += took >= theirs
            print(f"{shape:8} {size >> 20:6} {theirs * 1e6:10.1f} {took * 1e6:10.1f} {theirs / took:10.2f}")
        del runs
    verdict = "below the goal" if slower else "right"
    print(f"CHECK|torch's FSDP operators that are faster than ours|{slower} of {sum(map(len, ours.values()))} cases|0|{verdict}")
    return 2 if slower else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
