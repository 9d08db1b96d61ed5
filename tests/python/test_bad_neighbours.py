"""Neighbours that cannot be trusted: a replica or a database whose certificate has run out, is another authority's, or is for another
name. Whoever it concerns is told which place that is, nothing is lost, and all goes on when it is put right. (Peers that lie:
tests/server/cluster_test.cc. Other schemas: test_rolling_restart.py. Databases that refuse: tests/faults/refusals.py.)"""

import contextlib
import os
import pathlib
import shutil
import socket
import ssl
import struct
import subprocess

import grpc
import pytest
from certificates import Certificates
from live_postgres import postgres
from live_server import request_for
from planners import planner
from test_replicas import PEERS, at_once, plans_of
from waiting import wait_for

from bucketd import embedded
from bucketd._wire.proto import planner_pb2, planner_pb2_grpc

CLOCK = pathlib.Path(embedded.find_binary()).parents[1] / "tests" / "libjumping_clock.so"
DAY = 24 * 3600 * 10**9
WHERE = "127.55.0.7"  # of an engine that others on this machine do not listen for


class Secured:
    """Two replicas, each with files of its own and one authority, and ranks that know it. The first one's wall clock can be turned."""

    def __init__(self, folder: pathlib.Path, url: str, stack: contextlib.ExitStack, monkeypatch):
        self._clock = folder / "clock"
        self.turn(0)
        self.files = [Certificates(folder / which) for which in "ab"]
        for file in ("ca.pem", "ca.key"):
            shutil.copy(self.files[0].folder / file, self.files[1].folder)
        self.files[0].make("rank", "URI:spiffe://example.org/train/rank")
        self.files[1].authority("foreign")
        self.addresses = []
        monkeypatch.setenv("JUMPING_CLOCK", str(self._clock))
        for number, files in enumerate(self.files):
            files.make("server", "DNS:localhost")
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.addresses.append(f"localhost:{free.getsockname()[1]}")
            with monkeypatch.context() as only:
                if number == 0:
                    only.setenv("LD_PRELOAD", str(CLOCK))
                stack.enter_context(planner("--store", url, "--cluster-address", self.addresses[-1], *files.server_flags(PEERS.format(role="peer")),
                                            address=self.addresses[-1]))

    def turn(self, days: int) -> None:
        with open(self._clock, "r+b" if self._clock.exists() else "wb") as file:  # which is mapped: it keeps its place
            file.write(struct.pack("=q", days * DAY))

    def shows(self, number: int, authority: str) -> bool:
        """Whether it shows whoever connects now a certificate of that authority."""
        context = ssl.create_default_context(cafile=self.files[1].folder / f"{authority}.pem")
        identity = self.files[0].folder
        context.load_cert_chain(identity / "rank.pem", identity / "rank.key")
        host, port = self.addresses[number].split(":")
        with contextlib.suppress(ssl.SSLError), socket.create_connection((host, int(port))) as plain, \
                context.wrap_socket(plain, server_hostname=host):
            return True
        return False

    def rank(self, at: int, rank: int, timeout: float, authority: str = "ca"):
        """As a client with a connection of its own."""
        read = lambda name, of=0: (self.files[of].folder / name).read_bytes()  # noqa: E731
        identity = grpc.ssl_channel_credentials(read(f"{authority}.pem", 1), read("rank.key"), read("rank.pem"))
        job = planner_pb2.Job(id="train", generation=1, scope="0/fw", rank=[rank], size=2)
        with grpc.secure_channel(self.addresses[at], identity, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            return planner_pb2_grpc.PlannerStub(channel).GetPlan(request_for(8, job=job), timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["foreign", pytest.param("expired", marks=pytest.mark.full)])
def test_a_replica_whose_certificate_is_no_good_is_refused_by_name_until_it_is_good(tmp_path, what, monkeypatch):
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgres()).database()
        both = Secured(tmp_path, url, stack, monkeypatch)
        authority = "foreign" if what == "foreign" else "ca"
        if what == "foreign":
            both.files[1].make("server", "DNS:localhost", authority="foreign")
            wait_for(lambda: both.shows(1, "foreign"), "the other certificate to be taken")
        first = at_once(lambda: both.rank(0, 0, timeout=100))
        wait_for(lambda: psql(url, "SELECT COUNT(*) FROM bucketd_record WHERE ENCODE(key, 'escape') LIKE 'lease/job/%'") == "1", "it to have the job")
        if what == "expired":
            both.turn(3)
        with pytest.raises(grpc.RpcError) as refused:
            both.rank(1, 1, timeout=5, authority=authority)
        assert f"the replica at {both.addresses[0]} cannot be asked: " in refused.value.details(), refused.value
        if what == "foreign":
            both.files[1].make("server", "DNS:localhost")
            wait_for(lambda: both.shows(1, "ca"), "the good certificate to be taken")
        both.turn(0)
        assert len(plans_of(first + at_once(lambda: both.rank(1, 1, timeout=60)))) == 1


def psql(url: str, *statements: str) -> str:
    asked = [part for statement in statements for part in ("-c", statement)]
    return subprocess.run(["psql", "-qtA", *asked, url], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
def test_a_database_that_cannot_show_who_it_is_is_not_talked_to(tmp_path):
    files = Certificates(tmp_path / "tls")
    files.authority("foreign")
    kinds = {"good": (WHERE, "ca", 2, ""), "foreign": (WHERE, "foreign", 2, "certificate verify failed"),
             "expired": (WHERE, "ca", -1, "certificate verify failed"), "elsewhere": ("127.55.0.8", "ca", 2, "does not match host name")}
    with postgres(f"listen_addresses={WHERE}") as engine:
        name = engine.database().partition("?")[0].rpartition("/")[2]
        url = f"postgres://bucketd@{WHERE}/{name}?sslmode=verify-full&sslrootcert={files.folder}/ca.pem"
        administrator = f"postgres://postgres@/postgres?host={engine.folder}"
        for kind, (address, authority, days, why) in [*kinds.items(), ("good", kinds["good"])]:
            files.make("engine", f"IP:{address}", authority, days)
            for ending, known_as in (("pem", "server.crt"), ("key", "server.key")):
                there = engine.folder / "data" / known_as
                shutil.copyfile(files.folder / f"engine.{ending}", there)
                there.chmod(0o600)
                if os.geteuid() == 0:
                    shutil.chown(there, "postgres", "postgres")
            psql(administrator, "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
            wait_for(lambda: shown_by_engine() == (files.folder / "engine.pem").read_text().strip(), "the engine to show that certificate")
            if why:
                with pytest.raises(AssertionError) as refused, planner("--store", url):
                    pass
                assert f"postgres://bucketd@{WHERE}" in str(refused.value) and why in str(refused.value), (kind, refused.value)
            else:
                with planner("--store", url):
                    pass


def shown_by_engine() -> str:
    """PEM, of the certificate that whoever connects is shown."""
    said = subprocess.run(["openssl", "s_client", "-starttls", "postgres", "-connect", f"{WHERE}:5432"], input="", capture_output=True, text=True).stdout
    begin = said.find("-----BEGIN CERTIFICATE-----")
    return said[begin:said.find("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")] if begin >= 0 else ""
