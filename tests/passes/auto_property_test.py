"""What mode auto promises, on 1,000 random steps under random costs, by the referee and in five processes. `--seed N` draws
others, `--steps N` N of them; BUCKETD_FULL=1: more effort on every captured graph."""
import json
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from inplace_graphs import random_graph
from referee_kit import DATA, PROFILES, SOURCE, graph_paths, judge, referee
from step_graphs import random_profile, random_step

SEED, STEPS = 60, 1000
TOOL = os.path.join(os.environ.get("BUCKETD_BIN") or os.path.join(SOURCE, "build", "bin"), "plan_tool")
MODES = ("transformer_block", "greedy", "overlap", "none")
FULL = os.environ.get("BUCKETD_FULL") == "1"


def draw(rng, k):
    """A graph, a profile, and options."""
    graph, profile = None, random_profile(rng)
    while graph is None or judge(graph, {}, profile)[0] is None:  # few in-place ops make a step of which no order is legal
        graph = random_graph(rng, groups=rng.choice((1, 2, 3)), in_place=rng.random() < 0.6) if k % 4 == 3 else random_step(rng, f"step{k}")
    options = {"effort": rng.choice((2, 3, 5)), "memory_limit_ppm": rng.choice((1_000_000, 1_050_000, 1_500_000)),
               "numerics": rng.choice(("free", "free", "eager_order", "exact")), "backend": rng.choice(("nccl", "gloo"))}
    return graph, profile, options


def text_of(options, **more):
    return "O" + ",".join(f"{k}={v}" for k, v in {**options, **more}.items())


