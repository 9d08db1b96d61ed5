"""Every query of the dashboards and rules, asked of a real Prometheus that scrapes a real server which real calls keep busy, and two
real agents."""

import concurrent.futures
import itertools
import json
import math
import pathlib
import re
import socket
import subprocess
import threading
import urllib.parse

import eventful
import grpc
import pytest
from forged_ring import KINDS, ForgedRing
from live_agents import BINARY, Watcher, agents
from live_postgres import postgres
from live_server import Server, get, request_for, upload, without_graph
from waiting import wait_for

from bucketd._wire.proto import planner_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
METRIC = re.compile(r"\bbucket(?:d|_agent)_[a-z0-9_]+")
RECORDED = re.compile(r"instance(?:_training)?:bucket(?:d|_agent)_\w+:\w+")
WINDOW = "40s"  # what Grafana would make of $__rate_interval, at the scrape interval of this test


def keep_busy(server: Server, round_number: int) -> None:
    """Misses, hits, an upload, errors, a job that agrees and one that does not."""
    width = 8 * (1 + round_number)
    stub = server.stub
    for _ in range(3):
        assert stub.GetPlan(request_for(width), timeout=30).HasField("plan")
    large = request_for(width + 1)
    upload(stub, large)
    assert stub.GetPlan(without_graph(large), timeout=30).HasField("plan")
    assert stub.GetPlan(request_for(width + 2, cached_only=False), timeout=30).HasField("plan")
    assert stub.GetPlan(without_graph(request_for(width + 3)), timeout=30).HasField("graph_required")
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
    with Server(tmp_path_factory.mktemp("server"), "--store-dir", str(tmp_path_factory.mktemp("store"))) as one:
        yield one


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    """What one of several servers says besides."""
    folder = tmp_path_factory.mktemp("replica")
    with postgres() as engine, Server(folder, "--store", engine.database(), "--cluster-address", f"unix:{folder}/socket") as one:
        yield one


@pytest.fixture(scope="module")
def group(server, tmp_path_factory):
    with agents(tmp_path_factory.mktemp("agents"), server.address, 2, "--profile", "cpu_loopback") as two:
        yield two


@pytest.fixture(scope="module")
def trained(server, tmp_path_factory):
    """An agent, and what makes two trainers of it report a run of a plan."""
    with Watcher(tmp_path_factory.mktemp("watch"), "--planner", server.address, "--profile", "cpu_loopback", "--telemetry-every", "500ms",
                 "--telemetry-job", "llama") as agent:
        # Their buckets, and what NCCL's profiler plugin sees: torch's own collectives, and the buckets' kernels.
        rings = [ForgedRing(agent.socket, "llama", plan=plan) for plan in (7, 0) for _ in range(2)]
        steps = itertools.count()

        def run():
            step = next(steps)
            for ring in rings:
                for bucket, kind in enumerate(KINDS):
                    for plan in (7,) if ring.plan else (0, 1):
                        ring.ran(step, bucket, kind, plan=plan)

        yield agent, run
        for ring in rings:
            ring.close()


