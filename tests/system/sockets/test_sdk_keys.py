"""Keys of the SDK: CURVE over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq

from fakes.frontend import FakeFrontend, free_endpoint
from fakes.proxy import Proxy
from harness.waiting import until
from horologe import (
    Client,
    HorologeError,
    InvalidInput,
    Unauthenticated,
)
from horologe.transport.dealer import HANDSHAKES
from horologe_common.transport.keys import make_keys, service_keys

if TYPE_CHECKING:
    from pathlib import Path


X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def test_with_its_keys_a_client_is_let_in(connect: Any, keys: Path) -> None:
    endpoint = free_endpoint()
    with FakeFrontend(endpoint, keys=keys), connect(endpoint, keys=keys) as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)


def test_a_proxy_whose_frontend_restarts_refuses_no_key(connect: Any, keys: Path) -> None:
    """Docker's proxy accepts connections, and closes them while the container does not listen."""
    endpoint = free_endpoint()
    port = int(endpoint.rpartition(":")[2])
    with (
        FakeFrontend(endpoint, keys=keys),
        Proxy(port) as proxy,
        connect(f"tcp://127.0.0.1:{proxy.port}", keys=keys) as client,
    ):
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
        proxy.refuses = True
        proxy.cut()
        until(lambda: proxy.refused > 0)
        handle = client.submit("echo", X, timeout=20)
        until(lambda: proxy.refused > 2 * HANDSHAKES)
        proxy.refuses = False
        assert np.array_equal(handle.result().value, X)


@pytest.mark.parametrize("whose", ["no key at all", "a key nobody knows", "the wrong server's key"])
def test_without_a_valid_key_a_client_is_told_so(connect: Any, keys: Path, whose: str) -> None:
    endpoint = free_endpoint()
    server = service_keys(keys)[0]
    how: dict[str, Any] = {
        "no key at all": {},
        "a key nobody knows": {"server_key": server},
        "the wrong server's key": {"server_key": zmq.curve_keypair()[0], "client_key": zmq.curve_keypair()[1]},
    }[whose]
    with FakeFrontend(endpoint, keys=keys) as frontend, connect(endpoint, **how) as client:
        with pytest.raises(Unauthenticated):
            client.predict("echo", X, timeout=30)
        with pytest.raises(Unauthenticated):
            client.predict("echo", X, timeout=30)
        assert frontend.seen == []


def test_a_key_that_is_none_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="server_key"):
        Client(server_key="short")
    with pytest.raises(HorologeError):
        Client(keys=tmp_path / "nowhere")
