"""What every fault scenario needs: real servers that are watched, graphs without end, and callers whose every answer is checked."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc
from small_graphs import Maker
from waiting import wait_for

from bucketd import canonical, embedded, wire
from bucketd._wire.proto import planner_pb2, planner_pb2_grpc
from bucketd.errors import from_rpc_error
from bucketd.graph import Direction, DType, Role, Tag

BINARY = embedded.find_binary()
HERE = pathlib.Path(__file__).resolve().parent
# What may go wrong with a call while its server dies; all else is a finding.
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
SLACK = 10.0  # seconds that a busy machine may take to notice a deadline
_CRASH = re.compile(r"AddressSanitizer|ThreadSanitizer|runtime error:|terminate called|assert(ion)? .*failed", re.IGNORECASE)
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200), ("grpc.enable_retries", 0))


class Finding(AssertionError):
    """The server did what it must never do."""


def expect(condition, *what) -> None:
    if not condition:
        raise Finding(" ".join(str(w) for w in what))


@functools.cache
def flags_known() -> str:
    return subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout


@functools.cache
def sanitized() -> bool:
    data = pathlib.Path(BINARY).read_bytes()
    return b"__asan_init" in data or b"__tsan_init" in data


class Server:
    """A bucketd of its own, or another `program` that is one. `rss_mib` is a bound on its memory, looked at by `watch`."""

    def __init__(self, *flags: str, address: str = "", folder: str = "", rss_mib: int = 600, environment: dict | None = None, program: str = ""):
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="faults-")
        self.folder = folder or self._own.name
        self.address = address or f"unix:{self.folder}/socket"
        self.flags, self.rss_mib, self._environment, self._program = flags, rss_mib, environment, program or BINARY
        self.log = pathlib.Path(self.folder, f"log-{id(self)}")
        self.process = None
        self.http = ""
        self.peak_mib = 0.0
        self._expected_end = False
        self._begins: list[int] = []  # of its processes, in the log

    def start(self) -> Server:
        self._expected_end = False
        with open(self.log, "a") as log:
            begin = log.tell()
            self._begins.append(begin)
            self.process = subprocess.Popen(
                [self._program, "--listen", self.address, "--http", "127.0.0.1:0", f"--exit-with-parent={os.getpid()}",
                 "--lame-duck-ms", "0", "--drain-seconds", "5", *self.flags],
                stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **(self._environment or {})})
        with self.process.stdout as said:  # one line, when it serves
            serves = re.search(r" serves on (\S+), side port http://(\S+)", said.readline())
        expect(serves, "bucketd did not start:", self.log.read_text()[begin:])
        self.address, self.http = serves.groups()
        return self

    def kill(self) -> None:
        self.watch()
        self._expected_end = True
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def was_killed(self) -> bool:
        """By itself (tests/server/crash_points.cc); it may be started again then."""
        self._expected_end = self._expected_end or self.process.poll() == -signal.SIGKILL
        return self.process.poll() == -signal.SIGKILL

    def drain(self) -> None:
        """SIGTERM, and the whole orderly end."""
        self.watch()
        self._expected_end = True
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        expect(code == 0, "a drained server exits 0, this one", code, self.log.read_text()[-2000:])

    def watch(self) -> None:
        """It is alive, said nothing terrible, and has not taken more memory than it may."""
        text = self.log.read_text(errors="replace")
        found = _CRASH.search(text)
        expect(not found, "the server's log:", text[max(0, found.start() - 200):found.start() + 4000] if found else "")
        if self._expected_end:
            return
        expect(self.process.poll() is None, "the server ended by itself with", self.process.poll(), text[-3000:])
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        self.peak_mib = max(self.peak_mib, int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024)
        expect(sanitized() or self.peak_mib < self.rss_mib, f"the server took {self.peak_mib:.0f} MiB, at most",
               self.rss_mib, "were expected")

    def logs(self) -> list[str]:
        """Of each of its processes."""
        data = self.log.read_bytes()
        return [data[begin:end].decode(errors="replace") for begin, end in itertools.pairwise([*self._begins, len(data)])]

    def metric(self, name: str) -> float:
        """Sum over the labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values = [float(line.split()[-1]) for line in lines if re.match(re.escape(name) + r"(\{| )", line)]
        expect(values, "there is no metric", name)
        return sum(values)

    def eventually(self, name: str, value: float, within: float = 30.0) -> None:
        try:
            wait_for(lambda: self.metric(name) == value, f"{name} to be {value}", within)
        except AssertionError as late:
            raise Finding(f"{late}: it is {self.metric(name)}") from None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self.watch()
        finally:
            self.process.kill()
            self.process.wait()
            if self._own:
                self._own.cleanup()