class Prometheus:
    """A real one, which scrapes servers and their agents every second and evaluates our rules as often."""

    def __init__(self, folder: pathlib.Path, targets: list, agent_targets: list):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        (folder / "rules.yml").write_text((PROMETHEUS / "rules.yml").read_text())
        text = (PROMETHEUS / "prometheus.yml").read_text().replace("15s", "1s").replace("127.0.0.1:9461", '", "'.join(targets))
        text = text.replace("127.0.0.1:9462", '", "'.join(agent_targets))
        assert all(one in text for one in [*targets, *agent_targets]) and "1s" in text
        (folder / "prometheus.yml").write_text(text)
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        while not said or "Server is ready to receive web requests" not in said[-1]:
            said.append(self.process.stdout.readline())
            assert said[-1], "".join(said)
        self.reader = threading.Thread(target=self.process.stdout.read)  # or a full pipe would stop it
        self.reader.start()

    def ask(self, query: str) -> list:
        reply = json.loads(get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        assert reply["status"] == "success", reply
        return reply["data"]["result"]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


@pytest.fixture(scope="module")
def prometheus(server, replica, group, trained, tmp_path_factory):
    watcher, train = trained
    one = Prometheus(tmp_path_factory.mktemp("prometheus"), [server.http, replica.http], [agent.http for agent in [*group, watcher]])
    try:
        # A rate needs a sample before and one after what it counts.
        for k in range(2):
            seen = f'bucketd_plan_requests_total{{outcome="hit"}} >= {2 * k}'
            wait_for(lambda: one.ask(seen), f"scrape {k}")
            wait_for(lambda: one.ask(f"bucket_agent_telemetry_records_total{{result='read'}} >= {k}"), f"records {k}")
            keep_busy(server, k)
            train()
        wait_for(lambda: one.ask('bucketd_plan_requests_total{outcome="hit"} >= 4'), "the last scrape")
        wait_for(lambda: one.ask("instance:bucketd_compute_seconds:p95_rate30m"), "the rules")
        wait_for(lambda: len(one.ask("instance:bucket_agent_predicted:p50_rate30m > 0")) == 2, "both agents' probes")
        wait_for(lambda: one.ask("instance_training:bucket_agent_bucket_predicted:p50_rate30m > 0"), "the trainers")
        yield one
    finally:
        one.stop()


def queries() -> list:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                found.append(pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}"))
    assert len(found) > 50, "the dashboards were not found"
    return found


@pytest.mark.parametrize("query", queries())
def test_a_dashboards_query_returns_data(prometheus, query):
    query = query.replace("$__rate_interval", WINDOW).replace("$instance", ".*").replace("$training", ".*")
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
        assert dashboard["uid"] and dashboard["title"] and dashboard["description"] and dashboard["links"]
        variables = {one["name"] for one in dashboard["templating"]["list"]} | {"__rate_interval"}
        taken = {}
        for panel in dashboard["panels"]:
            place, title = panel["gridPos"], panel["title"]
            assert place["x"] + place["w"] <= 24, title
            for cell in itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])):
                assert taken.setdefault(cell, title) == title, f"{title} lies over {taken[cell]}"
            if panel["type"] == "row":
                continue
            assert panel["targets"] and panel["description"] and panel["datasource"]["uid"] == "${source}", title
            assert panel["fieldConfig"]["defaults"]["unit"] in ("s", "bytes", "Bps", "percentunit", "reqps", "ops", "short", "none"), title
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), title
            for target in panel["targets"]:
                assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables, title
                assert panel["type"] == "stat" or target["legendFormat"], title
                assert " / " not in target["expr"] or re.search(r" > 0\)+$", target["expr"]), f"{title} shows NaN where nothing is done"


# Of the store, and not of the server that says them.
SHARED = ("bucketd_pins", *(f"bucketd_store_{what}" for what in ("bytes", "file_bytes", "plans", "held_plans", "records", "oldest_use_seconds")))


def answers(tmp_path, query: str, series: dict, value: float):
    """That a query makes `value` of these series, by promtool."""
    test = {"evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query.replace("$instance", ".*"), "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": value}]}]}]}
    (tmp_path / "test.json").write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.json")], capture_output=True, text=True)
    assert done.returncode == 0, f"{query}: {done.stdout}{done.stderr}"


def planner_queries() -> list:
    (path,) = (path for path in DASHBOARDS if path.stem == "planner")
    return [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel.get("targets", [])]


def test_three_replicas_of_a_store_show_it_once(tmp_path):
    shown = {what: [query for query in planner_queries() if f"{what}{{" in query] for what in SHARED}
    assert all(shown.values()), shown
    for what, asked in shown.items():
        for query in asked:
            answers(tmp_path, query, {f'{what}{{instance="{which}"}}': "7x20" for which in "abc"}, 7)


def test_what_exceeds_a_quota_is_no_error_of_the_server_on_the_dashboard(tmp_path):
    """Nor is it in the alert (rules_test.yml): of 100 calls a minute 20 exceed a quota, 5 find the store away."""
    (query,) = (query for query in planner_queries() if "DATA_LOSS" in query)
    calls = {"OK": 75, "RESOURCE_EXHAUSTED": 20, "UNAVAILABLE": 5}
    series = {f'bucketd_requests_total{{instance="a",method="GetPlan",code="{code}"}}': f"0+{calls[code]}x20" for code in calls}
    refusals = 'bucketd_tenant_quota_refusals_total{instance="a",tenant="t",quota="computations"}'
    answers(tmp_path, f"round(1000 * ({query}))", series | {refusals: "0+20x20"}, 50)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_what_a_dashboards_lists_offer_is_there(prometheus, path):
    lists = [one for one in json.loads(path.read_text())["templating"]["list"] if one["type"] == "query"]
    assert lists
    for one in lists:
        series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]["query"]).groups()
        reply = json.loads(get(f"{prometheus.url}/api/v1/label/{label}/values?{urllib.parse.urlencode({'match[]': series})}"))
        assert reply["data"], f"{path.stem}: ${one['name']} offers nothing"


