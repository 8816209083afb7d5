"""TLS of HTTP and gRPC: settings in table `[tls]`, and the certificates, which are read again when they change."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_common.service.user_files import read_file
from horologe_common.status import describe_error


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS of the HTTP server and of the gRPC server. Changed files are read again, without a restart."""

    certificate_file: str = ""
    """File of the certificate chain of HTTP and gRPC, in PEM. Empty: no TLS."""
    private_key_file: str = ""
    """File of the private key of the certificate, in PEM, without a passphrase."""
    client_ca_file: str = ""
    """File of the authorities, in PEM, of which a client needs a certificate (mutual TLS). Empty: it needs none."""


NO_TLS = TlsSettings()


class Certificates:
    """The loaded certificates. `version` grows with each `load`."""

    context: ssl.SSLContext
    """For the connections of HTTP that are accepted from now on."""
    pair: tuple[bytes, bytes]
    """Private key and certificate chain."""
    client_ca: bytes | None = None
    """The authorities of clients. None: clients need no certificate."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self.version = 0

    @property
    def files(self) -> list[str]:
        """Paths of the files."""
        return [file for file in msgspec.structs.astuple(self.settings) if file]

    def load(self) -> None:
        """Read the files. Raise `SettingsError`, and keep the present certificates, if one is invalid."""
        chain, key = self._read("certificate_file"), self._read("private_key_file")
        client_ca = self._read("client_ca_file") if self.settings.client_ca_file else None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.settings.certificate_file, self.settings.private_key_file, password=_refuse)
        except (OSError, ValueError) as error:
            name, files = "tls.certificate_file, tls.private_key_file", ", ".join(self.files[:2])
            raise SettingsError(f"settings {name}: {files}: got no certificate with its key: {error}") from error
        if client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # gRPC accepts an authority that is no root too
            try:
                context.load_verify_locations(cadata=client_ca.decode())
            except (OSError, ValueError) as error:
                file = self.settings.client_ca_file
                raise SettingsError(f"setting tls.client_ca_file: {file}: got no certificate: {error}") from error
        self.context, self.pair, self.client_ca = context, (key, chain), client_ca
        self.version += 1

    def _read(self, name: str) -> bytes:
        file: str = getattr(self.settings, name)
        if not file:
            raise SettingsError(f"setting tls.{name}: got none, wanted the file that belongs to the others")
        try:
            return read_file(Path(file))
        except (OSError, ValueError) as error:
            raise SettingsError(f"setting tls.{name}: {file}: {describe_error(error)}") from error


def _refuse() -> str:
    """Refuse a key with a passphrase: OpenSSL would ask for it on the terminal."""
    raise ValueError("got a private key with a passphrase, wanted one without")
