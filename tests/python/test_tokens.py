"""A planner that accepts tokens, and all who call it with one: the Python client, agents, operators."""

import os
import pathlib
import subprocess
import threading

import pytest
from certificates import Certificates, identities
from layered_graphs import ask, layers
from live_agents import BINARY, agents
from planners import planner
from tokens import Issuer
from waiting import wait_for

import bucketd
from bucketd import breaker, embedded
from bucketd.client import PlannerClient
from bucketd.errors import PlannerError

WHO = identities("JWT:ci/train/*", "JWT:ci/other/*", "JWT:ci/ops")


class Secured:
    """Certificates of a server, an issuer, and where the server is once it runs."""

    def __init__(self, folder: pathlib.Path):
        self.certificates = Certificates(folder)
        self.certificates.make("server", "DNS:localhost")
        self.issuer = Issuer(folder)
        self.ca = str(folder / "ca.pem")
        self.log = folder / "log"
        flags = self.certificates.server_flags(self.issuer.entry + WHO)
        self.flags = [*(flag for flag in flags if "client-ca" not in flag), "--accept-tokens", "--log-level", "debug"]
        self.address = ""

    def tls(self, name: str, token: str) -> bucketd.Tls:
        return bucketd.Tls(self.ca, token=self.issuer.write(name, token))

    def ctl(self, token: str, *arguments: str) -> subprocess.CompletedProcess:
        path = self.issuer.write("ctl.token", token)
        return subprocess.run([BINARY.with_name("bucketctl"), *arguments, "--server", self.address, "--tls-ca", self.ca, "--token-file", path],
                              capture_output=True, text=True)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    made = Secured(tmp_path_factory.mktemp("tokens"))
    with planner(*made.flags, address="localhost:0") as running:
        made.address = running.address
        yield made


def refusal(address: str, tls: bucketd.Tls) -> PlannerError:
    client = PlannerClient(address, connect_timeout=1, tls=tls)
    breaker._start_over()  # the address may have been given up for others' tokens
    try:
        with pytest.raises(PlannerError) as caught:
            ask(client, layers(), deadline=10)
        return caught.value
    finally:
        client.close()


def test_a_token_gives_tenant_and_roles_to_every_client(secured, tmp_path, monkeypatch):
    token = secured.issuer.token("train/llama")
    client = PlannerClient(secured.address, tls=secured.tls("train.token", token))
    assert [ask(client, layers(8)).source for _ in range(2)] == ["computed", "hit"]
    client.close()
    seen = secured.ctl(secured.issuer.token("ops"), "plans", "--json")
    assert seen.returncode == 0 and '"team-a"' in seen.stdout, seen.stderr
    refused = secured.ctl(token, "plans")
    assert refused.returncode == 1 and "ListPlans wants the role admin; JWT:ci/train/llama has plan, report" in refused.stderr
    monkeypatch.setenv("BUCKETD_CLIENT_CA", secured.ca)
    monkeypatch.setenv("BUCKETD_CLIENT_TOKEN_FILE", secured.issuer.write("agent.token", token))
    client = PlannerClient(secured.address)
    ask(client, layers(12))
    client.close()
    with agents(tmp_path, secured.address, 2, "--profile", "slow_network", "--link-class", "socket") as group:
        wait_for(lambda: group[0].metric('bucket_agent_cost_reports_total{result="accepted"}') >= 1, "a report")


