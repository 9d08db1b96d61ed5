"""bucket-agent over two nodes: network namespaces with a wire between them for the ring and another one to the planner."""

import json
import os
import pathlib
import re
import subprocess
import time

import pytest
from live_agents import BINARY, WITH_US
from waiting import wait_for

SLURM = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "calibrate.sh"
PLANNER = "10.93.2.1:9460"


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()} (network namespaces are made by root with CAP_SYS_ADMIN)")
    return done.stdout


class Nodes:
    """Two namespaces. On each `fast` is the ring's wire and `slow` the planner's, which node 0 runs."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.names = [f"bucketd-{os.getpid()}-{n}" for n in range(2)]
        self.processes = []

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        for number, wire in enumerate(("fast", "slow"), 1):
            ip("link", "add", wire, "netns", self.names[0], "type", "veth", "peer", "name", wire, "netns", self.names[1])
            for n, name in enumerate(self.names):
                ip("-n", name, "addr", "add", f"10.93.{number}.{n + 1}/24", "dev", wire)
                ip("-n", name, "link", "set", wire, "up")
        for name in self.names:
            ip("-n", name, "link", "set", "lo", "up")

    def remove(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def start(self, node: int, *command, **environment: str) -> subprocess.Popen:
        environment = {**os.environ, "BUCKETD_CUDA_MODULE": "off", "TMPDIR": str(self.folder), **environment}
        self.processes.append(subprocess.Popen(["ip", "netns", "exec", self.names[node], *WITH_US, *command], stdout=subprocess.PIPE,
                                               stderr=subprocess.PIPE, text=True, env=environment, cwd=self.folder))
        return self.processes[-1]

    def calibrate(self, node: int, *flags: str) -> subprocess.Popen:
        return self.start(node, BINARY, "calibrate", *(() if "--nodes" in flags else ("--nodes", "2")), "--node", str(node), "--planner", PLANNER,
                          "--interface", "fast", *flags)

    def both(self, *flags: str, second: tuple = ()) -> list:
        """How each ended and what it said."""
        return [ended(one) for one in (self.calibrate(0, *flags), self.calibrate(1, *(second or flags)))]

    def sent(self, wire: str) -> int:
        """Bytes that node 0 has sent there."""
        return json.loads(ip("-n", self.names[0], "-s", "-j", "link", "show", wire))[0]["stats64"]["tx"]["bytes"]

    def ranks(self, node: int) -> list:
        """Processes that a calibration has started there, by rank."""
        found = []
        for pid in ip("netns", "pids", self.names[node]).split():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--rank" in words:
                found.append((int(words[words.index(b"--rank") + 1]), int(pid)))
        return [pid for _, pid in sorted(found)]


def ended(process: subprocess.Popen) -> tuple:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    two = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        two.make()
        bucketd = two.start(0, BINARY.with_name("bucketd"), "--listen", PLANNER, "--insecure", "--admin", "remote", "--http", "")
        assert "serves on" in bucketd.stdout.readline()
        yield two
    finally:
        two.remove()


def test_ranks_of_two_nodes_measure_what_lies_between_them(nodes):
    flags = ("--ranks", "2", "--min-bytes", "65536", "--max-bytes", "65536", "--link-class", "eth", "--name", "pair", "--profile-out", "pair.json")
    (code, table, said), other = nodes.both(*flags)
    assert (code, other[:2]) == (0, (0, "")), said + other[2]
    assert f"planner {PLANNER}: pair@1, which is latest" in table
    profile = json.loads((nodes.folder / "pair.json").read_text())
    assert "ring of 4 ranks over tcp 10.93.1.1" in profile["about"]
    assert {(link["link_class"], link["group_size"], link["ranks_per_node"]) for link in profile["links"]} == {("eth", 4, 2)}
    rows = [line.split() for line in table.splitlines() if line.startswith("  ") and len(line.split()) == 13]
    assert len(rows) == 6 and all(row[8] == row[12] == "0" for row in rows), table
    # Each of 12 rows runs five times; of an all-gather's 64 KiB three quarters cross the wire.
    assert nodes.sent("fast") > 12 * 5 * 48 * 1024 > 5 * nodes.sent("slow"), "the ring's bytes are not on the interface that was named"


def test_a_slurm_step_measures_its_nodes(nodes):
    flags = ("--planner", PLANNER, "--interface", "fast", "--ranks", "1", "--max-bytes", "4096", "--name", "step")
    of_slurm = {"BUCKET_AGENT": str(BINARY), "SLURM_NNODES": "2", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "3"}
    started = [nodes.start(n, SLURM, *flags, SLURM_NODEID=str(n), **of_slurm) for n in (0, 1)]
    (code, table, said), other = [ended(one) for one in started]
    assert (code, other[0]) == (0, 0) and "step@1, which is latest" in table, said + other[2]
    assert "all_gather bf16 over 2 ranks, 1 a node" in table.replace(" eth", "")
    assert "is run by srun" in ended(nodes.start(0, SLURM, *flags))[2]


def test_nodes_that_miss_or_differ_are_told_which_ranks_and_how(nodes):
    code, _, said = ended(nodes.calibrate(0, "--timeout", "500ms"))
    assert code == 3 and "rank 1 of 2 did not come in time (a rank stands for a node here)" in said
    for code, _, said in nodes.both("--nodes", "2", second=("--nodes", "3")):
        assert code == 1 and re.search(r"rank \d speaks of [23] ranks, rank \d of [23]", said), said
    for code, _, said in nodes.both("--ranks", "2", "--max-bytes", "8192", second=("--ranks", "3", "--max-bytes", "4096")):
        assert code == 1 and {*re.findall(r"ring, (.*?) bytes", said)} == {"2 a node, 4096 to 8192", "3 a node, 4096 to 4096"}, said
        assert said.count("bucket-agent: ") == 1, said  # whatever the number of its ranks


def test_a_rank_that_dies_is_named_on_both_nodes(nodes):
    started = [nodes.calibrate(n, "--max-bytes", "33554432") for n in (0, 1)]
    assert "all_gather" in started[0].stdout.readline()  # they have met
    os.kill(nodes.ranks(1)[0], 9)
    for code, _, said in [ended(one) for one in started]:
        assert code == 3 and "rank 3 was ended by signal 9" in said, said
    assert nodes.ranks(0) == nodes.ranks(1) == [], "a rank is left behind"


def test_a_wire_that_is_cut_ends_the_ranks_in_time(nodes):
    started = [nodes.calibrate(n, "--timeout", "2s", "--max-bytes", "33554432") for n in (0, 1)]
    assert "all_gather" in started[0].stdout.readline()
    ip("-n", nodes.names[0], "link", "set", "fast", "down")
    begin = time.monotonic()
    try:
        for code, _, said in [ended(one) for one in started]:
            assert code == 3 and re.search(r"rank \d: ", said), said
        assert time.monotonic() - begin < 15
    finally:
        ip("-n", nodes.names[0], "link", "set", "fast", "up")


def test_daemons_of_two_nodes_probe_over_the_interface_that_was_named(nodes):
    before = nodes.sent("fast")
    agents = [(n, gpu) for n in (0, 1) for gpu in (0, 1)]
    said = [nodes.start(n, BINARY, "daemon", "--planner", PLANNER, "--group", "nodes", "--node", str(n), "--nodes", "2", "--per-node", "2",
                        "--gpu", str(gpu), "--interface", "fast", "--http", "", "--sweep-bytes", "65536", "--probe-every", "200ms",
                        "--ready-file", f"ready.{n}.{gpu}").stdout.readline() for n, gpu in agents]
    assert [re.search("rank . of .", line)[0] for line in said] == [f"rank {rank} of 4" for rank in range(4)]
    for n, gpu in agents:
        wait_for((nodes.folder / f"ready.{n}.{gpu}").exists, f"agent {gpu} of node {n} to be ready")
    assert nodes.sent("fast") - before > 12 * 65536


@pytest.mark.parametrize("flags, says", [
    (("--nodes", "2", "--interface", "lo"), "there is no --planner"), (("--nodes", "2", "--planner", "unix:x"), "--interface is needed"),
    (("--node", "1"), "--node: 1 of 1"), (("--nodes", "2", "--planner", "unix:x", "--interface", "lo", "--ranks", "40"), "80 of all nodes"),
    (("--timeout", "soon"), "--timeout: soon")])
def test_what_cannot_be_is_said_before_anything_starts(flags, says):
    done = subprocess.run([BINARY, "calibrate", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and says in done.stderr, done.stderr
