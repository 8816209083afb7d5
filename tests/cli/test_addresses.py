"""Addresses of `horologe up`: a free port where none is given, and a clear error for a host that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_cli.local.topology import SystemOptions, build_topology
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = SystemOptions(http="127.0.0.1:0", clients=("tcp://127.0.0.1:0",), metrics="off")


def test_a_star_is_any_free_port(tmp_path: Path) -> None:
    options = OPTIONS._replace(models=str(tmp_path), clients=("tcp://127.0.0.1:*",))
    (endpoint,) = build_topology(options, tmp_path, {}).clients
    assert int(endpoint.removeprefix("tcp://127.0.0.1:")) > 0


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS._replace(clients=("tcp://lo:*",)),
        OPTIONS._replace(clients=("tcp://lo:0",)),
        OPTIONS._replace(http="lo:0"),
        OPTIONS._replace(metrics="lo:0"),
    ],
)
def test_the_name_of_an_interface_is_no_host(tmp_path: Path, options: SystemOptions) -> None:
    with pytest.raises(SettingsError, match=r"lo.* cannot be used"):
        build_topology(options._replace(models=str(tmp_path), insecure=True), tmp_path, {})
