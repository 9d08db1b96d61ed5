"""Every query of the dashboards and rules, asked of a real Prometheus that scrapes a real server which real calls keep busy."""

import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import grpc
import pytest
from small_graphs import Maker

from bucketd import canonical, embedded, wire
from bucketd._wire.proto import planner_pb2, planner_pb2_grpc
from bucketd.graph import DType

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
METRIC = re.compile(r"\bbucketd_[a-z0-9_]+")
WINDOW = "40s"  # what Grafana would make of $__rate_interval, at the scrape interval of this test
PATIENCE = 90.0  # seconds, on a machine that is busy with other things


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read().decode()


def wait_for(condition, what: str):
    until = time.monotonic() + PATIENCE
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.1)


class Server:
    """A bucketd with a side port."""

    def __init__(self, folder: pathlib.Path):
        ready = folder / "ready"
        self.process = subprocess.Popen(
            [embedded.find_binary(), "--listen", f"unix:{folder}/socket", "--http", "127.0.0.1:0", "--ready-file", str(ready),
             f"--exit-with-parent={os.getpid()}", "--drain-seconds", "1", "--lame-duck-ms", "0"], stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL)
        wait_for(lambda: ready.exists() or self.process.poll() is not None, "bucketd to start")
        told = json.loads(ready.read_text())
        self.address, self.http = told["address"], told["http"]
        self.stub = planner_pb2_grpc.PlannerStub(grpc.insecure_channel(self.address))

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)

    def metrics(self) -> str:
        return get(f"http://{self.http}/metrics")


def request_for(width: int, **more) -> planner_pb2.GetPlanRequest:
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


def upload(stub, request: planner_pb2.GetPlanRequest):
    header = planner_pb2.UploadHeader(graph_digest=request.graph_digest, size=request.graph.size,
                                      content_sha256=hashlib.sha256(request.graph.data).digest())
    parts = [planner_pb2.UploadGraphRequest(header=header), planner_pb2.UploadGraphRequest(chunk=request.graph.data)]
    return stub.UploadGraph(iter(parts), timeout=30)


def keep_busy(server: Server, round_number: int) -> None:
    """Misses, hits, an upload, errors, a job that agrees and one that does not."""
    width = 8 * (1 + round_number)
    stub = server.stub
    for _ in range(3):
        assert stub.GetPlan(request_for(width), timeout=30).HasField("plan")
    large = request_for(width + 1)
    upload(stub, large)
    large.ClearField("graph")
    assert stub.GetPlan(large, timeout=30).HasField("plan")
    assert stub.GetPlan(request_for(width + 2, cached_only=False), timeout=30).HasField("plan")
    asked = request_for(width + 3)
    asked.ClearField("graph")
    assert stub.GetPlan(asked, timeout=30).HasField("graph_required")
    with pytest.raises(grpc.RpcError):
        stub.GetPlan(planner_pb2.GetPlanRequest(graph_digest=b"short"), timeout=30)

    def rank(number: int, job: str, width: int):
        who = planner_pb2.Job(id=job, generation=1, scope="0/fw", rank=[number], size=2)
        request = request_for(width, job=who)
        answer = stub.GetPlan(request, timeout=60)
        while answer.HasField("graph_required"):
            upload(stub, request)
            answer = stub.GetPlan(request, timeout=60)
        return answer

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        plans = list(pool.map(rank, (0, 1), (f"good-{round_number}",) * 2, (width, width)))
        assert plans[0].plan.plan == plans[1].plan.plan
        torn = [pool.submit(rank, n, f"torn-{round_number}", width + 8 * n) for n in (0, 1)]
        assert all(isinstance(one.exception(timeout=60), grpc.RpcError) for one in torn)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("server"))
    yield one
    one.stop()