def test_what_is_wrong_with_a_token_is_said_and_nothing_of_it(secured):
    issuer = secured.issuer
    stranger = Certificates(secured.issuer.folder / "foreign").folder
    for token, says in [(issuer.token("train/x", seconds=-120), "it expired 12"), (issuer.token("train/x", aud="other"), "not meant for"),
                        (Issuer(stranger).token("train/x"), "its signature is of no key of issuer ci"), ("a.b.c", "its header is no")]:
        refused = refusal(secured.address, secured.tls("wrong.token", token))
        assert refused.reason == "CALLER_UNKNOWN" and says in refused.message, refused
        assert token not in str(refused)
        tried = secured.ctl(token, "status")
        assert tried.returncode == 1 and says in tried.stderr and token not in tried.stderr
    assert "JWT:ci/nobody" in refusal(secured.address, secured.tls("wrong.token", issuer.token("nobody"))).message
    for text, says in [("", "expected a JSON Web Token"), ("two words", "expected a JSON Web Token"), ("x" * 7169, "expected a JSON Web Token")]:
        refused = refusal(secured.address, secured.tls("wrong.token", text))
        assert refused.reason == "UNREACHABLE" and "wrong.token: " + says in refused.message
        assert "two words" not in refused.message
    absent = refusal(secured.address, bucketd.Tls(secured.ca, token="/nowhere/token"))
    assert "/nowhere/token cannot be read: No such file" in absent.message
    assert "with no certificate" in refusal(secured.address, bucketd.Tls(secured.ca)).message
    tried = subprocess.run([BINARY.with_name("bucketctl"), "status", "--server", secured.address, "--token-file", issuer.folder / "ctl.token"],
                           capture_output=True, text=True)
    assert tried.returncode == 2 and "--tls-ca" in tried.stderr  # where it would go out in clear text
    with pytest.raises(ValueError, match="a token without ca="):
        bucketd.Tls("", token="token")


def test_no_log_holds_a_token(tmp_path):
    made = Secured(tmp_path)
    tokens = [made.issuer.token("train/x"), made.issuer.token("train/x", seconds=-120), made.issuer.token("nobody")]
    with open(made.log, "w") as log:
        server = subprocess.Popen([embedded.find_binary(), "--listen", "localhost:0", "--http", "", "--ready-file", tmp_path / "ready",
                                   f"--exit-with-parent={os.getpid()}", *made.flags], stdout=log, stderr=log)
    try:
        wait_for(lambda: "serves on" in made.log.read_text(), "the server")
        made.address = "localhost:" + made.log.read_text().split("serves on localhost:")[1].split()[0].rstrip(",;")
        for number, token in enumerate(tokens):
            tls = made.tls("some.token", token)
            if number:
                assert refusal(made.address, tls).reason == "CALLER_UNKNOWN"
            else:
                client = PlannerClient(made.address, tls=tls)
                ask(client, layers(8))
                client.close()
        assert made.ctl(made.issuer.token("ops"), "status").returncode == 0
    finally:
        server.terminate()
        server.wait()
    said = made.log.read_text()
    assert "it expired" in said and "JWT:ci/nobody" in said  # it is the log of these calls
    for token in tokens:
        for part in token.split(".")[1:]:
            assert part not in said


def test_tokens_and_their_issuers_keys_change_while_calls_go_on_and_none_fails(tmp_path):
    """Keys as issuers roll them: the new one is known before it signs, the old one goes when what it signed has been replaced."""
    made = Secured(tmp_path)
    with planner(*made.flags, address="localhost:0") as running:
        made.address = running.address
        tls = made.tls("rank.token", made.issuer.token("train/x"))
        client = PlannerClient(running.address, tls=tls)
        failed, calls, over = [], [0], threading.Event()

        def go_on():
            while not over.is_set():
                try:
                    ask(client, layers(8))
                except Exception as error:  # whatever it is, the test is about it
                    failed.append(error)
                calls[0] += 1

        def tenants() -> str:
            return made.ctl(made.issuer.token("ops"), "plans", "--json").stdout

        worker = threading.Thread(target=go_on)
        worker.start()
        try:
            wait_for(lambda: "team-a" in tenants(), "plans of the first token")
            made.issuer.write("rank.token", made.issuer.token("other/x"))
            wait_for(lambda: "team-b" in tenants(), "plans of the second token")
            old = (tmp_path / "ci.pem").read_text()
            made.issuer.renew()
            made.issuer.write("ci.pem", old + (tmp_path / "ci.pem").read_text())
            wait_for(lambda: made.ctl(made.issuer.token("ops"), "status").returncode == 0, "the new key")
            made.issuer.write("rank.token", made.issuer.token("train/x"))
            before = calls[0]
            wait_for(lambda: calls[0] > before + 50, "calls with it")
        finally:
            over.set()
            worker.join()
            client.close()
        assert not failed, failed[:3]
