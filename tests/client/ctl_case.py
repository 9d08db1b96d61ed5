"""What tests of bucketctl share."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "passes"))
from referee_kit import BINARY, bucketctl

DONE, REFUSED, USAGE, UNAVAILABLE = 0, 1, 2, 3


def serve(folder, cleanup):
    """The address of a bucketd in `folder`, which `cleanup` ends: addCleanup or addClassCleanup."""
    address = f"unix:{folder}/socket"
    server = subprocess.Popen(
        [os.path.join(os.path.dirname(BINARY), "bucketd"), "--listen", address, "--http", "", "--log-level", "error", "--lame-duck-ms", "0",
         f"--exit-with-parent={os.getpid()}"], stdout=subprocess.PIPE, text=True)
    for end in (server.stdout.close, server.wait, server.kill):
        cleanup(end)
    assert "serves on" in server.stdout.readline()
    return address


class CtlCase(unittest.TestCase):
    """With a folder for each test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_ctl(self, *args, expect=DONE):
        run = bucketctl(*args)
        self.assertEqual(run.returncode, expect, f"{args}: {run.stdout}{run.stderr}")
        if expect != DONE:
            self.assertEqual(run.stdout, "", "errors belong on stderr")
            self.assertNotEqual(run.stderr, "")
        return run
