"""Certificates for tests, made by the command `openssl`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: Path
    key: Path

    def replace_by(self, other: Pair) -> None:
        """Replace both files, the certificate first: for a moment they do not belong together."""
        for file, new in zip(self, other, strict=True):
            part = file.with_suffix(".part")
            part.write_bytes(new.read_bytes())
            part.replace(file)


class Authority:
    """Signs certificates. Its own one is `pair.certificate`."""

    def __init__(self, folder: Path, name: str, days: int = 2) -> None:
        self._folder = folder
        self.pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl("req", "-x509", *NEW_KEY, *self._files(self.pair), "-subj", f"/CN={name}", "-days", str(days))

    def sign(self, name: str) -> Pair:
        """Return a new certificate for 127.0.0.1 with this common name."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signed_by = ("-CA", str(self.pair.certificate), "-CAkey", str(self.pair.key))
        names = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
        _openssl("req", "-x509", *NEW_KEY, *self._files(pair), "-subj", f"/CN={name}", *names, "-days", "1", *signed_by)
        return pair

    def _files(self, pair: Pair) -> tuple[str, ...]:
        return "-keyout", str(pair.key), "-out", str(pair.certificate)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
