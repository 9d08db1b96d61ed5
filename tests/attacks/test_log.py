"""Callers who make a server write lines."""

import concurrent.futures
import fcntl
import os
import re
import subprocess
import threading
import time

import grpc
import kit
import pytest
from harness import BINARY, Caller, Key, expect
from waiting import wait_for

from bucketd._wire.proto import planner_pb2

_KEY = Key(3, 8, 0)


def _disagree(address: str, begin: int, jobs: int) -> int:
    """Two ranks with options that differ, each job once: a warning a job."""
    caller = Caller(address)
    told = 0
    for number in range(begin, begin + jobs):
        calls = []
        for rank in range(2):
            request = _KEY.request(job=planner_pb2.Job(id=f"noise-{number}", generation=1, scope="fw", rank=[rank], size=2))
            request.options.prefetch_forward = rank + 1
            calls.append(caller.stub.GetPlan.future(request, timeout=20))
        for one in calls:
            expect(one.code() == grpc.StatusCode.FAILED_PRECONDITION, "ranks that differ were told", one.code(), one.details())
        told += 1
    caller.close()
    return told


def accounted(server) -> tuple[int, int, int]:
    """Lines about ranks that differ, warnings that they tell, and those with the ones that they count."""
    lines = [line for line in server.log.read_text().splitlines() if "no agreement" in line]
    written = sum("lines left out" not in line for line in lines)
    return len(lines), written, written + sum(int(number) for line in lines for number in re.findall(r" not_logged=(\d+)", line))


@pytest.mark.quiet
def test_warnings_that_callers_cause_are_counted_and_not_all_written():
    jobs, told, seconds = kit.size(200, 3000), [], []

    def attack():
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            told.extend(pool.map(lambda k: _disagree(scene.server.address, k * jobs, jobs), range(4)))
        # What no line tells is told within some seconds of the last one.
        wait_for(lambda: accounted(scene.server)[2] == sum(told), "every warning to be written or counted", 15)
        seconds.append(time.monotonic() - begin)

    with kit.Scene() as scene:
        seen = scene.under(attack)
        lines, written, counted = accounted(scene.server)
    seen.holds("warnings", memory_mib=128)
    print(f"{sum(told)} warnings in {seconds[0]:.1f} s: {lines} lines, {counted - written} left out")
    expect(counted == sum(told), "of", sum(told), "warnings", counted, "were written or counted")
    expect(lines <= 110 + 6 * (seconds[0] + 1), lines, "lines were written in", seconds[0], "s")


def test_a_log_that_nobody_takes_holds_up_no_call(tmp_path):
    calls, lines = 200, []
    taken, log = os.pipe()
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
    command = [BINARY, "--listen", f"unix:{tmp_path}/socket", "--http", "", "--log-level", "debug", f"--exit-with-parent={os.getpid()}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server, open(taken) as log_lines:
        os.close(log)
        try:
            assert "serves on" in server.stdout.readline()
            caller = Caller(f"unix:{tmp_path}/socket")
            for _ in range(calls):  # each a line of more than forty bytes
                caller.ask(_KEY, 30, inline=True)
            caller.close()
            reader = threading.Thread(target=lambda: lines.extend(log_lines))
            reader.start()
            wait_for(lambda: any(" not_logged=" in line for line in list(lines)), "the lines that were left out to be counted", 30)
        finally:
            server.kill()
    reader.join()
    told = sum(" GetPlan " in line and "left out" not in line for line in lines)
    counted = sum(int(number) for line in lines if " GetPlan" in line for number in re.findall(r" not_logged=(\d+)", line))
    expect(told + counted == calls, "of", calls, "lines", told, "were written and", counted, "counted:", lines[-1])


@pytest.mark.quiet
def test_what_protobuf_says_of_calls_is_a_line_of_the_log_and_not_each_one():
    calls, seconds = kit.size(3000, 30000), []

    def attack():
        caller, begin = Caller(scene.server.address), time.monotonic()
        call = caller.channel.unary_unary("/bucketd.v1.Planner/GetPlan")
        for _ in range(calls):
            with pytest.raises(grpc.RpcError):
                call(b"\n\x01\xff", timeout=20)  # a tenant that is no UTF-8
        seconds.append(time.monotonic() - begin)
        caller.close()

    with kit.Scene() as scene:
        scene.under(attack).holds("no UTF-8", memory_mib=64)
        lines = [line for line in scene.server.log.read_text().splitlines() if "UTF-8" in line]
    expect(all(" W protobuf: " in line for line in lines), "lines that are none of the log's:", lines[:1])
    expect(0 < len(lines) <= 110 + 6 * (seconds[0] + 1), len(lines), "lines were written in", seconds[0], "s")


def test_a_taken_port_is_told_in_one_line(tmp_path):
    with kit.Scene() as scene:
        second = kit.Server(address=scene.server.address, folder=str(tmp_path))
        with pytest.raises(Exception, match="did not start"):
            second.start()
        second.process.wait()
        assert re.fullmatch(r"bucketd: --listen: cannot listen on \S+; is the port taken, .*\n", second.log.read_text())
