"""Two tenants on one planner with mutual TLS: who changed what and who may read it; what each may have."""

import hashlib
import json
import os
import re
import subprocess
import threading

import grpc
import pytest
from certificates import Certificates
from live_agents import BINARY
from live_server import request_for, upload
from planners import planner
from waiting import wait_for

from bucketd._wire.proto import planner_pb2, planner_pb2_grpc

WHO = """
[[identity]]
names = ["URI:spiffe://example.org/a"]
tenant = "team-a"
roles = ["plan", "report", "admin"]

[[identity]]
names = ["URI:spiffe://example.org/b"]
tenant = "team-b"
roles = ["plan", "report"]

[[identity]]
names = ["DNS:ops.example.org"]
tenant = "*"
roles = ["admin", "promote"]
"""
A, B, OPS = "URI:spiffe://example.org/a", "URI:spiffe://example.org/b", "DNS:ops.example.org"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = Certificates(tmp_path_factory.mktemp("tls"))
    made.make("server", "DNS:localhost")
    for name, names in {"a": A, "b": B, "ops": OPS}.items():
        made.make(name, names)
    return made


def ctl(files, address, who, *arguments, says=0):
    """What bucketctl prints; on stderr where it is to exit with another status than 0."""
    done = subprocess.run([BINARY.with_name("bucketctl"), *arguments, "--server", address], capture_output=True, text=True,
                          env={**os.environ, **files.environment(who)})
    assert done.returncode == says, done.stderr
    return done.stderr if says else done.stdout


def planner_of(files, address, who):
    """A stub, and the channel to close."""
    ca, key, cert = ((files.folder / name).read_bytes() for name in ("ca.pem", f"{who}.key", f"{who}.pem"))
    channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert))
    return planner_pb2_grpc.PlannerStub(channel), channel


def job(name, generation=0):
    return planner_pb2.Job(id=name, generation=generation, scope="bw", rank=[0], size=1)


def begun(number):
    return f"generation {number}, the default profile is cpu_loopback@1"


