"""bucketctl costs import-trace on real traces: to a profile that plans are made with, and to the samples of a real server."""
import glob
import gzip
import json
import os
import unittest

from ctl_case import DONE, REFUSED, UNAVAILABLE, USAGE, CtlCase, serve
from referee_kit import DATA, bucketctl

TRACES = sorted(glob.glob(os.path.join(DATA, "traces", "*.json.gz")))


class ImportTraceTest(CtlCase):
    def run_it(self, *args, expect=DONE):
        run = bucketctl("costs", "import-trace", *args)
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        return run.stdout if expect == DONE else run.stderr

    def serve(self):
        return serve(self.folder, self.addCleanup)

    def test_a_plan_is_made_with_what_the_traces_say(self):
        self.assertEqual(len(TRACES), 4)
        profile = self.path("ours.json")
        table = self.run_it("--profile", "cpu_loopback", "--out", profile, *TRACES)
        self.assertIn("all_gather f32 over 4 ranks, 4 a node", table)
        self.assertIn("too few", table)  # two all-to-alls
        self.assertIn("broadcasts", table)
        with open(profile) as f:
            written = json.load(f)
        self.assertEqual(written["name"], "cpu_loopback_traced")
        self.assertEqual([(row["kind"], row["dtype"], row["group_size"]) for row in written["links"]],
                         [("all_gather", "f32", 4), ("reduce_scatter", "f32", 4), ("all_reduce", "bf16", 4)])
        graph = os.path.join(DATA, "graphs", "llama3_debug_fsdp4_tp2.fw.json.gz")
        plan = bucketctl("plan", graph, "--profile", profile, "--mode", "none", "--json")
        self.assertEqual(plan.returncode, DONE, plan.stderr)
        self.assertIn("cpu_loopback_traced", json.loads(plan.stdout)["cost_profile"])

    def measured(self, name, flag=True):
        """A captured graph, its first products measured at 7, 9 and 20 us."""
        with gzip.open(os.path.join(DATA, "graphs", "llama3_debug_fsdp8.fw.json.gz")) as f:
            graph = json.load(f)
        products = [node for node in graph["nodes"] if node["op"] == "aten.mm.default"]
        like = [node for node in products if node["outputs"] == products[0]["outputs"]]
        for node, us in zip(like, (7.0, 9.0, 20.0)):
            node.update(est_us=us, **({"measured": True} if flag else {}))
        path = self.path(name)
        with open(path, "w") as f:
            json.dump(graph, f)
        return path

    def test_measured_kernels_become_rows_that_price_any_graph(self):
        ours = self.path("ours.json")
        table = self.run_it("--profile", "cpu_loopback", "--kernels", self.measured("fw.json"), "--out", ours, *TRACES)
        self.assertIn("1 kernels of 3 measured nodes", table)
        with open(ours) as f:
            profile = json.load(f)
        self.assertEqual([(row["op"], row["us"], row["samples"]) for row in profile["kernels"]], [("aten.mm.default", 12.0, 3)])
        # Over what was there, and in the place of a row of the same signature.
        again = json.loads(self.run_it("--profile", ours, "--kernels", self.measured("fw.json"), "--out", ours, "--json", *TRACES))
        self.assertEqual(again["kernels"], {"measured_nodes": 3, "rows": 1})
        with open(ours) as f:
            self.assertEqual(json.load(f)["kernels"], profile["kernels"])
        graph = os.path.join(DATA, "graphs", "llama3_debug_fsdp8.joint.json.gz")
        took = [json.loads(bucketctl("plan", graph, "--profile", p, "--costs", "profile", "--mode", "none", "--json").stdout)["planned"]["compute_us"]
                for p in ("cpu_loopback", ours)]
        self.assertLess(took[1], took[0])
        difference = json.loads(bucketctl("costs", "diff", "cpu_loopback", ours, "--json", "--server", self.serve()).stdout)
        self.assertEqual((difference["equal"], [(k["us_a"], k["us_b"]) for k in difference["kernels"]]), (False, [(None, 12.0)]))

    def test_a_graph_without_measured_kernels_is_refused(self):
        error = self.run_it("--kernels", self.measured("fw.json", flag=False), *TRACES, expect=REFUSED)
        self.assertIn("no kernel was measured; expected what python -m bucketd.kernel_times wrote", error)

    def test_json_says_what_the_table_says(self):
        said = json.loads(self.run_it("--profile", "cpu_loopback", "--json", *TRACES))
        self.assertEqual((said["traces"], said["collectives"]), (4, 52))
        self.assertEqual([c["collectives"] for c in said["classes"]], [18, 16, 16, 2])
        self.assertEqual([c["fitted"] for c in said["classes"]], [True, True, True, False])
        self.assertTrue(all(c["at_most"] >= 1 for c in said["classes"]))
        self.assertEqual(sum(n["count"] for n in said["not_used"]), 4)

    def test_what_the_sizes_do_not_show_is_not_called_measured(self):
        def gathers(rank, sizes, us):
            kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "pid": 0, "tid": 7}
            events = [{**kernel, "ts": 1000.0 * k, "dur": us(size),
                       "args": {"External id": k, "Collective name": "_allgather_base", "In msg nelems": size // 2, "Out msg nelems": size, "Group size": 2,
                                "dtype": "Byte", "Process Group Name": "0", "Process Group Description": "dp", "Seq": k}}
                      for k, size in enumerate(sizes * 4, 1)]
            groups = [{"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1]}]
            path = self.path(f"rank{rank}.json")
            with open(path, "w") as f:
                json.dump({"host_name": "a", "baseTimeNanoseconds": 1700000000000000000, "traceEvents": events,
                           "distributedInfo": {"backend": "nccl", "rank": rank, "pg_config": groups}}, f)
            return path

        latency_alone = [gathers(rank, [1 << 12, 1 << 14, 1 << 16], lambda size: 40.0) for rank in (0, 1)]
        row = next(line for line in self.run_it(*latency_alone).splitlines() if line.startswith("all_gather"))
        self.assertRegex(row, r" 39\.\S* +not measured \(base\)")
        said = json.loads(self.run_it("--json", *latency_alone))["classes"][0]
        self.assertEqual((said["alpha_measured"], said["busbw_measured"]), (True, False))
        both = [gathers(rank, [1 << 12, 1 << 20, 1 << 28], lambda size: 40.0 + size * 1e-5) for rank in (0, 1)]
        self.assertNotIn("base)", self.run_it(*both))

    def test_a_server_takes_the_samples_and_makes_a_version_of_them(self):
        address = self.serve()
        said = self.run_it("--report", "--server", address, "--profile", "cpu_loopback", "--reporter", "node7", "--job", "j", *TRACES)
        self.assertIn("took 52 samples of profile cpu_loopback, refused 0", said)
        listed = bucketctl("costs", "list", "cpu_loopback", "--server", address, "--json")
        self.assertEqual(sum(int(held["samples"]) for held in json.loads(listed.stdout)["samples"]), 52)
        proposed = bucketctl("costs", "propose", "cpu_loopback", "--server", address)
        self.assertIn("cpu_loopback@2", proposed.stdout)

    def test_a_server_takes_nothing_where_the_profile_cannot_be_written(self):
        address = self.serve()
        self.run_it("--report", "--server", address, "--profile", "cpu_loopback", "--reporter", "node7", "--out", "/no/such/folder/p.json", *TRACES,
                    expect=UNAVAILABLE)
        self.assertEqual(json.loads(bucketctl("costs", "list", "cpu_loopback", "--server", address, "--json").stdout)["samples"], [])

    def test_mistakes_are_told_apart(self):
        self.assertIn("no such file", self.run_it("/no/such/trace.json", expect=USAGE))
        self.assertIn("has two traces", self.run_it(TRACES[0], TRACES[0], expect=REFUSED))
        self.assertIn("only 3 of its 4 ranks have a trace", self.run_it(*TRACES[:3], expect=REFUSED))
        self.assertIn("neither known nor a file", self.run_it("--profile", "nobody", *TRACES, expect=USAGE))
        self.run_it("--report", "--server", "unix:/no/such/socket", *TRACES, expect=UNAVAILABLE)
        self.assertIn("cannot be written", self.run_it("--out", "/no/such/folder/p.json", *TRACES, expect=UNAVAILABLE))
        self.run_it(expect=USAGE)
        self.run_it("--partial", "--ranks-per-node", "4", *TRACES[:3])
        broken = self.path("broken.json")
        with open(broken, "w") as f:
            f.write('{"traceEvents": [{"ph": "X"')
        self.assertIn("broken.json: JSON document ended early", self.run_it(broken, expect=REFUSED))


if __name__ == "__main__":
    unittest.main()
