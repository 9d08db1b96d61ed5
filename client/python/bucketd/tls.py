"""How a client shows a planner with TLS who it is, and knows the planner."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

import grpc

from . import degraded
from .errors import PlannerError

_VARIABLES = {"ca": "BUCKETD_CLIENT_CA", "cert": "BUCKETD_CLIENT_CERT", "key": "BUCKETD_CLIENT_KEY",
              "token": "BUCKETD_CLIENT_TOKEN_FILE"}
_TOKEN = re.compile(rb"[A-Za-z0-9._-]{1,7168}")  # a planner takes no longer one


@dataclasses.dataclass(frozen=True)
class Tls:
    """Paths of files in PEM, which may be replaced while the client lives: calls after that use what is there then.

    ca     the authorities that may vouch for the planner, whose certificate has to name the host of its address
    cert   the client's own certificate, followed by those between it and its authority
    key    of that certificate, not encrypted
    token  instead of a certificate, or to be somebody else than it says: a file with a JSON Web Token (not in PEM), which goes
           with each call, over TLS alone

    ValueError where one is missing that another needs.
    """

    ca: str
    cert: str = ""
    key: str = ""
    token: str = ""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, os.fspath(getattr(self, field.name) or ""))
        if not self.ca and (self.cert or self.key or self.token):
            what = "a certificate" if self.cert or self.key else "a token"
            raise ValueError(f"tls: {what} without ca= ({_VARIABLES['ca']}): nobody would vouch for the planner")
        if bool(self.cert) != bool(self.key):
            raise ValueError(f"tls: cert= and key= ({_VARIABLES['cert']}, {_VARIABLES['key']}) go together")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Tls | None:
        """BUCKETD_CLIENT_CA, BUCKETD_CLIENT_CERT, BUCKETD_CLIENT_KEY and BUCKETD_CLIENT_TOKEN_FILE; None where none is set. Others that
        begin so are misspelt, of which a warning tells."""
        for name in sorted(set(environment).difference(_VARIABLES.values())):
            if name.startswith("BUCKETD_CLIENT_"):
                degraded.say("environment", name, f"nothing reads {name}; known are {', '.join(_VARIABLES.values())}")
        given = {name: environment.get(variable, "") for name, variable in _VARIABLES.items()}
        return cls(**given) if any(given.values()) else None

    def signature(self) -> tuple:
        """Another one whenever a file was replaced or written."""
        return tuple(_stamp(path) for path in (self.ca, self.cert, self.key, self.token))

    def credentials(self) -> grpc.ChannelCredentials:
        """Of what the files hold now. PlannerError UNREACHABLE names one that cannot be read."""
        connection = grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))
        token = (_read(self.token) or b"").strip()
        if not self.token:
            return connection
        if not _TOKEN.fullmatch(token):
            raise PlannerError("UNREACHABLE", f"tls: {self.token}: expected a JSON Web Token and nothing else")
        return grpc.composite_channel_credentials(connection, grpc.access_token_call_credentials(token.decode()))


def _stamp(path: str):
    try:
        status = os.stat(path) if path else None
    except OSError:
        return None
    return status and (status.st_ino, status.st_size, status.st_mtime_ns)


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PlannerError("UNREACHABLE", f"tls: {path} cannot be read: {error.strerror}") from error
