"""A kind of collective that is never bucketed goes the whole way: captured file, text form, cost, every mode's plan, simulation,
verification, explanation, and the referee agrees. What a new kind has to pass; passes/README.md lists what it takes."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from referee_kit import BINARY, DATA, bucketctl, differences, judge, referee, simulate
from step_graphs import StepBuilder

OPT = os.path.join(os.path.dirname(BINARY), "bucketd-opt")
OP = "_c10d_functional.broadcast.default"
PROFILE = "h100_nvlink"
MODES = ("transformer_block", "greedy", "overlap", "auto", "none")


def step():
    """Layers of sharded weights whose activations are broadcast, and two buffers that are broadcast at once."""
    b = StepBuilder(random.Random(7))
    b.sizes, b.links = [4], [(12.0, 3.6e11)]
    weights = [[b.add("placeholder", [], 64, "float32", desc_kind="param", is_param=True, fqn=f"layers.{layer}.{name}.weight")
                for name in ("wq", "wo")] for layer in range(3)]
    buffers = [b.add("placeholder", [], 64, desc_kind="input") for _ in range(2)]
    x = b.add("placeholder", [], 512, desc_kind="input")
    same = [b.wait(b.start(OP, buffer, 64, 0, "bc")) for buffer in buffers]
    for shards in weights:
        for shard in shards:
            full = b.gather(b.call("aten._to_copy.default", [shard], 64), 0)
            x = b.product([x, full], 512)
        x = b.wait(b.start(OP, x, 512, 0, "bc"))
    x = b.product([x, *same], 512)
    b.results.append((x, "output", None))
    return b.finish(range(len(b.nodes)), "broadcasts", "fw")


class Broadcast(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.graph = step()
        cls.starts = [n["id"] for n in cls.graph["nodes"] if n["op"] == OP]
        cls.profile = referee.load(os.path.join(DATA, "referee", "profiles.json"))[PROFILE]
        cls.path = cls.write("graph.json", cls.graph)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def write(cls, name, value):
        path = os.path.join(cls.folder.name, name)
        with open(path, "w") as f:
            json.dump(value, f)
        return path

    def plan(self, mode):
        path = os.path.join(self.folder.name, f"{mode}.json")
        run = bucketctl("plan", self.path, "--mode", mode, "--profile", PROFILE, "--memory-limit", "2x", "--plan-out", path)
        self.assertEqual(run.returncode, 0, run.stderr)
        return path

    def test_every_mode_plans_around_it_and_the_referee_agrees(self):
        for mode in MODES:
            path = self.plan(mode)
            plan = referee.load(path)
            theirs, why = judge(self.graph, plan, self.profile)
            self.assertIsNotNone(theirs, f"{mode}: {why}")
            ours, refusal = simulate(self.path, path, PROFILE)
            self.assertIsNotNone(ours, f"{mode}: {refusal}")
            self.assertEqual(differences(ours, theirs), [], mode)
            members = {m for bucket in plan["buckets"] for m in bucket["members"]}
            self.assertFalse(members & set(self.starts), mode)
            self.assertTrue(members or mode == "none", f"{mode} merged no gathers")

    def test_its_bytes_cross_every_wire_once(self):
        b = StepBuilder(random.Random(7))
        b.sizes, b.links = [4], [(12.0, 1e9)]
        x = b.add("placeholder", [], 500, desc_kind="input")
        b.results.append((b.wait(b.start(OP, x, 500, 0, "bc")), "output", None))
        path = self.write("one.json", b.finish(range(len(b.nodes)), "one", "fw"))
        figures, _ = simulate(path, None, PROFILE)
        self.assertAlmostEqual(figures["comm_us"], 12.0 + 500 * 64 * 2 / 1e9 * 1e6, places=6)

    def test_both_refuse_a_bucket_of_it(self):
        a, b = self.starts[:2]
        waits = {n["wait_of"]: n["id"] for n in self.graph["nodes"] if "wait_of" in n}
        inside = {a, b, waits[a], waits[b]}
        order = [n["id"] for n in self.graph["nodes"] if n["id"] not in inside]
        at = order.index(self.graph["nodes"][b]["inputs"][0]) + 1
        order[at:at] = ["start:0", "wait:0"]
        plan = {"buckets": [{"members": [a, b], "mode": "packed", "copies": "compute"}], "order": order}
        ours, refusal = simulate(self.path, self.write("bucket.json", plan), PROFILE)
        self.assertIsNone(ours)
        self.assertIn("is of kind broadcast, which cannot be bucketed", refusal)
        self.assertIsNone(judge(self.graph, plan, self.profile)[0])

    def test_its_text_reads_back_as_it_was(self):
        def text(path):
            return subprocess.run([OPT, path, "--graph"], capture_output=True, text=True, timeout=60, check=True).stdout

        first = text(self.path)
        self.assertEqual(first.count(" = broadcast("), len(self.starts), first)
        again = os.path.join(self.folder.name, "graph.bir")
        with open(again, "w") as f:
            f.write(first)
        self.assertEqual(text(again), first)

    def test_explanations_say_that_it_is_never_merged(self):
        a, b = self.starts[:2]
        run = bucketctl("explain", self.path, self.plan("greedy"), str(a), str(b), "--profile", PROFILE)
        self.assertIn("collectives of kind broadcast are never merged", run.stdout, run.stderr)


if __name__ == "__main__":
    unittest.main()