def audit(files, address, who, *arguments):
    """(who, tenant, what, subject, before, after), the newest first; plans and times by their names alone."""
    said = json.loads(ctl(files, address, who, "audit", "--json", "--limit", "1000", *arguments))
    plain = lambda text: re.sub(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", "T", re.sub(r"plan \w{12}", "plan P", text))  # noqa: E731
    return [tuple(plain(line.get(field, "")) for field in ("who", "tenant", "what", "subject", "before", "after"))
            for line in said.get("entries", []) if line["what"] != "epochs"]


def test_every_change_has_a_line_that_says_who_and_tenants_read_their_own(files, tmp_path):
    where = tmp_path / "store"
    with planner(*files.server_flags(WHO), "--store-dir", str(where), address="localhost:0") as running:
        address = running.address
        stub, channel = planner_of(files, address, "a")
        stub.GetPlan(request_for(8), timeout=30)  # a plan is no change of anybody's
        assert audit(files, address, "ops") == []
        for generation in (0, 1):
            stub.GetPlan(request_for(8, job=job("llama", generation)), timeout=30)
        other, other_channel = planner_of(files, address, "b")
        other.GetPlan(request_for(8, job=job("gpt")), timeout=30)
        ctl(files, address, "ops", "pin", "llama", "--tenant", "team-a", "--for", "30d")
        stub.ReleaseJob(planner_pb2.ReleaseJobRequest(job_id="llama"), timeout=30)
        ctl(files, address, "a", "evict", "--tenant", "team-a")
        ctl(files, address, "ops", "disable", "--why", "an incident")
        ctl(files, address, "ops", "enable")
        profile = tmp_path / "profile.json"
        profile.write_text(ctl(files, address, "ops", "costs", "show", "slow_network", "--json").replace("slow_network", "site"))
        ctl(files, address, "ops", "costs", "import", str(profile))
        for channel_of_one in (channel, other_channel):
            channel_of_one.close()

        of_a = [(A, "team-a", "evict", "plans of tenant=team-a", "", "1 plans gone"),
                (A, "team-a", "finish", "llama, bw", "plan P, generation 1, 1 rank", ""),
                (A, "team-a", "finish", "llama", "generation 1", ""),
                (OPS, "team-a", "keep", "llama, bw", "until T", "until T"),
                (OPS, "team-a", "keep", "llama", "until T", "until T"),
                (A, "team-a", "pin", "llama, bw", "plan P, generation 0, 1 rank", "plan P, generation 1, 1 rank"),
                (A, "team-a", "generation", "llama", begun(0), "generation 1"),
                (A, "team-a", "pin", "llama, bw", "", "plan P, generation 0, 1 rank"),
                (A, "team-a", "generation", "llama", "", begun(0))]
        of_b = [(B, "team-b", "pin", "gpt, bw", "", "plan P, generation 0, 1 rank"),
                (B, "team-b", "generation", "gpt", "", begun(0))]
        of_all = [(OPS, "*", "import", "cost profile site", "", "version 1"),
                  (OPS, "*", "enable", "planning", "off: an incident", "on"),
                  (OPS, "*", "disable", "planning", "on", "off: an incident")]
        assert sorted(audit(files, address, "ops")) == sorted(of_a + of_b + of_all)
        assert sorted(audit(files, address, "a")) == sorted(of_a)
        assert audit(files, address, "ops", "--tenant", "team-b") == of_b
        assert audit(files, address, "ops", "--tenant", "*") == of_all
        assert audit(files, address, "ops", "--who", "ops", "--what", "keep") == of_a[3:5]
        assert audit(files, address, "ops", "--since", "1h") and audit(files, address, "ops", "--what", "no such") == []
        assert "belongs to tenant" in ctl(files, address, "a", "audit", "--tenant", "team-b", says=1)
        assert "wants the role admin" in ctl(files, address, "b", "audit", says=1)
        table = ctl(files, address, "ops", "audit", "--what", "enable")
        assert re.search(rf"\d\d:\d\d\.\d+ +{re.escape(OPS)} from ipv[46]:\S+ +\* +enable +planning +off: an incident -> on", table), table

    # The lines outlive the server, and go with a copy of the store.
    copy = tmp_path / "copy"
    subprocess.run([BINARY.with_name("bucketctl"), "store", "copy", where, copy], check=True, capture_output=True)
    with planner(*files.server_flags(WHO), "--store-dir", str(copy), address="localhost:0") as running:
        assert sorted(audit(files, running.address, "ops")) == sorted(of_a + of_b + of_all)


def test_measurements_and_what_is_promoted_have_lines_too(files, tmp_path):
    samples = tmp_path / "samples.json"
    samples.write_text(json.dumps({"profile": "site", "reporter": "host-1", "samples": [
        {"kind": "all_gather", "dtype": "bf16", "group_size": 8, "bytes": 4096 << n, "picoseconds": 10**7 * (n + 1)} for n in range(3)]}))
    with planner(*files.server_flags(WHO), "--store-dir", str(tmp_path / "store"), address="localhost:0") as running:
        address = running.address
        profile = tmp_path / "profile.json"
        shown = ctl(files, address, "ops", "costs", "show", "slow_network", "--json")
        for gamma in (1.5, 2.5):
            profile.write_text(json.dumps({**json.loads(shown), "name": "site", "gamma_us": gamma}))
            ctl(files, address, "ops", "costs", "import", str(profile))
        ctl(files, address, "a", "costs", "report", str(samples))
        assert "wants the role promote" in ctl(files, address, "a", "costs", "promote", "site@2", says=1)
        ctl(files, address, "ops", "costs", "promote", "site@2")
        ctl(files, address, "ops", "costs", "rollback", "site")
        reported = [(A, "team-a", "report", "cost samples site/all_gather/bf16/8/8/", "", "3 more")]
        of_all = [(OPS, "*", "rollback", "cost profile site", "latest is version 2", "latest is version 1"),
                  (OPS, "*", "promote", "cost profile site", "latest is version 1", "latest is version 2")]
        said = audit(files, address, "ops")
        assert [line for line in said if line[2] == "report"] == reported
        assert [line for line in said if line[2] in ("promote", "rollback")] == of_all
        assert audit(files, address, "a") == reported


def test_each_identity_is_one_voter_whatever_host_it_names(files, tmp_path):
    samples = tmp_path / "samples.json"
    with planner(*files.server_flags(WHO), "--store-dir", str(tmp_path / "store"), address="localhost:0") as running:
        voters = []
        for i, who in enumerate(("a", "a", "b")):
            samples.write_text(json.dumps({"profile": "slow_network", "reporter": f"host-{i}", "samples": [
                {"kind": "all_gather", "dtype": "bf16", "group_size": 8, "bytes": 4096, "picoseconds": 10**7}]}))
            ctl(files, running.address, who, "costs", "report", str(samples))
            (held,) = json.loads(ctl(files, running.address, "ops", "costs", "list", "--json"))["samples"]
            voters.append(held["reporters"])
        assert voters == [1, 1, 2]  # by their address, which is loopback, all were one


def test_all_plans_of_a_team_are_what_its_own_admin_evicts_with_all(files, tmp_path):
    with planner(*files.server_flags(WHO), "--store-dir", str(tmp_path / "store"), address="localhost:0") as running:
        stubs, channels = zip(*(planner_of(files, running.address, who) for who in ("a", "b")))
        for stub in stubs:
            stub.GetPlan(request_for(8), timeout=30)
        assert "1 plans from memory and 1 from the store" in ctl(files, running.address, "a", "evict", "--all")
        with pytest.raises(grpc.RpcError, match="say `all` if that is meant"):
            channels[0].unary_unary("/bucketd.v1.Admin/EvictPlans")(b"", timeout=30)  # an empty selection
        assert [plan["tenant"] for plan in json.loads(ctl(files, running.address, "ops", "plans", "--json"))["plans"]] == ["team-b"]
        assert "1 plans from memory and 1 from the store" in ctl(files, running.address, "ops", "evict", "--all")
        for channel in channels:
            channel.close()


QUOTAS = """
[[tenant]]
name = "team-a"
uploads = 1
computations = 2
plan_bytes = 6000
graph_bytes = "1 MiB"
pins = 2

[[tenant]]
name = "team-b"
weight = 3
"""


class Flood:
    """Team a asks for slow plans without end, from several threads, and notes why it is refused."""

    def __init__(self, stub, threads):
        self.stub, self.over, self.why = stub, threading.Event(), []
        self.threads = [threading.Thread(target=self._ask, args=(1000 + 8 * n, 8 * threads)) for n in range(threads)]

    def _ask(self, width, step):  # never what another thread asks for: who joins it is not refused himself
        while not self.over.is_set():
            width += step
            try:
                self.stub.GetPlan(slow_request(width), timeout=60)
            except grpc.RpcError as error:
                self.why.append((error.code(), error.details()))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def slow_request(width):
    request = request_for(width)
    request.options.mode = "auto"
    request.options.settings.add(name="effort", value="9")
    return request


def test_a_tenant_that_floods_is_refused_by_name_and_the_other_is_served(files, tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(QUOTAS)
    flags = (*files.server_flags(WHO), "--tenants-file", str(tenants), "--store-dir", str(tmp_path / "store"), "--compute-slots", "1",
             "--compute-queue", "4")
    with planner(*flags, address="localhost:0") as running:
        a, channel_of_a = planner_of(files, running.address, "a")
        b, channel_of_b = planner_of(files, running.address, "b")
        known = a.GetPlan(request_for(8), timeout=30)
        with Flood(a, 8) as flood:
            wait_for(lambda: flood.why, "the first refusal")
            for width in range(8, 8 + 8 * 6, 8):
                assert b.GetPlan(request_for(width), timeout=20).HasField("plan")
                assert a.GetPlan(request_for(8), timeout=20).plan.plan == known.plan.plan  # a hit is never refused
        assert {code for code, _ in flood.why} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert all(text.startswith('tenant "team-a" has used up its quota computations: 2 plans that are computed or wait for it are '
                                   "allowed, and it has 2. come again when one of them is there") for _, text in flood.why), flood.why[0]
        hold = threading.Event()
        first = threading.Thread(target=lambda: slow_upload(a, 400, hold))
        first.start()
        wait_for(lambda: status_of(files, running.address, "a")["uploads"][0] == 1, "an upload that is under way")
        with pytest.raises(grpc.RpcError, match="quota uploads: 1 uploads at a time are allowed, and it has 1"):
            upload(a, request_for(408))
        upload(b, request_for(408))
        hold.set()
        first.join()
        upload(a, request_for(408))
        with pytest.raises(grpc.RpcError, match="quota graph_bytes: 1048576 bytes of graphs are allowed"):
            header = planner_pb2.UploadHeader(graph_digest=bytes(32), size=2 << 20, content_sha256=bytes(32))
            a.UploadGraph(iter([planner_pb2.UploadGraphRequest(header=header)]), timeout=30)

        # Of its plans the oldest made room in the store; who is asked sees his own, an operator all.
        own = status_of(files, running.address, "a")
        used, limit, refused = own["plan_bytes"]
        assert 0 < used <= limit == 6000
        assert own["computations"] == (0, 2, len(flood.why)) and own["uploads"] == (0, 1, 1)
        assert [own["tenant"] for own in json.loads(ctl(files, running.address, "b", "status", "--json"))["tenants"]] == ["team-b"]
        text = ctl(files, running.address, "ops", "status")
        assert re.search(r"tenant +team-a: .*computations 0 of 2, [\d,]+ refused", text) and "team-b: weight 3" in text
        assert "team-b" not in ctl(files, running.address, "a", "status")

        # What the file says now holds from now on; nobody restarts anything.
        tenants.write_text(QUOTAS.replace("uploads = 1", "uploads = 0"))
        wait_for(lambda: status_of(files, running.address, "a")["uploads"][1] == 0, "the new file")
        with pytest.raises(grpc.RpcError, match="0 uploads at a time are allowed"):
            upload(a, request_for(416))
        for channel in (channel_of_a, channel_of_b):
            channel.close()


def status_of(files, address, who):
    """Of a member's own tenant: by quota what is used, the limit and what was refused."""
    (own,) = json.loads(ctl(files, address, who, "status", "--json"))["tenants"]
    return {quota["name"]: (int(quota.get("used", 0)), int(quota["limit"]) if "limit" in quota else None, int(quota.get("refused", 0)))
            for quota in own["quotas"]}


def slow_upload(stub, width, hold):
    request = request_for(width)
    header = planner_pb2.UploadHeader(graph_digest=request.graph_digest, size=request.graph.size,
                                      content_sha256=hashlib.sha256(request.graph.data).digest())

    def messages():
        yield planner_pb2.UploadGraphRequest(header=header)
        hold.wait(20)
        yield planner_pb2.UploadGraphRequest(chunk=request.graph.data)

    stub.UploadGraph(messages(), timeout=30)


def test_a_job_beyond_the_quota_of_pins_runs_with_its_plan_and_without_a_pin(files, tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(QUOTAS)
    with planner(*files.server_flags(WHO), "--tenants-file", str(tenants), "--store-dir", str(tmp_path / "store"),
                 address="localhost:0") as running:
        a, channel = planner_of(files, running.address, "a")
        for name in ("one", "two"):
            assert a.GetPlan(request_for(8, job=job(name)), timeout=30).HasField("plan")
        ctl(files, running.address, "a", "pin", "one", "--tenant", "team-a", "--for", "30d")
        ctl(files, running.address, "a", "pin", "two", "--tenant", "team-a", "--for", "30d")
        assert a.GetPlan(request_for(8, job=job("three")), timeout=30).HasField("plan")
        assert status_of(files, running.address, "a")["pins"][:2] == (2, 2)
        assert status_of(files, running.address, "a")["pins"][2] > 0
        assert audit(files, running.address, "a", "--what", "pin") == [
            (A, "team-a", "pin", f"{name}, bw", "", "plan P, generation 0, 1 rank") for name in ("two", "one")]
        channel.close()
