"""Mode auto against PyTorch's passes on every captured graph and profile, by the referee; prints a Markdown table.

A line a pair: the referee's lower bound, then how far above it, in percent, are program order, the best peer within the memory
limit, the best other mode, auto at default effort and at effort 9 with 5 % more memory than program order, and auto with no
more; what auto at default effort is above the planner's own, sharper bound; how much longer its step is under the default
numerics (eager_order) than under free ones, which the peers use; and the CPU time from parsed graph to verified plan.

Exit code 1 if one of these does not hold, under free numerics:
* every plan is legal, within its memory limit, and at most 0.02 % slower than the best peer (program order is always one);
* over the pairs that have other peers the geometric mean of gap / best peer's gap, gaps below 0.1 % counted as 0.1 %, is at
  most 0.29 at default effort and 0.28 at effort 9, with 5 % more memory;
* no peer lies left and below of the front of step time against peak memory: for each some point has neither more time (0.02 %)
  nor more memory, or it needs less memory than any point and is slower than the first.
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
MORE, SAME = 1_050_000, 1_000_000  # memory limits, parts per million of program order's peak
MODES = ("transformer_block", "greedy", "overlap")
# Of auto: label, effort, memory limit, numerics.
RUNS = (("5", 5, MORE, "free"), ("9", 9, MORE, "free"), ("5 +0", 5, SAME, "free"), ("9 +0", 9, SAME, "free"),
        ("numerics", 5, MORE, "eager_order"))
MOST = {"5": 0.29, "9": 0.28}
HEADS = ("graph", "profile", "bound ms", "program order", "best peer", "best other mode", "auto", "effort 9", "auto +0 %",
         "sharper bound", "default numerics", "CPU ms")


def load_referee():
    spec = importlib.util.spec_from_file_location("referee", DATA / "referee" / "referee.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(values):
    widths = (31, 12, 10, 13, 38, 27, 7, 8, 9, 13, 16, 7)
    return "| " + " | ".join(str(v).ljust(w) if k < 2 else str(v).rjust(w) for k, (v, w) in enumerate(zip(values, widths))) + " |"


def percent(total, bound):
    return f"{100 * (total / bound - 1):.3f}"


class Judge:
    """The figures of plans of one graph: (total, peak), or what is wrong with the plan."""

    def __init__(self, path, profiles, referee):
        self.referee, self.profiles = referee, profiles
        self.graph = referee.load(str(path)) if referee else None

    def figures(self, profile, line, folder):
        if self.graph is None:
            return line["total_us"], line["peak_bytes"]
        with open(os.path.join(folder, line["plan"])) as f:
            made = json.load(f)
        try:
            nodes, order, cost = self.referee.expand(self.graph, made, self.profiles[profile])
        except ValueError as error:
            return f"illegal: {str(error)[:200]}"
        result = self.referee.simulate(nodes, order, cost, self.profiles[profile])
        return result["total_us"], result["peak_bytes"]

    def bound(self, profile, line):
        return self.referee.lower_bound_us(self.graph, self.profiles[profile]) if self.graph else line["referee_bound_us"]


def best_peer(passes, limit):
    return min((p["total_us"], name) for name, p in passes.items() if "total_us" in p and p["peak_bytes"] <= limit)


def uncovered(passes, front):
    """The peers that lie left and below of the front, which is (total, peak) by ascending peak."""
    for name, p in passes.items():
        if "total_us" not in p:
            continue
        within = [total for total, peak in front if peak <= p["peak_bytes"]]
        least = min(within, default=front[0][0])
        if least > p["total_us"] * TOLERANCE:
            yield f"{name} ({p['total_us']:.3f} us, {p['peak_bytes']} bytes) lies left and below of the front"


class Report:
    def __init__(self, args, peers):
        self.args, self.peers = args, peers
        self.failed, self.logs, self.times = [], {label: [] for label in MOST}, []

    def fail(self, name, profile, why):
        self.failed.append(f"{name} {profile}: {why}")

    def pair(self, name, profile, lines, judge, folder):
        """Checks a pair and prints its line."""
        passes = self.peers[name]["profiles"][profile]["passes"]
        order = passes["program_order"]
        bound = judge.bound(profile, lines["5"])
        shown = {}
        for label, _, ppm, numerics in RUNS:
            if label not in lines:
                continue
            judged = judge.figures(profile, lines[label], folder)
            if isinstance(judged, str):
                self.fail(name, profile, f"{label}: {judged}")
                continue
            total, peak = shown[label] = judged
            limit = order["peak_bytes"] * ppm // 1_000_000
            if peak > limit:
                self.fail(name, profile, f"{label}: above the memory limit")
            if numerics != "free":
                continue
            peer = best_peer(passes, limit)[0]
            if total > peer * TOLERANCE:
                self.fail(name, profile, f"{label}: {100 * (total / peer - 1):.3f} % slower than the best peer")
            if label in MOST and len(passes) > 1:
                self.logs[label].append(math.log(max(total / bound - 1, FLOOR) / max(peer / bound - 1, FLOOR)))
        if "front" in lines:
            for why in uncovered(passes, [(p["total_us"], p["peak_bytes"]) for p in lines["front"]]):
                self.fail(name, profile, why)
        limit = order["peak_bytes"] * MORE // 1_000_000
        peer = best_peer(passes, limit)
        mode = min(((lines[m]["total_us"], m) for m in MODES if lines[m]["peak_bytes"] <= limit),
                   default=(order["total_us"], "program_order"))
        over = lambda label: percent(shown[label][0], bound) if label in shown else "-"
        named = lambda best: f"{best[1]} {percent(best[0], bound)}"
        numerics = percent(shown["numerics"][0], shown["5"][0]) if {"numerics", "5"} <= shown.keys() else "-"
        sharper = percent(shown["5"][0], lines["5"]["bound_us"]) if "5" in shown else "-"
        self.times.append(lines["5"]["cpu_ms"])
        print(cells((name, profile, f"{bound / 1e3:.3f}", percent(order["total_us"], bound), named(peer), named(mode), over("5"),
                     over("9"), over("5 +0"), sharper, numerics, f"{lines['5']['cpu_ms']:.0f}")), flush=True)

    def close(self):
        """Means and failures; the exit code."""
        print()
        for label, logs in self.logs.items():
            if not logs:
                continue
            mean = math.exp(sum(logs) / len(logs))
            print(f"effort {label}: over {len(logs)} pairs with peers, geometric mean of gaps {mean:.3f} of the best peers', at most {MOST[label]}")
            if mean > MOST[label] and not self.args.graphs:
                self.failed.append(f"effort {label}: geometric mean {mean:.4f} is above {MOST[label]}")
        print(f"slowest plan {max(self.times):.0f} ms of CPU")
        for line in self.failed:
            print(f"FAILED {line}")
        return 1 if self.failed else 0


def lines_of(args, path, folder):
    """What plan_quality says of one graph: profile -> label -> figures."""
    runs = [r for r in RUNS if not (args.quick and r[1] == 9)]
    configs = [f"mode=auto,effort={effort},memory_limit_ppm={ppm},numerics={numerics}" for _, effort, ppm, numerics in runs]
    configs += [f"mode={m},numerics=free" for m in MODES]
    labels = [r[0] for r in runs] + list(MODES)
    command = [args.binary, "-" if args.trust else folder, *configs, *([] if args.no_front else ["front"]), str(path)]
    found = {}
    for text in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        line = json.loads(text)
        pair = found.setdefault(line["profile"], {})
        if line["config"] == "front":
            pair.setdefault("front", []).append(line)
        else:
            pair[labels[configs.index(line["config"])]] = line
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "bin" / "plan_quality"))
    parser.add_argument("--quick", action="store_true", help="leave effort 9 out")
    parser.add_argument("--no-front", action="store_true", help="leave the fronts out")
    parser.add_argument("--trust", action="store_true", help="take the planner's figures, which the tests hold equal to the referee's: much faster")
    parser.add_argument("--graphs", default="", help="only graphs whose name contains this; means are then not checked")
    args = parser.parse_args()
    if not os.access(args.binary, os.X_OK):
        sys.exit(f"no {args.binary}: build it first (target plan_quality)")
    referee = load_referee()
    profiles = referee.load(str(DATA / "referee" / "profiles.json"))
    peers = json.loads((DATA / "graphs" / "peers.json").read_text())
    report = Report(args, peers)
    print("Percent above the bound; +5 % memory unless said otherwise; numerics free.\n")
    print(cells(HEADS))
    print(cells(["---"] * 2 + ["---:"] * (len(HEADS) - 2)))
    for path in sorted((DATA / "graphs").glob("*.json.gz")):
        name = path.name[:-8]
        if name not in peers or args.graphs not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            judge = Judge(path, profiles, None if args.trust else referee)
            for profile, lines in lines_of(args, path, folder).items():
                report.pair(name, profile, lines, judge, folder)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
