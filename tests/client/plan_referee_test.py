"""`bucketctl plan` on every captured forward and backward, under every profile: the referee accepts the plan and predicts the
same step."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "passes"))
from referee_kit import DATA, PROFILES, bucketctl, differences, graph_paths, judge, referee


class PlansAreAcceptedByTheReferee(unittest.TestCase):
    def test_transformer_block_plans_of_every_graph_under_every_profile(self):
        profiles = referee.load(os.path.join(DATA, "referee", "profiles.json"))
        bucketed = set()
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "plan.json")
            for path in graph_paths("*.[fb]w"):
                graph = referee.load(path)
                for profile in PROFILES:
                    what = f"{os.path.basename(path)} {profile}"
                    run = bucketctl("plan", path, "--mode", "transformer_block", "--profile", profile, "--plan-out", out, "--json")
                    self.assertEqual(run.returncode, 0, f"{what}: {run.stderr}")
                    ours = json.loads(run.stdout)
                    theirs, violations = judge(graph, referee.load(out), profiles[profile])
                    self.assertIsNotNone(theirs, f"{what}: {violations}")
                    planned = {**ours["planned"], "lower_bound_us": ours["lower_bound_us"]}
                    self.assertEqual(differences(planned, theirs), [], what)
                    if ours["buckets"]:
                        bucketed.add(os.path.basename(path))
                        self.assertLess(sum(planned["collectives"].values()), sum(ours["program_order"]["collectives"].values()), what)
        # Of the others, DDP has nothing but all-reduces, which eager numerics leave alone.
        expected = {os.path.basename(p) for p in graph_paths("*fsdp*.[fb]w")}
        self.assertEqual(expected - bucketed, set())


if __name__ == "__main__":
    unittest.main()
