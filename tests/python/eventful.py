"""A server and agents to which all happens that they count, so that every metric can be seen to move."""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import pathlib
import re
import signal
import subprocess
import threading
import time

import grpc
from forged_ring import KINDS, ForgedRing
from live_agents import Watcher, agents
from live_server import Server, request_for, upload, without_graph
from small_graphs import Maker
from waiting import wait_for

from bucketd import canonical, embedded, wire
from bucketd._wire.proto import planner_pb2
from bucketd.graph import DType


def ctl(server: Server, *arguments: str) -> str:
    command = pathlib.Path(embedded.find_binary()).with_name("bucketctl")
    done = subprocess.run([command, *arguments, "--server", server.address], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Watch:
    """Looks at a side port again and again; what has been other than 0."""

    def __init__(self, *ports):
        self.ports, self.moved, self.served, self.over = list(ports), set(), set(), False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def look(self) -> None:
        for port in self.ports:
            with contextlib.suppress(OSError):
                for line in port.metrics().splitlines():
                    name = re.sub(r"_(bucket|sum|count)$", "", re.match(r"(?:# TYPE )?(\w*)", line)[1])
                    if line.startswith("# TYPE"):
                        self.served.add(name)
                    elif not line.startswith("#") and float(line.rsplit(" ", 1)[1]) != 0:
                        self.moved.add(name)

    def run(self) -> None:
        while not self.over:
            self.look()
            time.sleep(0.02)

    def stop(self) -> None:
        self.over = True
        self.thread.join()
        self.look()


def damage(folder: pathlib.Path, value: bytes) -> None:
    """Turns a bit of it, wherever the store's file has it."""
    path = folder / "store.db"
    data = bytearray(path.read_bytes())
    at = data.find(value)
    assert at >= 0
    while at >= 0:
        data[at] ^= 1
        at = data.find(value, at)
    path.write_bytes(data)


def rank(server: Server, job: str, generation: int, scope: str, number: int, size: int, request, patience: float = 30, **options):
    asked = planner_pb2.GetPlanRequest()
    asked.CopyFrom(request)
    asked.job.CopyFrom(planner_pb2.Job(id=job, generation=generation, scope=scope, rank=[number], size=size))
    for name, value in options.items():
        setattr(asked.options, name, value)
    return server.stub.GetPlan(asked, timeout=patience)


def agree(server: Server, job: str, generation: int, scope: str, size: int, request, **options) -> bytes:
    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        plans = list(pool.map(lambda n: rank(server, job, generation, scope, n, size, request, **options), range(size)))
    assert len({one.plan.plan for one in plans}) == 1
    return plans[0].plan.plan


def slow_request(settings: str):
    """Takes a while to plan."""
    make = Maker()
    x = make.placeholder((64,), DType.BF16)
    for _ in range(150):
        shard = make.placeholder((16,), DType.BF16)
        x = make.call(x, make.wait(make.gather(shard)), op="aten.mm.default", shape=(64,), dtype=DType.BF16, flags=2, flops=10**9)
    graph = make.done(x)
    graph.groups.pop()
    data = wire.to_proto(graph).SerializeToString()
    request = request_for(8)
    request.graph_digest = canonical.digest(graph)
    request.graph.CopyFrom(planner_pb2.GraphData(size=len(data), data=data))
    request.options.mode = "auto"
    request.options.settings.add(name="effort", value=settings)
    return request


def first_life(folder: pathlib.Path) -> bytes:
    """Leaves a store with a pin; some of the pinned plan, which is too large for a page that anything else is on."""
    with Server(folder, "--store-dir", str(folder / "store")) as server:
        plan = agree(server, "lost", 1, "0/fw", 2, slow_request("0"))
        profile = json.loads(ctl(server, "costs", "show", "cpu_loopback", "--json"))
        for version in (1, 2):
            profile["compute_scale"] = version
            (folder / f"profile-{version}.json").write_text(json.dumps(profile))
    return plan[len(plan) // 2:][:64]


def second_life(folder: pathlib.Path) -> list:
    """Flags of a server that has little room, on that store."""
    (folder / "tenants.toml").write_text('[[tenant]]\nname = "bounded"\nuploads = 0\n')
    return ["--store-dir", str(folder / "store"), "--store-bytes", "65536", "--plan-cache-bytes", "16384", "--graph-cache-bytes",
            "32768", "--max-pins-per-tenant", "3", "--upload-lease-ms", "300", "--upload-resume-ms", "2000", "--compute-slots", "1",
            "--tenants-file", str(folder / "tenants.toml")]


def uploads(server: Server) -> None:
    """One that breaks off and goes on, one that breaks off for good, one that nobody begins, and one that others wait for."""
    request = request_for(2000)
    data = request.graph.data

    def stream(request, *chunks: bytes, offset: int = 0, hold: threading.Event | None = None):
        yield planner_pb2.UploadGraphRequest(header=planner_pb2.UploadHeader(
            graph_digest=request.graph_digest, size=request.graph.size, content_sha256=hashlib.sha256(request.graph.data).digest(),
            resume_offset=offset))
        for chunk in chunks:
            yield planner_pb2.UploadGraphRequest(chunk=chunk)
        if hold is not None:
            hold.wait(10)

    def break_off(request) -> int:
        hold, received = threading.Event(), server.metric("bucketd_upload_received_bytes_total")
        broken = server.stub.UploadGraph.future(stream(request, request.graph.data[:100], hold=hold), timeout=30)
        query = planner_pb2.QueryUploadRequest(graph_digest=request.graph_digest,
                                               content_sha256=hashlib.sha256(request.graph.data).digest())
        wait_for(lambda: server.metric("bucketd_upload_received_bytes_total") > received, "the upload")
        waiting = server.stub.GetPlan.future(without_graph(request), timeout=20)
        wait_for(lambda: server.metric("bucketd_waiting_callers") >= 1, "who waits for it")
        waiting.cancel()
        broken.cancel()
        hold.set()
        return wait_for(lambda: server.stub.QueryUpload(query, timeout=10).committed_size, "what is kept of it")

    offset = break_off(request)
    server.stub.UploadGraph(stream(request, data[offset:], offset=offset), timeout=30)
    break_off(request_for(2001))  # given up soon: --upload-resume-ms
    assert server.stub.GetPlan(without_graph(request_for(2002)), timeout=30).HasField("graph_required")  # and stays away


def bounded(server: Server) -> None:
    """A tenant that may upload nothing, and then may."""
    request = request_for(8, tenant="bounded")
    with contextlib.suppress(grpc.RpcError):
        upload(server.stub, request)
    tenants = server.log.parent / "tenants.toml"
    for text in ("no file of this kind", '[[tenant]]\nname = "bounded"\nuploads = 1\n'):
        tenants.write_text(text)
        time.sleep(2.5)  # beyond the look at it
    upload(server.stub, request)


def live(server: Server) -> None:
    """All that a server counts, once."""
    assert agree(server, "lost", 2, "0/fw", 2, slow_request("0"))  # whose pinned plan is damaged
    for _ in range(2):
        assert server.stub.GetPlan(request_for(16), timeout=30).HasField("plan")
    for width in range(24, 24 + 8 * 40, 8):  # more than fit
        upload(server.stub, request_for(width))
        assert server.stub.GetPlan(without_graph(request_for(width)), timeout=30).HasField("plan")
    with contextlib.suppress(grpc.RpcError):
        server.stub.GetPlan(planner_pb2.GetPlanRequest(graph_digest=b"short"), timeout=30)
    uploads(server)
    bounded(server)
    # Ranks that wait for one that never comes; a tenant with more scopes than it may have pins.
    with contextlib.suppress(grpc.RpcError):
        rank(server, "torn", 1, "0/fw", 0, 2, request_for(8), patience=1)
    for scope in range(4):
        agree(server, "large", 1, f"0/{scope}", 2, request_for(8))
    agree(server, "larger", 1, "0/fw", 3, request_for(8))
    # Costs that change under a pinned plan.
    ctl(server, "costs", "import", str(server.log.parent / "profile-1.json"), "--name", "site")
    agree(server, "latest", 1, "0/fw", 4, request_for(8), cost_profile="site@latest")
    ctl(server, "costs", "import", str(server.log.parent / "profile-2.json"), "--name", "site")
    ctl(server, "costs", "promote", "site@2")
    agree(server, "latest", 2, "0/fw", 4, request_for(8), cost_profile="site@latest")
    # More computations than slots.
    slow = [server.stub.GetPlan.future(slow_request(str(effort)), timeout=120) for effort in (3, 4, 5)]
    assert all(one.result().HasField("plan") for one in slow)
    ctl(server, "costs", "propose", "cpu_loopback")  # from what the agents reported
    wait_for(lambda: server.metric("bucketd_partial_uploads_dropped_total"), "the end of what was broken off")
    # Nothing of the store can be read any more.
    for path in (server.log.parent / "store").glob("store.db*"):
        path.write_bytes(bytes(path.stat().st_size))
    with contextlib.suppress(grpc.RpcError):
        rank(server, "unread", 1, "0/fw", 0, 1, request_for(8), patience=5)


def agents_that_fail(folder: pathlib.Path, planner: str, watch: Watch, wrong: pathlib.Path) -> None:
    """A group one of which dies, and one whose wires turn bits while the file `wrong` is there (tests/gpu_agent/fake_gpus.cc)."""
    (folder / "dying").mkdir()
    with agents(folder / "dying", planner, 2, "--profile", "cpu_loopback", group="dying") as group:
        watch.ports += group
        group[1].end(signal.SIGKILL)
        wait_for(lambda: not group[0].ready(), "the other to notice")
        watch.look()
    (folder / "wrong").mkdir()
    with agents(folder / "wrong", planner, 2, "--backend", "nccl", "--probe-when", "always", group="wrong") as group:
        watch.ports += group
        wrong.touch()
        wait_for(lambda: group[0].metric("bucket_agent_verify_mismatches_total") > 0, "wrong elements")
        watch.look()


def trainers(folder: pathlib.Path, watch: Watch) -> None:
    """Two that report all that there is, one that is no trainer, and one that lies."""
    with Watcher(folder, "--telemetry-job", "llama") as agent:
        watch.ports.append(agent)
        rings = [ForgedRing(agent.socket, "llama", part=part) for part in (1, 2)]
        kernels = [ForgedRing(agent.socket, "llama", plan=0) for _ in rings]  # of NCCL's profiler plugin in the same two
        for step, (kind, size) in enumerate((kind, 1 << bits) for kind in KINDS for bits in (10, 20, 24, 28, 30)):
            for ring in rings:
                ring.ran(step, 0, kind, size)
            for ring, plan in itertools.product(kernels, (0, 1)):
                ring.ran(step, KINDS[kind], kind, size, plan=plan)
        rings[0].ran(99, kind="no collective")
        rings[0].dropped(5)
        wrong = [ForgedRing(agent.socket, seals=0), ForgedRing(agent.socket)]
        wait_for(lambda: agent.total("bucket_agent_trainers") == 3, "the one that will lie")
        wrong[1].count(1000)
        wait_for(lambda: agent.total("bucket_agent_telemetry_records_total", "read") == (2 + 4) * 15, "the records")
        wait_for(lambda: agent.total("bucket_agent_telemetry_errors_total") == 2, "the errors")
        assert agent.total("bucket_agent_telemetry_records_total", "invalid") == 1
        assert agent.total("bucket_agent_telemetry_records_total", "dropped") == 5
        labels = [(kind, size) for kind in KINDS for size in ("64KiB", "1MiB", "16MiB", "256MiB", "more")]
        for kind, size in labels:
            of = ('training="llama"', f'collective="{kind}"', f'size="{size}"')
            assert agent.total("bucket_agent_bucket_wire_seconds_count", *of) == 2, of
        watch.look()
