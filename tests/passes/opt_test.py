"""bucketd-opt from the outside: files, standard input, exit codes, what it lists."""
import os
import subprocess
import unittest

SOURCE = os.environ.get("BUCKETD_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.join(os.environ.get("BUCKETD_BIN") or os.path.join(SOURCE, "build", "bin"), "bucketd-opt")
GOLDEN = os.path.join(SOURCE, "tests", "passes", "golden", "bucket_units_merges.bir")
CAPTURED = os.path.join(SOURCE, "tests", "data", "graphs", "llama3_debug_fsdp8.bw.json.gz")


def opt(*args, stdin=""):
    return subprocess.run([BINARY, *args], input=stdin, capture_output=True, text=True, timeout=60)


class BucketdOpt(unittest.TestCase):
    def test_reads_a_file_or_standard_input(self):
        with open(GOLDEN) as f:
            text = f.read().split("// ---- EXPECT")[0]
        args = ("--mode=manual", "--set", "buckets=layers.0,layers.1", "--quiet")
        by_file, by_pipe = opt(GOLDEN, *args, stdin=""), opt(*args, stdin=text)
        self.assertEqual(by_pipe.returncode, 0, by_pipe.stderr)
        self.assertIn("bucket b1 = all_gather {%q1, %o1}", by_pipe.stdout)
        # What a golden expects is no input.
        self.assertEqual(by_file.stdout, by_pipe.stdout)

    def test_a_captured_graph_and_its_text_are_planned_alike(self):
        text = opt(CAPTURED, "--graph", "--quiet")
        self.assertEqual(text.returncode, 0, text.stderr)
        args = ("--mode=transformer_block", "--predict")
        captured, as_text = opt(CAPTURED, *args), opt(*args, stdin=text.stdout)
        self.assertEqual(captured.returncode, 0, captured.stderr)
        self.assertIn("bucket b0 =", captured.stdout)
        self.assertEqual(as_text.stdout, captured.stdout)

    def test_what_it_prints_goes_in_again(self):
        first = opt(CAPTURED, "--mode=transformer_block", "--graph", "--quiet")
        self.assertEqual(first.returncode, 0, first.stderr)
        again = opt("--graph", "--quiet", stdin=first.stdout)
        self.assertEqual(again.stdout, first.stdout)

    def test_a_mode_has_nothing_to_plan_where_the_text_has_a_plan(self):
        planned = opt(CAPTURED, "--mode=transformer_block", "--graph", "--quiet").stdout
        run = opt("--mode=greedy", stdin=planned)
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("has a plan already", run.stderr)
        self.assertEqual(opt("--mode=none", stdin=planned).returncode, 0)

    def test_lists_every_pass_mode_and_option(self):
        tables = opt("--list")
        self.assertEqual(tables.returncode, 0)
        for word in ("tag-collectives", "transformer_block", "prefetch_forward"):
            self.assertIn(word, tables.stdout)
        self.assertIn("--dump-after", opt("--help").stdout)

    def test_says_which_version_it_is(self):
        self.assertRegex(opt("--version").stdout, r"^bucketd-opt \d+\.\d+\.\d+\n$")

    def test_dumps_after_passes(self):
        run = opt(GOLDEN, "--mode=manual", "--pass=tag-collectives,read-entries,bucket-units", "--dump-after=all",
                  "--set", "buckets=layers.0")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.count("// after "), 3)
        self.assertIn("// after read-entries, which changed nothing:", run.stdout)

    def test_exit_codes_tell_what_went_wrong(self):
        for args, stdin, code, says in (
                ((), "graph {\n  %x = relu(%y)\n}\n", 1, "-:2:13: expected an earlier node"),
                (("--mode=sideways",), "graph {\n  return\n}\n", 1, "unknown mode"),
                (("--pass=sideways",), "graph {\n  return\n}\n", 1, "no pass is called sideways; known: "),
                (("--show=sideways",), "graph {\n  return\n}\n", 1, "nothing to show is called sideways; known: tags"),
                (("--set", "sideways=1"), "", 2, "sideways"),
                (("--set", "sideways"), "", 2, "expected name=value"),
                (("--sideways",), "", 2, "sideways"),
                (("--profile=sideways",), "", 2, "sideways"),
                (("/nonexistent.bir",), "", 3, "no such file"), (("/",), "", 3, "Is a directory")):
            with self.subTest(args=args):
                run = opt(*args, stdin=stdin)
                self.assertEqual(run.returncode, code, run.stderr)
                self.assertIn(says, run.stderr)


if __name__ == "__main__":
    unittest.main()