def run(lines, threads=1, prefix=(), **environment):
    """The tool's answers, as text."""
    done = subprocess.run([*prefix, TOOL, str(threads)], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=600,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout.splitlines()


class ThousandSteps(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rng = random.Random(SEED)
        cls.cases = [draw(rng, k) for k in range(STEPS)]
        cls.lines = [("G" + json.dumps(graph), "C" + json.dumps(profile), text_of(options, mode="auto")) for graph, profile, options in cls.cases]
        cls.answers = run([line for case in cls.lines for line in case])
        others = run([line for (graph, profile, _), (_, _, options) in zip(cls.lines, cls.cases)
                      for line in (graph, profile, *(text_of(options, mode=m) for m in MODES))])
        cls.others = [others[k:k + len(MODES)] for k in range(0, len(others), len(MODES))]

    def about(self, k, what):
        graph, profile, options = self.cases[k]
        return f"case {k}: {what}\n{json.dumps(profile)}\n{options}\n{json.dumps(graph)}"

    def test_the_referee_accepts_every_plan_and_repeats_its_figures(self):
        for k, (answer, (graph, profile, _options)) in enumerate(zip(self.answers, self.cases)):
            ours = json.loads(answer)
            self.assertNotIn("refused", ours, self.about(k, ours.get("refused")))
            theirs, why = judge(graph, ours["plan"], profile)
            self.assertIsNotNone(theirs, self.about(k, why))
            self.assertAlmostEqual(ours["total_ps"] / 1e6, theirs["total_us"], delta=max(0.01, 1e-7 * theirs["total_us"]), msg=self.about(k, "time"))
            self.assertEqual(ours["peak_bytes"], theirs["peak_bytes"], self.about(k, "memory"))
            # Clocks are rounded to a picosecond at every kernel, the bound is not.
            self.assertGreaterEqual(ours["total_ps"] + len(graph["nodes"]), ours["bound_ps"], self.about(k, "faster than the bound"))

    def test_no_plan_is_worse_than_program_order_or_any_other_modes_within_memory(self):
        gained, beaten = 0, 0
        for k, (answer, others, (_, _, options)) in enumerate(zip(self.answers, self.others, self.cases)):
            ours = json.loads(answer)
            before = ours["program_order"]
            limit = before["peak_bytes"] * options["memory_limit_ppm"] // 1_000_000
            self.assertLessEqual(ours["peak_bytes"], limit, self.about(k, "above the memory limit"))
            self.assertLessEqual(ours["total_ps"], before["total_ps"], self.about(k, "slower than program order"))
            within = [json.loads(other) for other in others]
            within = [other for other in within if other.get("peak_bytes", limit + 1) <= limit]
            for other in within:
                self.assertLessEqual(ours["total_ps"], other["total_ps"], self.about(k, f"slower than {other['plan']['mode']}"))
            gained += ours["total_ps"] < before["total_ps"]
            beaten += all(ours["total_ps"] < other["total_ps"] for other in within)
        self.assertGreater(gained, len(self.cases) // 2)
        self.assertGreater(beaten, len(self.cases) // 4)

    def test_five_processes_give_the_same_bytes(self):
        lines = [line for case in self.lines for line in case]
        backwards = [line for case in reversed(self.lines) for line in case]
        again = {"another time zone and locale": run(lines, LC_ALL="C.UTF-8", TZ="Pacific/Chatham"),
                 "other memory": run(lines, MALLOC_PERTURB_="165", MALLOC_MMAP_THRESHOLD_="4096", MALLOC_TOP_PAD_="1", PADDING="x" * 5000),
                 "beside each other": run(lines, threads=3),
                 "in another order, out of the way": run(backwards, prefix=("nice", "-n", "5"))[::-1]}
        for how, answers in again.items():
            for k, (first, other) in enumerate(zip(self.answers, answers)):
                self.assertEqual(first, other, self.about(k, how))
            self.assertEqual(len(self.answers), len(answers))

    def test_the_steps_are_of_every_kind(self):
        nodes = [n for graph, _, _ in self.cases for n in graph["nodes"]]
        kinds = {n["coll"]["kind"] for n in nodes if n.get("coll")}
        self.assertEqual(kinds, {"ag", "rs", "ar", "a2a"})
        for graphs in ((g for g, _, _ in self.cases if not any(n.get("coll") for n in g["nodes"])),
                       (g for g, _, _ in self.cases if len(g["groups"]) > 1), (g for g, _, _ in self.cases if any(n.get("mutates") for n in g["nodes"]))):
            self.assertGreater(len(list(graphs)), 20)
        plans = [json.loads(answer)["plan"] for answer in self.answers]
        forms = {(b["mode"], b.get("copies", "compute")) for plan in plans for b in plan["buckets"]}
        self.assertEqual(forms, {("packed", "compute"), ("packed", "comm"), ("grouped", "compute")})


class Jobs(unittest.TestCase):
    def test_lines_without_anything_count_for_nothing_and_options_come_last(self):
        graph, profile, options = draw(random.Random(SEED), 0)
        lines = ["", "G" + json.dumps(graph), "", "C" + json.dumps(profile), "", text_of(options, mode="none")]
        self.assertEqual(len(run(lines)), 1)
        with self.assertRaisesRegex(AssertionError, "behind a graph and a cost profile"):
            run(lines[3:])


class Effort(unittest.TestCase):
    def check(self, what, graph, profile, options):
        answers = run(["G" + json.dumps(graph), "C" + json.dumps(profile), *(text_of(options, mode="auto", effort=e) for e in range(10))])
        totals = [json.loads(answer)["total_ps"] for answer in answers]
        self.assertEqual(totals[5:], sorted(totals[5:], reverse=True), what)
        self.assertLessEqual(totals[5], min(totals[:5]) * 1.02, f"{what}: the default's is sturdier, at that price")
        return totals[0] > totals[9]

    def test_more_is_never_worse_on_random_steps(self):
        rng = random.Random(SEED + 1)
        better = [self.check(*(f"seed {SEED + 1}, case {k}", *draw(rng, k))) for k in range(STEPS // 25)]
        self.assertGreater(sum(better), 5)

    def test_more_is_never_worse_on_captured_graphs(self):
        profiles = referee.load(os.path.join(DATA, "referee", "profiles.json"))
        better = []
        for k, path in enumerate(graph_paths("*" if FULL else "*debug*bw")):
            for name in PROFILES if FULL else PROFILES[k % len(PROFILES)::len(PROFILES)]:
                better.append(self.check(f"{path} {name}", referee.load(path), profiles[name], {"numerics": "free"}))
        # Not where there is nothing to bucket, or where another mode's plan is as good as it gets.
        self.assertGreater(sum(better), 0.7 * len(better), "effort changes nothing")


if __name__ == "__main__":
    for name in ("SEED", "STEPS"):
        flag = f"--{name.lower()}"
        if flag in sys.argv:
            at = sys.argv.index(flag)
            globals()[name] = int(sys.argv[at + 1])
            del sys.argv[at:at + 2]
    unittest.main()
