"""TLS that offers to resume: a session never stands for a certificate that is over, or for names that its holder has no more."""

import contextlib
import socket
import ssl
import struct
import time

import pytest
from certificates import Certificates, identities
from planners import planner

WHO = identities("URI:spiffe://example.org/train/*", "URI:spiffe://example.org/other/*", "DNS:ops.example.org")
LASTS = 6  # seconds, which the first connections have to fit into
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def files(tmp_path):
    made = Certificates(tmp_path / "tls")
    made.make("server", "DNS:localhost")
    made.make("rank", "URI:spiffe://example.org/train/rank")
    return made


@pytest.fixture
def running(files):
    with planner(*files.server_flags(WHO), address="localhost:0") as one:
        yield one


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


CALL = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, b"".join(
    header(*each) for each in [(":method", "POST"), (":scheme", "https"), (":path", "/bucketd.v1.Planner/GetCapabilities"),
                               (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")])) + frame(0, 1, 1, bytes(5))


class Client(contextlib.AbstractContextManager):
    """Keeps sessions, as gRPC's clients do not."""

    def __init__(self, address: str, files: Certificates, version: ssl.TLSVersion):
        self._to = ("localhost", int(address.rsplit(":", 1)[1]))
        self._tls = ssl.create_default_context(cafile=files.folder / "ca.pem")
        self._tls.minimum_version = self._tls.maximum_version = version
        self._tls.set_alpn_protocols(["h2"])
        self._files = files
        self._connection = contextlib.ExitStack()
        self.session = None

    def __exit__(self, *_) -> None:
        self._connection.close()

    def show(self, name: str) -> None:
        """The certificate of new handshakes."""
        self._tls.load_cert_chain(self._files.folder / f"{name}.pem", self._files.folder / f"{name}.key")

    def answered(self) -> bool:
        """Whether one call is, on a connection that resumes the last one's session where the server lets it. OSError where the
        server wants no connection."""
        with contextlib.ExitStack() as new:
            plain = new.enter_context(socket.create_connection(self._to, timeout=20))
            secured = new.enter_context(self._tls.wrap_socket(plain, server_hostname="localhost", session=self.session))
            secured.sendall(CALL)
            answer = self._answer(new.enter_context(secured.makefile("rb")))
            # What came before the answer was read: tickets too.
            self.resumed, self.session = secured.session_reused, secured.session
            self._connection.close()  # and not before: what has no ticket is known while its connection lasts
            self._connection = new.pop_all()
            return answer

    def _answer(self, received) -> bool:
        while True:
            head = received.read(9)
            if len(head) < 9:
                raise ConnectionError("the server has closed the connection")
            received.read(int.from_bytes(head[:3], "big"))
            if head[3] in (0, 1) and int.from_bytes(head[5:], "big") == 1:
                if head[3] == 0:  # a message
                    return True
                if head[4] & 1:  # an error, which has none
                    return False


def test_a_session_is_of_no_use_once_its_certificate_is_over(running, files):
    files.make("short", "URI:spiffe://example.org/train/short", seconds=LASTS)
    over = time.time() + LASTS
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(running.address, files, version)) for version in VERSIONS]
        for client in clients:
            client.show("short")
            assert client.answered()
        assert time.time() < over, "the machine was too busy"
        time.sleep(over + 1.5 - time.time())
        for client in clients:
            with pytest.raises(OSError):
                client.answered()
            client.show("rank")
            assert client.answered(), "what was wrong is the certificate"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_does_not_stand_for_names_that_its_holder_had_before(running, files, version):
    with Client(running.address, files, version) as client:
        client.show("rank")
        assert client.answered()
        files.make("rank", "URI:spiffe://example.org/nobody")
        client.show("rank")
        assert not client.answered(), "these names have no entry"
        assert not client.resumed and not client.session.has_ticket, "nor is one handed out in vain"
