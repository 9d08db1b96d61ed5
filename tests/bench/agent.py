"""How well a calibrated machine is predicted, and what plans from measured costs are worth on it.

    tests/bench/agent.sh [--build build] [--ranks 2] [--pairs 5] [--rounds 10] [--mode auto]

Calibrates, makes a step for that many ranks (tests/gpu_agent/step_graph.py), plans it once with the measured profile and once with
the planner's default one, and replays both plans in turn, `pairs` times. Prints, of the buckets whose prediction is above 1 ms, how
far the measured median is from it (goal: 15 %), and the steps of the two plans against each other (goal: the measured costs' is no
slower). Wants an idle machine with a core a rank: two ranks on two busy cores measure the scheduler.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(build, program, *args):
    done = subprocess.run([os.path.join(build, "bin", program), *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} {' '.join(args)}: {done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", default="10")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--rows", default="512")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile, graph = os.path.join(folder, "here.json"), os.path.join(folder, "step.json")
        table = run(args.build, "bucket-agent", "calibrate", "--ranks", args.ranks, "--profile-out", profile)
        print(table[table.index("# fitted"):])
        subprocess.run([sys.executable, os.path.join(ROOT, "tests/gpu_agent/step_graph.py"), graph, "--ranks", args.ranks, "--rows", args.rows,
                        "--compute-us", "20000"], check=True)
        plans = {"measured": profile, "default": "h100_nvlink"}
        for name, costs in plans.items():
            run(args.build, "bucketctl", "plan", graph, "--mode", args.mode, "--profile", costs, "--plan-out", os.path.join(folder, name))
        runs = {name: [] for name in plans}
        for _ in range(args.pairs):
            for name in plans:  # both are predicted by what was measured here
                runs[name].append(json.loads(run(args.build, "bucket-agent", "replay", "--plan", os.path.join(folder, name), "--graph", graph,
                                                 "--profile", profile, "--ranks", args.ranks, "--rounds", args.rounds, "--json")))
        report(runs)


def report(runs):
    for name, pairs in runs.items():
        print(f"plan from {name} costs")
        for k, bucket in enumerate(pairs[0]["buckets"]):
            if bucket["predicted_us"] < 1000.0:
                continue
            measured = statistics.median(p["buckets"][k]["measured_us"] for p in pairs)
            parts = ", ".join(f"{part} {bucket['predicted'][part]:.0f} -> {statistics.median(p['buckets'][k]['measured'][part] for p in pairs):.0f}"
                              for part in bucket["predicted"] if bucket["predicted"][part] > 0.0)
            print(f"  {bucket['kind']:<14} {bucket['mode']:<7} {bucket['bytes']:>10} B: predicted {bucket['predicted_us']:>9.0f} us, "
                  f"measured {measured:>9.0f} us, {(measured / bucket['predicted_us'] - 1) * 100:+6.1f} %  ({parts})")
        total, predicted = statistics.median(p["measured_us"] for p in pairs), pairs[0]["predicted_us"]
        print(f"  step: predicted {predicted:.0f} us, measured {total:.0f} us, {(total / predicted - 1) * 100:+.1f} %")
    ratio = statistics.median(a["measured_us"] / b["measured_us"] for a, b in zip(runs["measured"], runs["default"]))
    print(f"step under the measured costs' plan over the default's, median of {len(runs['measured'])} pairs: {ratio:.3f}")


if __name__ == "__main__":
    main()
