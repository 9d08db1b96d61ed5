"""bucketctl's contract: exit codes, one JSON object on stdout, errors that say what was expected."""
import gzip
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "passes"))
from referee_kit import bucketctl, graph_paths, referee

DONE, REFUSED, USAGE, UNAVAILABLE = 0, 1, 2, 3
COMMANDS = ("plan", "simulate", "trace", "digest", "show")
GRAPH = graph_paths("llama3_debug_fsdp8.bw")[0]
OTHER = graph_paths("llama3_debug_fsdp8.fw")[0]


class BucketctlTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_ctl(self, *args, expect=DONE):
        run = bucketctl(*args)
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        if expect != DONE:
            self.assertEqual(run.stdout, "", "errors belong on stderr")
            self.assertNotEqual(run.stderr, "")
        return run

    def test_json_is_one_object_on_stdout(self):
        for args in (("plan", GRAPH), ("simulate", GRAPH), ("digest", GRAPH)):
            self.assertIsInstance(json.loads(self.run_ctl(*args, "--json").stdout), dict)

    def test_help_teaches_with_an_example(self):
        self.assertIn("plan", self.run_ctl("--help").stdout)
        for command in COMMANDS:
            self.assertIn(f"bucketctl {command} ", self.run_ctl(command, "--help").stdout)

    def test_usage_errors_exit_with_two(self):
        for args in ((), ("fly",), ("plan",), ("plan", GRAPH, "--wings"), ("trace", GRAPH), ("plan", self.path("absent.json.gz")),
                     ("simulate", GRAPH, self.path("absent.json")), ("show", self.path("absent.json")),
                     ("plan", GRAPH, "--memory-limit", "much"), ("plan", GRAPH, "--memory-limit", "1.05y"),
                     ("plan", GRAPH, "--memory-limit", "-5%"), ("plan", GRAPH, "--param-order", self.path("absent"))):
            self.run_ctl(*args, expect=USAGE)

    def test_unknown_names_list_the_known_ones(self):
        for option, known in (("--mode", "transformer_block"), ("--numerics", "eager_order, exact, free"),
                              ("--backend", "gloo"), ("--profile", "h100_nvlink, h100_launch, slow_network, small_batch, cpu_loopback")):
            self.assertIn(known, self.run_ctl("plan", GRAPH, option, "no_such", expect=USAGE).stderr)

    def test_what_is_no_graph_is_refused(self):
        with gzip.open(GRAPH) as f:
            text = f.read()
        whole = gzip.compress(text)
        for name, data in (("empty", b""), ("noise", b"\x00\x01\x02" * 100), ("cut.gz", whole[:len(whole) // 2]),
                           ("cut.json", text[:len(text) // 2]), ("list.json", b"[]"), ("bare.json", b"{}")):
            with open(self.path(name), "wb") as f:
                f.write(data)
            for command in (("plan",), ("simulate",), ("digest",)):
                self.run_ctl(*command, self.path(name), expect=REFUSED)

    def test_a_plan_for_another_graph_is_refused(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"))
        self.assertIn("made for graph", self.run_ctl("simulate", OTHER, self.path("plan.json"), expect=REFUSED).stderr)

    def test_an_illegal_plan_is_refused_with_its_violations(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"))
        plan = referee.load(self.path("plan.json"))
        plan["order"].remove("wait:0")
        with open(self.path("broken.json"), "w") as f:
            json.dump(plan, f)
        self.assertIn("wait:0 is missing", self.run_ctl("simulate", GRAPH, self.path("broken.json"), expect=REFUSED).stderr)

    def test_what_cannot_be_written_is_unavailable(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("no/such/folder/plan.json"), expect=UNAVAILABLE)

    def test_plan_prints_what_simulate_and_show_print(self):
        planned = json.loads(self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"), "--json").stdout)
        again = json.loads(self.run_ctl("simulate", GRAPH, self.path("plan.json"), "--json").stdout)
        self.assertEqual({k: again[k] for k in planned["planned"]}, planned["planned"])
        self.assertEqual(planned["digest"], json.loads(self.run_ctl("digest", GRAPH, "--json").stdout)["digest"])
        table = self.run_ctl("plan", GRAPH).stdout
        shown = self.run_ctl("show", self.path("plan.json")).stdout
        for bucket in planned["buckets"]:
            self.assertIn(bucket["name"], table)
            self.assertIn(bucket["name"], shown)

    def test_planning_twice_gives_the_same_bytes(self):
        files = []
        for k in range(3):
            self.run_ctl("plan", GRAPH, "--plan-out", self.path(f"{k}.json"), "--trace-out", self.path(f"{k}.trace"))
            with open(self.path(f"{k}.json"), "rb") as plan, open(self.path(f"{k}.trace"), "rb") as trace:
                files.append((plan.read(), trace.read()))
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])

    def test_memory_limits_in_every_spelling(self):
        peak = json.loads(self.run_ctl("simulate", GRAPH, "--json").stdout)["peak_bytes"]
        for limit, most in (("1.05x", 1.05 * peak), ("+5%", 1.05 * peak), (str(2 * peak), 2 * peak), ("2GiB", 2**31), ("1.5GB", 1.5e9)):
            run = bucketctl("plan", GRAPH, "--memory-limit", limit, "--json")
            self.assertEqual(run.returncode, DONE, run.stderr)
            self.assertLessEqual(json.loads(run.stdout)["planned"]["peak_bytes"], most, limit)

    def test_traces_hold_both_runs_on_tracks_that_do_not_overlap(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"))
        self.run_ctl("trace", GRAPH, self.path("plan.json"), "--out", self.path("trace.json"))
        with open(self.path("trace.json")) as f:
            trace = json.load(f)
        events = trace["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, {1, 2})
        names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        self.assertIn("compute stream", names)
        self.assertTrue(any(name.startswith("communication: ") for name in names), names)
        self.assertTrue(any(e["ph"] == "C" and e["name"] == "live memory" for e in events))
        total = json.loads(self.run_ctl("simulate", GRAPH, self.path("plan.json"), "--json").stdout)
        tracks = {}
        for e in events:
            if e["ph"] == "X":
                tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        self.assertAlmostEqual(max(end for (pid, _), spans in tracks.items() if pid == 1 for _, end in spans), total["total_us"], places=2)
        for spans in tracks.values():
            spans.sort()
            for (_, end), (begin, _) in zip(spans, spans[1:]):
                self.assertLessEqual(end, begin + 1e-5)
        stalled = sum(e["dur"] for e in events if e["ph"] == "X" and e["pid"] == 1 and e["cat"] == "stall")
        self.assertLessEqual(stalled, total["exposed_us"] + 1e-3)
        self.run_ctl("trace", GRAPH, "--out", self.path("alone.json"))
        with open(self.path("alone.json")) as f:
            self.assertEqual({e["pid"] for e in json.load(f)["traceEvents"]}, {1})


if __name__ == "__main__":
    unittest.main()
