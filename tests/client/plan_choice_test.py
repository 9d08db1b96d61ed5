"""`bucketctl plan --pareto` and `--stick-to`: what people choose among plans by."""
import json
import os
import unittest

from ctl_case import DONE, REFUSED, USAGE, CtlCase
from referee_kit import DATA, bucketctl, graph_paths, judge, referee

GRAPH = graph_paths("moe_debug_fsdp4_ep4.bw")[0]
OTHER = graph_paths("moe_debug_fsdp4_ep4.fw")[0]
AUTO = ("--mode", "auto", "--numerics", "free", "--effort", "3")


class Choice(CtlCase):
    def setUp(self):
        super().setUp()
        self.profiles = referee.load(os.path.join(DATA, "referee", "profiles.json"))

    def ctl(self, *args, expect=DONE):
        return self.run_ctl("plan", *args, expect=expect)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def profile(self, **scales):
        made = {**self.profiles["slow_network"]}
        for key, scale in scales.items():
            made[key] *= scale
        with open(self.path("profile.json"), "w") as f:
            json.dump(made, f)
        return self.path("profile.json")


class Pareto(Choice):
    name, profile_name = "llama3_debug_fsdp8.bw", "small_batch"  # the front has several points
    graph = graph_paths(name)[0]

    def front(self, *args):
        return json.loads(self.ctl(self.graph, *AUTO, "--profile", self.profile_name, "--pareto", "--json", *args).stdout)

    def test_every_point_is_a_plan_that_the_referee_repeats(self):
        front = self.front("--plan-out", self.path("plan.json"))["front"]
        self.assertGreater(len(front), 1)
        for k, point in enumerate(front, 1):
            theirs, why = judge(referee.load(self.graph), referee.load(self.path(f"plan.{k}.json")), self.profiles[self.profile_name])
            self.assertIsNotNone(theirs, why)
            self.assertAlmostEqual(point["total_us"], theirs["total_us"], delta=0.01)
            self.assertEqual(point["peak_bytes"], theirs["peak_bytes"])
        self.assertFalse(os.path.exists(self.path(f"plan.{len(front) + 1}.json")))
        order = [(p["peak_bytes"], -p["total_us"]) for p in front]
        self.assertEqual(order, sorted(order))

    def test_asking_for_a_points_limit_gives_its_plan(self):
        for k, point in enumerate(self.front("--plan-out", self.path("front.json"))["front"], 1):
            self.ctl(self.graph, *AUTO, "--profile", self.profile_name, "--memory-limit", point["memory_limit"], "--plan-out", self.path("again.json"))
            self.assertEqual(self.read("again.json"), self.read(f"front.{k}.json"), point["memory_limit"])

    def test_no_peer_lies_left_and_below(self):
        peers = referee.load(os.path.join(DATA, "graphs", "peers.json"))[self.name]["profiles"][self.profile_name]["passes"]
        front = self.front()["front"]
        for name, peer in peers.items():
            if "total_us" in peer:
                self.assertTrue(any(p["peak_bytes"] <= peer["peak_bytes"] and p["total_us"] <= peer["total_us"] for p in front), name)

    def test_the_same_table_every_time(self):
        tables = {self.ctl(self.graph, *AUTO, "--profile", self.profile_name, "--pareto").stdout for _ in range(2)}
        self.assertEqual(len(tables), 1)
        table = tables.pop()
        for point in self.front()["front"]:
            self.assertIn(point["memory_limit"], table)

    def test_what_makes_no_sense_beside_it_is_a_usage_error(self):
        for more in (("--memory-limit", "2x"), ("--stick-to", self.path("plan.json")), ("--trace-out", self.path("trace.json"))):
            self.ctl(self.graph, "--pareto", *more, expect=USAGE)


class StickTo(Choice):
    def old(self, *args):
        self.ctl(GRAPH, *AUTO, *args, "--plan-out", self.path("old.json"))

    def verdict(self, *args, graph=GRAPH):
        run = self.ctl(graph, *AUTO, *args, "--stick-to", self.path("old.json"), "--plan-out", self.path("new.json"), "--json")
        return json.loads(run.stdout)

    def test_a_plan_does_not_jump_without_gain_when_one_cost_moves_by_one_percent(self):
        self.old("--profile", self.profile())
        stayed = 0
        for key in ("compute_scale", "alpha_scale", "busbw_scale", "gamma_us", "hbm_bytes_per_s"):
            for scale in (0.99, 1.01):
                said = self.verdict("--profile", self.profile(**{key: scale}))
                stick = said["stick_to"]
                self.assertLess(stick["gain_ppm"], 20_000, (key, scale, stick))
                self.assertEqual(stick["kept"], stick["gain_ppm"] <= 10_000, (key, scale, stick))
                self.assertEqual(self.read("new.json") == self.read("old.json"), stick["kept"], (key, scale))
                self.assertAlmostEqual(said["planned"]["total_us"], stick["old_us" if stick["kept"] else "new_us"], delta=0.001)
                stayed += stick["kept"]
        self.assertGreater(stayed, 5)  # the others found more than 1 %

    def test_a_plan_that_comes_by_a_pipe_is_read_once(self):
        self.old()
        run = bucketctl("plan", GRAPH, *AUTO, "--stick-to", "/dev/stdin", "--json", piped=self.read("old.json").decode())
        self.assertTrue(json.loads(run.stdout)["stick_to"]["kept"], run.stderr)

    def test_a_plan_gives_way_where_the_new_one_gains_more_than_is_asked(self):
        self.old("--profile", self.profile())
        faster = ("--profile", self.profile(busbw_scale=8.0))
        said = self.verdict(*faster)
        gain = said["stick_to"]["gain_ppm"]
        self.assertGreater(gain, 10_000)
        self.assertFalse(said["stick_to"]["kept"])
        self.assertAlmostEqual(said["planned"]["total_us"], said["stick_to"]["new_us"], delta=0.001)
        self.assertNotEqual(self.read("new.json"), self.read("old.json"))
        self.assertTrue(self.verdict(*faster, "--stick-gain", str(gain / 1e4 + 0.1))["stick_to"]["kept"])

    def test_a_plan_that_is_not_legal_or_not_what_is_asked_for_gives_way(self):
        self.old()
        self.assertIn("made for graph", self.verdict(graph=OTHER)["stick_to"]["why"])
        self.assertIn("numerics", self.verdict("--backend", "gloo")["stick_to"]["why"])
        plan = referee.load(self.path("old.json"))
        plan["order"].remove("wait:0")
        with open(self.path("old.json"), "w") as f:
            json.dump(plan, f)
        self.assertIn("wait:0", self.verdict()["stick_to"]["why"])

    def test_what_is_no_plan_is_an_error(self):
        self.ctl(GRAPH, "--stick-to", self.path("absent.json"), expect=USAGE)
        with open(self.path("broken.json"), "w") as f:
            f.write("{")
        self.ctl(GRAPH, "--stick-to", self.path("broken.json"), expect=REFUSED)
        self.old()
        for gain in ("-1", "101", "nan", "much"):
            self.ctl(GRAPH, "--stick-to", self.path("old.json"), "--stick-gain", gain, expect=USAGE)
        self.ctl(GRAPH, "--stick-gain", "2", expect=USAGE)


if __name__ == "__main__":
    unittest.main()
