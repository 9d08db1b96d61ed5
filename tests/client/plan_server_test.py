"""bucketctl plan --server: the same output and exit codes as in process, from a running bucketd."""
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "passes"))
from referee_kit import BINARY, bucketctl, graph_paths

DONE, REFUSED, USAGE, UNAVAILABLE = 0, 1, 2, 3
GRAPHS = graph_paths("llama3_debug_fsdp8.?w")


class PlanServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.address = f"unix:{cls.folder.name}/socket"
        cls.server = subprocess.Popen(
            [os.path.join(os.path.dirname(BINARY), "bucketd"), "--listen", cls.address, "--http", "", "--log-level", "error",
             "--lame-duck-ms", "0"], stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.server.stdout.close)
        cls.addClassCleanup(cls.server.wait)
        cls.addClassCleanup(cls.server.kill)
        while not re.search("serves on", line := cls.server.stdout.readline()):
            assert line, "bucketd did not start"

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_ctl(self, *args, expect=DONE):
        run = bucketctl(*args)
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        if expect != DONE:
            self.assertEqual(run.stdout, "", "errors belong on stderr")
        return run

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

    def test_the_plan_is_the_one_that_is_made_in_process(self):
        for graph in map(self.without_costs, GRAPHS):
            for options in ((), ("--mode", "greedy", "--profile", "slow_network")):
                made = []
                for where, server in (("here", ()), ("there", ("--server", self.address))):
                    plan = self.path(f"{where}.plan.json")
                    text = self.run_ctl("plan", graph, *options, *server, "--plan-out", plan).stdout
                    figures = json.loads(self.run_ctl("plan", graph, *options, *server, "--json").stdout)
                    figures.pop("planning_ms")
                    with open(plan) as f:
                        made.append((text, figures, json.load(f)))
                self.assertEqual(made[0], made[1])

    def test_costs_that_a_file_states_stay_at_home(self):
        stated = json.loads(self.run_ctl("plan", GRAPHS[0], "--server", self.address, "--json").stdout)
        modelled = json.loads(self.run_ctl("plan", self.without_costs(GRAPHS[0]), "--json").stdout)
        self.assertEqual(stated["planned"], modelled["planned"])

    def test_nobody_there_is_unavailable(self):
        run = self.run_ctl("plan", GRAPHS[0], "--server", f"unix:{self.path('nobody')}", expect=UNAVAILABLE)
        self.assertIn("UNREACHABLE", run.stderr)

    def test_errors_exit_as_in_process(self):
        for args, exit_code in ((("--mode", "no_such"), USAGE), (("--profile", "no_such"), USAGE),
                                (("--mode", "manual", "--buckets", "nowhere.at.all", "--strict-coverage", "on"), REFUSED)):
            for server in ((), ("--server", self.address)):
                self.run_ctl("plan", GRAPHS[0], *args, *server, expect=exit_code)


if __name__ == "__main__":
    unittest.main()
