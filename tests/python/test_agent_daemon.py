"""Real agents that meet at a real planner, measure, report, and survive each other's death."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import pytest
from forged_ring import ForgedRing
from live_agents import BINARY, Agent, agents
from planners import planner
from waiting import wait_for

NCCL_ALWAYS = ("--backend", "nccl", "--probe-when", "always")  # where no NVML is played
COUNT = 'bucket_agent_collective_duration_seconds_count{collective="all_gather",dtype="bf16",mode="packed"}'


@pytest.fixture(scope="module")
def bucketd():
    with planner() as one:
        yield one


@contextlib.contextmanager
def _pair(bucketd, tmp_path, *flags: str):
    """Two agents, of which the first hears trainers at `trainers`."""
    started = []
    try:
        for rank, more in enumerate((("--telemetry", str(tmp_path / "trainers")), ())):
            started.append(Agent(tmp_path, bucketd.address, rank, 2, *more, *flags))
        for one in started:
            one.wait_until_ready()
        yield started
    finally:
        for one in started:
            one.end(signal.SIGKILL)


def costs(address: str) -> list:
    done = subprocess.run([BINARY.with_name("bucketctl"), "costs", "list", "--server", address, "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["samples"]


def test_agents_meet_and_probe_and_their_metrics_move(bucketd, tmp_path):
    with agents(tmp_path, bucketd.address, 3, "--profile", "cpu_loopback") as group:
        assert len({one.epoch() for one in group}) == 1
        for one in group:
            before, probed = one.metric(COUNT), one.metric("bucket_agent_last_probe_timestamp_seconds")
            assert before > 0 and abs(time.time() - probed) < 60
            wait_for(lambda: one.metric(COUNT) > before, "another probe")
            wait_for(lambda: one.metric("bucket_agent_last_probe_timestamp_seconds") > probed, "the end of another probe")
            assert one.metric("bucket_agent_verify_mismatches_total") == 0
            assert one.metric("bucket_agent_straggler_ratio") >= 1
            assert one.metric("bucket_agent_probe_interval_seconds") == 0.3
            assert one.metric("bucket_agent_predicted_over_measured_ratio_count") >= before
            assert one.page("/livez").startswith("ok")
            assert f"rank     {one.rank} of 3" in one.page("/")
        # Two thirds of an all-gather's bytes cross a bus of three.
        payload = group[1].metric('bucket_agent_collective_payload_bytes_total{collective="all_gather"}')
        bus = group[1].metric('bucket_agent_collective_bus_bytes_total{collective="all_gather"}')
        assert 0 < bus < payload


def test_agents_with_gpus_probe_by_nccl_when_told(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    with agents(tmp_path, bucketd.address, 2, *NCCL_ALWAYS) as group:
        for one in group:
            assert re.search(r'bucket_agent_build_info\{backend="nccl",.*\} 1', one.metrics())
            assert "backend nccl: 2 GPUs, NCCL of the tests" in one.said() and "NCCL of the tests of 2 ranks" in one.page("/")
            assert one.metric(COUNT) > 0 and one.metric("bucket_agent_verify_mismatches_total") == 0


def test_agents_with_different_nccls_do_not_begin(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    started = []
    for rank, version in enumerate(("NCCL 2.28.9 (/opt/a/libnccl.so.2)", "NCCL 2.30.4 (/opt/b/libnccl.so.2)")):
        monkeypatch.setenv("FAKE_NCCL_VERSION", version)
        started.append(Agent(tmp_path, bucketd.address, rank, 2, *NCCL_ALWAYS, group="different"))
    assert [one.process.wait(timeout=60) for one in started] == [1, 1]
    for one in started:
        one.process.stdout.close()
        assert "rank 0 has NCCL 2.28.9, rank 1 has NCCL 2.30.4: all nodes want the same; BUCKETD_NCCL_LIB names" in one.said()


def test_agents_with_one_nccl_in_two_places_begin(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    started = []
    try:
        for rank in range(2):
            monkeypatch.setenv("FAKE_NCCL_VERSION", f"NCCL 2.30.4 (/opt/{rank}/libnccl.so.2)")
            started.append(Agent(tmp_path, bucketd.address, rank, 2, *NCCL_ALWAYS, group="same"))
        for one in started:
            one.wait_until_ready()
    finally:
        for one in started:
            one.end(signal.SIGKILL)


def test_agents_probe_nothing_while_trainers_report_to_one_of_them(bucketd, tmp_path):
    with _pair(bucketd, tmp_path) as (one, other):
        first = one.epoch()
        rings = [ForgedRing(str(tmp_path / "trainers"), plan=plan) for plan in (7, 0)]  # of one trainer
        try:
            wait_for(lambda: one.metric("bucket_agent_paused") == 1, "the agent to give way")
            wait_for(lambda: not other.ready(), "the other to be alone")
            assert "probes nothing while others compute: 1 trainer reports here" in one.page("/readyz")
            wait_for(lambda: "rank 0 gives way to who computes there: 1 trainer reports here" in other.said(), "the other to hear why")
            probed = one.metric(COUNT)
            time.sleep(2)
            assert one.metric(COUNT) == probed and one.epoch() == first and other.metric("bucket_agent_paused") == 0
            assert one.metric('bucket_agent_communicator_errors_total{code="other"}') == 0
            assert one.page("/readyz").count("1 trainer reports here") == 1 and "trainers report" not in one.said()
        finally:
            for ring in rings:
                ring.close()
        for each in (one, other):
            each.wait_until_ready()
        assert one.epoch() == other.epoch() > first and one.metric("bucket_agent_paused") == 0
        wait_for(lambda: one.metric(COUNT) > probed, "another probe")


def test_agents_that_were_told_so_probe_beside_trainers(bucketd, tmp_path):
    with _pair(bucketd, tmp_path, "--probe-when", "always") as (one, _):
        trainer = ForgedRing(str(tmp_path / "trainers"))
        try:
            wait_for(lambda: one.metric('bucket_agent_trainers{training="other"}') == 1, "the trainer to be heard")
            probed = one.metric(COUNT)
            wait_for(lambda: one.metric(COUNT) > probed + 2, "further probes")
            assert one.metric("bucket_agent_paused") == 0
        finally:
            trainer.close()


def test_agents_with_gpus_give_way_to_who_computes_there(bucketd, tmp_path, monkeypatch):
    computing, contexts = tmp_path / "computing", tmp_path / "contexts"
    contexts.mkdir()
    monkeypatch.setenv("FAKE_GPUS_CONTEXTS", str(contexts))
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    monkeypatch.setenv("BUCKETD_NVML_LIB", str(BINARY.parents[1] / "tests" / "libfake_nvml.so"))
    monkeypatch.setenv("FAKE_NVML_PROCESSES", str(computing))
    with agents(tmp_path, bucketd.address, 2, "--backend", "nccl") as (one, other):
        computing.write_text("".join(f"{each.process.pid}\n" for each in (one, other)))  # agents themselves are nobody
        pids = {str(each.process.pid) for each in (one, other)}
        assert {file.name for file in contexts.iterdir()} == pids
        probed = one.metric(COUNT)
        wait_for(lambda: one.metric(COUNT) > probed + 2, "further probes")
        computing.write_text(f"{one.process.pid}\n" * 40 + f"{os.getpid()}\n")
        for each in (one, other):
            wait_for(lambda each=each: each.metric("bucket_agent_paused") == 1, "the agents to give way")
            assert f"GPU 0: process {os.getpid()} (" in each.page("/readyz")
        wait_for(lambda: not list(contexts.iterdir()), "the agents to leave the memory of their GPUs")
        computing.write_text("broken\n")
        wait_for(lambda: "who computes is not known: NVML: processes of GPU 0: an error of the tests" in one.page("/readyz"), "the error to be said")
        assert one.metric("bucket_agent_paused") == 1
        computing.unlink()
        for each in (one, other):
            each.wait_until_ready()
        assert {file.name for file in contexts.iterdir()} == pids


def test_a_daemon_for_each_gpu_and_nodes_of_several(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    options = dict(interface="lo", sweep=4096)
    common = (*NCCL_ALWAYS, "--per-node", "2", "--profile", "slow_network", "--link-class", "pairs")
    started = [Agent(tmp_path, bucketd.address, rank, 4, *common, "--gpu", str(rank % 2), **options) for rank in range(4)]
    try:
        for one in started:
            one.wait_until_ready()
            assert f"on cuda:{one.rank % 2} of the tests" in one.said()
        wait_for(lambda: started[0].metric('bucket_agent_cost_reports_total{result="accepted"}') >= 1, "a report")
        of_pairs = [link for one in costs(bucketd.address) for link in one.get("links", [one]) if "pairs" in json.dumps(link)]
        assert of_pairs and '"ranks_per_node": 2' in json.dumps(of_pairs), of_pairs
    finally:
        for one in started:
            one.end(signal.SIGKILL)
    done = subprocess.run([BINARY, "daemon", "--planner", bucketd.address, "--group", "dp", "--rank", "0", "--size", "3", "--interface", "lo",
                           "--per-node", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "--per-node: 2; expected a divisor of --size, 3" in done.stderr, done.stderr


def _by_trainers(bucketd, tmp_path):
    """Two agents over NCCL that hear trainers."""
    return [Agent(tmp_path, bucketd.address, rank, 2, "--backend", "nccl", "--telemetry", str(tmp_path / f"trainers.{rank}")) for rank in range(2)]


def test_an_agent_with_gpus_and_no_nvml_says_so_and_goes_by_trainers_or_ends(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    monkeypatch.setenv("BUCKETD_NVML_LIB", str(tmp_path / "none.so"))
    group = _by_trainers(bucketd, tmp_path)
    try:
        for one in group:
            one.wait_until_ready()
            assert "who computes on GPUs is not known, but for trainers that report" in one.said() and "none.so" in one.said()
    finally:
        for one in group:
            one.end(signal.SIGKILL)
    done = subprocess.run([BINARY, "daemon", "--planner", bucketd.address, "--group", "dp", "--rank", "0", "--size", "2", "--unix-folder",
                           tmp_path / "ring", "--backend", "nccl"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "none.so" in done.stderr and "give --telemetry" in done.stderr, done


def test_agents_in_containers_whose_numbers_the_driver_does_not_know_do_not_give_way_to_themselves(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    monkeypatch.setenv("BUCKETD_NVML_LIB", str(BINARY.parents[1] / "tests" / "libfake_nvml.so"))
    monkeypatch.setenv("FAKE_NVML_PROCESSES", str(tmp_path / "computing"))
    (tmp_path / "computing").write_text("4999998\n4999999\n")  # more than a process here can have: theirs on the host
    group = _by_trainers(bucketd, tmp_path)
    try:
        for one in group:
            one.wait_until_ready()
            assert "who computes on GPUs is not known" in one.said() and "--pid=host" in one.said()
            assert one.metric("bucket_agent_paused") == 0
    finally:
        for one in group:
            one.end(signal.SIGKILL)


def test_rank_0_reports_to_the_planner(bucketd, tmp_path):
    with agents(tmp_path, bucketd.address, 2, "--profile", "slow_network", "--link-class", "socket") as group:
        wait_for(lambda: group[0].metric('bucket_agent_cost_reports_total{result="accepted"}') >= 2, "two reports")
        assert group[1].metric('bucket_agent_cost_reports_total{result="accepted"}') == 0
        held = [one for one in costs(bucketd.address) if one["profile"] == "slow_network"]
        text = json.dumps(held)
        assert all(kind in text for kind in ("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE", '"link_class": "socket"')), text


@pytest.mark.parametrize("flags", [(), NCCL_ALWAYS], ids=["ring", "nccl"])
def test_a_killed_agent_ends_the_epoch_at_once_and_its_return_begins_the_next(bucketd, tmp_path, monkeypatch, flags):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    with agents(tmp_path, bucketd.address, 3, *flags, probe_every="1h") as group:  # no probe will find out
        first = group[0].epoch()
        group[2].end(signal.SIGKILL)
        for one in group[:2]:
            wait_for(lambda: not one.ready(), "the others to notice")
            wait_for(lambda: f"after epoch {first}" in one.said(), "the log")
            assert f"epoch {first}" in one.said() and re.search(r"rank 2\b.*closed the connection", one.said()), one.said()
            assert sum(one.metric(f'bucket_agent_communicator_errors_total{{code="{code}"}}') for code in ("peer_lost", "aborted")) == 1
            assert one.page("/livez").startswith("ok")
            why = r"not ready: (waits for the others|pauses before the next rendezvous)\n.*rank 2\b.*\n$"
            wait_for(lambda: re.match(why, one.page("/readyz")), "the reason")
        group[2] = Agent(tmp_path, bucketd.address, 2, 3, *flags, probe_every="1h")
        for one in group:
            one.wait_until_ready()
        epochs = {one.epoch() for one in group}
        assert len(epochs) == 1 and epochs.pop() > first
        assert group[0].metric("bucket_agent_epochs_total") == 2


def test_an_agent_whose_context_is_destroyed_ends_and_the_next_one_takes_its_place(bucketd, tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
    monkeypatch.setenv("FAKE_GPUS_LOST", str(tmp_path))
    with agents(tmp_path, bucketd.address, 2, *NCCL_ALWAYS) as group:
        (tmp_path / str(group[1].process.pid)).touch()
        assert group[1].process.wait(timeout=60) == 3
        group[1].process.stdout.close()
        assert ("bucket-agent: cuda:0 of the tests is lost to this process, which has to be started anew: "
                "an illegal memory access was encountered\n") in group[1].said()
        wait_for(lambda: "an illegal memory access was encountered" in group[0].said(), "the other to hear of it")
        group[1] = Agent(tmp_path, bucketd.address, 1, 2, *NCCL_ALWAYS)
        for one in group:
            one.wait_until_ready()


def test_agents_of_several_nodes_meet_over_tcp_on_the_named_interface(bucketd, tmp_path):
    started = [Agent(tmp_path, bucketd.address, rank, 2, interface="lo") for rank in range(2)]
    for one in started:
        one.wait_until_ready()
        assert f"ring of 2 ranks over tcp 127.0.0.1, rank {one.rank}" in one.said()
    assert [one.end() for one in started] == [0, 0]


def test_sigterm_ends_an_agent_and_tells_the_others(bucketd, tmp_path):
    with agents(tmp_path, bucketd.address, 2) as group:
        assert group[1].end() == 0
        wait_for(lambda: "rank 1 was stopped" in group[0].said(), "rank 0 to hear of it")
        wait_for(lambda: not group[0].ready(), "rank 0 to be alone")
        assert group[0].end() == 0  # while it waits for the other


def test_a_wrong_size_is_refused_with_the_names_of_both(bucketd, tmp_path):
    started = [Agent(tmp_path, bucketd.address, 0, 2), Agent(tmp_path, bucketd.address, 1, 3)]
    assert [one.process.wait(timeout=60) for one in started] == [1, 1]
    for one in started:
        one.process.stdout.close()
        assert re.search(r"rank [01] speaks of [23] ranks, rank [01] of [23]", one.said()), one.said()


def test_ranks_that_would_probe_otherwise_do_not_meet(bucketd, tmp_path):
    started = [Agent(tmp_path, bucketd.address, 0, 2), Agent(tmp_path, bucketd.address, 1, 2, sweep=4096)]
    assert [one.process.wait(timeout=60) for one in started] == [1, 1]
    for one in started:
        one.process.stdout.close()
        assert "do not agree on what they will run" in one.said()


def test_a_planner_that_is_away_is_no_error_of_a_group_that_has_met(tmp_path):
    with planner() as bucketd:
        with agents(tmp_path, bucketd.address, 2, "--profile", "cpu_loopback") as group:
            os.kill(bucketd.pid, signal.SIGKILL)
            wait_for(lambda: group[0].metric('bucket_agent_cost_reports_total{result="unreachable"}') >= 2, "two failed reports")
            before = group[1].metric(COUNT)
            wait_for(lambda: group[1].metric(COUNT) > before, "another probe")
            assert all(one.ready() for one in group)
            assert [one.end() for one in group] == [0, 0]


def test_an_agent_that_leaves_a_group_answers_and_ends_though_the_planner_hangs(tmp_path):
    with planner() as bucketd, agents(tmp_path, bucketd.address, 2, probe_every="1h") as (one, other):
        os.kill(bucketd.pid, signal.SIGSTOP)
        other.end(signal.SIGKILL)
        wait_for(lambda: "the planner does not hear of the epoch's end" in one.said(), "the call to be given up")
        begin = time.monotonic()
        assert one.end() == 0
        assert time.monotonic() - begin < 1.5  # the long poll has some seconds yet


def test_what_cannot_be_is_said_before_anything_starts(tmp_path):
    base = [BINARY, "daemon", "--planner", "unix:/nowhere", "--group", "dp"]

    def refused(*flags: str) -> str:
        done = subprocess.run([*base, *flags], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stdout == "", done.stdout
        return done.stderr

    both = ("--rank", "0", "--size", "2")
    assert "less than --size" in refused("--rank", "2", "--size", "2", "--unix-folder", str(tmp_path / "u"))
    assert "--interface" in refused(*both)
    for neither in ((), ("--rank", "0"), ("--node", "0"), ("--rank", "0", "--nodes", "2")):
        assert re.search("--rank and --size are needed, or --node and --nodes|excludes", refused(*neither, "--unix-folder", "u")), neither
    assert "--gpu: 2; expected less than --per-node" in refused("--node", "0", "--nodes", "2", "--per-node", "2", "--gpu", "2", "--unix-folder", "u")
    assert "--node: 2 of 2" in refused("--node", "2", "--nodes", "2", "--unix-folder", "u")
    assert "128 agents of all nodes" in refused("--node", "0", "--nodes", "16", "--per-node", "8", "--unix-folder", "u")
    assert "--probe-every" in refused(*both, "--unix-folder", str(tmp_path / "u"), "--probe-every", "soon")
    assert "--http" in refused(*both, "--unix-folder", str(tmp_path / "u"), "--http", "nowhere")


def test_a_folder_that_others_may_enter_is_refused(bucketd, tmp_path):
    (tmp_path / "ring").mkdir(mode=0o755)
    os.chmod(tmp_path / "ring", 0o755)
    one = Agent(tmp_path, bucketd.address, 0, 2)
    assert one.process.wait(timeout=60) == 1
    one.process.stdout.close()
    assert "ring" in one.said()