def test_every_rule_is_healthy_and_every_recording_has_data(prometheus):
    def rules():
        groups = json.loads(get(prometheus.url + "/api/v1/rules"))["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else []

    found = wait_for(rules, "the rules to be evaluated")
    assert [rule["name"] for rule in found if rule["health"] != "ok"] == []
    recorded = [rule["name"] for rule in found if rule["type"] == "recording"]
    assert len(recorded) >= 6
    for name in recorded:  # one is made of others, which were recorded a round before
        wait_for(lambda name=name: prometheus.ask(name), f"data of {name}")


def metrics_named(text: str) -> set:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(RECORDED.sub("", text))}


def all_named() -> set:
    files = [PROMETHEUS / "rules.yml", PROMETHEUS / "rules_test.yml", ROOT / "deploy" / "README.md", ROOT / "README.md", *DASHBOARDS]
    return set().union(*(metrics_named(path.read_text()) for path in files))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """What a server and its agents serve, and what of it moved while all happened that they count."""
    folder = tmp_path_factory.mktemp("eventful")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUCKETD_CUDA_MODULE", str(BINARY.parents[1] / "tests" / "libfake_gpus.so"))
        patch.setenv("FAKE_NCCL_WRONG", str(folder / "wrong-bits"))
        eventful.damage(folder / "store", eventful.first_life(folder))
        with Server(folder, *eventful.second_life(folder)) as server:
            watch = eventful.Watch(server)
            try:
                eventful.agents_that_fail(folder, server.address, watch, folder / "wrong-bits")
                eventful.trainers(folder, watch)
                eventful.live(server)
            finally:
                watch.stop()
    return watch


def test_every_metric_that_is_named_anywhere_is_served(watched, replica):
    assert len(all_named()) > 50
    assert sorted(all_named() - watched.served - metrics_named(replica.metrics())) == []


def test_every_metric_that_is_served_is_named_for_operators(watched, replica):
    served = watched.served | metrics_named(replica.metrics())
    assert sorted(served - all_named()) == [], "on no panel, in no rule, and not in deploy/README.md"


ELSEWHERE = {
    # What cannot be read of cost profiles is small, and shares its page with what other tests here need.
    "bucketd_cost_profiles_unreadable", "bucketd_cost_records_unreadable_total",  # tests/server/cost_catalog_test.cc
    # A server with TLS.
    "bucketd_certificate_expires_seconds", "bucketd_identity_refused_calls_total",
    "bucketd_identity_reloads_total",  # tests/server/secured_test.cc
    "bucket_agent_paused",  # tests/python/test_agent_daemon.py
    # A server under attack.
    "bucketd_connections_closed_total",  # tests/attacks/test_http2.py
    "bucketd_displaced_total", "bucketd_plan_computations_dropped_total",  # tests/server/wait_test.cc
}


def test_every_metric_moves_when_what_it_counts_is_done(watched):
    assert len(watched.served) > 60
    assert watched.served - watched.moved == ELSEWHERE


def test_every_alert_has_a_test_and_a_paragraph():
    alerts = re.findall(r"alert: (\w+)", (PROMETHEUS / "rules.yml").read_text())
    assert len(alerts) > 10
    tested = (PROMETHEUS / "rules_test.yml").read_text()
    manual = (ROOT / "deploy" / "README.md").read_text()
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\b", tested), f"{alert} has no test"
        assert f"**{alert}**" in manual, f"deploy/README.md does not say what {alert} means"


def test_metrics_follow_the_conventions(server, replica, group, trained):
    for one in (server, replica, group[0], trained[0]):
        done = subprocess.run(["promtool", "check", "metrics"], input=one.metrics(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout


def test_every_series_is_there_from_the_start_at_0(tmp_path):
    with Server(tmp_path) as fresh:
        samples = [line.rsplit(" ", 1) for line in fresh.metrics().splitlines() if not line.startswith("#")]
        counters = [(name, value) for name, value in samples if re.search(r"_(total|count)\b", name)]
        assert len(counters) > 100
        # A start reads the store.
        assert [name for name, value in counters if float(value) != 0 and "bucketd_store_" not in name] == []


def test_the_rules_pass_their_own_tests():
    done = subprocess.run(["promtool", "test", "rules", str(PROMETHEUS / "rules_test.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
