"""Certificates made by the openssl command line, as an operator would."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import bucketd

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


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

    def make(self, name: str, names: str, authority: str = "ca", days: int = 2) -> None:
        """NAME.pem and NAME.key, for `names` as openssl has them; both replaced by mv where they were there."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        self._openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.new.key", "-out", f"{name}.csr")
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

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
