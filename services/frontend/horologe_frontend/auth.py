"""The key file, and addresses that need keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_common.service.user_files import describe_mismatch, read_toml
from horologe_common.status import describe_error
from horologe_common.transport.keys import is_loopback_host
from horologe_frontend.core.access import KeyEntry, KeyFile

if TYPE_CHECKING:
    from horologe_frontend.core.access import Access
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.tls import TlsSettings


def check_open(http: HttpSettings, tls: TlsSettings, host: str | None = None, setting: str = "http.host") -> None:
    """Raise `SettingsError` for an address that is not loopback without keys, unless `allow_open` is set.

    Certificates of clients count as keys. `host`: address of another server with the same keys, named by `setting`.
    Default: that of the HTTP server.
    """
    host = http.host if host is None else host
    if not (http.keys_file or tls.client_ca_file or http.allow_open or is_loopback_host(host)):
        raise SettingsError(
            f"setting {setting}: {host or '*'} is not loopback and no keys are set; set http.keys_file, or "
            "http.allow_open = true (`horologe up --insecure`) to let every host use and manage all models"
        )


def load_keys(access: Access, file: str) -> None:
    """Accept the keys of a key file, and no others. Raise `SettingsError`, and change nothing, if it is invalid."""
    try:
        access.replace_keys(read_keys(file))
    except ValueError as error:
        raise SettingsError(f"setting http.keys_file: {file}: {error}") from error


def read_keys(file: str) -> dict[str, KeyEntry]:
    """Return the entries of a key file by name. Raise `SettingsError` if it is invalid, or holds no entry."""
    try:
        document = read_toml(Path(file))
        try:
            entries = msgspec.convert(document, KeyFile).keys
        except msgspec.ValidationError as error:
            raise ValueError(describe_mismatch(error, document)) from error
    except (OSError, ValueError) as error:
        hint = "" if isinstance(error, OSError) else "; `horologe keys DIR` converts the files of version 0.2.0"
        raise SettingsError(f"setting http.keys_file: {file}: {describe_error(error)}{hint}") from error
    if not entries:
        raise SettingsError(f"setting http.keys_file: {file}: got no key, wanted at least one")
    return entries
