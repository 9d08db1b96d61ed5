"""Training whose buckets are reported to a node's agent, which counts them and tells the planner."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import played_nccl
import pytest
import torch
from device_buckets import graph_and_plan
from forged_ring import ForgedRing
from live_agents import BINARY, Agent, Watcher
from planners import planner
from ranks import Ranks, run_ranks
from trainers_page import commands
from waiting import wait_for

from bucketd import bucket_library, degraded, telemetry
from bucketd.settings import Settings

WORLD, STEPS = 2, 6


def held(address: str) -> list:
    done = subprocess.run([BINARY.with_name("bucketctl"), "costs", "list", "--server", address, "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["samples"]


def reported(address: str) -> set[str]:
    """Kinds of collectives that samples for cpu_loopback are of."""
    return {one["of"]["kind"].removeprefix("COLLECTIVE_KIND_") for one in held(address) if one["profile"] == "cpu_loopback"}


@pytest.mark.slow
def test_what_training_took_reaches_prometheus_and_the_planner(tmp_path):
    with planner() as one, Watcher(tmp_path, "--planner", one.address, "--profile", "cpu_loopback", "--telemetry-every", "500ms",
                                   "--telemetry-job", "measured") as agent:
        run_ranks("telemetry_worker.py", WORLD, agent.socket, str(STEPS), str(tmp_path / "found.json"), "", timeout=300)
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["dropped"] == 0
        wait_for(lambda: agent.total("bucket_agent_trainers") == 0, "the trainers' end")
        runs = WORLD * STEPS
        kinds = [kind for plan in found["plans"] for kind, _ in plan["buckets"]]
        assert {"all_gather", "reduce_scatter"} <= set(kinds)
        for kind in set(kinds):
            of = ('training="other"', f'collective="{kind}"')
            assert agent.total("bucket_agent_bucket_wire_seconds_count", *of) == runs * kinds.count(kind)
            assert agent.total("bucket_agent_bucket_wire_seconds_sum", *of) > 0
            told = sum(size for plan in found["plans"] for one_kind, size in plan["buckets"] if one_kind == kind)
            assert agent.total("bucket_agent_bucket_bytes_total", *of) == runs * told
            # What the last of the ranks took is less than what all of them saw.
            last = agent.total("bucket_agent_bucket_collective_seconds_total", *of)
            assert 0 < WORLD * last <= agent.total("bucket_agent_bucket_wire_seconds_sum", *of)
            assert agent.total("bucket_agent_bucket_predicted_seconds_total", *of) > 0
            assert agent.total("bucket_agent_bucket_collectives_total", *of) == STEPS * kinds.count(kind)
        assert agent.total("bucket_agent_bucket_predicted_over_measured_ratio_count") == STEPS * len(kinds)
        parts = {"fw": "forward", "bw": "backward"}
        for plan in found["plans"]:
            of = ('training="other"', f'part="{parts[plan["part"]]}"')
            assert agent.total("bucket_agent_plan_runs_total", *of) == runs
            assert plan["watched"] == STEPS  # for its memory, from call to end
            assert agent.total("bucket_agent_plan_predicted_exposed_seconds_total", *of) == pytest.approx(runs * plan["exposed_s"])
        assert agent.total("bucket_agent_plan_exposed_seconds_total") > 0
        assert agent.total("bucket_agent_telemetry_records_total", "read") == runs * len(kinds)
        # Nobody is "measured" who does not say so.
        assert agent.total("bucket_agent_bucket_wire_seconds_count", 'training="measured"') == 0
        wait_for(lambda: agent.total("bucket_agent_cost_reports_total", "accepted") >= 1, "a report")
        # The first report may have been sent before the first backward ended.
        wait_for(lambda: {kind.upper() for kind in kinds} <= reported(one.address), "samples of every kind of collective")


@pytest.mark.slow
def test_an_agent_that_is_killed_stops_no_training_and_the_next_one_hears_the_rest(tmp_path):
    with Watcher(tmp_path) as first:
        gate, out = tmp_path / "gate", tmp_path / "found.json"
        with Ranks("telemetry_worker.py", WORLD, first.socket, str(STEPS), str(out), str(gate)) as ranks:
            wait_for(out.with_suffix(".half").exists, "half of the training", within=240)
            wait_for(lambda: first.total("bucket_agent_telemetry_records_total", "read") > 0, "records")
            memory = ["arena_bytes", "plan_predicted_peak_bytes"]  # runs take less than importing torch did
            assert first.total("bucket_agent_trainers") == WORLD
            assert all(first.total(f"bucket_agent_{what}") > 0 for what in memory)
            first.end(signal.SIGKILL)
            with Watcher(tmp_path) as second:
                gate.touch()
                ended = [status for status, _ in ranks.wait(timeout=240)]
                assert ended == [0] * WORLD
                # The trainers look for it once a second, and end: what is in the ring then is read.
                wait_for(lambda: second.total("bucket_agent_telemetry_records_total", "read") > 0, "records", within=20)


def exported_by_the_page(socket: str) -> dict[str, str]:
    """The environment of a job that does what the page says, on a node whose agent listens elsewhere."""
    lines = "\n".join(commands("What torch.distributed runs"))
    assert "/run/bucket-agent/trainers" in lines
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(["bash", "-ec", lines.replace("/run/bucket-agent/trainers", socket) + "\nenv -0"], capture_output=True, text=True,
                          env={**os.environ, "PATH": path}, check=True)
    return dict(variable.split("=", 1) for variable in done.stdout.split("\0") if variable)


@pytest.mark.parametrize("whose", ["by the test", "by NCCL's own code"])
def test_collectives_of_torchs_own_reach_prometheus_and_the_planner(tmp_path, whose):
    """By nothing but variables of the job: what NCCL does is played, with its structures as ctypes has them, and goes through its own code where that is here."""
    nccl = played_nccl.nccl_with_symbols() if whose == "by NCCL's own code" else ""
    assert nccl is not None, "the NCCL that deploy/requirements.txt names has its symbols, and nm finds them: neither is so here"
    with planner() as one, Watcher(tmp_path, "--planner", one.address, "--profile", "cpu_loopback", "--telemetry-every", "200ms",
                                   "--telemetry-job", "llama") as agent:
        environment = exported_by_the_page(agent.socket)
        command = [sys.executable, played_nccl.__file__, str(STEPS)]
        ranks = [subprocess.Popen([*command, str(rank), nccl], env=environment, stdin=subprocess.PIPE) for rank in range(WORLD)]
        of = ('training="llama"', 'collective="all_gather"', 'size="1MiB"')
        torchs = (*of, 'communicator="torch"')
        wait_for(lambda: agent.total("bucket_agent_kernel_collectives_total") == 2 * WORLD * STEPS, "records")
        assert agent.total("bucket_agent_trainers") == WORLD
        assert agent.total("bucket_agent_kernel_collectives_total", *torchs) == WORLD * STEPS
        assert agent.total("bucket_agent_kernel_bytes_total", *torchs) == WORLD * STEPS * played_nccl.BYTES
        times = [[played_nccl.nanoseconds(step, rank) for rank in range(WORLD)] for step in range(STEPS)]
        assert agent.total("bucket_agent_kernel_seconds_total", *torchs) == pytest.approx(sum(map(sum, times)) * 1e-9)
        # The last rank to come waited for nobody.
        assert agent.total("bucket_agent_torch_collectives_total", *of) == STEPS
        assert agent.total("bucket_agent_torch_collective_seconds_total", *of) == pytest.approx(sum(map(min, times)) * 1e-9)
        # The executor's own are told apart, and have their cost by their records as buckets.
        assert agent.total("bucket_agent_kernel_collectives_total", 'communicator="executor"', 'collective="all_reduce"') == WORLD * STEPS
        assert agent.total("bucket_agent_torch_collectives_total", 'collective="all_reduce"') == 0
        assert agent.total("bucket_agent_bucket_wire_seconds_count") == agent.total("bucket_agent_plan_runs_total") == 0
        wait_for(lambda: reported(one.address) == {"ALL_GATHER"}, "samples")
        (sample,) = (sample for sample in held(one.address) if sample["profile"] == "cpu_loopback")
        assert (sample["of"]["group_size"], sample["of"]["dtype"]) == (WORLD, "DTYPE_BF16")
        assert sample["samples"] == STEPS - 2  # none of the first two
        for rank in ranks:
            rank.communicate(timeout=60)
            assert rank.returncode == 0
        wait_for(lambda: agent.total("bucket_agent_trainers") == 0, "the ranks' end")


def test_the_longest_name_that_a_ring_holds_is_a_label(tmp_path):
    longest = "j" * 47
    with Watcher(tmp_path, "--telemetry-job", longest) as agent:
        ring = ForgedRing(agent.socket, longest)
        wait_for(lambda: agent.total("bucket_agent_trainers", f'training="{longest}"') == 1, "the trainer")
        ring.close()


def test_a_trainer_with_both_rings_is_one(tmp_path):
    with Watcher(tmp_path) as agent:
        rings = [ForgedRing(agent.socket, plan=plan) for plan in (7, 0)]
        for ring in rings:
            ring.ran(step=0)
        wait_for(lambda: agent.total("bucket_agent_telemetry_records_total", "read") == 2, "records")
        assert agent.total("bucket_agent_trainers") == 1
        for ring in rings:
            ring.close()


def test_an_arena_that_is_gone_counts_no_longer_though_nothing_runs(tmp_path):
    with Watcher(tmp_path) as agent:
        ring = ForgedRing(agent.socket)
        wait_for(lambda: agent.total("bucket_agent_arena_bytes") == 1 << 20, "the arena")
        ring.arena(0)
        wait_for(lambda: agent.total("bucket_agent_arena_bytes") == 0, "its end")
        assert agent.total("bucket_agent_trainers") == 1
        ring.arena(-1)
        wait_for(lambda: agent.total("bucket_agent_trainers") == 0, "the end of a ring that cannot be")
        ring.close()


def test_what_is_of_no_known_plan_exposes_nothing_against_the_predictions_of_others(tmp_path):
    with Watcher(tmp_path) as agent:
        ring = ForgedRing(agent.socket)
        ring.ran(step=0)
        ring.ran(step=0, plan=8)  # as where the table was full
        wait_for(lambda: agent.total("bucket_agent_bucket_wire_seconds_count") == 2, "records")
        assert agent.total("bucket_agent_plan_runs_total") == 1
        assert agent.total("bucket_agent_plan_exposed_seconds_total") == pytest.approx(20e-6)
        ring.close()


def test_a_refusal_is_a_line_a_minute_however_often_it_is_asked_for(tmp_path):
    with Watcher(tmp_path) as agent:
        for count in range(1, 11):
            ForgedRing(agent.socket, seals=0).close()
            wait_for(lambda: agent.total("bucket_agent_telemetry_errors_total", "refused") == count, "the refusal")  # noqa: B023
        ForgedRing(agent.socket, records=3).close()
        wait_for(lambda: agent.total("bucket_agent_telemetry_errors_total", "refused") == 11, "the other refusal")
        said = agent.log.read_text()
        assert said.count("no memory that keeps its size") == said.count("says that it has 3 records") == 1, said


def test_what_is_slow_to_close_holds_up_no_other_trainer(tmp_path):
    with Watcher(tmp_path) as agent, socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(agent.socket)
        os.kill(agent.process.pid, signal.SIGSTOP)
        for _ in range(2):  # one that the agent takes from the connection, and one that goes with it
            with socket.create_connection(listener.getsockname()) as slow:
                slow.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        slow.send(bytes(1 << 16))
                # Whoever closes it last waits so many seconds for the other side to take all that.
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
                socket.send_fds(stranger, [b"?"], [slow.fileno()])
        os.kill(agent.process.pid, signal.SIGCONT)
        begin = time.monotonic()
        trainer = ForgedRing(agent.socket)
        wait_for(lambda: agent.total("bucket_agent_telemetry_errors_total", "refused") == 1, "the stranger to be refused")
        wait_for(lambda: agent.total("bucket_agent_trainers") == 1, "the trainer to be heard")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        trainer.close()
        assert agent.end() == 0
        assert time.monotonic() - begin < 15


def test_an_agent_that_probes_hears_trainers_too(tmp_path):
    with planner() as one:
        group = [Agent(tmp_path, one.address, 0, 2, "--telemetry", str(tmp_path / "trainers")), Agent(tmp_path, one.address, 1, 2)]
        try:
            ring = ForgedRing(str(tmp_path / "trainers"))
            ring.ran(step=0)
            count = 'bucket_agent_bucket_wire_seconds_count{collective="all_gather",size="1MiB",training="other"}'
            wait_for(lambda: group[0].metric(count) == 1, "a record")
            forward = '{part="forward",training="other"}'
            assert group[0].metric(f"bucket_agent_plan_peak_bytes{forward}") == 1 << 29
            assert group[0].metric(f"bucket_agent_plan_predicted_peak_bytes{forward}") == 1 << 30
            ring.close()
            for agent in group:
                agent.wait_until_ready()
            assert "bucket_agent_telemetry_records_total" not in group[1].metrics()
        finally:
            for agent in group:
                agent.end(signal.SIGKILL)


@pytest.mark.parametrize("wrong", [("--telemetry-users", "some"), ("--telemetry-every", "1ms"), ("--http", "nowhere"),
                                   ("--telemetry-job", "x") * 17, ("--telemetry-job", "j" * 48), ("--telemetry-job", "größe"),
                                   ("--telemetry-job", "")])
def test_a_wrong_flag_is_named(tmp_path, wrong):
    done = subprocess.run([BINARY, "watch", "--telemetry", tmp_path / "trainers", *wrong], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and f"{wrong[0]}: " in done.stderr, done.stderr


def test_a_trainer_needs_no_agent(tmp_path):
    loaded = bucket_library.load()
    handle = bucket_library.call(loaded.bucket_telemetry_open, str(tmp_path / "nobody").encode(), b"job", what="telemetry")
    assert loaded.bucket_telemetry_dropped(handle) == 0
    loaded.bucket_telemetry_close(ctypes.c_void_p(handle))


def test_telemetry_that_cannot_open_is_said_and_stops_nothing(caplog):
    telemetry.of.cache_clear()
    for _ in range(2):
        assert telemetry.of("/run/" + "x" * 110, "job") is None
    assert ["no agent will hear what buckets take: telemetry: INVALID_ARGUMENT: " in text for text in caplog.messages] == [True]


def test_an_agent_that_is_not_there_is_said_once_after_some_runs(tmp_path, caplog):
    told = telemetry.Telemetry(str(tmp_path / "nobody"), "job")
    for run in range(3 * telemetry._HEARD):
        told.ran()
        assert len(caplog.messages) == (run + 1 >= telemetry._HEARD)
    assert f"an agent at {tmp_path}/nobody (agent=, or BUCKETD_AGENT): there is no socket" in caplog.text


def test_a_plan_that_the_ring_has_no_room_for_is_said_once(tmp_path, monkeypatch, caplog):
    told = telemetry.Telemetry(str(tmp_path / "nobody"), "job")
    _, plan = graph_and_plan(WORLD)
    for room, warnings in ((1, 0), (0, 1), (0, 1)):
        monkeypatch.setattr(bucket_library.load(), "bucket_executor_report", lambda *given, room=room: room)
        told.report(0, bucket_library.Options(), "fw", plan, range(3))
        assert len(caplog.messages) == warnings
    assert "more plans, or groups of them, than its node's agent hears of" in caplog.text


def test_an_agent_that_reads_nothing_is_said_with_what_was_lost(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(telemetry.Telemetry, "dropped", 0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "agent"))
        told = telemetry.Telemetry(f"unix:{tmp_path}/agent", "job")
        before = degraded.counters()["telemetry_dropped"]
        for dropped, warnings in ((0, 0), (1000, 0), (1001, 1), (1003, 1)):
            monkeypatch.setattr(telemetry.Telemetry, "dropped", dropped)
            for _ in range(telemetry._HEARD):
                told.ran()
            assert len(caplog.messages) == warnings
    assert "1001 records were not read in time" in caplog.text
    assert (degraded.counters()["telemetry_dropped"] - before) % 1003 == 0 < degraded.counters()["telemetry_dropped"]


@pytest.mark.parametrize(("environment", "job", "name", "said"), [
    ("", "llama", "llama", 0), ("named", "llama", "named", 0), ("", "x" * 48, "x" * 47, 1), ("", "große", "gro?e", 1)])
def test_both_rings_have_one_name_and_one_that_does_not_fit_is_said(tmp_path, monkeypatch, caplog, environment, job, name, said):
    monkeypatch.setenv("BUCKETD_JOB", environment)
    call, opened = bucket_library.call, []
    monkeypatch.setattr(bucket_library, "call", lambda *given, **more: opened.append(given) or call(*given, **more))
    telemetry.of(str(tmp_path / "nobody"), job)
    assert [given[2] for given in opened] == [name.encode()]
    assert len(caplog.messages) == said and (f"knows this job as '{name}'" in caplog.text) == said


def test_an_agent_hears_only_of_buckets_that_our_executor_runs():
    with pytest.raises(ValueError, match='agent=.*executor="bucketd"'):
        Settings.of(agent="/run/bucket-agent/trainers")
    assert Settings.of(agent="/run/bucket-agent/trainers", executor="bucketd").agent


def test_the_memory_of_a_run_is_what_its_prediction_counts():
    looks = iter([(100, 60), (130, 70),  # 70 taken beyond 60
                  (130, 90), (130, 90),  # no more than there was before: not seen
                  (130, 90), (180, 95)])  # 90, beside an optimizer's states that came meanwhile
    memory = telemetry.Memory(8, lambda: next(looks))
    for most in (78, 78, 98):
        memory.begins()
        memory.ends()
        assert memory.most == most
    memory.ends()  # of a run that nobody saw begin
    assert memory.most == 98


def test_later_runs_are_looked_at_now_and_then():
    looks = []
    memory = telemetry.Memory(0, lambda: (0, looks.append(1)))
    for _ in range(24):
        memory.begins()
        memory.ends()
    assert len(looks) == 2 * (8 + 2)


def test_resident_memory_is_seen_where_a_run_takes_more_than_ever():
    taken = 192 << 20
    memory = telemetry.Memory(0, telemetry.resident)
    # Whatever this process had before: more than that.
    most, now = telemetry.resident()
    rest = torch.ones(most - now + (16 << 20), dtype=torch.uint8)
    memory.begins()
    run = torch.ones(taken, dtype=torch.uint8)
    memory.ends()
    assert abs(memory.most - taken) < 8 << 20
    del rest, run
