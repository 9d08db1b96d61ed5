"""bucketctl costs against a real server: exit codes, what it prints, and the way from samples to a promoted version."""
import json
import os
import tempfile
import unittest

from ctl_case import DONE, REFUSED, UNAVAILABLE, USAGE, serve
from referee_kit import bucketctl


def samples(factor):
    """Gathers over 8 ranks of one node that take `factor` times what the built-in profile says."""
    for size in (1 << k for k in range(12, 27, 2)):
        us = (24 + 7 / 8 * size / 360e9 * 1e6) * factor
        yield from [{"kind": "all_gather", "dtype": "bf16", "group_size": 8, "bytes": size, "picoseconds": round(us * 1e6)}] * 3


class CostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.address = serve(cls.folder.name, cls.addClassCleanup)

    def path(self, name, content):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as f:
            json.dump(content, f)
        return path

    def costs(self, *args, expect=DONE):
        run = bucketctl("costs", *args, "--server", self.address)
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        return run.stdout if expect == DONE else run.stderr

    def test_samples_become_a_version_that_is_promoted_and_rolled_back(self):
        self.assertIn("slow_network@1", self.costs("list"))
        for host in ("a", "b", "c"):
            report = self.path("report.json", {"profile": "slow_network", "reporter": host, "samples": list(samples(100.0))})
            self.assertIn("took 24 samples of profile slow_network, refused 0", self.costs("report", report))
        self.assertIn("all_gather bf16 over 8 ranks, 8 a node", self.costs("list", "slow_network"))
        self.assertIn("slow_network@2", self.costs("propose", "slow_network"))
        self.assertEqual(json.loads(self.costs("show", "slow_network@latest", "--json"))["version"], 1)
        difference = json.loads(self.costs("diff", "slow_network@1", "slow_network@2", "--json"))
        self.assertEqual([d["class"] for d in difference["links"]], ["all_gather bf16 over 8 ranks, 8 a node"])
        self.assertEqual(difference["numbers"], [])
        self.assertIn("%", self.costs("diff", "slow_network@1", "slow_network@2"))
        self.assertIn("is version 2, was 1", self.costs("promote", "slow_network@2"))
        self.assertEqual(json.loads(self.costs("show", "slow_network@latest", "--json"))["version"], 2)
        self.assertIn("is version 1 again, was 2", self.costs("rollback", "slow_network"))
        self.assertIn("nothing was promoted before", self.costs("rollback", "slow_network", expect=REFUSED))

    def test_what_is_shown_as_json_is_a_profile_file(self):
        shown = json.loads(self.costs("show", "h100_launch", "--json"))
        shown["gamma_us"] = 3.5
        path = self.path("own.json", shown)
        self.assertIn("imported as own@1, which is latest", self.costs("import", path, "--name", "own", "--by", "me"))
        self.assertIn("is there already as own@1", self.costs("import", path, "--name", "own"))
        self.assertIn("gamma_us", self.costs("diff", "h100_launch", "own"))
        self.assertIn("same numbers", self.costs("diff", "own@1", path))
        self.assertIn("by me", self.costs("show", "own"))

    def test_mistakes_are_told_apart(self):
        self.assertIn("known are", self.costs("show", "nobody", expect=REFUSED))
        self.assertIn("NAME@VERSION", self.costs("promote", "h100_nvlink", expect=USAGE))
        self.costs("promote", "h100_nvlink@9", expect=REFUSED)
        self.assertIn("no samples", self.costs("propose", "small_batch", expect=REFUSED))
        self.costs("report", "/no/such/file", expect=USAGE)
        broken = self.path("broken.json", {"profile": "small_batch", "reporter": "a", "samples": [{"kind": "gather"}]})
        self.assertIn("samples[0].kind", self.costs("report", broken, expect=REFUSED))
        for command in (("import",), ("diff", "h100_nvlink@1")):
            self.assertIn("neither known nor a file", self.costs(*command, "/no/such/file.json", expect=USAGE))
            self.assertIn("broken", self.costs(*command, broken, expect=REFUSED))
        self.costs(expect=USAGE)
        run = bucketctl("costs", "list", "--server", "unix:/no/such/socket")
        self.assertEqual(run.returncode, UNAVAILABLE)


if __name__ == "__main__":
    unittest.main()
