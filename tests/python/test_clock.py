"""A wall clock that is set while a server runs, by a day in either direction: what it serves, for how long calls wait, and what
it says of itself do not follow."""

import concurrent.futures
import os
import pathlib
import struct
import subprocess
import time

import grpc
import pytest
from live_server import Server, ctl, request_for, without_graph
from waiting import wait_for

from bucketd._wire.proto import planner_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BUCKETD_BIN", ROOT / "build" / "bin"))
CLOCK = BIN.parent / "tests" / "libjumping_clock.so"
DAY = 86_400


class Clock:
    def __init__(self, folder: pathlib.Path):
        self.path = folder / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        """So far off from now on. The file keeps its place: it is mapped."""
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds * 10**9))

    @property
    def within(self) -> tuple:
        return "env", f"LD_PRELOAD={CLOCK}", f"JUMPING_CLOCK={self.path}"


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path)


def test_the_clock_jumps(clock):
    for seconds in (-DAY, 0, DAY):
        clock.set(seconds)
        said = subprocess.run([*clock.within, "date", "+%s"], capture_output=True, text=True, check=True).stdout
        assert abs(int(said) - time.time() - seconds) < 60


def job(request, rank: int, generation: int):
    asked = planner_pb2.GetPlanRequest()
    asked.CopyFrom(request)
    asked.job.CopyFrom(planner_pb2.Job(id="train", generation=generation, scope="fw", rank=[rank], size=2))
    return asked


def agree(server, request, generation: int) -> bytes:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda rank: server.stub.GetPlan(job(request, rank, generation), timeout=60), range(2)))
    assert answers[0].plan.plan == answers[1].plan.plan != b""
    return answers[0].plan.plan


@pytest.mark.parametrize("jump", [DAY, -DAY, 30 * DAY], ids=["a day on", "a day back", "a month on"])
def test_a_clock_that_is_set_shows_in_no_uptime_and_ends_no_call(clock, tmp_path, jump):
    began = time.monotonic()
    with Server(tmp_path, "--store-dir", str(tmp_path / "store"), within=clock.within) as server:
        request = request_for(1)
        plan = server.stub.GetPlan(request, timeout=60).plan.plan
        agreed = agree(server, request, 1)
        alone = server.stub.GetPlan.future(job(request, 0, 2), timeout=4)  # waits for the other rank
        wait_for(lambda: server.metric("bucketd_agreement_waiting_ranks") == 1, "the rank to wait")
        waits_since = time.monotonic()
        clock.set(jump)

        assert server.stub.GetPlan(without_graph(request), timeout=60).plan.plan == plan
        other = server.stub.GetPlan(request_for(2), timeout=60)
        assert other.HasField("plan")
        with pytest.raises(grpc.RpcError) as error:
            alone.result()
        assert "rank 1 of 2 did not present scope fw" in error.value.details()
        assert 2 < time.monotonic() - waits_since < 30, "the jump ended a call, or let it wait"
        assert agree(server, request, 3) == agreed
        wait_for(lambda: server.metric("bucketd_uptime_seconds") > 3, "the uptime to be told")

        status = server.status()
        up = time.monotonic() - began
        assert 3000 <= int(status["uptime_ms"]) <= 1000 * up
        assert server.metric("bucketd_uptime_seconds") <= up
        assert abs(int(status["started_ms"]) / 1000 - (time.time() + jump - up)) < 60
        for text in (ctl("status", server=server), server.page("/statusz")):
            assert " d " not in text.partition("up for ")[2][:20], text
        assert int(status["plans"]["hits"]) > 0
        assert "writing" not in status["store"] and "reading" not in status["store"]
