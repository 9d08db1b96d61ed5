"""A planner with mutual TLS, and all who call it: the Python client, training ranks, agents, operators."""

import json
import os
import pathlib
import subprocess
import threading
import time

import pytest
from certificates import Certificates, identities
from layered_graphs import MESH, ask, layers, options
from live_agents import BINARY, agents
from planners import planner
from ranks import run_ranks
from waiting import wait_for

import bucketd
from bucketd import asking, breaker, canonical, degraded
from bucketd.agreement import Agreement
from bucketd.client import PlannerClient
from bucketd.errors import PlannerError
from bucketd.settings import Settings

WHO = identities("URI:spiffe://example.org/train/*", "URI:spiffe://example.org/other/*", "DNS:ops.example.org")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = Certificates(tmp_path_factory.mktemp("tls"))
    made.make("server", "DNS:localhost")
    made.make("rank", "URI:spiffe://example.org/train/rank")
    made.make("ops", "DNS:ops.example.org")
    return made


@pytest.fixture(scope="module")
def running(files):
    with planner(*files.server_flags(WHO), address="localhost:0") as one:
        yield one


def ctl(files, address: str, *arguments: str, who: str = "ops") -> dict:
    done = subprocess.run([BINARY.with_name("bucketctl"), *arguments, "--server", address, "--json"], capture_output=True, text=True,
                          env={**os.environ, **files.environment(who)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(address: str, tls: bucketd.Tls | None, **more) -> PlannerError:
    client = PlannerClient(address, connect_timeout=1, tls=tls, **more)
    breaker._start_over()  # the address may have been given up for others' certificates
    try:
        with pytest.raises(PlannerError) as caught:
            ask(client, layers(), deadline=10)
        return caught.value
    finally:
        client.close()


def test_plans_are_of_the_tenant_of_the_certificate_and_operators_see_whose(running, files):
    client = PlannerClient(running.address, tls=files.tls("rank"))
    assert [ask(client, layers(8)).source for _ in range(2)] == ["computed", "hit"]
    client.close()
    assert {plan["tenant"] for plan in ctl(files, running.address, "plans")["plans"]} == {"team-a"}
    refused = refusal(running.address, files.tls("rank"), tenant="team-b")
    assert refused.reason == "TENANT_DIFFERS" and "URI:spiffe://example.org/train/rank" in refused.message
    assert refusal(running.address, files.tls("ops")).reason == "ROLE_MISSING"


def test_the_environment_names_the_files_too(running, files, monkeypatch):
    for name, value in files.environment("rank").items():
        monkeypatch.setenv(name, value)
    client = PlannerClient(running.address)
    ask(client, layers(12))
    client.close()
    with planner() as plain:  # on a unix socket, which has no TLS
        client = PlannerClient(plain.address)
        ask(client, layers(12))
        client.close()


def test_bucketctl_plans_at_a_secured_planner(running, files):
    graph = pathlib.Path(__file__).resolve().parents[1] / "data" / "graphs" / "llama3_debug_fsdp8.bw.json.gz"
    assert ctl(files, running.address, "plan", str(graph), "--effort", "0", who="rank")["cost_profile"] == "h100_nvlink@1"


def test_what_keeps_a_client_out_is_said(running, files):
    files.authority("foreign")
    files.make("stranger", "URI:spiffe://example.org/train/x", authority="foreign")
    files.make("late", "URI:spiffe://example.org/train/x", days=-1)
    files.make("unlisted", "URI:spiffe://example.org/nobody")
    assert "CERTIFICATE_VERIFY_FAILED" in refusal(running.address, files.tls("rank", ca="foreign")).message
    for name in ("stranger", "late"):
        assert refusal(running.address, files.tls(name)).reason == "UNREACHABLE"
    unlisted = refusal(running.address, files.tls("unlisted"))
    assert unlisted.reason == "CALLER_UNKNOWN" and "URI:spiffe://example.org/nobody" in unlisted.message
    absent = refusal(running.address, bucketd.Tls("/nowhere/ca.pem"))
    assert absent.reason == "UNREACHABLE" and "/nowhere/ca.pem cannot be read: No such file" in absent.message
    assert refusal(running.address, bucketd.Tls(files.folder / "ca.pem")).reason == "UNREACHABLE"
    plain = refusal(running.address, None)
    assert plain.reason == "UNREACHABLE" and "without TLS" in plain.message


def test_a_server_under_another_name_is_not_talked_to(files):
    files.make("server2", "DNS:elsewhere.example.org")
    flags = [flag.replace("server.", "server2.") for flag in files.server_flags(WHO)]
    with planner(*flags, address="localhost:0") as other:
        assert refusal(other.address, files.tls("rank")).reason == "UNREACHABLE"


@pytest.mark.parametrize("wrong, says", [({"ca": "", "cert": "c", "key": "k"}, "BUCKETD_CLIENT_CA"),
                                         ({"ca": "a", "cert": "c"}, "BUCKETD_CLIENT_KEY"), ({"ca": "a", "key": "k"}, "cert=")])
def test_files_that_need_each_other_are_asked_for(wrong, says):
    with pytest.raises(ValueError, match=says):
        bucketd.Tls(**wrong)


def test_a_misspelt_variable_of_the_environment_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(degraded, "_said", set())
    for _ in range(2):
        assert bucketd.Tls.from_environment({"BUCKETD_CLIENT_CA_FILE": "ca.pem", "BUCKETD_JOB": "llama"}) is None
    assert ["nothing reads BUCKETD_CLIENT_CA_FILE; known are BUCKETD_CLIENT_CA, " in text for text in warned(caplog)] == [True]


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_planners_address_in_the_environment_that_is_not_read_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(degraded, "_said", set())
    monkeypatch.setenv("BUCKETD_ADDRESS", "planner:9460")
    for _ in range(2):
        one = asking.Asker(Settings.of(), Agreement(None, 0, (0,)), 0)
        assert one.ask("0/fw", layers(), canonical.digest(layers()), MESH, options()).plan
    assert ["a backend does not: this job starts a planner of its own" in text for text in warned(caplog)] == [True]


def test_certificates_of_both_sides_change_while_calls_go_on_and_none_fails(tmp_path):
    own = Certificates(tmp_path / "own")
    own.make("server", "DNS:localhost")
    own.make("rank", "URI:spiffe://example.org/train/rank")
    own.make("ops", "DNS:ops.example.org")
    with planner(*own.server_flags(WHO), "--tls-connection-age-seconds=1", address="localhost:0") as running:
        client = PlannerClient(running.address, tls=own.tls("rank"))
        failed, calls, over = [], [0], threading.Event()

        def go_on():
            while not over.is_set():
                try:
                    ask(client, layers(8))
                except Exception as error:  # whatever it is, the test is about it
                    failed.append(error)
                calls[0] += 1

        worker = threading.Thread(target=go_on)
        worker.start()
        try:
            own.make("server", "DNS:localhost")
            time.sleep(2.5)  # beyond the look at the files and the age of a connection
            own.make("rank", "URI:spiffe://example.org/other/rank")
            # Who it is now is seen in whose plans there are.
            wait_for(lambda: {plan["tenant"] for plan in ctl(own, running.address, "plans")["plans"]} == {"team-a", "team-b"},
                     "plans of the new certificate's tenant")
        finally:
            over.set()
            worker.join()
            client.close()
        assert not failed and calls[0] > 100, failed


def test_agents_meet_and_report_through_a_secured_planner(running, files, tmp_path, monkeypatch):
    for name, value in files.environment("rank").items():
        monkeypatch.setenv(name, value)
    with agents(tmp_path, running.address, 2, "--profile", "slow_network", "--link-class", "socket") as group:
        wait_for(lambda: group[0].metric('bucket_agent_cost_reports_total{result="accepted"}') >= 1, "a report")


@pytest.mark.slow
def test_ranks_train_with_plans_of_a_secured_planner(running, files):
    said = [json.loads(text.splitlines()[-1]) for text in
            run_ranks("secured_worker.py", 4, running.address, timeout=200, **files.environment("rank"))]
    for rank in said:
        assert rank["losses"][0] == rank["losses"][1]
    jobs = ctl(files, running.address, "jobs")["jobs"]
    assert {(job["tenant"], job["id"], job["state"]) for job in jobs} == {("team-a", "secured", "agreed")}