# -- what is asked for

@functools.lru_cache(maxsize=256)
def model(layers: int, width: int):
    """A forward of `layers` layers of two gathered parameters each; every pair of numbers is another graph."""
    make = Maker()
    names = [f"layers.{layer}.{part}" for layer in range(layers) for part in ("up", "down")]
    shards = []
    for name in names:
        shards.append(make.placeholder((width,), DType.BF16))
        make.nodes[-1].role, make.nodes[-1].parameter = Role.PARAMETER, name
    x = make.placeholder((4 * width,), DType.BF16)
    for name, shard in zip(names, shards):
        start = make.gather(shard)
        make.nodes[start].collective.tag, make.nodes[start].collective.parameter = Tag.FSDP_ALL_GATHER, name
        x = make.call(x, make.wait(start), op="aten.mm.default", shape=(4 * width,), dtype=DType.BF16, flags=2, flops=10**9)
    graph = make.done(x)
    graph.groups.pop()
    for node in graph.nodes:
        node.direction, node.module = Direction.FORWARD, node.parameter.rpartition(".")[0]
    plain = wire.to_proto(graph).SerializeToString(deterministic=True)
    return Model(plain, canonical.digest(graph))


@dataclasses.dataclass(frozen=True)
class Model:
    plain: bytes
    digest: bytes

    @property
    def content(self) -> bytes:
        return hashlib.sha256(self.plain).digest()

    def header(self, tenant: str, offset: int = 0):
        return planner_pb2.UploadHeader(tenant=tenant, graph_digest=self.digest, size=len(self.plain),
                                        content_sha256=self.content, resume_offset=offset)

    def parts(self, tenant: str, chunk: int = 1 << 16, offset: int = 0):
        yield planner_pb2.UploadGraphRequest(header=self.header(tenant, offset))
        for at in range(offset, len(self.plain), chunk):
            yield planner_pb2.UploadGraphRequest(chunk=self.plain[at:at + chunk])


MESH = planner_pb2.Mesh(dims=[planner_pb2.MeshDim(name="dp", size=4)], device_type="cpu")
VARIANTS = [dict(mode=mode, prefetch_forward=ahead) for mode in ("transformer_block", "greedy") for ahead in (1, 2, 3)]
VARIANTS += [dict(mode="overlap"), dict(mode="none")]


@dataclasses.dataclass(frozen=True)
class Key:
    """What a plan depends on."""

    layers: int
    width: int
    variant: int
    tenant: str = ""

    @property
    def model(self) -> Model:
        return model(self.layers, self.width)

    def request(self, **more):
        return planner_pb2.GetPlanRequest(
            tenant=self.tenant, graph_digest=self.model.digest, mesh=MESH, client_version="0.1.0",
            options=planner_pb2.PlanOptions(backend="gloo", **VARIANTS[self.variant]), **more)

    def inline(self):
        return self.request(graph=planner_pb2.GraphData(size=len(self.model.plain), data=self.model.plain))


def random_key(rng: random.Random, widths: int = 40, layers=(2, 40)) -> Key:
    return Key(rng.randint(*layers), 8 * rng.randint(1, widths), rng.randrange(len(VARIANTS)), rng.choice(["", "a", "b"]))


# -- callers

def channel_to(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=_CHANNEL)


