"""The simulator and VerifyPlan agree with the referee: on every captured graph, on random plans, on broken ones, and on
random graphs with in-place ops. Seeds are fixed; `--count N` makes N times as many random cases."""
import json
import os
import random
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from inplace_graphs import random_graph
from referee_kit import (
    DATA,
    PROFILES,
    differences,
    graph_paths,
    judge,
    mutate,
    random_buckets,
    random_order,
    random_plan,
    referee,
    simulate,
)

COUNT = 1
SMALL = 3000  # nodes


class SimulatorAgreesWithTheReferee(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.profiles = referee.load(os.path.join(DATA, "referee", "profiles.json"))
        cls.small = [(path, referee.load(path)) for path in graph_paths("*debug*")]
        cls.small = [(path, graph) for path, graph in cls.small if len(graph["nodes"]) <= SMALL]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def write(self, name, value):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as f:
            json.dump(value, f)
        return path

    def compare(self, path, graph, plan, profile_name, profile, what):
        """Asserts agreement; returns whether both found the plan legal."""
        plan_path = self.write("plan.json", plan) if plan else None
        ours, refusal = simulate(path, plan_path, profile_name)
        theirs, violations = judge(graph, plan or {}, profile)
        if (ours is None) != (theirs is None):
            self.fail(f"{what}: here: {refusal or 'legal'}; referee: {violations or 'legal'}; plan: {json.dumps(plan)[:2000]}")
        if ours is not None:
            self.assertEqual(differences(ours, theirs), [], what)
        return ours is not None

    def test_every_graph_in_program_order_under_every_profile(self):
        for path in graph_paths():
            graph = referee.load(path)
            for name in PROFILES:
                self.assertTrue(self.compare(path, graph, None, name, self.profiles[name], f"{path} {name}"))

    def test_random_plans_with_buckets_of_every_mode(self):
        rng = random.Random(11)
        seen = set()
        for path, graph in self.small:
            for k in range(4 * COUNT):
                name = PROFILES[k % len(PROFILES)]
                plan = random_plan(graph, rng)
                seen |= {(b["mode"], b["copies"], graph["nodes"][b["members"][0]]["coll"]["kind"]) for b in plan["buckets"]}
                self.assertTrue(self.compare(path, graph, plan, name, self.profiles[name], f"{path} {name} plan {k}"))
        modes = {(mode, copies) for mode, copies, _ in seen}
        self.assertEqual(modes, {("packed", "compute"), ("packed", "comm"), ("grouped", "compute")})
        self.assertEqual({kind for _, _, kind in seen}, {"ag", "rs", "ar"})

    def test_profiles_that_nobody_has_seen(self):
        rng = random.Random(12)
        for _k in range(12 * COUNT):
            profile = {"compute_scale": rng.uniform(0.01, 4), "alpha_scale": rng.choice((0, rng.uniform(0, 20))),
                       "busbw_scale": rng.uniform(0.005, 3), "gamma_us": rng.uniform(0, 40),
                       "hbm_bytes_per_s": rng.uniform(1e11, 8e12), "copy_launch_us": rng.uniform(0, 20),
                       "overlap_slowdown": rng.choice((0, rng.uniform(0, 1))),
                       "host_us_per_kernel": rng.choice((0, rng.uniform(0, 20))),
                       "host_us_per_collective": rng.choice((0, rng.uniform(0, 80))), "comm_copy_share": rng.uniform(0, 1)}
            path, graph = self.small[rng.randrange(len(self.small))]
            file = self.write("profile.json", profile)
            self.assertTrue(self.compare(path, graph, random_plan(graph, rng), file, profile, f"{path} {profile}"))

    def test_broken_plans_are_refused_by_both(self):
        rng = random.Random(13)
        verdicts = []
        for path, graph in self.small:
            for k in range(6 * COUNT):
                plan = mutate(random_plan(graph, rng), graph, rng)
                verdicts.append(self.compare(path, graph, plan, PROFILES[0], self.profiles[PROFILES[0]], f"{path} broken {k}"))
        self.assertGreater(verdicts.count(False), len(verdicts) // 2)

    def test_in_place_ops_keep_their_side_of_whoever_shares_the_storage(self):
        rng = random.Random(14)
        verdicts = []
        for k in range(60 * COUNT):
            graph = random_graph(rng)
            path = self.write("graph.json", graph)
            for _ in range(4):
                buckets = random_buckets(graph, rng)
                order = random_order(graph, buckets, rng, keep_random_ops=rng.random() < 0.7)
                if order is None:
                    continue
                plan = {"buckets": buckets, "order": order}
                what = f"in-place graph {k}: {json.dumps(graph)}"
                verdicts.append(self.compare(path, graph, plan, PROFILES[1], self.profiles[PROFILES[1]], what))
        self.assertGreater(verdicts.count(True), len(verdicts) // 8)
        self.assertGreater(verdicts.count(False), len(verdicts) // 8)


if __name__ == "__main__":
    if "--count" in sys.argv:
        at = sys.argv.index("--count")
        COUNT = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
