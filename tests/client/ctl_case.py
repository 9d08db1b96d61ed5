"""What tests of bucketctl share."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "passes"))
from referee_kit import bucketctl

DONE, REFUSED, USAGE, UNAVAILABLE = 0, 1, 2, 3


class CtlCase(unittest.TestCase):
    """With a folder for each test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def run_ctl(self, *args, expect=DONE):
        run = bucketctl(*args)
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        if expect != DONE:
            self.assertEqual(run.stdout, "", "errors belong on stderr")
            self.assertNotEqual(run.stderr, "")
        return run
