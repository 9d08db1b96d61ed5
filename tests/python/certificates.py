"""Certificates made by the openssl command line, as an operator would."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time

import bucketd

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_BOOKS = """
[ca]
default_ca = books
[books]
database = index.txt
new_certs_dir = .
default_md = sha256
unique_subject = no
rand_serial = yes
policy = any
[any]
commonName = supplied
"""


def identities(trainers: str, others: str, operators: str) -> str:
    """A file's text: who has these names plans and reports for team-a, plans for team-b, and has all of an operator's rights."""
    entries = [(trainers, "team-a", ["plan", "report"]), (others, "team-b", ["plan"]), (operators, "*", ["admin"])]
    return "".join(f'\n[[identity]]\nnames = ["{names}"]\ntenant = "{tenant}"\nroles = {json.dumps(roles)}\n'
                   for names, tenant, roles in entries)


class Certificates:
    """An authority of its own in `folder`, and what it signs."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority("ca")

    def authority(self, name: str) -> None:
        self._openssl("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")

    def make(self, name: str, names: str, authority: str = "ca", days: int = 2, seconds: int = 0) -> None:
        """NAME.pem and NAME.key, for `names` as openssl has them; both replaced by mv where they were there. It is over after
        `days`, or `seconds` from now."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        self._openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.new.key", "-out", f"{name}.csr")
        if seconds:
            self._sign_until(name, authority, time.time() + seconds)
        else:
            self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                          "-CAcreateserial", "-days", str(days), "-extfile", f"{name}.ext", "-out", f"{name}.new.pem")
        for ending in ("key", "pem"):
            os.replace(self.folder / f"{name}.new.{ending}", self.folder / f"{name}.{ending}")

    def tls(self, name: str, ca: str = "ca") -> bucketd.Tls:
        return bucketd.Tls(self.folder / f"{ca}.pem", self.folder / f"{name}.pem", self.folder / f"{name}.key")

    def environment(self, name: str) -> dict[str, str]:
        return {"BUCKETD_CLIENT_CA": f"{self.folder}/ca.pem", "BUCKETD_CLIENT_CERT": f"{self.folder}/{name}.pem",
                "BUCKETD_CLIENT_KEY": f"{self.folder}/{name}.key"}

    def server_flags(self, who: str) -> tuple[str, ...]:
        """Of a server with the certificate `server` and these identities."""
        (self.folder / "who.toml").write_text(who)
        flags = {"tls-certificate-file": "server.pem", "tls-key-file": "server.key", "tls-client-ca-file": "ca.pem",
                 "identities-file": "who.toml"}
        return tuple(f"--{name}={self.folder}/{file}" for name, file in flags.items())

    def _sign_until(self, name: str, authority: str, end: float) -> None:
        """The subcommand x509 counts days; this one takes a time, and wants to keep books."""
        (self.folder / "index.txt").touch()
        (self.folder / "ca.cnf").write_text(_BOOKS)
        self._openssl("ca", "-batch", "-config", "ca.cnf", "-cert", f"{authority}.pem", "-keyfile", f"{authority}.key",
                      "-enddate", time.strftime("%Y%m%d%H%M%SZ", time.gmtime(end)), "-extfile", f"{name}.ext",
                      "-in", f"{name}.csr", "-out", f"{name}.new.pem")

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
