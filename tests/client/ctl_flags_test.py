"""What bucketctl makes of its command line, its environment and the files that they name, and what it writes where."""
import json
import os
import shutil
import subprocess
import unittest

from ctl_case import DONE, REFUSED, UNAVAILABLE, USAGE, CtlCase
from referee_kit import BINARY, DATA, graph_paths

GRAPH = graph_paths("llama3_debug_fsdp8.bw")[0]
NOBODY = "unix:/no/such/socket"


class FlagsTest(CtlCase):
    def ctl(self, *args, expect=DONE, stdout=subprocess.PIPE, **environment):
        run = subprocess.run([BINARY, *args], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, env={**os.environ, **environment})
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        return run.stderr if expect != DONE else run.stdout

    def test_the_environment_speaks_for_commands_that_ask_it_alone(self):
        stale = {"BUCKETD_CLIENT_CA": "/absent", "BUCKETD_CLIENT_CERT": "/absent", "BUCKETD_ADDRESS": "planner"}
        self.ctl("digest", GRAPH, **stale)
        self.ctl("plan", GRAPH, "--mode", "none", **stale)
        self.assertIn("no such file", self.ctl("store", "stats", "/no/such/store", expect=USAGE, **stale))

    def test_a_flag_counts_more_than_the_environment(self):
        self.ctl("status", "--server", NOBODY, expect=UNAVAILABLE, BUCKETD_ADDRESS="planner")
        self.ctl("costs", "list", "--server", NOBODY, "--tls-ca", GRAPH, expect=UNAVAILABLE, BUCKETD_CLIENT_CA="/absent")

    def test_what_is_wrong_with_the_environment_is_said_by_the_variables_name(self):
        for command in (("status",), ("costs", "list"), ("plan", GRAPH)):
            said = self.ctl(*command, "--server", NOBODY, expect=USAGE, BUCKETD_CLIENT_CA="/absent")
            self.assertIn("BUCKETD_CLIENT_CA, which stands for --tls-ca: File does not exist: /absent", said)
        self.assertIn("BUCKETD_ADDRESS, which stands for --server: ", self.ctl("enable", expect=USAGE, BUCKETD_ADDRESS="planner"))
        self.assertNotIn("BUCKETD_ADDRESS", self.ctl("enable", "--server", "planer", expect=USAGE, BUCKETD_ADDRESS="planner"))

    def test_files_of_tls_are_for_plans_that_a_server_makes(self):
        self.assertIn("--tls-ca requires --server", self.ctl("plan", GRAPH, "--tls-ca", GRAPH, expect=USAGE))

    def test_what_a_failed_command_left_selects_nothing(self):
        for command in (("evict", "--tenant", "t"), ("plans",)):
            for flag in ("--key", "--graph", "--not-used-for"):
                self.assertIn(f"{flag}: is empty", self.ctl(*command, flag, "", "--server", NOBODY, expect=USAGE))
        self.ctl("evict", "--tenant", "", "--server", NOBODY, expect=UNAVAILABLE)

    def test_a_bundle_of_all_is_of_all_tenants(self):
        self.assertIn("--all excludes --tenant", self.ctl("store", "export", "/no/such/store", "x", "--all", "--tenant", "t", expect=USAGE))

    def test_a_bundle_that_cannot_be_opened_or_written_says_why(self):
        self.assertIn("/no/such/bundle: cannot be opened: No such file or directory", self.ctl("store", "import", "/no/such/bundle", self.path("to"), expect=USAGE))
        shutil.copytree(os.path.join(DATA, "store", "format1"), self.path("from"))
        self.assertIn("cannot be written: No such file or directory", self.ctl("store", "export", self.path("from"), "/no/such/bundle", expect=UNAVAILABLE))

    def test_who_lets_go_of_plans_keeps_none_for_a_while(self):
        self.assertIn("--for excludes --release", self.ctl("pin", "job", "--release", "--for", "3d", "--server", NOBODY, expect=USAGE))

    def test_each_link_class_is_one_word_and_what_follows_is_a_trace(self):
        said = self.ctl("costs", "import-trace", "--link-class", "nvlink", "/no/such/first.json", "/no/such/second.json", expect=USAGE)
        self.assertIn("/no/such/first.json", said)

    def test_what_standard_output_does_not_take_is_unavailable(self):
        for command in (("digest", GRAPH), ("--help",), ("plan", "--help")):
            with open("/dev/full", "w") as full:
                self.assertIn("stdout: cannot be written", self.ctl(*command, stdout=full, expect=UNAVAILABLE))

    def test_modes_that_are_swept_are_rows_once_each(self):
        def modes(*args):
            return [row["mode"] for row in json.loads(self.ctl("compare", GRAPH, *args, "--json"))["plans"]]

        self.assertEqual(modes("--sweep", "mode=greedy,none"), ["greedy", "none"])
        self.assertEqual(modes("--sweep", "mode=manual,none", "--buckets", "layers.0"), ["manual", "none"])

    def test_progress_is_for_terminals(self):
        run = subprocess.run([BINARY, "compare", GRAPH, "--mode", "greedy", "--sweep", "max_topo_span=1,2,3,4,5,6,7,8,9"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (DONE, ""))

    def test_what_is_no_file_is_said_to_be_none(self):
        folder = self.folder
        for command in (("digest", folder), ("show", folder), ("plan", GRAPH, "--param-order", folder), ("costs", "report", folder),
                        ("costs", "import-trace", folder)):
            self.assertIn(f"{folder}: cannot be read: Is a directory", self.ctl(*command, expect=USAGE))

    def test_files_may_be_pipes(self):
        plan = self.path("plan.json")
        self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", plan)
        with open(plan, "rb") as file:
            run = subprocess.run([BINARY, "show", "/dev/stdin"], input=file.read(), capture_output=True)
        self.assertEqual((run.returncode, run.stdout.decode()), (DONE, self.ctl("show", plan)))

    def test_a_terminal_gets_no_commands_from_files(self):
        plan = self.path("plan.json")
        for text in ({"mode": "\x1b]0;x"}, {"cost_profile": "\x1b[2J"}, {"buckets": [{"members": [1, 2], "name": "\x1b[2J"}]}):
            with open(plan, "w") as file:
                json.dump({"order": [0], **text}, file)
            for command in (("show", plan), ("diff", plan, plan), ("explain", GRAPH, plan)):
                self.assertIn("has a control character", self.ctl(*command, expect=REFUSED))
        with open(plan, "w") as file:
            json.dump({"buckets": [{"members": [1, 2], "kind": "\x1b[2J"}], "order": [0, "start:0", "wait:0"]}, file)
        self.assertIn("\\x1b[2J", self.ctl("show", plan))

    def test_a_file_is_written_whole_or_stays_as_it_was(self):
        plan, before, link = map(self.path, ("plan.json", "before.json", "link.json"))
        self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", plan)
        os.chmod(plan, 0o664)  # more than the usual umask leaves
        os.link(plan, before)
        os.symlink(plan, link)
        with open(before) as file:
            text = file.read()
        self.ctl("plan", GRAPH, "--mode", "greedy", "--plan-out", link)
        with open(before) as old, open(plan) as new:
            self.assertEqual(old.read(), text, "it was not written over")
            self.assertNotEqual(new.read(), text)
        self.assertEqual((os.path.islink(link), os.stat(plan).st_mode & 0o777), (True, 0o664))
        others = self.path("plan.json.part")
        with open(others, "w") as file:
            file.write("of somebody who writes there, too")
        later = self.path("later.json")
        os.symlink("target.json", later)
        self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", plan)
        self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", later)
        self.assertTrue(os.path.islink(later), "it leads to a file now")
        with open(others) as file:
            self.assertEqual(file.read(), "of somebody who writes there, too")
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["before.json", "later.json", "link.json", "plan.json", "plan.json.part", "target.json"])
        self.assertIn("no/plan.json: cannot be written: No such file or directory",
                      self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", self.path("no/plan.json"), expect=UNAVAILABLE))

    def test_what_is_no_file_is_written_to(self):
        self.assertIn('"order"', self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", "/dev/stdout"))
        self.assertIn("No space left on device", self.ctl("plan", GRAPH, "--mode", "none", "--plan-out", "/dev/full", expect=UNAVAILABLE))


if __name__ == "__main__":
    unittest.main()
