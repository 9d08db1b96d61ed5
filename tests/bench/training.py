#!/usr/bin/env python3
"""Times real training steps under each mode's plans: a small Llama, gloo processes on the CPU, same weights, same data.

The runs take their steps in turn, every other round in reverse order, so that whatever else the machine does meets all of
them; each figure is the median over the rounds of one run's step by another's in the same round, with a 95 % interval
(bootstrap over the rounds, seeded). Exit 1: the interval of `auto` by some other mode lies above 1 + TOLERANCE, or a promise
about bits is broken.

    tests/bench/training.sh [--rounds 40] [--parallelism hsdp] [--numerics exact] [--json]

Modes plan by the built-in profile of such ranks; with --cost-profile FILE by what `bucket-agent calibrate --ranks 4
--profile-out FILE` measured here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import warnings

from paired import interval

os.environ.setdefault("KINETO_LOG_LEVEL", "6")
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python/examples"))

TOLERANCE = 0.02
MESHES = {"fsdp": {"fsdp": 4}, "hsdp": {"replicate": 2, "shard": 2}, "ddp": {"ddp": 4}}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="transformer_block,greedy,overlap,auto", help="separated by commas")
    parser.add_argument("--numerics", default="eager_order", choices=("eager_order", "exact", "free"))
    parser.add_argument("--parallelism", default="fsdp", choices=MESHES)
    parser.add_argument("--cost-profile", default="cpu_loopback", help="a name, or a profile file")
    parser.add_argument("--rounds", type=int, default=40, help="timed steps of each run")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="one object on stdout, the table on stderr")
    return parser.parse_args()


def compare(results, name: str, base: str) -> tuple[float, float, float]:
    return interval([a / b for a, b in zip(results[name].step_ms, results[base].step_ms)])


def planner_with(profile: str) -> tuple[str | None, str]:
    """(address, name): of a planner that knows the profile of that file, for all ranks; a name needs none of its own."""
    import torch.distributed as dist

    from bucketd import asking, embedded

    if not pathlib.Path(profile).is_file():
        return None, profile
    found = [None]
    if dist.get_rank() == 0:
        found = [asking.private_planner().address]
        bucketctl = pathlib.Path(embedded.find_binary()).with_name("bucketctl")
        subprocess.run([bucketctl, "costs", "import", profile, "--name", "measured", "--server", found[0]], check=True)
    dist.broadcast_object_list(found)
    return found[0], "measured"


def train(arguments):
    """By name what a run did: 'unplanned', and each mode."""
    import llama
    import simple_fsdp
    import torch
    import training
    from torch.distributed.device_mesh import init_device_mesh

    import bucketd

    dims = MESHES[arguments.parallelism]
    mesh = init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))
    placements = getattr(simple_fsdp, arguments.parallelism.upper())
    address, profile = planner_with(arguments.cost_profile)
    config = llama.LlamaConfig(layers=arguments.layers)
    data = training.Data(config.vocab, spread_bits=12)

    def make(name):
        model = simple_fsdp.shard(llama.build(config), mesh, torch.bfloat16, torch.bfloat16, placements)
        backend = training.UNPLANNED if name == "unplanned" else bucketd.backend(
            mode=name, address=address, numerics=arguments.numerics, model=model, cost_profile=profile)
        return training.Training(name, model, torch.compile(model, backend=backend), data)

    runs = [make(name) for name in ["unplanned", *arguments.modes.split(",")]]
    for k in range(arguments.rounds + 2):  # the first compiles, the second warms up
        for run in runs[:: -1 if k % 2 else 1]:
            run.step()
    for run in runs:
        run.profiled_step()
    results = [run.result() for run in runs]
    return {result.name: dataclasses.replace(result, step_ms=result.step_ms[1:]) for result in results}


def report(arguments, results, out) -> bool:
    """The table; whether everything holds."""
    same_bits = {name: (result.weights, result.gradients) == (results["unplanned"].weights, results["unplanned"].gradients)
                 for name, result in results.items()}
    print(f"\n{arguments.parallelism}, {arguments.rounds} rounds, numerics {arguments.numerics}; by: median of ratios in the same round [95 %]\n", file=out)
    print(f"{'':18}{'launched':>9}{'median ms':>11}{'by unplanned':>24}{'auto by it':>24}   bits of unplanned", file=out)
    good = True
    for name, result in results.items():
        row = f"{name:18}{sum(result.collectives.values()):9}{statistics.median(result.step_ms):11.1f}"
        row += "{:>8.3f} [{:.3f}, {:.3f}]".format(*compare(results, name, "unplanned"))
        if "auto" in results:
            middle, low, high = compare(results, "auto", name)
            row += f"{middle:8.3f} [{low:.3f}, {high:.3f}]"
            good &= low <= 1 + TOLERANCE
        print(f"{row}   {'equal' if same_bits[name] else 'different'}", file=out)
    if arguments.numerics == "exact" or (arguments.numerics, arguments.parallelism) == ("eager_order", "ddp"):
        good &= all(same_bits.values())
    print("" if good else "\nauto is slower than another mode, or bits that were promised differ", file=out)
    return good


def main() -> int:
    arguments = parse_arguments()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = train(arguments)
    good = True
    if dist.get_rank() == 0:
        good = report(arguments, results, sys.stderr if arguments.json else sys.stdout)
        if arguments.json:
            print(json.dumps({name: dataclasses.asdict(result) for name, result in results.items()}))
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
