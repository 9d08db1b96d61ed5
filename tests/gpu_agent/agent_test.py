"""bucket-agent as a program: two ranks measure this machine, the planner takes what they measured, and a plan is replayed."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
DONE, REFUSED, USAGE, UNAVAILABLE = 0, 1, 2, 3


def program(name):
    return os.path.join(os.environ["BUCKETD_BIN"], name)


class AgentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.scratch = os.path.join(cls.folder, "tmp")
        os.mkdir(cls.scratch)
        cls.graph = cls.make_graph("step.json", "--layers", "2", "--rows", "64", "--compute-us", "300")
        cls.profile, cls.plan = os.path.join(cls.folder, "here.json"), os.path.join(cls.folder, "plan.json")
        cls.table = cls.run_program("bucket-agent", "calibrate", "--ranks", "2", "--max-bytes", "65536", "--profile-out", cls.profile).stdout
        cls.run_program("bucketctl", "plan", cls.graph, "--mode", "transformer_block", "--profile", cls.profile, "--plan-out", cls.plan)

    @classmethod
    def make_graph(cls, name, *args):
        path = os.path.join(cls.folder, name)
        subprocess.run([sys.executable, os.path.join(HERE, "step_graph.py"), path, *args], check=True)
        return path

    @classmethod
    def run_program(cls, name, *args, expect=DONE, module="off", more=None):
        env = {**os.environ, "TMPDIR": cls.scratch, "BUCKETD_CUDA_MODULE": module, **(more or {})}
        run = subprocess.run([program(name), *args], capture_output=True, text=True, env=env, timeout=300)
        assert run.returncode == expect, f"{name} {args}: {run.returncode}\n{run.stdout}{run.stderr}"
        return run

    def replay(self, *args, expect=DONE, graph=None, plan=None, module="off"):
        return self.run_program("bucket-agent", "replay", "--graph", graph or self.graph, "--plan", plan or self.plan, "--profile", self.profile,
                                "--ranks", "2", "--rounds", "3", *args, expect=expect, module=module)

    def tearDown(self):
        self.assertEqual(os.listdir(self.scratch), [], "something was left behind")

    def test_every_payload_of_the_table_was_right(self):
        rows = [line.split() for line in self.table.splitlines() if line.startswith("  ")]
        collectives = [row for row in rows if len(row) == 13]
        self.assertEqual(len([row for row in collectives if row[9] != "N/A"]), 3 * 2 * 3)  # kinds, dtypes, sizes
        for row in collectives:
            self.assertEqual(row[8], "0", row)
            self.assertIn(row[12], ("0", "N/A"), row)
            self.assertGreater(float(row[5]), 0.0)
        self.assertIn("#wrong", self.table)

    def test_the_profile_speaks_of_what_was_measured(self):
        with open(self.profile) as file:
            profile = json.load(file)
        self.assertEqual(profile["name"], "calibrated")
        self.assertIn("ring of 2 ranks", profile["about"])
        classes = [(link["kind"], link["dtype"], link["group_size"], link["ranks_per_node"]) for link in profile["links"]]
        self.assertEqual(classes, [(kind, dtype, 2, 2) for kind in ("all_gather", "reduce_scatter", "all_reduce") for dtype in ("bf16", "f32")])
        for link in profile["links"]:
            self.assertGreaterEqual(link["samples"], 15)  # of 30; the rest may be outliers
            self.assertTrue(1e5 < link["busbw_bytes_per_s"] < 1e12, link)
        self.assertNotEqual(profile["hbm_bytes_per_s"], 8e9)  # the base's

    def test_the_planner_predicts_with_the_profile(self):
        with open(self.profile) as file:
            links = {(link["kind"], link["dtype"]): link for link in json.load(file)["links"]}
        with open(self.plan) as file:
            plan = json.load(file)
        self.assertEqual(plan["cost_profile"], "calibrated@1 over the file's costs")
        gather = next(b for b in plan["buckets"] if b["kind"] == "all_gather" and b["mode"] == "packed" and b["copies"] == "compute")
        link = links["all_gather", "bf16"]
        us = link["alpha_us"] + gather["bytes"] / 2 / link["busbw_bytes_per_s"] * 1e6
        self.assertAlmostEqual((gather["end_ps"] - gather["start_ps"]) / 1e6, us, delta=0.01)

    def serve(self):
        address = f"unix:{self.folder}/socket"
        server = subprocess.Popen([program("bucketd"), "--listen", address, "--http", "", f"--exit-with-parent={os.getpid()}"], stdout=subprocess.PIPE, text=True)
        for leave in (server.stdout.close, server.wait, server.kill):
            self.addCleanup(leave)
        self.assertIn("serves on", server.stdout.readline())
        return address

    def calibrate(self, *args, expect=DONE):
        return self.run_program("bucket-agent", "calibrate", "--ranks", "2", "--max-bytes", "4096", *args, expect=expect)

    def test_the_planner_takes_the_profile_and_plans_with_it(self):
        address, measured = self.serve(), os.path.join(self.folder, "measured.json")
        to_planner = ("--planner", address, "--profile-name", "node7")
        self.assertIn(f"planner {address}: node7@1, which is latest\n", self.calibrate(*to_planner, "--profile-out", measured).stdout)
        self.assertIn("node7@2; bucketctl costs promote node7@2 makes it latest", self.calibrate(*to_planner).stdout)
        self.assertIn("node7@3, which is latest now, was version 1", self.calibrate(*to_planner, "--promote").stdout)
        shown = json.loads(self.run_program("bucketctl", "costs", "show", "node7", "--server", address, "--json").stdout)
        with open(measured) as file:
            written = json.load(file)
        self.assertEqual((shown["links"], shown["hbm_bytes_per_s"]), (written["links"], written["hbm_bytes_per_s"]))
        self.assertIn("by bucket-agent on ", self.run_program("bucketctl", "costs", "show", "node7@latest", "--server", address).stdout)

    def test_without_a_planner_the_file_is_written_and_the_exit_code_tells(self):
        address, kept = f"unix:{self.folder}/nobody", os.path.join(self.folder, "kept.json")
        said = self.calibrate("--planner", address, "--profile-out", kept, expect=UNAVAILABLE).stderr
        self.assertIn(f"bucketctl costs import {kept} --server {address}", said)
        with open(kept) as file:
            self.assertEqual(len(json.load(file)["links"]), 6)
        self.assertIn("--profile-out FILE keeps it", self.calibrate("--planner", address, expect=UNAVAILABLE).stderr)

    def test_a_name_that_the_planner_refuses_is_told(self):
        said = self.calibrate("--planner", self.serve(), "--name", "no name", expect=REFUSED).stderr
        self.assertIn("expected 1 to 64 of a-z", said)
        self.assertIn("nothing was kept", said)

    def test_a_replay_says_what_was_predicted_and_measured_of_every_bucket(self):
        said = json.loads(self.replay("--json").stdout)
        with open(self.plan) as file:
            plan = json.load(file)
        self.assertEqual((said["ranks"], said["rounds"], len(said["round_us"])), (2, 3, 3))
        self.assertEqual([b["bytes"] for b in said["buckets"] if b["planned"]], [b["bytes"] for b in plan["buckets"]])
        self.assertGreater(len(plan["buckets"]), 0)
        self.assertAlmostEqual(said["predicted_us"], plan["prediction"]["total_ps"] / 1e6, delta=0.01)
        # Compute takes at least its time.
        self.assertGreater(said["measured_us"], plan["prediction"]["compute_ps"] / 1e6)
        for bucket in said["buckets"]:
            self.assertGreater(bucket["measured"]["wire"], 0.0)
            copies_in = bucket["mode"] == "packed"
            copies_out = copies_in and bucket["kind"] == "all_gather"
            for key, copies in (("copy_in", copies_in), ("copy_out", copies_out)):
                self.assertEqual(bucket["predicted"][key] > 0.0, copies, bucket)
                self.assertEqual(bucket["measured"][key] > 0.0, copies, bucket)

    def test_collectives_outside_of_buckets_are_replayed_as_well(self):
        plan = os.path.join(self.folder, "alone.json")
        self.run_program("bucketctl", "plan", self.graph, "--mode", "none", "--profile", self.profile, "--plan-out", plan)
        said = json.loads(self.replay("--json", plan=plan).stdout)
        self.assertEqual(len(said["buckets"]), 3 * 2 * 3)
        self.assertFalse(any(b["planned"] for b in said["buckets"]))
        self.assertIn("all_gather", self.replay(plan=plan).stdout)

    def test_the_trace_shows_prediction_and_measurement_side_by_side(self):
        path = os.path.join(self.folder, "trace.json")
        self.replay("--trace", path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertIn("planned", names[1])
        self.assertIn("measured", names[2])
        wires = [[e for e in events if e["ph"] == "X" and e["pid"] == pid and e["cat"] == category and not e["name"].startswith("copy")]
                 for pid, category in ((1, "collective"), (2, "measured"))]
        self.assertEqual(len(wires[0]), len(wires[1]))
        self.assertTrue(all(e["dur"] > 0 and e["ts"] >= 0 for e in wires[1]))

    def test_gpus_and_nccl_are_used_where_every_rank_has_one(self):
        gpus = os.path.join(os.environ["BUCKETD_BIN"], "..", "tests", "libfake_gpus.so")
        profile = os.path.join(self.folder, "gpus.json")
        run = self.run_program("bucket-agent", "calibrate", "--max-bytes", "65536", "--profile-out", profile, module=gpus)
        self.assertIn("backend nccl: 2 GPUs, NCCL of the tests\n", run.stderr)
        with open(profile) as file:
            self.assertIn("NCCL of the tests of 2 ranks", json.load(file)["about"])
        said = json.loads(self.replay("--json", module=gpus).stdout)
        self.assertEqual(said["backend"], "nccl")
        self.assertTrue(all(b["measured"]["wire"] > 0.0 for b in said["buckets"]))
        self.assertIn("backend ring: 3 ranks on 2 GPUs", self.run_program(
            "bucket-agent", "calibrate", "--ranks", "3", "--max-bytes", "4096", module=gpus).stderr)

    def test_nothing_is_measured_beside_those_who_compute_on_gpus(self):
        fakes, computing = os.path.join(os.environ["BUCKETD_BIN"], "..", "tests"), os.path.join(self.folder, "computing")
        nvml = {"BUCKETD_NVML_LIB": os.path.join(fakes, "libfake_nvml.so"), "FAKE_NVML_PROCESSES": computing}

        def said(*args, expect=DONE, **more):
            return self.run_program("bucket-agent", "calibrate", "--max-bytes", "4096", *args, expect=expect,
                                    module=os.path.join(fakes, "libfake_gpus.so"), more={**nvml, **more}).stderr

        self.assertNotIn("compute", said())  # the ranks themselves are nobody
        with open(computing, "w") as file:
            file.write(f"{os.getpid()}\n")
        self.assertRegex(said(expect=UNAVAILABLE), rf"GPU 0: process {os.getpid()} \(.*\) computes there: nothing is measured; --measure-when always")
        said("--measure-when", "always")
        said("--backend", "ring")
        self.assertIn("who computes on GPUs is not known: NVML: ", said(BUCKETD_NVML_LIB="nowhere.so"))

    def test_nccl_without_a_gpu_is_refused_with_the_reason(self):
        self.assertIn("backend nccl: BUCKETD_CUDA_MODULE is off; backend ring", self.replay("--backend", "nccl", expect=UNAVAILABLE).stderr)
        self.assertEqual(json.loads(self.replay("--json").stdout)["backend"], "ring")

    def test_ranks_meet_over_tcp_where_an_interface_is_named(self):
        profile = os.path.join(self.folder, "tcp.json")
        args = "--max-bytes", "65536", "--interface", "lo", "--link-class", "tcp", "--profile-out", profile
        run = self.run_program("bucket-agent", "calibrate", *args)
        self.assertIn("backend ring: BUCKETD_CUDA_MODULE is off", run.stderr)
        with open(profile) as file:
            said = json.load(file)
        self.assertIn("over tcp 127.0.0.1", said["about"])
        self.assertEqual({link["link_class"] for link in said["links"]}, {"tcp"})
        self.replay("--interface", "127.0.0.1")

    def test_a_plan_for_another_number_of_ranks_is_refused(self):
        graph, plan = self.make_graph("four.json", "--ranks", "4", "--layers", "2", "--rows", "64"), os.path.join(self.folder, "four.plan.json")
        self.run_program("bucketctl", "plan", graph, "--mode", "transformer_block", "--profile", self.profile, "--plan-out", plan)
        self.assertIn("is planned over 4 ranks", self.replay(graph=graph, plan=plan, expect=REFUSED).stderr)

    def test_a_plan_for_another_graph_is_refused(self):
        other = self.make_graph("other.json", "--layers", "3", "--rows", "64")
        self.assertIn("made for graph", self.replay(graph=other, expect=REFUSED).stderr)

    def test_usage_errors_are_told_as_such(self):
        for args, says in ((["calibrate", "--backend", "carrier_pigeon"], "known: auto, nccl, ring"), (["calibrate", "--ranks", "1"], "--ranks"), (["calibrate", "--interface", "nope0"], "--interface: nope0"), (["reply"], "did you mean replay?"),
                           (["calibrate", "--base", "nowhere"], "--base"), (["replay", "--plan", self.plan], "--graph"),
                           (["calibrate", "--min-bytes", "8192", "--max-bytes", "4096"], "--min-bytes"),
                           (["calibrate", "--planner", "nowhere"], "is no address"), (["calibrate", "--promote"], "no --planner"),
                           (["calibrate", "--measure-when", "now"], "--measure-when: now: expected idle or always")):
            self.assertIn(says, self.run_program("bucket-agent", *args, expect=USAGE).stderr)
        self.assertIn("calibrate", self.run_program("bucket-agent", "--help").stdout)
        self.assertIn("nowhere.json: no such file", self.replay(plan="nowhere.json", expect=USAGE).stderr)

    def test_a_profile_that_makes_no_sense_is_refused_as_other_files_are(self):
        for args in (("calibrate", "--base", self.plan), ("replay", "--graph", self.graph, "--plan", self.plan, "--profile", self.plan)):
            self.assertIn(": cost profile plan: ", self.run_program("bucket-agent", *args, expect=REFUSED).stderr)

    def test_a_rank_that_dies_ends_the_others(self):
        with subprocess.Popen([program("bucket-agent"), "calibrate", "--ranks", "3", "--max-bytes", str(1 << 25)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "TMPDIR": self.scratch}) as agent:
            agent.stdout.readline()  # the first row is there
            with open(f"/proc/{agent.pid}/task/{agent.pid}/children") as children:
                ranks = [int(pid) for pid in children.read().split()]
            self.assertEqual(len(ranks), 2)
            os.kill(ranks[1], signal.SIGKILL)
            _, said = agent.communicate(timeout=120)
            self.assertEqual(agent.returncode, UNAVAILABLE)
            self.assertIn("bucket-agent: ", said)
        for rank in ranks:
            self.assertFalse(os.path.exists(f"/proc/{rank}"), "a rank is left behind")

    def test_a_rank_that_dies_before_it_is_connected_is_named(self):
        with subprocess.Popen([program("bucket-agent"), "calibrate", "--ranks", "2", "--max-bytes", "4096"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "TMPDIR": self.scratch}) as agent:
            ranks = []
            while not ranks:
                with open(f"/proc/{agent.pid}/task/{agent.pid}/children") as children:
                    ranks = [int(pid) for pid in children.read().split()]
            os.kill(ranks[0], signal.SIGKILL)
            begin = time.monotonic()
            _, said = agent.communicate(timeout=120)
            self.assertLess(time.monotonic() - begin, 15)  # not the time in which ranks have to come
            self.assertEqual(agent.returncode, UNAVAILABLE)
            self.assertIn("rank 1 was ended by signal 9", said)


if __name__ == "__main__":
    unittest.main()
