"""Mode auto against PyTorch's passes on every captured graph and profile, judged by the referee.

For each memory limit a line a pair: how far the plan and the best peer within the limit are above the referee's bound, CPU
time, and what the referee said. Then the geometric mean of the ratio of the gaps over the pairs that have a peer besides
program order, gaps below 0.1 % counted as 0.1 %. Exits with 1 if a plan is illegal, above the limit, or slower than the best
peer by more than 0.02 %.

`--trust` takes the planner's own figures instead of the referee's, which is much faster; the tests hold both equal.
"""
import argparse
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TOLERANCE = 1.0002
FLOOR = 1e-3


def load_referee():
    spec = importlib.util.spec_from_file_location("referee", DATA / "referee" / "referee.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(binary, folder, graphs, effort, numerics, ppm):
    """Lines of figures from plan_quality, on one core."""
    command = [binary, folder, "auto", str(effort), numerics, str(ppm), *map(str, graphs)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        file, profile, total, peak, bound, cpu = line.split()
        yield file, profile, int(total) / 1e6, int(peak), int(bound) / 1e6, float(cpu)


def verdict(referee, profiles, folder, file, profile):
    """(total in microseconds, peak bytes) as the referee has them, or what it objects to."""
    graph = referee.load(str(DATA / "graphs" / file))
    with open(os.path.join(folder, f"{file}.{profile}.plan.json")) as f:
        made = json.load(f)
    try:
        result = referee.judge(graph, made, profiles[profile])
    except ValueError as error:
        return str(error)
    return result["total_us"], result["peak_bytes"]


def best_peer(passes, limit):
    return min(p["total_us"] for p in passes.values() if "total_us" in p and p["peak_bytes"] <= limit)


def table(args, referee, profiles, peers, ppm):
    """Prints one limit's table; returns the pairs that fail."""
    graphs = [p for p in sorted((DATA / "graphs").glob("*.json.gz")) if p.name[:-8] in peers]
    failed, logs, times = [], [], []
    print(f"\nmemory {ppm / 10000:g} % of program order's, effort {args.effort}, numerics {args.numerics}")
    print(f"{'graph':28}{'profile':14}{'auto %':>9}{'peer %':>9}{'memory':>8}{'CPU ms':>8}")
    with tempfile.TemporaryDirectory() as folder:
        where = "-" if args.trust else folder
        for file, profile, total, peak, bound, cpu in plan(args.binary, where, graphs, args.effort, args.numerics, ppm):
            name = file[:-8]
            passes = peers[name]["profiles"][profile]["passes"]
            order = passes["program_order"]
            limit = order["peak_bytes"] * ppm // 1_000_000
            if not args.trust:
                judged = verdict(referee, profiles, folder, file, profile)
                if not isinstance(judged, tuple):
                    failed.append((name, profile, f"illegal: {judged[:200]}"))
                    continue
                total, peak = judged
            peer = best_peer(passes, limit)
            if peak > limit:
                failed.append((name, profile, "above the memory limit"))
            if total > peer * TOLERANCE:
                failed.append((name, profile, "slower than the best peer"))
            gap, other = total / bound - 1, peer / bound - 1
            if len(passes) > 1:
                logs.append(math.log(max(gap, FLOOR) / max(other, FLOOR)))
            times.append(cpu)
            print(f"{name:28}{profile:14}{100 * gap:9.3f}{100 * other:9.3f}{peak / order['peak_bytes']:8.3f}{cpu:8.1f}")
    if logs:
        print(f"{len(logs)} pairs with peers: geometric mean of gaps {math.exp(sum(logs) / len(logs)):.3f} of the best peers'; "
              f"slowest plan {max(times):.0f} ms")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default=str(ROOT / "build" / "bin" / "plan_quality"))
    parser.add_argument("--effort", type=int, default=5)
    parser.add_argument("--numerics", default="free", choices=["free", "eager_order", "exact"])
    parser.add_argument("--limits", default="1050000,1000000", help="parts per million of program order's peak")
    parser.add_argument("--trust", action="store_true", help="take the planner's figures")
    args = parser.parse_args()
    referee = load_referee()
    profiles = referee.load(str(DATA / "referee" / "profiles.json"))
    peers = json.loads((DATA / "graphs" / "peers.json").read_text())
    failed = []
    for ppm in map(int, args.limits.split(",")):
        failed += [(ppm, *f) for f in table(args, referee, profiles, peers, ppm)]
    for ppm, name, profile, why in failed:
        print(f"FAILED at {ppm / 10000:g} %: {name} {profile}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
