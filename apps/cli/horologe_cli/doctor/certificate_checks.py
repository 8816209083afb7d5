"""Checks of the certificates of HTTP and gRPC: they are valid, and do not expire soon."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding
from horologe_common.service.settings import SettingsError
from horologe_frontend.tls import NO_TLS, Certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_frontend.tls import TlsSettings

SOON = timedelta(days=30)
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
LONG_FORM = 0x80
"""Bit of the first byte of a length in DER: the other bits are the number of bytes of the length that follow."""
VERSION_TAG, UTC_TIME = 0xA0, 0x17
VALIDITY = 3
"""Position after serial number, signature algorithm and issuer (RFC 5280, section 4.1)."""


def check_certificates(settings: TlsSettings, now: datetime | None = None) -> Iterator[Finding]:
    """Check each served file: warn if one of its certificates has expired, or expires within `SOON`."""
    if settings == NO_TLS:
        yield Finding("TLS", "ok", "none")
        return
    try:
        Certificates(settings).load()
    except SettingsError as error:
        yield Finding("TLS", "fail", error.reason, "services with HTTP or gRPC do not start with these settings")
        return
    now = now or datetime.now(UTC)
    for file in filter(None, (settings.certificate_file, settings.client_ca_file)):
        expiry = min(read_expiries(Path(file).read_text()))
        level = "ok" if expiry - now > SOON else "warn"
        found = f"{file}: {'expired' if expiry <= now else 'expires'} on {expiry:%Y-%m-%d %H:%M} UTC"
        hint = "clients do not connect after that: replace the file. No restart is needed" if level == "warn" else ""
        yield Finding("certificate", level, found, hint)


def read_expiries(pem: str) -> list[datetime]:
    """Return when each certificate of a PEM file expires. The `ssl` module has no public function for it."""
    return [_read_expiry(ssl.PEM_cert_to_DER_cert(block)) for block in PEM.findall(pem)]


def _read_expiry(der: bytes) -> datetime:
    _, certificate = next(_elements(der))
    _, signed = next(_elements(certificate))
    fields = [content for tag, content in _elements(signed) if tag != VERSION_TAG]
    _, (tag, content) = _elements(fields[VALIDITY])
    text = content.decode()
    if tag == UTC_TIME:  # with two digits of the year
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size >= LONG_FORM:
            count = size - LONG_FORM
            size, at = int.from_bytes(der[at : at + count], "big"), at + count
        yield tag, der[at : at + size]
        at += size