class Caller:
    """One connection; every answer is looked at."""

    def __init__(self, address: str):
        self.channel = channel_to(address)
        self.stub = planner_pb2_grpc.PlannerStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def ask(self, key: Key, deadline: float, inline: bool = False):
        """The PlanReply, the graph sent where it is wanted. RpcError if there is none by the deadline."""
        until = time.monotonic() + deadline
        request = key.inline() if inline else key.request()
        try:
            while True:
                left = max(0.001, until - time.monotonic())
                answer = self.stub.GetPlan(request, timeout=left)
                if answer.HasField("plan"):
                    expect(hashlib.sha256(answer.plan.plan).digest() == answer.plan.plan_sha256, "a torn plan for", key)
                    return answer.plan
                expect(answer.HasField("graph_required") and not inline, "no plan and nothing asked for:", key)
                self.stub.UploadGraph(key.model.parts(key.tenant), timeout=max(0.001, until - time.monotonic()))
        finally:
            late = time.monotonic() - until
            expect(late < SLACK, f"a call ended {late:.1f} s after its deadline:", key)

    def cached(self, key: Key):
        """The plan if there is one, without asking for a computation; else None."""
        try:
            return self.stub.GetPlan(key.request(cached_only=True), timeout=30).plan
        except grpc.RpcError as error:
            failure = reason_of(error)
            expect(failure.reason == "PLAN_NOT_CACHED", "cached_only:", failure)
            return None


def reason_of(error: grpc.RpcError):
    return from_rpc_error(error, "the server", "a call")


class Reference:
    """A server to which nothing happens: what the plans should be."""

    def __init__(self):
        self.server = Server()
        self._plans: dict[Key, bytes] = {}

    def __enter__(self) -> Reference:
        self.server.start()
        self._caller = Caller(self.server.address)
        return self

    def __exit__(self, *arguments) -> None:
        self._caller.close()
        self.server.__exit__(*arguments)

    def plan(self, key: Key) -> bytes:
        if key not in self._plans:
            self._plans[key] = self._caller.ask(key, 60, inline=len(key.model.plain) < 200_000).plan
        return self._plans[key]

    def check(self, acknowledged: dict[Key, bytes], note: str) -> None:
        for key, plan in acknowledged.items():
            expect(plan == self.plan(key), f"a wrong plan ({note}):", key)


class Load:
    """Callers that ask for random plans until they are told to stop, and remember what they were given."""

    def __init__(self, address: str, rng: random.Random, callers: int = 4, deadline: float = 20.0, tolerated=(), **keys):
        self.acknowledged: dict[Key, bytes] = {}
        self.errors: list[str] = []
        self.findings: list[BaseException] = []
        self.answers = 0
        self._address, self._deadline, self._tolerated, self._keys = address, deadline, tolerated, keys
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(rng.random()),)) for _ in range(callers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self._deadline + 3 * SLACK)
            expect(kind is not None or not thread.is_alive(), "a caller is stuck")
        if kind is None and self.findings:
            raise self.findings[0]

    def snapshot(self) -> dict[Key, bytes]:
        with self._lock:
            return dict(self.acknowledged)

    def wait_for_more(self, answers: int) -> None:
        with self._answered:
            enough = self.answers + answers
            came = self._answered.wait_for(lambda: self.answers >= enough or self.findings, 60)
            expect(came, "nobody is answered any more")

    def _run(self, rng: random.Random) -> None:
        caller = Caller(self._address)
        try:
            while not self._stop.is_set():
                key = random_key(rng, **self._keys)
                try:
                    self._take(key, caller.ask(key, self._deadline, inline=rng.random() < 0.5))
                except grpc.RpcError as error:
                    failure = reason_of(error)
                    expect(failure.code in GONE or failure.reason in self._tolerated, key, failure, error.code())
                    with self._lock:
                        self.errors.append(failure.reason)
                    self._stop.wait(0.02)
        except BaseException as finding:
            self.findings.append(finding)
        finally:
            caller.close()

    def _take(self, key: Key, reply) -> None:
        with self._lock:
            self.answers += 1
            self._answered.notify_all()
            before = self.acknowledged.setdefault(key, reply.plan)
        expect(before == reply.plan, "two plans for one key:", key)


@contextlib.contextmanager
def victim(address: str, *arguments: str):
    """A client process that will be killed; its stdout says what it has done."""
    process = subprocess.Popen([sys.executable, str(HERE / "victim.py"), address, *arguments], stdout=subprocess.PIPE,
                               text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
