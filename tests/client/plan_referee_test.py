"""`bucketctl plan` in every mode: the referee accepts the plan and predicts the same step, figure by figure.

Small graphs under every profile, large ones under one each, a profile under one of two numerics; or all under all with
BUCKETD_FULL=1.
"""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "passes"))
from referee_kit import DATA, PROFILES, bucketctl, differences, graph_paths, judge, referee

LARGE = 3000  # nodes
NUMERICS = ("eager_order", "free")
FULL = os.environ.get("BUCKETD_FULL") == "1"


def modes():
    run = bucketctl("compare", graph_paths("llama3_debug_fsdp8.fw")[0], "--buckets", "layers.*", "--json")
    return [row["mode"] for row in json.loads(run.stdout)["plans"]]


class PlansAreAcceptedByTheReferee(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.modes = modes()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "plan.json")
        self.profiles = referee.load(os.path.join(DATA, "referee", "profiles.json"))

    def plan(self, path, graph, profile, mode, numerics):
        """What bucketctl printed, after the referee has agreed to every figure of it."""
        what = f"{os.path.basename(path)} {profile} {mode} {numerics}"
        entries = ["--buckets", "layers.*"] if mode == "manual" else []
        run = bucketctl("plan", path, "--mode", mode, "--profile", profile, "--numerics", numerics, *entries, "--plan-out", self.out, "--json")
        self.assertEqual(run.returncode, 0, f"{what}: {run.stderr}")
        ours = json.loads(run.stdout)
        theirs, violations = judge(graph, referee.load(self.out), self.profiles[profile])
        self.assertIsNotNone(theirs, f"{what}: {violations}")
        self.assertEqual(differences({**ours["planned"], "lower_bound_us": ours["lower_bound_us"]}, theirs), [], what)
        return ours

    def test_plans_of_every_mode_for_every_graph(self):
        bucketed = {}
        for k, path in enumerate(graph_paths()):
            graph = referee.load(path)
            small = len(graph["nodes"]) <= LARGE or FULL
            for p, profile in enumerate(PROFILES if small else PROFILES[k % len(PROFILES)::len(PROFILES)]):
                for m, mode in enumerate(self.modes):
                    for numerics in NUMERICS if FULL else (NUMERICS[(k + p + m) % 2 if small else 1],):
                        ours = self.plan(path, graph, profile, mode, numerics)
                        before, after = (sum(ours[which]["collectives"].values()) for which in ("program_order", "planned"))
                        self.assertEqual(after < before, bool(ours["buckets"]))
                        if ours["buckets"] and numerics == "free":
                            bucketed.setdefault(mode, set()).add(os.path.basename(path))
        # The forward of DDP has no collective; every mode merges something in every other graph of small tensors.
        expected = {os.path.basename(path) for path in graph_paths("*debug*")} - {"llama3_debug_ddp8.fw.json.gz"}
        for mode in self.modes:
            self.assertEqual(expected - bucketed[mode], set(), mode)

    def test_program_order_is_a_mode_too(self):
        path = graph_paths("llama3_debug_fsdp8.bw")[0]
        ours = self.plan(path, referee.load(path), PROFILES[0], "none", NUMERICS[0])
        self.assertEqual(ours["planned"], ours["program_order"])


if __name__ == "__main__":
    unittest.main()