class Prometheus:
    """A real one, which scrapes `target` every second and evaluates our rules as often."""

    def __init__(self, folder: pathlib.Path, target: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        (folder / "rules.yml").write_text((PROMETHEUS / "rules.yml").read_text())
        text = (PROMETHEUS / "prometheus.yml").read_text().replace("15s", "1s").replace("127.0.0.1:9461", target)
        assert target in text and "1s" in text
        (folder / "prometheus.yml").write_text(text)
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=self.log, stderr=subprocess.STDOUT)
        wait_for(self.is_ready, "Prometheus to start")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.log.seek(0), self.log.read())[1]
        try:
            return "Ready" in get(self.url + "/-/ready")
        except OSError:
            return False

    def ask(self, query: str) -> list:
        reply = json.loads(get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        assert reply["status"] == "success", reply
        return reply["data"]["result"]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    one = Prometheus(tmp_path_factory.mktemp("prometheus"), server.http)
    try:
        # A rate needs a sample before and one after what it counts.
        for k in range(2):
            seen = f'bucketd_plan_requests_total{{outcome="hit"}} >= {2 * k}'
            wait_for(lambda: one.ask(seen), f"scrape {k}")
            keep_busy(server, k)
        wait_for(lambda: one.ask('bucketd_plan_requests_total{outcome="hit"} >= 4'), "the last scrape")
        wait_for(lambda: one.ask("instance:bucketd_compute_seconds:p95_rate30m"), "the rules")
        yield one
    finally:
        one.stop()


def queries() -> list:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                found.append(pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}"))
    assert len(found) > 30, "the dashboards were not found"
    return found


@pytest.mark.parametrize("query", queries())
def test_a_dashboards_query_returns_data(prometheus, query):
    query = query.replace("$__rate_interval", WINDOW).replace("$instance", ".*")
    assert "$" not in query
    result = prometheus.ask(query)
    assert result, f"no series for {query}"
    values = [float(series["value"][1]) for series in result]
    assert any(not math.isnan(value) for value in values), f"nothing but NaN for {query}"


def test_dashboards_say_what_they_need():
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        assert dashboard["uid"] and dashboard["title"]
        for panel in dashboard["panels"]:
            assert panel["type"] == "row" or panel["targets"], panel["title"]
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, panel["title"]


def test_every_rule_is_healthy_and_every_recording_has_data(prometheus):
    def rules():
        groups = json.loads(get(prometheus.url + "/api/v1/rules"))["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else []

    found = wait_for(rules, "the rules to be evaluated")
    assert [rule["name"] for rule in found if rule["health"] != "ok"] == []
    recorded = [rule["name"] for rule in found if rule["type"] == "recording"]
    assert len(recorded) >= 6
    for name in recorded:
        assert prometheus.ask(name), name


def metrics_named(text: str) -> set:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(text) if not name.startswith("bucketd_requests:")}


def test_every_metric_that_is_named_anywhere_is_in_a_live_scrape(server):
    served = set(re.findall(r"^# TYPE (\S+)", server.metrics(), re.MULTILINE))
    text = (PROMETHEUS / "rules.yml").read_text()
    named = {name for name in metrics_named(re.sub(r"instance:bucketd_\w+:\w+", "", text))}
    for path in DASHBOARDS:
        named |= metrics_named(path.read_text().replace("bucketd-planner", ""))
    tests = (PROMETHEUS / "rules_test.yml").read_text()
    named |= metrics_named(re.sub(r"instance:bucketd_\w+:\w+", "", tests))
    assert len(named) > 20
    assert named - served == set()


def test_every_alert_has_a_test_and_a_paragraph():
    alerts = re.findall(r"alert: (\w+)", (PROMETHEUS / "rules.yml").read_text())
    assert len(alerts) > 10
    tested = (PROMETHEUS / "rules_test.yml").read_text()
    manual = (ROOT / "deploy" / "README.md").read_text()
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\b", tested), f"{alert} has no test"
        assert f"**{alert}**" in manual, f"deploy/README.md does not say what {alert} means"


def test_metrics_follow_the_conventions(server):
    done = subprocess.run(["promtool", "check", "metrics"], input=server.metrics(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_series_is_there_from_the_start_at_0(tmp_path):
    fresh = Server(tmp_path)
    try:
        samples = [line.rsplit(" ", 1) for line in fresh.metrics().splitlines() if not line.startswith("#")]
        counters = [(name, value) for name, value in samples if re.search(r"_(total|count)\b", name)]
        assert len(counters) > 100
        # A start reads the store.
        assert [name for name, value in counters if float(value) != 0 and "bucketd_store_" not in name] == []
    finally:
        fresh.stop()


def test_the_rules_pass_their_own_tests():
    done = subprocess.run(["promtool", "test", "rules", str(PROMETHEUS / "rules_test.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
