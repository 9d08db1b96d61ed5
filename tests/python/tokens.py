"""Tokens made by the openssl command line: an issuer in a folder, and what it signs."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import subprocess
import time


class Issuer:
    """Of the name `ci` in the identities file: `entry` is its part of that file."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.renew()

    def renew(self) -> None:
        """ci.pem is a new key from then on, and what was signed before counts no more."""
        self._openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "ci.key")
        self._openssl("pkey", "-in", "ci.key", "-pubout", "-out", "ci.new")
        os.replace(self.folder / "ci.new", self.folder / "ci.pem")

    @property
    def entry(self) -> str:
        return '[[issuer]]\nname = "ci"\niss = "https://ci.example"\naudience = "bucketd"\nkeys_file = "ci.pem"\n'

    def token(self, subject: str, seconds: float = 600, **claims) -> str:
        said = {"iss": "https://ci.example", "aud": "bucketd", "sub": subject, "exp": int(time.time() + seconds), **claims}
        text = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, said))
        signature = self._openssl("dgst", "-sha256", "-sign", "ci.key", input=text.encode())
        return f"{text}.{_base64(signature)}"

    def write(self, name: str, token: str) -> str:
        """The path of a file that holds it, replaced by mv where it was there."""
        (self.folder / f"{name}.new").write_text(token + "\n")
        os.replace(self.folder / f"{name}.new", self.folder / name)
        return str(self.folder / name)

    def _openssl(self, *arguments: str, input: bytes = b"") -> bytes:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, input=input)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
