"""A real bucketd process for tests that look at it from outside, and calls that keep it busy."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import urllib.error
import urllib.request

import grpc
from small_graphs import Maker

from bucketd import canonical, embedded, wire
from bucketd._wire.proto import planner_pb2, planner_pb2_grpc
from bucketd.graph import DType


def get(url: str) -> str:
    """The body, whatever the status."""
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


class SidePort:
    """What a process says of itself at `http`, its side port."""

    http: str

    def page(self, path: str) -> str:
        return get(f"http://{self.http}{path}")

    def metrics(self) -> str:
        return self.page("/metrics")

    def metric(self, series: str) -> float:
        return float(re.search(rf"^{re.escape(series)} (\S+)$", self.metrics(), re.MULTILINE)[1])


class Server(SidePort):
    """A bucketd with a side port, its log in `folder`. `within`: a command that ends in running the rest of its arguments."""

    def __init__(self, folder: pathlib.Path, *flags: str, within: tuple = ()):
        self.log = folder / "log"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [*within, embedded.find_binary(), "--listen", f"unix:{folder}/socket", "--http", "127.0.0.1:0",
                 f"--exit-with-parent={os.getpid()}", "--drain-seconds", "1", "--lame-duck-ms", "0", *flags],
                stdout=subprocess.PIPE, stderr=log, text=True)
        said = self.process.stdout.readline()
        serves = re.match(r"bucketd \S+ serves on (\S+), side port http://(\S+)\n", said)
        assert serves, said + self.log.read_text()
        self.address, self.http = serves.groups()
        self.channel = grpc.insecure_channel(self.address)
        self.stub = planner_pb2_grpc.PlannerStub(self.channel)

    def stop(self):
        self.channel.close()
        self.process.terminate()
        self.process.communicate(timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def status(self) -> dict:
        return json.loads(self.page("/statusz?format=json"))


def ctl(*arguments: str, server: Server, code: int = 0) -> str:
    path = pathlib.Path(embedded.find_binary()).with_name("bucketctl")
    done = subprocess.run([path, *arguments, "--server", server.address], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def request_for(width: int, **more) -> planner_pb2.GetPlanRequest:
    """Another graph for each width, in the request."""
    make = Maker()
    shards = [make.placeholder((width,), DType.BF16) for _ in range(3)]
    x = make.placeholder((4 * width,), DType.BF16)
    for shard in shards:
        x = make.call(x, make.wait(make.gather(shard)), op="aten.mm.default", shape=(4 * width,), dtype=DType.BF16, flags=2,
                      flops=10**9)
    graph = make.done(x)
    graph.groups.pop()
    data = wire.to_proto(graph).SerializeToString()
    return planner_pb2.GetPlanRequest(
        graph_digest=canonical.digest(graph), graph=planner_pb2.GraphData(size=len(data), data=data),
        mesh=planner_pb2.Mesh(dims=[planner_pb2.MeshDim(name="dp", size=4)], device_type="cpu"),
        options=planner_pb2.PlanOptions(mode="greedy", backend="gloo"), client_version="0.1.0", **more)


def without_graph(request: planner_pb2.GetPlanRequest, **more) -> planner_pb2.GetPlanRequest:
    bare = planner_pb2.GetPlanRequest()
    bare.CopyFrom(request)
    bare.ClearField("graph")
    bare.MergeFrom(planner_pb2.GetPlanRequest(**more))
    return bare


def upload(stub, request: planner_pb2.GetPlanRequest):
    header = planner_pb2.UploadHeader(tenant=request.tenant, graph_digest=request.graph_digest, size=request.graph.size,
                                      content_sha256=hashlib.sha256(request.graph.data).digest())
    parts = [planner_pb2.UploadGraphRequest(header=header), planner_pb2.UploadGraphRequest(chunk=request.graph.data)]
    return stub.UploadGraph(iter(parts), timeout=30)
