"""bucketctl plan --server: the same output and exit codes as in process, from a running bucketd."""
import glob
import gzip
import json
import os
import tempfile
import unittest

from ctl_case import REFUSED, UNAVAILABLE, USAGE, CtlCase, serve
from referee_kit import DATA, graph_paths

GRAPHS = graph_paths("llama3_debug_fsdp8.?w")


class PlanServerTest(CtlCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.address = serve(folder.name, cls.addClassCleanup)

    def without_costs(self, graph):
        """As a server sees it: it takes its own."""
        with gzip.open(graph) as f:
            captured = json.load(f)
        for node in captured["nodes"]:
            node.pop("est_us", None)
        path = self.path(os.path.basename(graph).replace(".gz", ""))
        with open(path, "w") as f:
            json.dump(captured, f)
        return path

    def planned(self, graph, *args):
        """All that is said of a plan and the plan's file, byte for byte; how long it took does not count."""
        out = self.path("plan.json")
        text = self.run_ctl("plan", graph, *args, "--plan-out", out).stdout
        with open(out, "rb") as f:
            return text, f.read()

    def figures(self, graph, *args):
        figures = json.loads(self.run_ctl("plan", graph, *args, "--json").stdout)
        figures.pop("planning_ms")
        return figures

    def test_a_server_gives_the_plan_that_is_made_here_by_the_same_costs(self):
        small = [*graph_paths("*_debug_*"), *sorted(glob.glob(os.path.join(DATA, "vectors", "*.rank?.json.gz")))]
        large = [graph for graph in graph_paths() if graph not in small]
        self.assertGreater(len(small), 40)
        for graph in small + large:
            for options in (("--effort", "1"), ("--mode", "greedy", "--profile", "slow_network"))[graph in large:]:
                with self.subTest(graph=os.path.basename(graph), options=options):
                    self.assertEqual(self.planned(graph, *options, "--costs", "profile"),
                                     self.planned(graph, *options, "--server", self.address))

    def test_ranks_whose_files_differ_get_one_plan(self):
        # Rank 3 captured pads and slices that rank 0 did not.
        for part in ("fw", "bw"):
            buckets = []
            for rank in (0, 3):
                graph = os.path.join(DATA, "vectors", f"fsdp_uneven.{part}.rank{rank}.json.gz")
                plan = json.loads(self.planned(graph, "--effort", "1", "--costs", "profile")[1])
                names = [node["name"] for node in json.loads(gzip.open(graph).read())["nodes"]]
                buckets.append([[names[member] for member in bucket["members"]] for bucket in plan["buckets"]])
            self.assertEqual(*buckets)
            self.assertTrue(buckets[0])

    def test_the_output_says_whose_costs_made_the_plan(self):
        graph, bare = GRAPHS[0], self.without_costs(GRAPHS[0])
        for args, whose in (((graph,), "h100_nvlink@1 over the file's costs"), ((graph, "--costs", "file"), "h100_nvlink@1 over the file's costs"),
                            ((graph, "--costs", "profile"), "h100_nvlink@1"), ((bare,), "h100_nvlink@1"),
                            ((graph, "--server", self.address), "h100_nvlink@1")):
            text, plan = self.planned(*args)
            self.assertIn(f"cost profile {whose}\n", text)
            self.assertEqual([self.figures(*args)["cost_profile"], json.loads(plan)["cost_profile"]], [whose, whose])
        self.assertEqual(self.planned(graph, "--costs", "profile"), self.planned(bare))
        self.assertEqual(self.figures(graph, "--costs", "profile"), self.figures(graph, "--server", self.address))
        self.run_ctl("plan", graph, "--costs", "mine", expect=USAGE)
        self.run_ctl("plan", graph, "--costs", "file", "--server", self.address, expect=USAGE)

    def test_nobody_there_is_unavailable(self):
        run = self.run_ctl("plan", GRAPHS[0], "--server", f"unix:{self.path('nobody')}", expect=UNAVAILABLE)
        self.assertIn("UNREACHABLE", run.stderr)
        self.assertIn("Does bucketd run there? --server says where to ask", run.stderr)

    def test_a_profile_that_the_server_does_not_know_is_refused(self):
        own = json.loads(self.run_ctl("costs", "show", "h100_nvlink", "--server", self.address, "--json").stdout)
        with open(self.path("own.json"), "w") as f:
            json.dump({**own, "name": "own"}, f)
        run = self.run_ctl("plan", GRAPHS[0], "--profile", self.path("own.json"), "--server", self.address, expect=REFUSED)
        self.assertIn("PROFILE_UNKNOWN", run.stderr)

    def test_errors_exit_as_in_process(self):
        for args, exit_code in ((("--mode", "no_such"), USAGE), (("--profile", "no_such"), USAGE),
                                (("--mode", "manual", "--buckets", "nowhere.at.all", "--strict-coverage", "on"), REFUSED)):
            for server in ((), ("--server", self.address)):
                self.run_ctl("plan", GRAPHS[0], *args, *server, expect=exit_code)


if __name__ == "__main__":
    unittest.main()
