"""Two tenants on one planner with mutual TLS: who changed what, and who may read it."""

import json
import os
import re
import subprocess

import grpc
import pytest
from certificates import Certificates
from live_agents import BINARY
from live_server import request_for
from planners import planner

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
                (A, "team-a", "release", "llama, bw", "plan P, generation 1, 1 rank", ""),
                (A, "team-a", "release", "llama", "generation 1", ""),
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
